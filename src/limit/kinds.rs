use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Limit;
#[cfg(doc)]
use super::{LimitFault, LimitSpec};

macro_rules! kinds {
    ($($kind:ident = $constructor:literal, $words:literal;)*) => {
        /// How tokens come back; see [`Limit`]'s constructors of the same names. Files and tables say `token_bucket`.
        #[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum LimitKind {
            $(#[doc = $constructor] $kind,)*
        }

        impl LimitKind {
            /// All of them.
            pub const ALL: [Self; [$($words),*].len()] = [$(Self::$kind),*];
        }

        impl fmt::Display for LimitKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$kind => $words,)*
                })
            }
        }
    };
}
kinds! {
    Billing = "[`Limit::billing`].", "billing limit";
    Concurrency = "[`Limit::concurrency`].", "concurrency limit";
    FixedWindow = "[`Limit::fixed_window`].", "fixed window";
    Meter = "[`Limit::meter`].", "meter";
    Monthly = "[`Limit::monthly`].", "monthly limit";
    SlidingWindow = "[`Limit::sliding_window`].", "sliding window";
    SteppedBucket = "[`Limit::stepped_bucket`].", "stepped bucket";
    TokenBucket = "[`Limit::token_bucket`].", "token bucket";
    Wallet = "[`Limit::wallet`].", "wallet";
}

/// # Facts
impl LimitKind {
    /// The period of a kind that has one which its definitions do not say: a month of the calendar, or one that callers
    /// name.
    #[must_use]
    pub const fn calendar(self) -> Option<&'static str> {
        match self {
            Self::Billing => Some("period that is named"),
            Self::Monthly => Some("month"),
            _ => None,
        }
    }

    /// Whether its definition says how long a period is. A wallet and a meter have no period; those of a monthly and of
    /// a billing limit are the [calendar's](Self::calendar).
    #[must_use]
    pub const fn has_period(self) -> bool {
        !self.is_money() && self.calendar().is_none()
    }

    /// Whether its rows count money, to which time brings nothing: those of a wallet and of a meter.
    #[must_use]
    pub const fn is_money(self) -> bool {
        matches!(self, Self::Meter | Self::Wallet)
    }

    /// Whether it can be slowed down. Of a month's tokens all come at once, so a lower rate for an hour would change
    /// nothing, or cut what the turn of the month brings.
    #[must_use]
    pub const fn can_slow(self) -> bool {
        self.has_period()
    }

    /// Whether its rows list what counts, so that its capacity is its rate.
    pub(super) const fn counts(self) -> bool {
        matches!(self, Self::Concurrency | Self::SlidingWindow)
    }
}

/// # Kinds
///
/// Each panics if a [`LimitFault`] applies: at compile time in a `const`, else at run time. Use [`LimitSpec`] for
/// run-time input.
impl Limit {
    /// A bucket into which `rate` tokens drip evenly over each `period`, up to its capacity.
    ///
    /// Each write rounds the refill down to whole micro-tokens. So a slow bucket that is written all the time gains
    /// nothing. A bucket of one token a day, written 5 402 times within 4 seconds, got none of the 46 micro-tokens that
    /// were due.
    ///
    /// A settlement gives tokens back at once, up to the capacity. So the calls of a burst may keep more than the
    /// bound, by the tokens that came back during the burst from earlier calls. That is at most the tokens of the calls
    /// that were in flight when the burst began. If calls last longer than the bucket takes to fill and you need a hard
    /// bound, use a [`sliding_window`](Self::sliding_window).
    #[track_caller]
    pub const fn token_bucket(name: &'static str, rate: u64, period: Duration) -> Self {
        Self::define(name, LimitKind::TokenBucket, rate, period)
    }

    /// A window: `rate` tokens come at once when each `period` starts.
    ///
    /// Each key has its own phase, a hash of name and key, so a thousand tenants do not all come back in the same
    /// second. [`start`](Self::start) aligns the windows instead. A client that spends one window at its end and the
    /// next at its start takes twice the rate within a moment. A [`sliding_window`](Self::sliding_window) has no such
    /// edge.
    #[track_caller]
    pub const fn fixed_window(name: &'static str, rate: u64, period: Duration) -> Self {
        Self::define(name, LimitKind::FixedWindow, rate, period)
    }

    /// A budget of a calendar month: `n` tokens come at once when each month of UTC starts, by the database's clock.
    ///
    /// A month starts on its 1st at midnight, or a [`start`](Self::start) later. The months of all keys turn together.
    /// A key is marked with the end of its month, and until then no definition of another kind that asks it brings it
    /// tokens. For months of other zones, and for months of each customer's own, use [`billing`](Self::billing).
    ///
    /// ```
    /// use tollgate::Limit;
    ///
    /// const LLM: Limit = Limit::monthly("llm", 100_000);
    /// # let _ = LLM;
    /// ```
    #[track_caller]
    pub const fn monthly(name: &'static str, n: u64) -> Self {
        Self::define(name, LimitKind::Monthly, n, Duration::ZERO)
    }

