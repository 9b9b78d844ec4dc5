mod fault;
mod spec;
pub(crate) mod written;

use std::ops::Deref;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::text::Text;
use crate::tokens::Tokens;
pub use fault::{LimitError, LimitFault};
pub use spec::{LimitKind, LimitSpec, Storage};
pub(crate) use spec::{micros, period_fault};

/// A rule such as "ten messages a minute": a rate, a capacity, and how tokens come back.
///
/// | constructor | how tokens come back | capacity |
/// | --- | --- | --- |
/// | [`token_bucket`](Self::token_bucket) | they drip all the time | the rate, unless set |
/// | [`fixed_window`](Self::fixed_window) | `rate` at once as each period starts | the rate, unless set |
/// | [`stepped_bucket`](Self::stepped_bucket) | `rate` at once, each period after a first use | the rate, unless set |
/// | [`sliding_window`](Self::sliding_window) | each grant, one `period` later | `n`: never more in any period |
/// | [`concurrency`](Self::concurrency) | each grant, as it is released or its `lease` ends | `n`: never more at once |
/// | [`wallet`](Self::wallet) | by credits alone | none |
///
/// Windows of different keys start at different instants, unless [`start`](Self::start) aligns them; with a capacity
/// above the rate, what is unused rolls over. A stepped bucket steps at whole periods after the key's first use.
///
/// Every `Limit` is valid. The constructors are `const`: a wrong limit in a `const` item does not compile, and the
/// error points at the line of that item. What is read at run time is a [`LimitSpec`] first; its conversion makes the
/// same checks and returns a [`LimitError`]. The fields of the spec can be read from a limit: `limit.period`.
///
/// The order of methods matters only where two set the same thing, such as [`capacity`](Self::capacity) and
/// [`exactly`](Self::exactly): the last one counts.
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
#[serde(try_from = "LimitSpec")]
pub struct Limit(LimitSpec);

impl Limit {
    /// The most tokens of a [`concurrency`](Self::concurrency) limit. Its row lists the holders: with a hundred a write
    /// costs three times as much as with none, with a thousand thirty times.
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
    /// Each write rounds the refill down to whole micro-tokens. So a bucket that is slow and written all the time gains
    /// nothing: one a day, written 5 402 times within 4 seconds, got none of the 46 micro-tokens that were due.
    ///
    /// What is settled comes back at once, up to the capacity. So in a burst calls may keep, beyond the bound, what
    /// came back in it from calls made before: at most what was in flight when it began. Where calls last longer than
    /// the bucket takes to fill, a hard bound is a [`sliding_window`](Self::sliding_window).
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies: at compile time in a `const`, else at run time. Use [`LimitSpec`] for run-time
    /// input.
    #[must_use]
    #[track_caller]
    pub const fn token_bucket(name: &'static str, rate: u64, period: Duration) -> Self {
        Self::define(name, LimitKind::TokenBucket, rate, period)
    }

    /// A window: `rate` tokens at once as each `period` starts.
    ///
    /// Each key has its own phase, a hash of name and key, so a thousand tenants do not all come back in the same
    /// second. [`start`](Self::start) aligns the windows instead. A client that spends one window at its end and the
    /// next at its start takes twice the rate in a moment; a [`sliding_window`](Self::sliding_window) has no such edge.
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies.
    #[must_use]
    #[track_caller]
    pub const fn fixed_window(name: &'static str, rate: u64, period: Duration) -> Self {
        Self::define(name, LimitKind::FixedWindow, rate, period)
    }

    /// A bucket into which `rate` tokens fall at once, each whole `period` after the key's first use. What is settled
    /// comes back as to a [`token_bucket`](Self::token_bucket).
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies.
    #[must_use]
    #[track_caller]
    pub const fn stepped_bucket(name: &'static str, rate: u64, period: Duration) -> Self {
        Self::define(name, LimitKind::SteppedBucket, rate, period)
    }

    /// A window that slides: never more than `n` tokens in any `period`, wherever it begins.
    ///
    /// Each grant is remembered until it leaves the window, and comes back then. That is exact to the microsecond for
    /// up to 64 grants in a period. Beyond, instants are rounded up to a 63rd of the period, so a token counts for up
    /// to 1.6 % longer, and never for less; [`resolution`](Self::resolution) makes this step coarser. A row takes 16
    /// bytes for each remembered instant.
    ///
    /// A sliding window takes no reservations and no shards. A changed `n` or a shorter period counts at once; a longer
    /// period counts for what is granted from then on. While two definitions of different periods are live, each cuts
    /// what the other has listed to its own period.
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies.
    #[must_use]
    #[track_caller]
    pub const fn sliding_window(name: &'static str, n: u64, period: Duration) -> Self {
        Self::define(name, LimitKind::SlidingWindow, n, period)
    }

    /// A limit on concurrent work: at most `n` tokens are held at once, 1 to
    /// [`MAX_CONCURRENCY`](Self::MAX_CONCURRENCY).
    ///
    /// A token is granted for a `lease`. Its holder renews the lease while it works
    /// ([`Limiter::renew`](crate::Limiter::renew)), and releases the token when the work is done
    /// ([`Limiter::release`](crate::Limiter::release)); [`Gate::acquire`](crate::Gate::acquire) does both. A holder
    /// that dies does neither, and the token comes back when the lease ends. A shorter lease is renewed more often;
    /// half a minute suits most.
    ///
    /// The limit bounds how much is held at once, and not how often: a token that is released is free at the same
    /// instant. To bound both, ask two limits in one call. A concurrency limit takes no reservations, no shards, no
    /// `credit` and no `debit`. After a `reset` all tokens are free, and those who hold some are not counted any more.
    /// A changed `n` counts at once.
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies.
    #[must_use]
    #[track_caller]
    pub const fn concurrency(name: &'static str, n: u64, lease: Duration) -> Self {
        Self::define(name, LimitKind::Concurrency, n, lease)
    }

