//! The meaning of overrides for a key now.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use tollgate::{Key, Limit, Limiter, Override, Overrides, Request, Tokens, migrate};

use super::ban::{ban_of, ban_words};
use crate::database::begin;
use crate::error::CommandError;
use crate::output::{instant, span};

/// Where a key stands by all that counts for it.
#[derive(Debug, Serialize)]
pub(super) struct Meaning {
    /// The used tokens of the capacity; null for a wallet, which has none.
    used: Option<Tokens>,
    balance: Tokens,
    capacity: Tokens,
    observed_at: DateTime<Utc>,
    pub(super) is_granted: bool,
    is_denied: bool,
    #[serde(skip)]
    ban: Option<Override>,
    /// From when on one token is granted; null for never.
    granted_at: Option<DateTime<Utc>>,
}

impl Meaning {
    /// Reads it.
    pub(super) async fn of(conn: &mut PgConnection, limit: &Limit, key: &Key) -> Result<Self, CommandError> {
        let mut tx = begin(conn).await?;
        let overrides = Overrides::read(&mut tx).await?;
        let limiter = Limiter::new().unnamed_statements().parts(migrate::parts(&mut tx).await?).overrides(&overrides);
        let balance = limiter.balance(&mut tx, asked(limit, key)).await?;
        let checked = limiter.check(&mut tx, asked(limit, key)).await;
        tx.rollback().await?;
        let used = Some(limit).filter(|limit| !limit.spec().kind.is_money());
        // A call that can never be granted is an error.
        let refused = checked.ok().map(tollgate::Decision::denied);
        let is_granted = matches!(refused, Some(None));
        let refused = refused.flatten();
        let ban = refused.as_ref().and_then(|denied| ban_of(&overrides, denied));
        Ok(Self {
            used: used.map(|_| balance.used),
            balance: balance.remaining,
            capacity: balance.capacity,
            observed_at: balance.observed_at,
            is_granted,
            is_denied: ban.is_some(),
            ban,
            granted_at: if is_granted { Some(balance.observed_at) } else { refused.and_then(|denied| denied.retry_at) },
        })
    }

    /// Whether there is something to report: something is used, or nothing is granted.
    pub(super) fn tells(&self) -> bool {
        !self.is_granted || self.used.is_some_and(|used| used > Tokens::ZERO)
    }

    pub(super) fn text(&self) -> String {
        let stands = match self.used {
            Some(used) => format!("{used} of {} used", self.capacity),
            None => format!("it has {}", self.balance),
        };
        let wait = |at: DateTime<Utc>| span((at - self.observed_at).to_std().unwrap_or_default());
        let granted = match (&self.ban, self.granted_at) {
            (Some(said), _) => ban_words(said),
            _ if self.is_granted => "granted now".to_owned(),
            (None, Some(at)) => format!("granted again in {}, at {}; --reset forgives", wait(at), instant(at)),
            (None, None) => "granted only after a credit".to_owned(),
        };
        format!("{stands}; {granted}")
    }
}

/// One token of a key; the empty key is all callers' row.
pub(super) fn asked(limit: &Limit, key: &Key) -> Request {
    if key.is_global() { limit.global() } else { limit.key(key) }
}
