//! Several requests over locked rows: what to lock, in which order, and what follows from what was found.
//!
//! A [`Plan`] names the rows of its calls in the one lock order that all callers share (`buckets` before `rate_limits`,
//! then name, key and shard by bytes), so that transactions which follow it cannot deadlock with each other. Told the
//! rows and the time, it decides its calls one after another, each all or nothing, and says which rows to write.
//! It is as pure as the [`algebra`](crate::algebra) that it applies.
//!
//! # Example
//!
//! ```
//! use tollgate::algebra::Timestamp;
//! use tollgate::plan::{Answer, Call, Plan};
//! use tollgate::{Limit, MINUTE};
//!
//! const PER_USER: Limit = Limit::token_bucket("per_user", 2, MINUTE);
//! const TOTAL: Limit = Limit::token_bucket("total", 1, MINUTE);
//!
//! let ada = || Call::consume([TOTAL.global(), PER_USER.key("ada")]);
//! let plan = Plan::new([ada(), ada()])?;
//! assert_eq!(plan.rows()[0].name(), "per_user", "rows come in lock order");
//!
//! // Both rows are absent, hence full: the first call is granted, the second refused by the total, and takes nothing.
//! let outcome = plan.decide(&[None, None], Timestamp::from_micros(0));
//! assert!(matches!(outcome.answers[0], Ok(Answer::Granted { .. })));
//! assert!(matches!(&outcome.answers[1], Ok(Answer::Denied(denied)) if denied.limit == "total"));
//! assert_eq!(outcome.changes[0].state.value, tollgate::Tokens::ONE);
//! # Ok::<(), tollgate::Error>(())
//! ```

mod adoption;
mod answer;
mod call;
mod ledger;
#[cfg(feature = "postgres")]
mod placement;
mod row;
mod steps;

pub use answer::Answer;
pub use call::Call;
pub(crate) use call::Checked;
pub use ledger::{Change, Outcome};
#[cfg(feature = "postgres")]
pub(crate) use placement::Candidate;
#[cfg(feature = "postgres")]
pub(crate) use row::place_of;
pub use row::{Row, Stranger};
#[cfg(feature = "postgres")]
pub(crate) use steps::Step;

use crate::algebra::{Ask, State, Terms, Timestamp};
use crate::error::Error;
use crate::tokens::Tokens;
use ledger::Ledger;
use steps::{Head, Steps};

/// Calls that are decided together, in their order, over rows that are locked together.
#[derive(Debug)]
pub struct Plan {
    rows: Vec<Row>,
    calls: Vec<Steps<usize>>,
}

impl Plan {
    /// Plans calls, which will be decided in the order given.
    ///
    /// # Errors
    ///
    /// [`Error::NothingAsked`] for a call without requests; [`Error::Key`] and [`Error::Cost`] for requests that are wrong;
    /// [`Error::CostExceedsCapacity`] for one that can never be granted; [`Error::ConflictingDefinitions`] where one call
    /// asks one row under two definitions.
    pub fn new(calls: impl IntoIterator<Item = Call>) -> Result<Self, Error> {
        calls.into_iter().map(Call::checked).collect::<Result<Vec<_>, _>>().map(Self::of)
    }

    /// Plans calls that are known to be right.
    pub(crate) fn of(calls: Vec<Checked>) -> Self {
        let mut rows: Vec<Row> = calls.iter().flat_map(|Checked(steps)| steps.all_rows()).collect();
        rows.sort_unstable();
        rows.dedup();
        // Each row was collected from these very calls: the search finds it.
        let place = |row: &Row| rows.binary_search(row).unwrap_or_else(|place| place);
        let calls = calls.into_iter().map(|Checked(steps)| steps.placed(place)).collect();
        Self { rows, calls }
    }

    /// The plan of some of the calls, in the order given.
    #[cfg(feature = "postgres")]
    pub(crate) fn select(&self, calls: &[usize]) -> Self {
        self.part(calls.iter().map(|call| self.calls[*call].clone()).collect())
    }

