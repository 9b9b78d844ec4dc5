mod fault;
mod spec;
pub(crate) mod written;

// The documentation shows their methods in this order.
mod kinds;

mod settings;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::tokens::Tokens;
use crate::values::text::Text;
pub(crate) use fault::name_fault;
pub use fault::{LimitError, LimitFault};
pub use kinds::LimitKind;
pub use spec::{LimitSpec, Storage};
pub(crate) use spec::{micros, period_fault};

/// A rule such as "ten messages a minute": a rate, a capacity, and how tokens come back.
///
/// | constructor | how tokens come back | capacity |
/// | --- | --- | --- |
/// | [`token_bucket`](Self::token_bucket) | they drip all the time | the rate, unless set |
/// | [`fixed_window`](Self::fixed_window) | `rate` at once as each period starts | the rate, unless set |
/// | [`monthly`](Self::monthly) | `n` at once as each month of UTC starts | `n`, unless set |
/// | [`billing`](Self::billing) | `n` at once as each period starts, which callers name | `n`, unless set |
/// | [`stepped_bucket`](Self::stepped_bucket) | `rate` at once, each period after a first use | the rate, unless set |
/// | [`sliding_window`](Self::sliding_window) | each grant, one `period` later | `n`: never more in any period |
/// | [`concurrency`](Self::concurrency) | each grant, as it is released or its `lease` ends | `n`: never more at once |
/// | [`wallet`](Self::wallet) | by credits alone | none |
/// | [`meter`](Self::meter) | not: it counts what is used | none |
///
/// Windows of different keys start at different instants, unless [`start`](Self::start) aligns them. If the capacity is
/// above the rate, unused tokens roll over. A stepped bucket steps at whole periods after the key's first use.
///
/// Every `Limit` is valid. The constructors are `const`: a wrong limit in a `const` item does not compile, and the
/// error points at the line of that item. A definition that comes at run time is first a [`LimitSpec`]; its conversion
/// makes the same checks and returns a [`LimitError`]. A limit dereferences to its spec, so its fields can be read:
/// `limit.period`.
///
/// The order of methods matters only if two set the same field, such as [`capacity`](Self::capacity) and
/// [`rate_and_capacity`](Self::rate_and_capacity): the last one counts.
///
/// The name identifies a limit: two limits of one name share their rows.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tollgate::{HOUR, Limit, MINUTE};
///
/// /// Ten messages a minute on average, twenty at once after a rest.
/// const SEND_MESSAGE: Limit = Limit::token_bucket("send_message", 10, MINUTE).capacity(20);
/// const SIGN_UPS: Limit = Limit::fixed_window("free_trial_sign_up", 100, HOUR);
/// const UPLOADS: Limit = Limit::stepped_bucket("uploads", 5, Duration::from_secs(10)).capacity(20).ephemeral();
/// const LLM_TOKENS: Limit = Limit::token_bucket("llm_tokens", 40_000, MINUTE).max_reserved(200_000);
/// ```
///
/// A limit that can grant nothing is caught by the compiler:
///
/// ```compile_fail
/// use tollgate::{Limit, MINUTE};
/// const NEVER: Limit = Limit::token_bucket("never", 0, MINUTE);
/// # let _ = NEVER;
/// ```
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[must_use = "a limit limits nothing until it is asked"]
#[serde(try_from = "LimitSpec")]
pub struct Limit(LimitSpec);

impl Limit {
    /// The most tokens of a [`concurrency`](Self::concurrency) limit. Its row lists the holders: a write costs three
    /// times as much with a hundred holders as with none, and thirty times as much with a thousand.
    pub const MAX_CONCURRENCY: u64 = 1_000;

    /// The longest name, in bytes.
    pub const MAX_NAME_BYTES: usize = 255;

    /// The longest period: a thousand years of 365 days.
    pub const MAX_PERIOD: Duration = Duration::from_hours(1_000 * 365 * 24);

