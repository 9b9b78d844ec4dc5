use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fault::LimitFault;
use super::{Limit, LimitKind, written};
use crate::tokens::Tokens;
use crate::values::text::Text;

/// A limit as plain data. Read it from a file or fill it in at run time, then convert it into a [`Limit`], which checks
/// it.
///
/// Unknown fields are errors. Durations are written in the form of a [`Span`](crate::Span): `"1h 30m"`, `"500ms"`,
/// `"7d"`.
///
/// # Example
///
/// ```
/// use tollgate::{Limit, LimitKind, LimitSpec, MINUTE, Tokens};
///
/// let spec: LimitSpec = serde_json::from_str(
///     r#"{ "name": "uploads", "kind": "stepped_bucket", "rate": 5, "period": "1m", "capacity": 20 }"#,
/// )?;
/// let same = LimitSpec::new("uploads", LimitKind::SteppedBucket, Tokens::new(5), MINUTE)
///     .with(|spec| spec.capacity = Some(Tokens::new(20)));
/// assert_eq!(spec, same);
/// assert_eq!(Limit::try_from(spec)?, Limit::stepped_bucket("uploads", 5, MINUTE).capacity(20));
///
/// let wrong = same.with(|spec| spec.rate = Tokens::ZERO);
/// assert_eq!(Limit::try_from(wrong).unwrap_err().to_string(), r#"limit "uploads": the rate must be positive"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LimitSpec {
    // A limits file has the name outside of the table.
    #[serde(default = "unnamed")]
    pub(crate) name: Text,
    /// How tokens come back.
    pub kind: LimitKind,
    /// How many tokens come back in each period; for a concurrency limit, how many can be held at once. It must be
    /// positive, except for a wallet and a meter, which have none.
    #[serde(default)]
    pub rate: Tokens,
    /// The period, or the lease of a concurrency limit, from one microsecond to a thousand years, in whole
    /// microseconds. Zero for a kind without a period of its own: a wallet, a meter, a monthly and a billing limit.
    #[serde(default, with = "written::span", alias = "per", alias = "lease")]
    pub period: Duration,
    /// The most that a rested key can spend at once; the rate if not given.
    #[serde(default)]
    pub capacity: Option<Tokens>,
    /// For a fixed window: aligns its starts to the Unix epoch plus this offset. For a monthly limit: from midnight at
    /// the start of the 1st to the start of its months; 0 if not given.
    #[serde(default, with = "written::optional_span")]
    pub start: Option<Duration>,
    /// For a sliding window: the number of steps in which it slides; as finely as possible if not given.
    #[serde(default)]
    pub resolution: Option<u16>,
    /// How deep reservations may take the balance below zero; for a wallet, how deep every call may.
    /// [`Tokens::MAX`], in files `"unbounded"`, is no bound.
    #[serde(default, with = "written::bound", alias = "overdraft")]
    pub max_reserved: Tokens,
    /// How many rows share the limit for each key; 1 if not given.
    #[serde(default = "one")]
    pub shards: u16,
    /// Which table holds the rows.
    #[serde(default)]
    pub storage: Storage,
}

impl LimitSpec {
    /// A definition with every option at its default. The name has 1 to 255 bytes, and no NUL.
    pub fn new(name: impl Into<String>, kind: LimitKind, rate: Tokens, period: Duration) -> Self {
        Self::of(Text::from(name.into()), kind, rate, period)
    }

    pub(super) const fn of(name: Text, kind: LimitKind, rate: Tokens, period: Duration) -> Self {
        let (capacity, start, resolution, max_reserved) = (None, None, None, Tokens::ZERO);
        Self {
            name,
            kind,
            rate,
            period,
            capacity,
            start,
            resolution,
            max_reserved,
            shards: 1,
            storage: Storage::Durable,
        }
    }

