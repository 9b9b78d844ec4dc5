use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::text::Text;
use crate::tokens::Tokens;

/// How much of something is allowed: a rate, a capacity, and how the one fills the other.
///
/// A `Limit` is valid once built. The constructors are `const`: in a `const` item a wrong limit does not compile, and
/// the error points at your own line. Limits that are read at run time come from a [`LimitSpec`](crate::LimitSpec),
/// whose conversion makes the same checks and returns a [`LimitError`].
///
/// | constructor | refill | capacity |
/// | --- | --- | --- |
/// | [`token_bucket`](Self::token_bucket) | tokens drip all the time | the rate, unless set |
/// | [`fixed_window`](Self::fixed_window) | `rate` tokens at once as each period starts; periods of different keys start at different instants, unless [`start`](Self::start) aligns them | the rate, unless set; more lets unused windows roll over |
/// | [`stepped_bucket`](Self::stepped_bucket) | `rate` tokens at once each whole period after the key's first use | the rate, unless set |
/// | [`sliding_window`](Self::sliding_window) | what was granted comes back one `period` later | `n`: never more in any period |
/// | [`concurrency`](Self::concurrency) | what was granted comes back when it is released, or its `lease` ends | `n`: never more at once |
///
/// A limit is identified by its name: two limits of one name share their rows.
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
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Limit {
    pub(crate) name: Text,
    pub(crate) rate: Tokens,
    /// Whole microseconds, at least one.
    pub(crate) period: i64,
    pub(crate) capacity: Tokens,
    pub(crate) refill: Refill,
    /// `Tokens::MAX` is no bound.
    pub(crate) max_reserved: Tokens,
    /// How many rows share it for each key, at least one.
    pub(crate) shards: u16,
    pub(crate) storage: Storage,
}

impl Limit {
    /// The most tokens of a [`concurrency`](Self::concurrency) limit. Each holder lies in the row: a hundred cost a
    /// write three times as much as none, a thousand thirty times.
    pub const MAX_CONCURRENCY: u64 = 1_000;

    /// The longest name, in bytes.
    pub const MAX_NAME_BYTES: usize = 255;

    /// The longest period: a thousand years of 365 days.
    pub const MAX_PERIOD: Duration = Duration::from_hours(1_000 * 365 * 24);

    /// The most steps of a sliding window.
    pub const MAX_RESOLUTION: u16 = 63;

    /// The most rows that one key can be spread over.
    pub const MAX_SHARDS: u16 = 64;

    /// A bucket into which `rate` tokens drip evenly over each `period`, up to its capacity.
    ///
    /// Each write rounds what has come in down to whole micro-tokens. A slow bucket that is written all the time gains
    /// nothing: one a day, written 5 402 times within 4 seconds, got none of the 46 micro-tokens that were due.
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies: at compile time in a `const`, else at run time. Use
    /// [`LimitSpec`](crate::LimitSpec) for run-time input.
    #[must_use]
    #[track_caller]
    pub const fn token_bucket(name: &'static str, rate: u64, period: Duration) -> Self {
        Self::define(name, rate, period, Refill::Continuous)
    }

    /// A window: `rate` tokens at once as each `period` starts.
    ///
    /// Each key has its own phase, a hash of name and key, so a thousand tenants do not all come back in the same
    /// second. [`start`](Self::start) aligns the windows instead.
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies.
    #[must_use]
    #[track_caller]
    pub const fn fixed_window(name: &'static str, rate: u64, period: Duration) -> Self {
        Self::define(name, rate, period, Refill::Stepped(Grid::Spread))
    }

    /// A bucket into which `rate` tokens fall at once, each whole `period` after the key's first use.
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies.
    #[must_use]
    #[track_caller]
    pub const fn stepped_bucket(name: &'static str, rate: u64, period: Duration) -> Self {
        Self::define(name, rate, period, Refill::Stepped(Grid::FirstUse))
    }

    /// A window that slides: never more than `n` tokens in any `period`, wherever it begins.
    ///
    /// Each grant is remembered until it leaves the window, and comes back then. That is exact to the microsecond for
    /// up to 64 grants in a period. Beyond, instants are rounded up to a 63rd of the period, so a token counts for up
    /// to 1.6 % longer, and never for less; [`resolution`](Self::resolution) makes this step coarser. A row takes 16
    /// bytes for each remembered instant.
    ///
    /// It takes no reservations and no shards. A changed `n` or a shorter period counts at once; a longer period
    /// counts for what is granted from then on.
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies.
    #[must_use]
    #[track_caller]
    pub const fn sliding_window(name: &'static str, n: u64, period: Duration) -> Self {
        Self::define(name, n, period, Refill::Sliding { resolution: 0 })
    }

