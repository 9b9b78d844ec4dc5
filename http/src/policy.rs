use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tollgate::{Limit, LimitKind};

/// The promise of a limit: a quota, and how long that quota takes to come back. A rate of ten a minute with a capacity
/// of twenty could read `q=10;w=60`, but then `r` would exceed `q` for a rested client.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Policy {
    pub(crate) name: String,
    /// Whole tokens, rounded down.
    pub(crate) quota: u64,
    /// Whole seconds, rounded up; `None` for less than one second.
    pub(crate) window: Option<u64>,
}

impl From<&Limit> for Policy {
    fn from(limit: &Limit) -> Self {
        Self { name: printable(limit.name()), quota: limit.most().whole().unsigned_abs(), window: window(limit) }
    }
}

/// A text in printable ASCII, as fields and structured-field strings are. Different texts stay different.
pub(crate) fn printable(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

fn window(limit: &Limit) -> Option<u64> {
    let [capacity, rate] = [limit.most(), limit.rate].map(|tokens| u128::from(tokens.micros().unsigned_abs()));
    let period = limit.period.as_micros();
    let micros = match limit.kind {
        LimitKind::SlidingWindow => period,
        LimitKind::TokenBucket => (capacity * period).div_ceil(rate),
        LimitKind::FixedWindow | LimitKind::SteppedBucket => capacity.div_ceil(rate) * period,
        // A lease comes back when it is released, and money when it is credited. A period of the calendar has no one
        // length.
        _ => return None,
    };
    (micros >= MICROS).then(|| u64::try_from(micros.div_ceil(MICROS)).unwrap_or(u64::MAX))
}

const MICROS: u128 = 1_000_000;
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');
