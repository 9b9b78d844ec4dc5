use std::time::Duration;

use super::{Limit, LimitFault, LimitKind, Storage, whole};
use crate::tokens::Tokens;

/// # Settings
impl Limit {
    /// How far below zero every call may take a wallet, in whole tokens; 0 unless set.
    ///
    /// # Panics
    ///
    /// For another kind of limit.
    #[track_caller]
    pub const fn overdraft(self, tokens: u64) -> Self {
        if !matches!(self.0.kind, LimitKind::Wallet) {
            LimitFault::OverdraftWithoutWallet.panic()
        }
        self.max_reserved(tokens)
    }

    /// The number of steps in which a sliding window slides, 1 to 63. Fewer steps make smaller rows, and a stricter
    /// limit.
    ///
    /// A grant counts until the end of the step in which it leaves the window. With `k` steps, a limit under constant
    /// demand grants `k / (k + 1)` of its `n`, and a row remembers at most `k + 1` instants.
    ///
    /// # Panics
    ///
    /// For a limit of another kind, and for a number out of range.
    #[track_caller]
    pub const fn resolution(mut self, steps: u16) -> Self {
        self.0.resolution = Some(steps);
        self.checked()
    }

    /// The most that a rested key can spend at once, in whole tokens; the rate unless set.
    ///
    /// A limit with a capacity of 0 grants nothing at once. Together with [`max_reserved`](Self::max_reserved) it is a
    /// leaky bucket used as a queue: reservations are spaced evenly. Without reservations every positive cost is an
    /// error.
    ///
    /// # Panics
    ///
    /// If the capacity is beyond [`Tokens::MAX`], and for a sliding window or a concurrency limit, whose capacity is
    /// its `n`.
    #[track_caller]
    pub const fn capacity(mut self, capacity: u64) -> Self {
        self.0.capacity = Some(whole(capacity, LimitFault::CapacityTooLarge));
        self.checked()
    }

    /// Rate and capacity in exact tokens, for fractions of a token.
    ///
    /// # Panics
    ///
    /// If `rate` is not positive or `capacity` is negative.
    #[track_caller]
    pub const fn rate_and_capacity(mut self, rate: Tokens, capacity: Tokens) -> Self {
        self.0.rate = rate;
        self.0.capacity = Some(capacity);
        self.checked()
    }

    /// Aligns a fixed window to the Unix epoch plus `offset`, for example to the full minute, or to midnight in some
    /// zone. Lets the months of a monthly limit begin `offset` after midnight at the start of the 1st, less than 31
    /// days; a month that has no such day begins on its last.
    ///
    /// The offset of a window counts modulo the period, in whole microseconds. A zone east of Greenwich starts its day
    /// on the UTC day before: the offset for midnight at UTC+2 is 22 hours.
    ///
    /// # Panics
    ///
    /// For another kind of limit, and for an offset that is no whole number of microseconds.
    #[track_caller]
    pub const fn start(mut self, offset: Duration) -> Self {
        self.0.start = Some(offset);
        self.checked()
    }

    /// How deep reservations may take the balance below zero, in whole tokens; 0 unless set.
    ///
    /// # Panics
    ///
    /// For an [`ephemeral`](Self::ephemeral) limit, because a crash would forget its debts.
    #[track_caller]
    pub const fn max_reserved(mut self, tokens: u64) -> Self {
        self.0.max_reserved = whole(tokens, LimitFault::MaxReservedTooLarge);
        self.checked()
    }

    /// Allows reservations without a bound: every caller gets an instant, however far ahead.
    ///
    /// # Panics
    ///
    /// For an [`ephemeral`](Self::ephemeral) limit.
    #[track_caller]
    pub const fn unbounded_reservations(mut self) -> Self {
        self.0.max_reserved = Tokens::MAX;
        self.checked()
    }

    /// Spreads each key over `shards` rows, 1 to [`MAX_SHARDS`](Self::MAX_SHARDS), so that several transactions can
    /// charge the key at once; 1 unless set.
    ///
    /// A transaction locks the row that it charged until it ends. Where callers of a [`Limiter`](crate::Limiter) wait
    /// for each other on one key, shards let them pass. A [`Gate`](crate::Gate) merges its callers instead, and rarely
    /// needs shards.
    ///
    /// The rows are one limit: they share one phase, and divide rate, capacity and `max_reserved` among them to the
    /// micro-token. Together they never grant more than one row would, and they refuse a call only where all of them
    /// together are short. That may be a little earlier than with one row, because a row that is full gains nothing
    /// while another is low. A call of a `Limiter` looks at all rows before it takes from one; see its section
    /// *Shards*.
    ///
    /// # Changing the number
    ///
    /// A changed number of shards is a changed definition. The rows are numbered from 0; each stays readable and is cut
    /// to its new share of the capacity at its next refill. While processes with both numbers run, at most the sum of
    /// both limits is granted; afterwards at most one capacity more, once. A row beyond the new number is stale: no
    /// call asks it, its debt delays no call, and the sweeper deletes it when it is full. If one row becomes ten, a
    /// debt in that row is repaid at a tenth of the rate.
    ///
    /// # Panics
    ///
    /// For 0 and for more than the maximum, and for a rate of less than a micro-token for each shard. Also for a kind
    /// of limit that counts in one row: a stepped bucket, a sliding window, a concurrency limit.
    ///
    /// # Example
    ///
    /// ```
    /// use tollgate::{Limit, SECOND};
    ///
    /// const EVERYBODY: Limit = Limit::token_bucket("everybody", 5_000, SECOND).shards(16);
    /// # let _ = EVERYBODY;
    /// ```
    #[track_caller]
    pub const fn shards(mut self, shards: u16) -> Self {
        self.0.shards = shards;
        self.checked()
    }

    /// Keeps the limit in the unlogged table: faster, but **a crash or a failover empties the table**, and every bucket
    /// is full again. Such a limit takes no reservations. A change between the two tables is like a change of the
    /// number of [`shards`](Self::shards): the rows in the other table are no longer asked.
    ///
    /// # Panics
    ///
    /// For a limit that allows reservations.
    #[track_caller]
    pub const fn ephemeral(mut self) -> Self {
        self.0.storage = Storage::Ephemeral;
        self.checked()
    }
}