    /// A limit on concurrent work: at most `n` tokens are held at once, 1 to [`MAX_CONCURRENCY`](Self::MAX_CONCURRENCY).
    ///
    /// A holder lets go of what it has when its work is done ([`Gate::acquire`](crate::Gate::acquire),
    /// [`Limiter::release`](crate::Limiter::release)). One that died lets go of nothing: so each token is granted for a
    /// `lease` only, and comes back at its end, unless it is renewed before
    /// ([`Limiter::renew`](crate::Limiter::renew)). A short lease frees the tokens of a dead holder soon, and is renewed
    /// more often; half a minute suits most.
    ///
    /// It bounds what is held at once and not how often: a token that is released is free at the same instant. For both,
    /// ask two limits in one call. It takes no reservations and no shards, and of the verbs that give or take whatever
    /// is there only `reset`: after it all tokens are free, and those who hold some are not counted any more. A changed
    /// `n` counts at once.
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies.
    #[must_use]
    #[track_caller]
    pub const fn concurrency(name: &'static str, n: u64, lease: Duration) -> Self {
        Self::define(name, n, lease, Refill::Leased)
    }

    /// In how many steps a sliding window slides, 1 to 63: the fewer, the smaller are its rows, and the stricter it is.
    ///
    /// A grant counts until the end of the step in which it leaves the window: of a limit that is always asked for,
    /// `k / (k + 1)` is granted. A row remembers at most `k + 1` instants.
    ///
    /// # Panics
    ///
    /// For a limit that does not slide, and for a number out of range.
    #[must_use]
    #[track_caller]
    pub const fn resolution(mut self, steps: u16) -> Self {
        if !matches!(self.refill, Refill::Sliding { .. }) {
            LimitFault::ResolutionWithoutSliding.panic()
        }
        if steps == 0 {
            LimitFault::ResolutionOutOfRange.panic()
        }
        self.refill = Refill::Sliding { resolution: steps };
        self.checked()
    }

