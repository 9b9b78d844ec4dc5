use std::borrow::Cow;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Deserialize;

use crate::decision::{Source, span};
use crate::key::Key;
use crate::lean::lean;
use crate::limit::Limit;
use crate::standing::{CrossedError, fell_below};
use crate::tokens::Tokens;

/// What a limit holds for a key.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[non_exhaustive]
pub struct Balance {
    /// The limit.
    pub limit: Cow<'static, str>,
    /// Whose balance.
    pub key: Key,
    /// What can be spent now; negative for a debt.
    pub remaining: Tokens,
    /// What is used and has not come back, under whatever definitions; of a wallet what it owes.
    pub used: Tokens,
    /// The most that it can hold; of a [wallet](crate::Limit::wallet) the largest amount.
    pub capacity: Tokens,
    /// When it will be full if nobody spends; of a wallet when it is empty and forgotten. `None` for never.
    pub full_at: Option<DateTime<Utc>>,
    /// When it was read, by the database's clock.
    pub observed_at: DateTime<Utc>,
    /// The instant that the row stands at: [`observed_at`](Self::observed_at) unless the clock has gone back since it
    /// was written.
    pub as_of: DateTime<Utc>,
    /// Who decided: [`Source::Repeated`] where the same [id](crate::Request::once) was credited or debited before.
    pub source: Source,
    /// What was there before a debit; `None` where this call took nothing.
    #[serde(default)]
    pub(crate) before: Option<Tokens>,
}

lean!(Balance { limit, key, remaining, used, capacity, full_at, observed_at, as_of, source } and { before });

impl Balance {
    /// What is owed; zero where nothing is.
    #[must_use]
    pub fn debt(&self) -> Tokens {
        Tokens::ZERO.checked_sub(self.remaining).unwrap_or(Tokens::MAX).max(Tokens::ZERO)
    }

    /// Whether this debit took the balance of the limit from at or above a share of the capacity to below it; see
    /// [`Standing::crossed`](crate::Standing::crossed).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn crossed(&self, limit: &Limit, share: f64) -> Result<bool, CrossedError> {
        fell_below(limit, share, self.before.map(|before| (before, self.remaining)))
    }

    /// Whether nothing is missing.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.remaining >= self.capacity
    }

    /// How far the row lies in the future: the database's clock has gone back since it was written, and nothing refills
    /// until it has caught up. `reset` mends it.
    #[must_use]
    pub fn ahead(&self) -> Duration {
        span(self.observed_at, self.as_of)
    }
}
