use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tollgate::{Limit, LimitKind};

/// The promise of a limit: a quota, and how long that quota takes to come back.
#[derive(Debug)]
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
    let [capacity, rate] = [limit.most(), limit.rate].map(|tokens| i128::from(tokens.micros()));
    let period = i128::try_from(limit.period.as_micros()).expect("it is at most a thousand years");
    let micros = match limit.kind {
        LimitKind::SlidingWindow => period,
        LimitKind::TokenBucket => div_ceil(capacity * period, rate),
        LimitKind::FixedWindow | LimitKind::SteppedBucket => div_ceil(capacity, rate) * period,
        // A lease comes back as it is released, and money as it is credited.
        _ => return None,
    };
    (micros >= MICROS).then(|| u64::try_from(div_ceil(micros, MICROS)).unwrap_or(u64::MAX))
}

/// Neither is negative.
fn div_ceil(amount: i128, by: i128) -> i128 {
    (amount + by - 1) / by
}

const MICROS: i128 = 1_000_000;
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');
