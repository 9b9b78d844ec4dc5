use super::Limit;

/// A definition that is no valid limit, with its name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("limit {name:?}: {fault}")]
#[non_exhaustive]
pub struct LimitError {
    /// The name in the definition.
    pub name: String,
    /// Its fault.
    pub fault: LimitFault,
}

macro_rules! faults {
    ($($fault:ident = $message:literal,)*) => {
        /// A fault of the definition of a limit. Each variant displays as its sentence here.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[non_exhaustive]
        pub enum LimitFault {
            $(#[doc = $message] $fault,)*
        }

        impl LimitFault {
            const fn message(self) -> &'static str {
                match self {
                    $(Self::$fault => $message,)*
                }
            }
        }
    };
}
faults! {
    CapacityOfCounting = "the capacity of a sliding window or a concurrency limit is its rate (drop it)",
    CapacityAndReservedTooLarge = "the capacity and `max_reserved` are too large together (use unbounded reservations)",
    CapacityTooLarge = "the capacity is too large (at most 9223372036854 tokens)",
    ConcurrencyTooLarge = "at most 1000 can be held at once (use several keys)",
    EphemeralReservations = "an ephemeral limit takes no reservations: a crash would forget them (drop one of the two)",
    EphemeralWallet = "a wallet or a meter is durable: a crash would forget money (drop one of the two)",
    MaxReservedTooLarge = "`max_reserved` is too large (use unbounded reservations)",
    MeterWithMore = "a meter has a name and nothing else: no rate, period, capacity, overdraft or shards (drop it)",
    NameEmpty = "the name is empty",
    NameNul = "the name contains a NUL character",
    NameTooLong = "the name is longer than 255 bytes",
    NegativeCapacity = "the capacity is negative",
    NegativeMaxReserved = "`max_reserved` is negative",
    OverdraftWithoutWallet = "only a wallet has an overdraft (use `max_reserved`)",
    PeriodNotWholeMicros = "the period is not a whole number of microseconds",
    PeriodOfCalendar = "a monthly or a billing limit has no period of its own: it goes by the calendar (drop it)",
    PeriodTooLong = "the period is longer than 1000 years",
    PeriodZero = "the period is zero",
    RateNotPositive = "the rate must be positive",
    RateTooLarge = "the rate is too large (at most 9223372036854 tokens)",
    ReservationsOfBilling = "a billing limit takes no reservations: nobody has named its next period (drop them)",
    ReservationsOfCounting = "a sliding window or a concurrency limit takes no reservations (use a token bucket)",
    ResolutionOutOfRange = "the resolution must be a number of steps from 1 to 63",
    ResolutionWithoutSliding = "only a sliding window has a resolution (drop it)",
    ShardsOfCounting = "a sliding window or a concurrency limit has no shards: it counts in one row (ask a gate)",
    ShardsOfFirstUse = "a stepped bucket has no shards: each would count from its own first use (use a fixed window)",
    ShardsTooMany = "there are too many shards (at most 64)",
    ShardsWithoutRate = "the rate has less than a micro-token for each shard (use fewer shards)",
    ShardsZero = "there are no shards (1 is a limit that is not sharded)",
    StartNotWholeMicros = "the start is not a whole number of microseconds, or beyond 292000 years",
    StartBeyondMonth = "a monthly limit starts less than 31 days after the 1st at midnight",
    StartOfBilling = "a billing limit has no start: each request names its period (drop it)",
    StartOfContinuous = "a token bucket refills all the time and has no start (use a fixed window)",
    StartOfCounting = "a sliding window or a concurrency limit has no start (use a fixed window)",
    StartOfFirstUse = "a stepped bucket starts at a key's first use (use a fixed window)",
    WalletWithMore = "a wallet has a name and an overdraft: no rate, period, capacity, start or shards (drop it)",
}

impl LimitFault {
    #[track_caller]
    pub(super) const fn panic(self) -> ! {
        panic!("{}", self.message())
    }
}

impl std::fmt::Display for LimitFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message())
    }
}

/// The fault of a name, if it has one.
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
