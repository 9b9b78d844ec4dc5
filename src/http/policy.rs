use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::algebra::div_ceil;
use crate::limit::{Limit, Refill};
use crate::standing::whole;

/// What a limit promises for as long as it is defined so: a quota, and how long that takes to come back.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) quota: u64,
    /// Whole seconds; `None` where it is less than one.
    pub(super) window: Option<u64>,
}

impl From<&Limit> for Policy {
    fn from(limit: &Limit) -> Self {
        Self { name: name(limit.name()), quota: whole(limit.capacity), window: window(limit) }
    }
}

/// A limit's name as a structured-field String holds it, which is printable ASCII only. Different names stay different.
pub(super) fn name(name: &str) -> String {
    utf8_percent_encode(name, ESCAPED).to_string()
}

fn window(limit: &Limit) -> Option<u64> {
    let [capacity, rate, period] = [limit.capacity.micros(), limit.rate.micros(), limit.period].map(i128::from);
    let micros = match limit.refill {
        Refill::Continuous => div_ceil(capacity * period, rate),
        Refill::Stepped(_) => div_ceil(capacity, rate) * period,
    };
    // At most 2^63 periods of a thousand years: what does not fit is for ever.
    (micros >= MICROS).then(|| u64::try_from(div_ceil(micros, MICROS)).unwrap_or(u64::MAX))
}

const MICROS: i128 = 1_000_000;
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');
