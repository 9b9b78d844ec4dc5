use std::borrow::Cow;
use std::time::Duration;
use std::{fmt, mem};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::answer::receipt::Receipt;
use crate::answer::standing::Standings;
use crate::key::Key;
use crate::tokens::Tokens;
use crate::values::lean::lean;

/// The answer of a limit. A refusal is an answer, not an error: the transaction stays usable.
///
/// # Example
///
/// ```
/// use tollgate::{Decision, Grant};
///
/// fn remaining(decision: Decision) -> String {
///     match decision {
///         Decision::Granted(grant) => format!("{} left", grant.remaining),
///         Decision::Denied(denied) => format!("come back in {:?}", denied.retry_after()),
///     }
/// }
/// # let _ = remaining;
/// ```
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[must_use = "a refusal that nobody looks at limits nothing; `granted()?` turns it into an error"]
pub enum Decision<T = Grant> {
    /// The tokens were taken.
    Granted(T),
    /// Nothing was taken.
    Denied(Denied),
}

impl<T> Decision<T> {
    /// The grant, or the refusal as an error, so that `?` rolls the transaction back.
    ///
    /// # Errors
    ///
    /// [`Denied`] if this is a refusal.
    pub fn granted(self) -> Result<T, Denied> {
        match self {
            Self::Granted(granted) => Ok(granted),
            Self::Denied(denied) => Err(denied),
        }
    }

    /// Whether the tokens were taken.
    pub fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }

    /// The refusal, if this is one.
    pub fn denied(self) -> Option<Denied> {
        self.granted().err()
    }

    pub(crate) fn map<U>(self, of: impl FnOnce(T) -> U) -> Decision<U> {
        match self {
            Self::Granted(granted) => Decision::Granted(of(granted)),
            Self::Denied(denied) => Decision::Denied(denied),
        }
    }
}

/// Tokens that were taken, and may be spent now.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Grant {
    /// How many tokens were granted: to each request with [`up_to`](crate::Request::up_to), if there is one, else by
    /// the first limit.
    #[serde(default)]
    pub amount: Tokens,
    /// Which alternative of [`first_of`](crate::first_of) was taken, from 0; 0 for a call that has none.
    #[serde(default)]
    pub alternative: usize,
    /// The tokens that remain; with several limits, the least of them. For a cost that was [split](crate::split), the
    /// tokens that its limits could still give together. A [meter](crate::Limit::meter) bounds nothing: alone, it
    /// leaves [`Tokens::MAX`].
    pub remaining: Tokens,
    /// The reading of the clock that decided.
    pub observed_at: DateTime<Utc>,
    /// The instant of the decision: [`observed_at`](Self::observed_at), or, where the clock has gone back behind a row,
    /// the instant that the row stands at. With several limits it is the earliest of their instants.
    pub decided_at: DateTime<Utc>,
    /// The source of the decision.
    pub source: Source,
    /// The charges: how many tokens were taken from which rows.
    pub receipt: Receipt,
    /// Where each limit stands now.
    #[serde(default)]
    pub standings: Standings,
}

impl Grant {
    /// When all tokens of all limits of the call are back, if nobody spends: the latest
    /// [`Standing::full_at`](crate::Standing::full_at). `None` if one is never full, or if there is no standing: an
    /// unlimited call has none.
    #[must_use]
    pub fn full_at(&self) -> Option<DateTime<Utc>> {
        self.standings.iter().map(|standing| standing.full_at).max_by_key(|full_at| latest(*full_at)).flatten()
    }
}

impl From<Grant> for Receipt {
    fn from(grant: Grant) -> Self {
        grant.receipt
    }
}

/// Tokens that are taken, to be spent at [`ready_at`](Self::ready_at) and not before.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[non_exhaustive]
pub struct Reservation {
    /// The first instant at which the tokens may be spent; [`observed_at`](Self::observed_at) if at once.
    pub ready_at: DateTime<Utc>,
    /// The reading of the database's clock.
    pub observed_at: DateTime<Utc>,
    /// The instant of the decision, as in [`Grant`].
    pub decided_at: DateTime<Utc>,
    /// The charges: how many tokens were taken from which rows.
    pub receipt: Receipt,
    /// Where each limit stands now.
    #[serde(default)]
    pub standings: Standings,
}

impl Reservation {
    /// How long to wait after the answer arrives: a span of the database's clock. A caller can sleep for it without
    /// trusting its own clock.
    ///
    /// Where the clock has gone back behind a row, the span includes the time until the clock has caught up.
    #[must_use]
    pub fn wait(&self) -> Duration {
        span(self.observed_at, self.ready_at)
    }

    /// Whether the tokens could be spent at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready_at <= self.observed_at
    }
}

lean!(Reservation { ready_at, observed_at, decided_at, receipt, standings } and {}
    with "wait_ms" = |reservation: &Self| Some(millis_up(reservation.wait())));

impl From<Reservation> for Receipt {
    fn from(reservation: Reservation) -> Self {
        reservation.receipt
    }
}

