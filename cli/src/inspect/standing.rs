use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use tollgate::algebra::{Account, Ask, Pause, Terms, Timestamp, Verdict};
use tollgate::plan::Ruling;
use tollgate::{Key, Limit, Tokens};

use crate::row::{Row, until};

/// The rows of a key, read by the definition.
#[derive(Serialize)]
pub(super) struct Standing {
    pub(super) remaining: Tokens,
    pub(super) used: Tokens,
    pub(super) capacity: Tokens,
    pub(super) debt: Tokens,
    /// Null for never, as of a wallet.
    pub(super) full_at: Option<DateTime<Utc>>,
    pub(super) full_in_ms: Option<u64>,
    pub(super) next: Next,
}

/// When a call of some cost would be granted, if nobody spends before.
#[derive(Serialize)]
pub(super) struct Next {
    pub(super) cost: Tokens,
    /// Null for never: the cost is beyond the capacity, or only a credit helps.
    pub(super) at: Option<DateTime<Utc>>,
    pub(super) wait_ms: Option<u64>,
    /// Whether an operator refuses it until then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_denied: bool,
}

impl Standing {
    pub(super) fn of(
        limit: &Limit,
        key: &Key,
        rows: &[Row],
        pause: Option<Pause>,
        now: Timestamp,
        cost: Tokens,
    ) -> Self {
        let spec = limit.spec();
        let mut states = vec![None; spec.shards.into()];
        for row in rows {
            if let Some(index) = row.index(limit) {
                states[index] = Some(row.state());
            }
        }
        let account = Account::new(&Terms::of(limit, key).paused(pause), &states, now);
        let capacity = if spec.kind.is_money() { Tokens::MAX } else { spec.capacity.unwrap_or(spec.rate) };
        let ever = |at: Timestamp| Some(at.max(now)).filter(|at| *at < Timestamp::MAX);
        let (remaining, used, full_at) = (account.balance(), account.used(), ever(account.full_at()));
        let debt = Tokens::ZERO.checked_sub(remaining).unwrap_or(Tokens::MAX).max(Tokens::ZERO);
        let granted_at = match account.decide(Ask::consume(cost)) {
            _ if cost > capacity => None,
            Ok(Verdict::Granted { .. }) => Some(now),
            Ok(Verdict::Denied { retry_at, .. }) => ever(retry_at),
            Err(_) => None,
        };
        let wait_ms = granted_at.map(|at| millis(until(at, now)));
        let next = Next { cost, at: granted_at.map(Into::into), wait_ms, is_denied: false };
        let full_in_ms = full_at.map(|at| millis(until(at, now)));
        Self { remaining, used, capacity, debt, full_at: full_at.map(Into::into), full_in_ms, next }
    }

    /// The same where an operator denies, or grants all.
    pub(super) fn ruled(mut self, ruling: Option<Ruling>, now: Timestamp) -> Self {
        let at = match ruling {
            None => return self,
            Some(Ruling::Unlimited) => Some(now),
            Some(Ruling::Deny { until }) => Some(until).filter(|until| *until < Timestamp::MAX),
        };
        self.next.at = at.map(Into::into);
        self.next.wait_ms = at.map(|at| millis(until(at, now)));
        self.next.is_denied = matches!(ruling, Some(Ruling::Deny { .. }));
        self
    }
}

/// Rounded up: a caller that waits so long has waited long enough.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