    /// The same definition under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Text::from(name.into());
        self
    }

    /// The same definition with changed fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The name, which identifies the limit in the database, in answers and in traces.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The tokens that a rested key holds: the capacity, or the rate where none is set.
    #[must_use]
    pub const fn most(&self) -> Tokens {
        match self.capacity {
            Some(capacity) => capacity,
            None => self.rate,
        }
    }

    /// Brings a valid definition into a form that all definitions with the same meaning share.
    pub(super) const fn complete(&mut self) {
        self.capacity = Some(self.most());
        if let (Some(start), true) = (self.start, self.kind.has_period()) {
            self.start = Some(Duration::from_nanos_u128(start.as_nanos() % self.period.as_nanos()));
        }
    }

    /// Its first fault, except for one of its name.
    pub(super) const fn fault(&self) -> Option<LimitFault> {
        if self.kind.is_money() {
            return self.money_fault();
        }
        let of_period = if self.kind.has_period() { period_fault(self.period) } else { self.calendar_fault() };
        if of_period.is_some() {
            return of_period;
        }
        let (rate, shards) = (self.rate.micros(), self.shards);
        let (start, steps) = (self.start.is_some(), self.resolution.is_some());
        let counts = self.kind.counts();
        let first_use = matches!(self.kind, LimitKind::SteppedBucket);
        let reserves = self.max_reserved.micros() > 0;
        let too_many = matches!(self.kind, LimitKind::Concurrency)
            && rate > 0
            && rate.unsigned_abs() > Limit::MAX_CONCURRENCY * 1_000_000;
        let faults = [
            (matches!(self.start, Some(start) if micros(start).is_none()), LimitFault::StartNotWholeMicros),
            (start && matches!(self.kind, LimitKind::TokenBucket), LimitFault::StartOfContinuous),
            (start && first_use, LimitFault::StartOfFirstUse),
            (start && counts, LimitFault::StartOfCounting),
            (steps && !matches!(self.kind, LimitKind::SlidingWindow), LimitFault::ResolutionWithoutSliding),
            (!matches!(self.resolution, None | Some(1..=Limit::MAX_RESOLUTION)), LimitFault::ResolutionOutOfRange),
            (rate <= 0, LimitFault::RateNotPositive),
            (self.most().is_negative(), LimitFault::NegativeCapacity),
            (self.max_reserved.is_negative(), LimitFault::NegativeMaxReserved),
            (self.is_too_deep(), LimitFault::CapacityAndReservedTooLarge),
            (shards == 0, LimitFault::ShardsZero),
            (shards > Limit::MAX_SHARDS, LimitFault::ShardsTooMany),
            (shards > 1 && first_use, LimitFault::ShardsOfFirstUse),
            (shards > 1 && counts, LimitFault::ShardsOfCounting),
            (counts && self.most().micros() != rate, LimitFault::CapacityOfCounting),
            (counts && reserves, LimitFault::ReservationsOfCounting),
            (too_many, LimitFault::ConcurrencyTooLarge),
            (rate < shards as i64, LimitFault::ShardsWithoutRate),
            (reserves && matches!(self.storage, Storage::Ephemeral), LimitFault::EphemeralReservations),
        ];
        let mut at = 0;
        while at < faults.len() {
            if faults[at].0 {
                return Some(faults[at].1);
            }
            at += 1;
        }
        None
    }

    /// Whether a row cannot hold all the use that the limit allows. With unbounded reservations a row bounds the use by
    /// what it can hold.
    const fn is_too_deep(&self) -> bool {
        let (capacity, reserved) = (self.most().micros(), self.max_reserved.micros());
        reserved >= 0 && reserved < i64::MAX && capacity > i64::MAX - reserved
    }

    /// The fault of a limit whose periods are months, or named by callers.
    const fn calendar_fault(&self) -> Option<LimitFault> {
        let is_billing = matches!(self.kind, LimitKind::Billing);
        match self.start {
            _ if !self.period.is_zero() => Some(LimitFault::PeriodOfCalendar),
            Some(_) if is_billing => Some(LimitFault::StartOfBilling),
            Some(start) if start.as_micros() >= LONGEST_MONTH.as_micros() => Some(LimitFault::StartBeyondMonth),
            _ if is_billing && self.max_reserved.micros() > 0 => Some(LimitFault::ReservationsOfBilling),
            _ => None,
        }
    }

    const fn money_fault(&self) -> Option<LimitFault> {
        let sized = self.rate.micros() != 0 || !self.period.is_zero() || self.most().micros() != 0;
        let has_more = sized || self.start.is_some() || self.resolution.is_some() || self.shards != 1;
        if matches!(self.kind, LimitKind::Meter) && (has_more || self.max_reserved.micros() != 0) {
            Some(LimitFault::MeterWithMore)
        } else if has_more {
            Some(LimitFault::WalletWithMore)
        } else if matches!(self.storage, Storage::Ephemeral) {
            Some(LimitFault::EphemeralWallet)
        } else if self.max_reserved.is_negative() {
            Some(LimitFault::NegativeMaxReserved)
        } else {
            None
        }
    }
}

/// Which table holds a limit's rows. Displays as the table's name, without its schema.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Storage {
    // Declared first: `ephemeral` comes before `durable` in the lock order.
    /// The unlogged table `tollgate.ephemeral`: fast, and emptied by a crash.
    Ephemeral,
    /// The logged table `tollgate.durable`: as durable as the rest of the database.
    #[default]
    Durable,
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ephemeral => "ephemeral",
            Self::Durable => "durable",
        })
    }
}

const LONGEST_MONTH: Duration = Duration::from_hours(31 * 24);

fn unnamed() -> Text {
    Text::Static("")
}

fn one() -> u16 {
    1
}

/// The fault of a period.
pub(crate) const fn period_fault(period: Duration) -> Option<LimitFault> {
    match micros(period) {
        Some(0) => Some(LimitFault::PeriodZero),
        Some(_) if period.as_micros() <= Limit::MAX_PERIOD.as_micros() => None,
        None if period.as_micros() < Limit::MAX_PERIOD.as_micros() => Some(LimitFault::PeriodNotWholeMicros),
        _ => Some(LimitFault::PeriodTooLong),
    }
}

/// A span in microseconds, if it is a whole number of them that fits.
#[expect(clippy::cast_possible_truncation, reason = "checked on the line above the cast")]
pub(crate) const fn micros(span: Duration) -> Option<i64> {
    if !span.subsec_nanos().is_multiple_of(1_000) || span.as_micros() > i64::MAX as u128 {
        return None;
    }
    Some(span.as_micros() as i64)
}