/// A refusal. It changed nothing. It names the first instant at which the same call, alone, would be granted, or the
/// end of an operator's deny.
///
/// The error message names the limits that refused, but never the key, which may be personal.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[non_exhaustive]
pub struct Denied {
    /// The limit that refused; of several, the one with the longest wait.
    pub limit: Cow<'static, str>,
    /// The key that was refused.
    pub key: Key,
    /// The reason of the refusal.
    pub reason: Reason,
    /// The tokens that remain in that limit; negative for a debt.
    pub remaining: Tokens,
    /// The first microsecond at which the same call, alone, would be granted. `None` for never: only a credit brings
    /// tokens back. For a [`Source::Override`] it is the instant at which the deny ends, if the deny has an end; the
    /// balance counts only after that.
    pub retry_at: Option<DateTime<Utc>>,
    /// The reading of the clock that decided.
    pub observed_at: DateTime<Utc>,
    /// The instant of the decision: [`observed_at`](Self::observed_at), or, where the clock has gone back behind a row,
    /// the instant that the row stands at. If several limits refuse, it is the latest of their instants.
    pub decided_at: DateTime<Utc>,
    /// The source of the decision.
    pub source: Source,
    /// The other limits that refused the same call. None of them has a longer wait.
    pub others: Box<[DeniedBy]>,
    /// Where each limit of the call stands, whether it refused or not. After a refusal from memory, only the limits
    /// that refused.
    #[serde(default)]
    pub standings: Standings,
    /// The refusals of the other alternatives, for a caller that waits for any of them.
    #[serde(skip)]
    pub(crate) beside: Box<[Self]>,
}

impl Denied {
    /// How long to wait after the answer arrives: a span of the database's clock. A caller can sleep for it without
    /// trusting its own clock. Never zero; `None` where no wait helps.
    ///
    /// Where the clock has gone back behind a row, the span includes the time until the clock has caught up.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_at.map(|retry_at| span(self.observed_at, retry_at))
    }

    /// The refusal with the shorter wait; of two equal waits, the earlier refusal.
    pub(crate) fn soonest(before: Option<Self>, next: Self) -> Self {
        let Some(before) = before else { return next };
        let is_before = latest(before.retry_at) <= latest(next.retry_at);
        let (mut soonest, mut later) = if is_before { (before, next) } else { (next, before) };
        let beside = [mem::take(&mut soonest.beside), mem::take(&mut later.beside)].into_iter().flatten();
        soonest.beside = beside.chain([later]).collect();
        soonest
    }

    /// The refusal of a call, if any of its limits refuses: the limit with the longest wait, and the others.
    pub(crate) fn among(
        mut refusals: Vec<DeniedBy>,
        standings: impl FnOnce() -> Standings,
        observed_at: DateTime<Utc>,
        decided_at: DateTime<Utc>,
        source: Source,
    ) -> Option<Self> {
        let (longest, _) = refusals.iter().enumerate().max_by_key(|(_, refusal)| latest(refusal.retry_at))?;
        let DeniedBy { limit, key, reason, remaining, retry_at } = refusals.swap_remove(longest);
        let (others, standings) = (refusals.into(), standings());
        Some(Self {
            limit,
            key,
            reason,
            remaining,
            retry_at,
            observed_at,
            decided_at,
            source,
            others,
            standings,
            beside: Box::default(),
        })
    }
}

lean!(Denied {
    limit, key, reason, remaining, retry_at, observed_at, decided_at, source, others, standings
} and {} with "retry_after_ms" = |denied: &Self| denied.retry_after().map(millis_up));

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit {:?} {}", self.limit, self.reason)?;
        for other in &self.others {
            write!(f, " and {:?} {}", other.limit, other.reason)?;
        }
        match self.retry_after() {
            Some(wait) => write!(f, " (retry in {wait:?})"),
            None if self.source == Source::Override => f.write_str(" (until it is lifted)"),
            None => f.write_str(" (only a credit fills it)"),
        }
    }
}

impl std::error::Error for Denied {}

/// One limit that refused a call, besides the limit with the longest wait.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeniedBy {
    /// The limit that refused.
    pub limit: Cow<'static, str>,
    /// The key that was refused.
    pub key: Key,
    /// The reason of the refusal.
    pub reason: Reason,
    /// The tokens that remain in it.
    pub remaining: Tokens,
    /// When this limit alone would no longer refuse; `None` for never.
    pub retry_at: Option<DateTime<Utc>>,
}

/// Why a limit refuses.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The limit has too few tokens.
    Short,
    /// The limit has the tokens, but they must [stay behind](crate::Request::leaving).
    HeldBack,
    /// Too few tokens of a concurrency limit are free, or its row lists a thousand leases.
    Leased,
    /// The tokens are there for callers of the same gate who have waited longer.
    OutOfTurn,
    /// An operator denies the call for now, whatever the balance.
    Override,
    /// Trouble was reported, and calls are paused (`Overrides::pause_until`).
    Paused,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "exhausted",
            Self::HeldBack => "held back",
            Self::Leased => "in use",
            Self::OutOfTurn => "due to others first",
            Self::Override => "denied by an operator",
            Self::Paused => "paused, because trouble was reported",
        })
    }
}

/// The source of a decision.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Source {
    /// The database, exactly.
    Database,
    /// The database, which had granted the same [id](crate::Call::once) before. Nothing more was taken.
    Repeated,
    /// A gate, from a refusal that it remembers, without asking the database. The database would have refused as well,
    /// unless another process has raised the balance since.
    Memory,
    /// A gate, from tokens that it had [taken ahead](crate::GateBuilder::prefetch). The database charged them at
    /// [`decided_at`](Grant::decided_at), and the balances are those of that instant.
    Prefetched,
    /// A gate that could not ask the database, and answered by its failure policy.
    Degraded,
    /// An operator, by an override: the call was denied, or it was unlimited and charged nothing. No row was read.
    Override,
}

/// A span between two instants of one clock; zero where they are in the other order.
pub(crate) fn span(from: DateTime<Utc>, to: DateTime<Utc>) -> Duration {
    (to - from).to_std().unwrap_or_default()
}

/// The instant by which refusals are ordered: `None`, which is never, comes after all others.
fn latest(at: Option<DateTime<Utc>>) -> DateTime<Utc> {
    at.unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Whole milliseconds, rounded up, so that a caller who waits that long does not come too early.
fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
