use std::borrow::Cow;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Deserialize;

use crate::answer::decision::{Source, span};
use crate::answer::standing::{CrossedError, fell_below};
use crate::key::Key;
use crate::limit::Limit;
use crate::tokens::Tokens;
use crate::values::lean::lean;

/// The balance of a limit for a key.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[non_exhaustive]
pub struct Balance {
    /// The limit.
    pub limit: Cow<'static, str>,
    /// The key.
    pub key: Key,
    /// The tokens that can be spent now; negative for a debt.
    pub remaining: Tokens,
    /// The tokens that were used, under whatever definition, and have not come back. For a wallet, its debt.
    pub used: Tokens,
    /// The most tokens that it can hold; for a [wallet](crate::Limit::wallet), the largest amount.
    pub capacity: Tokens,
    /// When it will be full if nobody spends; for a wallet, when it is empty and forgotten. `None` for never.
    pub full_at: Option<DateTime<Utc>>,
    /// When the balance was read, by the database's clock.
    pub observed_at: DateTime<Utc>,
    /// The instant that the row stands at: [`observed_at`](Self::observed_at) unless the clock has gone back since it
    /// was written.
    pub as_of: DateTime<Utc>,
    /// The source of the answer: [`Source::Repeated`] if a credit or a debit with the same [id](crate::Call::once)
    /// was carried out before.
    pub source: Source,
    /// The balance before a debit; `None` where this call took nothing.
    #[serde(default)]
    pub(crate) before: Option<Tokens>,
}

lean!(Balance { limit, key, remaining, used, capacity, full_at, observed_at, as_of, source } and { before });

impl Balance {
    /// The debt; zero where there is none.
    #[must_use]
    pub fn debt(&self) -> Tokens {
        Tokens::ZERO.checked_sub(self.remaining).unwrap_or(Tokens::MAX).max(Tokens::ZERO)
    }

    /// Whether this debit took the balance of the limit below a share of the capacity, from at or above it; see
    /// [`Standing::crossed`](crate::Standing::crossed).
    ///
    /// # Errors
    ///
    /// Those of [`Standing::crossed`](crate::Standing::crossed).
    pub fn crossed(&self, limit: &Limit, share: f64) -> Result<bool, CrossedError> {
        fell_below(limit, share, self.before.map(|before| (before, self.remaining)))
    }

    /// Whether the balance is at the capacity.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.remaining >= self.capacity
    }

    /// How far the row lies in the future. The database's clock has gone back since the row was written, and nothing
    /// refills until the clock has caught up. `reset` mends it.
    #[must_use]
    pub fn ahead(&self) -> Duration {
        span(self.observed_at, self.as_of)
    }
}
