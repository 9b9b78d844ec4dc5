use std::time::Duration;

use super::{Limit, LimitKind};
#[cfg(doc)]
use super::{LimitFault, LimitSpec};

/// # Kinds
impl Limit {
    /// A bucket into which `rate` tokens drip evenly over each `period`, up to its capacity.
    ///
    /// Each write rounds the refill down to whole micro-tokens. So a bucket that is slow and written all the time gains
    /// nothing: one a day, written 5 402 times within 4 seconds, got none of the 46 micro-tokens that were due.
    ///
    /// A settlement gives tokens back at once, up to the capacity. So in a burst calls may keep, beyond the bound, the
    /// tokens that came back in it from calls made before: at most those that were in flight when it began. Where calls
    /// last longer than the bucket takes to fill, a hard bound is a [`sliding_window`](Self::sliding_window).
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

    /// A bucket into which `rate` tokens fall at once, each whole `period` after the key's first use. Settlements give
    /// back as to a [`token_bucket`](Self::token_bucket).
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
}