    /// The most that a rested key can spend at once, in whole tokens; the rate unless set.
    ///
    /// A limit with a capacity of 0 grants nothing at once. Together with [`max_reserved`](Self::max_reserved) it is
    /// the leaky bucket as a queue: reservations are spaced evenly. Without reservations every positive cost is an
    /// error.
    ///
    /// # Panics
    ///
    /// Where the capacity is beyond [`Tokens::MAX`], and for a sliding window or a concurrency limit, whose capacity is
    /// its `n`.
    #[must_use]
    #[track_caller]
    pub const fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = whole(capacity, LimitFault::CapacityTooLarge);
        self.checked()
    }

    /// Rate and capacity in exact tokens, for fractions of a token.
    ///
    /// # Panics
    ///
    /// Where `rate` is not positive or `capacity` is negative.
    #[must_use]
    #[track_caller]
    pub const fn exactly(mut self, rate: Tokens, capacity: Tokens) -> Self {
        self.rate = rate;
        self.capacity = capacity;
        self.checked()
    }

    /// Aligns the steps to the Unix epoch plus `offset`: the full minute, or midnight in some zone.
    ///
    /// The offset counts modulo the period, in whole microseconds. A zone east of Greenwich starts its day on the UTC
    /// day before: the offset for midnight at UTC+2 is 22 hours.
    ///
    /// # Panics
    ///
    /// For a limit without steps, and for an offset that is no whole number of microseconds.
    #[must_use]
    #[track_caller]
    pub const fn start(mut self, offset: Duration) -> Self {
        match self.refill {
            Refill::Continuous => LimitFault::StartOfContinuous.panic(),
            Refill::Sliding { .. } | Refill::Leased => LimitFault::StartOfCounting.panic(),
            Refill::Stepped(_) => {}
        }
        match whole_micros(offset, LimitFault::StartNotWholeMicros) {
            Ok(micros) => self.refill = Refill::Stepped(Grid::Start { offset: micros % self.period }),
            Err(fault) => fault.panic(),
        }
        self
    }

    /// How deep reservations may take the balance below zero, in whole tokens; 0 unless set.
    ///
    /// # Panics
    ///
    /// For an [`ephemeral`](Self::ephemeral) limit: a crash would forget its debts.
    #[must_use]
    #[track_caller]
    pub const fn max_reserved(mut self, tokens: u64) -> Self {
        self.max_reserved = whole(tokens, LimitFault::MaxReservedTooLarge);
        self.checked()
    }

    /// Reservations without a bound: every caller gets an instant, however far ahead.
    ///
    /// # Panics
    ///
    /// For an [`ephemeral`](Self::ephemeral) limit.
    #[must_use]
    #[track_caller]
    pub const fn unbounded_reservations(mut self) -> Self {
        self.max_reserved = Tokens::MAX;
        self.checked()
    }

    /// Spreads each key over `shards` rows, 1 to [`MAX_SHARDS`](Self::MAX_SHARDS), so that several transactions can be
    /// charged at once; 1 unless set.
    ///
    /// One row is one lock, held until the charged transaction ends. Where callers of a [`Limiter`](crate::Limiter)
    /// wait for each other on one key, shards let them pass. A [`Gate`](crate::Gate) merges its callers instead,
    /// and rarely needs them. The rows are one limit: rate, capacity and `max_reserved` are divided among them to
    /// the micro-token, they share one phase, and a call is refused only where all rows together are short. So 10
    /// shards of a capacity of 100 grant 100 calls at once, and a refusal names the exact instant. A call of a
    /// `Limiter` looks at all rows before it takes from one; see its section *Shards*.
    ///
    /// # Changing the number
    ///
    /// A changed number of shards is a changed definition. The rows are numbered from 0; each stays readable and is cut
    /// to its new part of the capacity at its next refill. While processes with both numbers run, at most the sum of
    /// both limits is granted; afterwards at most one capacity more, once. A row beyond the new number is stale:
    /// nobody asks it, its debt binds nobody, and the sweeper deletes it when it is full. A debt that lies in one
    /// row of one before it becomes one of ten is repaid at a tenth of the rate.
    ///
    /// # Panics
    ///
    /// For 0 and for more than the maximum, for a rate of less than a micro-token for each shard, and for a stepped
    /// bucket without a [`start`](Self::start): it counts from a row's first use, which the rows do not share.
    ///
    /// # Example
    ///
    /// ```
    /// use tollgate::{Limit, SECOND};
    ///
    /// const EVERYBODY: Limit = Limit::token_bucket("everybody", 5_000, SECOND).shards(16);
    /// # let _ = EVERYBODY;
    /// ```
    #[must_use]
    #[track_caller]
    pub const fn shards(mut self, shards: u16) -> Self {
        self.shards = shards;
        self.checked()
    }

    /// Keeps the limit in the unlogged table: faster, but **a crash or a failover empties the table**, and every bucket
    /// is full again. Such a limit takes no reservations. A change between the two tables is like a change of the
    /// number of [`shards`](Self::shards): the rows in the other table are stale.
    ///
    /// # Panics
    ///
    /// For a limit that allows reservations.
    #[must_use]
    #[track_caller]
    pub const fn ephemeral(mut self) -> Self {
        self.storage = Storage::Ephemeral;
        self.checked()
    }

    /// For how long it grants, if it is a [`concurrency`](Self::concurrency) limit.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        // A valid period is not negative.
        matches!(self.refill, Refill::Leased).then(|| Duration::from_micros(self.period.unsigned_abs()))
    }

    /// The name, which identifies the limit in the database, in answers and in traces.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    #[track_caller]
    const fn define(name: &'static str, rate: u64, period: Duration, refill: Refill) -> Self {
        let rate = whole(rate, LimitFault::RateTooLarge);
        let period = match period_micros(period) {
            Ok(micros) => micros,
            Err(fault) => fault.panic(),
        };
        let limit = Self {
            name: Text::Static(name),
            rate,
            period,
            capacity: rate,
            refill,
            max_reserved: Tokens::ZERO,
            shards: 1,
            storage: Storage::Durable,
        };
        if let Some(fault) = name_fault(name) {
            fault.panic()
        }
        limit.checked()
    }

    #[track_caller]
    const fn checked(self) -> Self {
        match self.fault() {
            None => self,
            Some(fault) => fault.panic(),
        }
    }

    /// What is wrong with the numbers together.
    pub(crate) const fn fault(&self) -> Option<LimitFault> {
        if self.rate.micros() <= 0 {
            return Some(LimitFault::RateNotPositive);
        }
        if self.capacity.is_negative() {
            return Some(LimitFault::NegativeCapacity);
        }
        if self.max_reserved.is_negative() {
            return Some(LimitFault::NegativeMaxReserved);
        }
        if self.shards == 0 {
            return Some(LimitFault::ShardsZero);
        }
        if self.shards > Self::MAX_SHARDS {
            return Some(LimitFault::ShardsTooMany);
        }
        if self.shards > 1 && matches!(self.refill, Refill::Stepped(Grid::FirstUse)) {
            return Some(LimitFault::ShardsOfFirstUse);
        }
        if matches!(self.refill, Refill::Sliding { .. } | Refill::Leased) {
            if self.capacity.micros() != self.rate.micros() {
                return Some(LimitFault::CapacityOfCounting);
            }
            if self.max_reserved.micros() > 0 {
                return Some(LimitFault::ReservationsOfCounting);
            }
            if self.shards > 1 {
                return Some(LimitFault::ShardsOfCounting);
            }
        }
        match self.refill {
            Refill::Sliding { resolution } if resolution > Self::MAX_RESOLUTION => {
                return Some(LimitFault::ResolutionOutOfRange);
            }
            Refill::Leased if self.rate.micros().unsigned_abs() > Self::MAX_CONCURRENCY * 1_000_000 => {
                return Some(LimitFault::ConcurrencyTooLarge);
            }
            _ => {}
        }
        if self.rate.micros() < self.shards as i64 {
            return Some(LimitFault::ShardsWithoutRate);
        }
        match self.storage {
            Storage::Ephemeral if self.max_reserved.micros() > 0 => Some(LimitFault::EphemeralReservations),
            _ => None,
        }
    }
}