    /// The plan of these calls, which name rows by their places here.
    #[cfg(feature = "postgres")]
    fn part(&self, calls: Vec<Steps<usize>>) -> Self {
        let mut places: Vec<usize> = calls.iter().flat_map(Steps::places).collect();
        places.sort_unstable();
        places.dedup();
        let rows = places.iter().map(|place| self.rows[*place].clone()).collect();
        // As above: each place was collected from these very calls.
        let place = |old: &usize| places.binary_search(old).unwrap_or_else(|place| place);
        Self { rows, calls: calls.into_iter().map(|steps| steps.placed(place)).collect() }
    }

    /// The places in [`Plan::rows`] of each call's rows, in the order of the calls.
    #[cfg(feature = "postgres")]
    pub(crate) fn places(&self) -> impl Iterator<Item = impl Iterator<Item = usize>> {
        self.calls.iter().map(Steps::places)
    }

    /// The places in [`Plan::rows`] of one call's rows.
    #[cfg(feature = "postgres")]
    pub(crate) fn places_of(&self, call: usize) -> impl Iterator<Item = usize> {
        self.calls[call].places()
    }

    /// The rows to lock, in lock order.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether some of the rows are asked as one.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_pooled(&self) -> bool {
        self.calls.iter().flat_map(Steps::heads).any(|head| head.rows > 1)
    }

    /// Whether calls ask one limit and key under several numbers of shards, whose rows are strangers to each other.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_mixed(&self) -> bool {
        let is_strange = |one: &Row, other: &Row| place_of(one.shard).0 != place_of(other.shard).0;
        // In lock order an unsharded row comes first of its key.
        self.rows
            .windows(2)
            .any(|rows| rows[1].shard > 0 && rows[0].is_beside(&rows[1]) && is_strange(&rows[0], &rows[1]))
    }

    /// Decides the calls over the states found for [`Plan::rows`], in the same order, `None` where a row is absent.
    ///
    /// # Panics
    ///
    /// If there are fewer states than rows.
    #[must_use]
    pub fn decide(&self, found: &[Option<State>], now: Timestamp) -> Outcome {
        let mut ledger = Ledger::new(found, now);
        let answers = self.calls.iter().map(|steps| ledger.answer(steps)).collect();
        Outcome { answers, changes: ledger.changes(found) }
    }

    /// What each row must hold for the plan's only call not to be refused, in the order of [`Plan::rows`].
    ///
    /// `None` where a low balance proves nothing: for a plan of several calls, for calls that give, take or look
    /// whatever is there, and for rows that are asked as one.
    #[must_use]
    pub fn needs(&self) -> Option<Vec<Need>> {
        let [Steps::Take(steps)] = self.calls.as_slice() else { return None };
        if steps.iter().any(|step| step.rows > 1) {
            return None;
        }
        let mut needs: Vec<_> = steps.iter().map(|step| (step.row, Need::of(step.terms, step.action))).collect();
        needs.sort_unstable_by_key(|(row, _)| *row);
        Some(needs.into_iter().map(|(_, need)| need).collect())
    }

    /// What an absent row of each would hold, in micro-tokens, in the order of [`Plan::rows`].
    #[must_use]
    pub fn capacities(&self) -> Vec<i64> {
        let mut capacities = vec![0; self.rows.len()];
        for Head { row, rows, terms, .. } in self.calls.iter().flat_map(Steps::heads) {
            for shard in 0..rows {
                capacities[row + shard] = terms.shard(shard, rows).capacity;
            }
        }
        capacities
    }

    /// Whether an absent row may have to be inserted.
    #[must_use]
    pub fn inserts(&self) -> bool {
        self.calls.iter().any(Steps::inserts)
    }
}

/// What a row must hold for a call not to be refused.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The balance.
    pub balance: Tokens,
    /// How the row gets there.
    pub terms: Terms,
}

impl Need {
    fn of(terms: Terms, ask: Ask) -> Self {
        Self { balance: ask.needs(&terms), terms }
    }
}