    /// Money: what was credited, less what was spent. A missing row holds nothing, and time brings nothing.
    ///
    /// A purchase credits it (`credit(WALLET.key(tenant).cost(500).once(payment))`), and a call that it cannot pay is
    /// refused with no instant to come back at. It has no capacity: what does not fit is
    /// [`Error::DoesNotFit`](crate::Error::DoesNotFit), and never cut. A settlement gives back to a missing
    /// row, too. It is durable, and its row is read by no definition of another kind
    /// ([`FitError::MixedMoney`](crate::FitError::MixedMoney)).
    ///
    /// # Panics
    ///
    /// Where a [`LimitFault`] applies.
    #[must_use]
    #[track_caller]
    pub const fn wallet(name: &'static str) -> Self {
        Self::define(name, LimitKind::Wallet, 0, Duration::ZERO)
    }

    /// How far below zero every call may take a wallet, in whole tokens; 0 unless set.
    ///
    /// # Panics
    ///
    /// For another kind of limit.
    #[must_use]
    #[track_caller]
    pub const fn overdraft(self, tokens: u64) -> Self {
        if !matches!(self.0.kind, LimitKind::Wallet) {
            LimitFault::OverdraftWithoutWallet.panic()
        }
        self.max_reserved(tokens)
    }

    /// In how many steps a sliding window slides, 1 to 63. Fewer steps make smaller rows, and a stricter limit.
    ///
    /// A grant counts until the end of the step in which it leaves the window. With `k` steps, a limit under constant
    /// demand grants `k / (k + 1)` of its `n`, and a row remembers at most `k + 1` instants.
    ///
    /// # Panics
    ///
    /// For a limit that does not slide, and for a number out of range.
    #[must_use]
    #[track_caller]
    pub const fn resolution(mut self, steps: u16) -> Self {
        self.0.resolution = Some(steps);
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
        self.0.capacity = Some(whole(capacity, LimitFault::CapacityTooLarge));
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
        self.0.rate = rate;
        self.0.capacity = Some(capacity);
        self.checked()
    }

    /// Aligns a fixed window to the Unix epoch plus `offset`: the full minute, or midnight in some zone.
    ///
    /// The offset counts modulo the period, in whole microseconds. A zone east of Greenwich starts its day on the UTC
    /// day before: the offset for midnight at UTC+2 is 22 hours.
    ///
    /// # Panics
    ///
    /// For another kind of limit, and for an offset that is no whole number of microseconds.
    #[must_use]
    #[track_caller]
    pub const fn start(mut self, offset: Duration) -> Self {
        self.0.start = Some(offset);
        self.checked()
    }

    /// How deep reservations may take the balance below zero, in whole tokens; 0 unless set.
    ///
    /// # Panics
    ///
    /// For an [`ephemeral`](Self::ephemeral) limit: a crash would forget its debts.
    #[must_use]
    #[track_caller]
    pub const fn max_reserved(mut self, tokens: u64) -> Self {
        self.0.max_reserved = whole(tokens, LimitFault::MaxReservedTooLarge);
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
        self.0.max_reserved = Tokens::MAX;
        self.checked()
    }

    /// Spreads each key over `shards` rows, 1 to [`MAX_SHARDS`](Self::MAX_SHARDS), so that several transactions can be
    /// charged at once; 1 unless set.
    ///
    /// A transaction that was charged locks its row until it ends. Where callers of a [`Limiter`](crate::Limiter) wait
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
    /// both limits is granted; afterwards at most one capacity more, once. A row beyond the new number is stale: nobody
    /// asks it, its debt binds nobody, and the sweeper deletes it when it is full. If one row becomes ten, a debt in
    /// that row is repaid at a tenth of the rate.
    ///
    /// # Panics
    ///
    /// For 0 and for more than the maximum, for a rate of less than a micro-token for each shard, and for a kind that
    /// counts in one row: a stepped bucket, a sliding window, a concurrency limit.
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
        self.0.shards = shards;
        self.checked()
    }

    /// Keeps the limit in the unlogged table: faster, but **a crash or a failover empties the table**, and every bucket
    /// is full again. Such a limit takes no reservations. A change between the two tables is like a change of the
    /// number of [`shards`](Self::shards): nobody asks the rows in the other table any more.
    ///
    /// # Panics
    ///
    /// For a limit that allows reservations.
    #[must_use]
    #[track_caller]
    pub const fn ephemeral(mut self) -> Self {
        self.0.storage = Storage::Ephemeral;
        self.checked()
    }

    /// How long a grant lasts, if this is a [`concurrency`](Self::concurrency) limit.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        (self.kind == LimitKind::Concurrency).then_some(self.period)
    }

    /// The definition as plain data, to be changed and checked anew.
    #[must_use]
    pub fn spec(&self) -> LimitSpec {
        self.0.clone()
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

#[track_caller]
const fn whole(tokens: u64, fault: LimitFault) -> Tokens {
    match Tokens::from_whole(tokens) {
        Ok(tokens) => tokens,
        Err(_) => fault.panic(),
    }
}