/// How tokens come back.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Refill {
    /// Evenly, all the time.
    Continuous,
    /// What was granted, when it is released, or a period later.
    Leased,
    /// What was granted, a period later, in so many steps; 0 for as it was.
    Sliding { resolution: u16 },
    /// `rate` tokens at once, at each step of a grid.
    Stepped(Grid),
}

/// Where the steps of a stepped refill lie.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Grid {
    /// Whole periods after the row's first use; kept while the row lives.
    FirstUse,
    /// Whole periods after the Unix epoch plus an offset in `[0, period)`, in microseconds.
    Start { offset: i64 },
    /// Whole periods after a phase that is a hash of name and key.
    Spread,
}

/// Which table holds a limit's rows.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    // Declared first: `ephemeral` comes before `durable` in the lock order.
    /// The unlogged table `tollgate.ephemeral`: fast, and emptied by a crash.
    Ephemeral,
    /// The logged table `tollgate.durable`: as durable as the rest of the database.
    #[default]
    Durable,
}

/// A definition that is no limit, with the name it goes by.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("limit {name:?}: {fault}")]
#[non_exhaustive]
pub struct LimitError {
    /// The name in the definition.
    pub name: String,
    /// What is wrong with it.
    pub fault: LimitFault,
}

/// What can be wrong with the definition of a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum LimitFault {
    /// A sliding window or a concurrency limit has another capacity than its `n`.
    CapacityOfCounting,
    /// The capacity is beyond [`Tokens::MAX`].
    CapacityTooLarge,
    /// A concurrency limit is beyond [`Limit::MAX_CONCURRENCY`].
    ConcurrencyTooLarge,
    /// An ephemeral limit allows reservations, which a crash would break.
    EphemeralReservations,
    /// The reservation bound is beyond [`Tokens::MAX`].
    MaxReservedTooLarge,
    /// The name is empty.
    NameEmpty,
    /// The name contains NUL.
    NameNul,
    /// The name is longer than [`Limit::MAX_NAME_BYTES`].
    NameTooLong,
    /// The capacity is negative.
    NegativeCapacity,
    /// The reservation bound is negative.
    NegativeMaxReserved,
    /// The period has a fraction of a microsecond.
    PeriodNotWholeMicros,
    /// The period is longer than [`Limit::MAX_PERIOD`].
    PeriodTooLong,
    /// The period is zero.
    PeriodZero,
    /// The rate is zero or negative.
    RateNotPositive,
    /// The rate is beyond [`Tokens::MAX`].
    RateTooLarge,
    /// A sliding window or a concurrency limit allows reservations.
    ReservationsOfCounting,
    /// The resolution is 0 or beyond [`Limit::MAX_RESOLUTION`].
    ResolutionOutOfRange,
    /// A limit that does not slide has a resolution.
    ResolutionWithoutSliding,
    /// A sliding window or a concurrency limit is spread over rows, which would not know of each other's grants.
    ShardsOfCounting,
    /// A stepped bucket counts from a row's first use, which shards do not share.
    ShardsOfFirstUse,
    /// There are more than [`Limit::MAX_SHARDS`].
    ShardsTooMany,
    /// The rate has less than a micro-token for each shard.
    ShardsWithoutRate,
    /// There is no shard.
    ShardsZero,
    /// The start has a fraction of a microsecond, or is beyond 292 000 years.
    StartNotWholeMicros,
    /// A token bucket has a start, which only steps can have.
    StartOfContinuous,
    /// A sliding window or a concurrency limit has a start.
    StartOfCounting,
}