    /// A budget by periods that callers name, such as the billing period of a customer: `n` tokens come at once when
    /// each period starts.
    ///
    /// A call that takes tokens, or asks for them, names its period with [`Request::period`](crate::Request::period).
    /// Without one it fails with [`CallError::PeriodMissing`](crate::CallError::PeriodMissing), before any SQL. A key
    /// is marked with the end of its period. So `credit`, `reset`, `balance`, `settle` and `cancel` need to name none,
    /// and until that end no definition of another kind that asks the key brings it tokens.
    ///
    /// A billing limit takes no reservations.
    #[track_caller]
    pub const fn billing(name: &'static str, n: u64) -> Self {
        Self::define(name, LimitKind::Billing, n, Duration::ZERO)
    }

    /// A bucket into which `rate` tokens fall at once, each whole `period` after the key's first use. Settlements give
    /// tokens back as they do to a [`token_bucket`](Self::token_bucket).
    #[track_caller]
    pub const fn stepped_bucket(name: &'static str, rate: u64, period: Duration) -> Self {
        Self::define(name, LimitKind::SteppedBucket, rate, period)
    }

    /// A window that slides: never more than `n` tokens in any `period`, wherever it begins.
    ///
    /// The row remembers each grant until it leaves the window, and then its tokens come back. This is exact to the
    /// microsecond for up to 64 grants in a period. With more grants, instants are rounded up to a 63rd of the period,
    /// so a token counts for up to 1.6 % longer, never shorter; [`resolution`](Self::resolution) makes this step
    /// coarser. A row takes 16 bytes for each remembered instant.
    ///
    /// A sliding window takes no reservations and no shards. A changed `n` or a shorter period counts at once; a longer
    /// period counts for later grants. While two definitions with different periods are live, each cuts the entries of
    /// the other to its own period.
    #[track_caller]
    pub const fn sliding_window(name: &'static str, n: u64, period: Duration) -> Self {
        Self::define(name, LimitKind::SlidingWindow, n, period)
    }

    /// A limit on concurrent work: at most `n` tokens are held at once, 1 to
    /// [`MAX_CONCURRENCY`](Self::MAX_CONCURRENCY).
    ///
    /// A token is granted for a `lease`. Its holder renews the lease while it works
    /// ([`Limiter::renew`](crate::Limiter::renew)), and releases the token when the work is done
    /// ([`Limiter::release`](crate::Limiter::release)); [`Gate::acquire`](crate::Gate::acquire) does both. If a holder
    /// dies, the token comes back when the lease ends. A shorter lease is renewed more often; half a minute suits most
    /// services.
    ///
    /// The limit bounds how many tokens are held at once, not how often they are taken: a released token is free at
    /// once. To bound both, ask two limits in one call. A concurrency limit takes no reservations, no shards, no
    /// `credit` and no `debit`. After a `reset` all tokens are free, and their holders no longer count. A changed `n`
    /// counts at once.
    #[track_caller]
    pub const fn concurrency(name: &'static str, n: u64, lease: Duration) -> Self {
        Self::define(name, LimitKind::Concurrency, n, lease)
    }

    /// Money: the tokens that were credited, less those that were spent. A missing row holds nothing, and time brings
    /// no tokens.
    ///
    /// A purchase credits it (`credit(WALLET.key(tenant).cost(500).once(payment))`). A call that it cannot pay is
    /// refused without an instant to come back at. It has no capacity: a credit that does not fit fails with
    /// [`Error::DoesNotFit`](crate::Error::DoesNotFit), and is never cut. A settlement gives tokens back even to a
    /// missing row. A wallet is durable, and no definition of another kind reads its row
    /// ([`FitError::MixedMoney`](crate::FitError::MixedMoney)).
    #[track_caller]
    pub const fn wallet(name: &'static str) -> Self {
        Self::define(name, LimitKind::Wallet, 0, Duration::ZERO)
    }

    /// Counts what is used, and refuses nobody.
    ///
    /// Charge it in the same call as the limits, with the month as the first part of its key: then a settlement or a
    /// lapse corrects both. [`Balance::used`](crate::Balance::used) has the used tokens of a key, and `tollgate usage`
    /// lists those of all keys. As one row counts for a key, calls of one key take turns.
    ///
    /// `credit` and `debit` correct it. It takes no [`reset`](crate::Limiter::reset), because that would erase a bill
    /// ([`CallError::ResetOfMeter`](crate::CallError::ResetOfMeter)), and no override. As the last of a
    /// [`first_of`](crate::first_of) or a [`split`](crate::split) it counts the use beyond a plan. Its row is that of a
    /// [wallet](Self::wallet) whose overdraft has no bound, so a wallet may become a meter.
    ///
    /// ```
    /// use tollgate::{Limit, MINUTE};
    ///
    /// const TOKENS: Limit = Limit::token_bucket("tokens", 40_000, MINUTE);
    /// const USAGE: Limit = Limit::meter("usage");
    ///
    /// let month = chrono::Utc::now().format("%Y-%m").to_string();
    /// let call = [TOKENS.key("acme").cost(1_200), USAGE.key((month, "acme")).cost(1_200)];
    /// # let _ = call;
    /// ```
    #[track_caller]
    pub const fn meter(name: &'static str) -> Self {
        Self::define(name, LimitKind::Meter, 0, Duration::ZERO)
    }
}