    /// The most steps of a sliding window.
    pub const MAX_RESOLUTION: u16 = 63;

    /// The most rows that one key can be spread over.
    pub const MAX_SHARDS: u16 = 64;

    /// How long a grant lasts, if this is a [`concurrency`](Self::concurrency) limit.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        (self.kind == LimitKind::Concurrency).then_some(self.period)
    }

    /// The definition as plain data, which can be changed and checked again.
    #[must_use]
    pub fn spec(&self) -> LimitSpec {
        self.0.clone()
    }

    /// The same limit while a share of its rate, or of the `n` that it counts to, is left, in millionths. `None` if it
    /// has neither.
    pub(crate) fn slowed(&self, share: u32) -> Option<Self> {
        if !self.kind.can_slow() {
            return None;
        }
        let mut slow = self.clone();
        // Each shard brings back something. Somebody can hold a token, and nobody waits for a part of one.
        let (least, grain) =
            if self.kind == LimitKind::Concurrency { (1_000_000, 1_000_000) } else { (self.shards.into(), 1) };
        let left = i128::from(self.rate.micros()) * i128::from(share) / 1_000_000;
        let left = i64::try_from(left).unwrap_or(i64::MAX) / grain * grain;
        slow.0.rate = Tokens::from_micros(left.max(least).min(self.rate.micros()));
        if self.kind.counts() {
            slow.0.capacity = Some(slow.0.rate);
        }
        Some(slow)
    }

    /// A fraction of the limit, in millionths and in one row, as `Terms::fraction` has it.
    pub(crate) fn fraction(self, millionths: i64) -> Self {
        let of = |whole: Tokens| i128::from(whole.micros()) * i128::from(millionths) / 1_000_000;
        let [rate, most] = [self.rate, self.most()].map(|whole| i64::try_from(of(whole)).unwrap_or(whole.micros()));
        let mut part = self.shards(1);
        (part.0.rate, part.0.capacity) = (Tokens::from_micros(rate.max(1)), Some(Tokens::from_micros(most)));
        part
    }

    #[track_caller]
    const fn define(name: &'static str, kind: LimitKind, rate: u64, period: Duration) -> Self {
        if let Some(fault) = name_fault(name) {
            fault.panic()
        }
        Self(LimitSpec::of(Text::Static(name), kind, whole(rate, LimitFault::RateTooLarge), period)).checked()
    }

    #[track_caller]
    const fn checked(mut self) -> Self {
        match self.0.fault() {
            None => self.0.complete(),
            Some(fault) => fault.panic(),
        }
        self
    }
}

impl Deref for Limit {
    type Target = LimitSpec;

    fn deref(&self) -> &LimitSpec {
        &self.0
    }
}

impl From<Limit> for LimitSpec {
    fn from(limit: Limit) -> Self {
        limit.0
    }
}

impl TryFrom<LimitSpec> for Limit {
    type Error = LimitError;

    fn try_from(mut spec: LimitSpec) -> Result<Self, LimitError> {
        if let Some(fault) = name_fault(spec.name()).or(spec.fault()) {
            return Err(LimitError { name: spec.name().to_owned(), fault });
        }
        spec.complete();
        Ok(Self(spec))
    }
}

/// Definitions by name. The error is a name that has two of them.
pub(crate) fn by_name<'l>(limits: impl IntoIterator<Item = &'l Limit>) -> Result<BTreeMap<String, Limit>, String> {
    let mut by_name = BTreeMap::<String, Limit>::new();
    for limit in limits {
        if by_name.insert(limit.name().to_owned(), limit.clone()).is_some_and(|other| other != *limit) {
            return Err(limit.name().to_owned());
        }
    }
    Ok(by_name)
}

#[track_caller]
const fn whole(tokens: u64, fault: LimitFault) -> Tokens {
    match Tokens::from_whole(tokens) {
        Ok(tokens) => tokens,
        Err(_) => fault.panic(),
    }
}