impl LimitFault {
    const fn message(self) -> &'static str {
        match self {
            Self::CapacityOfCounting => "the capacity of a sliding window or a concurrency limit is its rate (drop it)",
            Self::CapacityTooLarge => "the capacity is too large (at most 9223372036854 tokens)",
            Self::ConcurrencyTooLarge => "at most 1000 can be held at once (use several keys)",
            Self::EphemeralReservations => {
                "an ephemeral limit cannot take reservations: a crash would forget them (drop one of the two)"
            }
            Self::MaxReservedTooLarge => "max_reserved is too large (use unbounded reservations)",
            Self::NameEmpty => "the name is empty",
            Self::NameNul => "the name contains a NUL character",
            Self::NameTooLong => "the name is longer than 255 bytes",
            Self::NegativeCapacity => "the capacity is negative",
            Self::NegativeMaxReserved => "max_reserved is negative",
            Self::PeriodNotWholeMicros => "the period is not a whole number of microseconds",
            Self::PeriodTooLong => "the period is longer than 1000 years",
            Self::PeriodZero => "the period is zero",
            Self::RateNotPositive => "the rate must be positive",
            Self::RateTooLarge => "the rate is too large (at most 9223372036854 tokens)",
            Self::ReservationsOfCounting => {
                "a sliding window or a concurrency limit takes no reservations: it grants what is there (use a token bucket)"
            }
            Self::ResolutionOutOfRange => "the resolution is no number of steps from 1 to 63",
            Self::ResolutionWithoutSliding => "only a sliding window has a resolution",
            Self::ShardsOfCounting => {
                "the rows of a sliding window or a concurrency limit would not know of each other's grants (ask a gate)"
            }
            Self::ShardsOfFirstUse => {
                "a stepped bucket counts from a row's first use, which shards do not share (give it a start, or use a fixed window)"
            }
            Self::ShardsTooMany => "there are too many shards (at most 64)",
            Self::ShardsWithoutRate => "the rate has less than a micro-token for each shard (use fewer shards)",
            Self::ShardsZero => "there are no shards (1 is a limit that is not sharded)",
            Self::StartNotWholeMicros => "the start is not a whole number of microseconds",
            Self::StartOfContinuous => {
                "a token bucket refills all the time and has no start (use a fixed window or a stepped bucket)"
            }
            Self::StartOfCounting => "a sliding window or a concurrency limit has no start (use a fixed window)",
        }
    }

    #[track_caller]
    const fn panic(self) -> ! {
        panic!("{}", self.message())
    }
}

impl std::fmt::Display for LimitFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message())
    }
}

/// What is wrong with a name, if anything.
pub(crate) const fn name_fault(name: &str) -> Option<LimitFault> {
    let bytes = name.as_bytes();
    if bytes.is_empty() {
        return Some(LimitFault::NameEmpty);
    }
    if bytes.len() > Limit::MAX_NAME_BYTES {
        return Some(LimitFault::NameTooLong);
    }
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == 0 {
            return Some(LimitFault::NameNul);
        }
        at += 1;
    }
    None
}

/// A period in whole microseconds.
pub(crate) const fn period_micros(period: Duration) -> Result<i64, LimitFault> {
    if period.is_zero() {
        return Err(LimitFault::PeriodZero);
    }
    if period.as_nanos() > Limit::MAX_PERIOD.as_nanos() {
        return Err(LimitFault::PeriodTooLong);
    }
    whole_micros(period, LimitFault::PeriodNotWholeMicros)
}

/// A span in whole microseconds; the fault unless it is one.
#[expect(clippy::cast_possible_truncation, reason = "checked on the line above the cast")]
pub(crate) const fn whole_micros(span: Duration, fault: LimitFault) -> Result<i64, LimitFault> {
    if !span.subsec_nanos().is_multiple_of(1_000) || span.as_micros() > i64::MAX as u128 {
        return Err(fault);
    }
    Ok(span.as_micros() as i64)
}

#[track_caller]
const fn whole(tokens: u64, fault: LimitFault) -> Tokens {
    match Tokens::from_whole(tokens) {
        Ok(tokens) => tokens,
        Err(_) => fault.panic(),
    }
}
