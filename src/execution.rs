//! Carries a plan out over the tables, under locks. Nothing else locks rows, decides and writes.

use crate::algebra::State;
use crate::decision::Source;
use crate::error::Error;
use crate::plan::{Answer, CallChange, Change, Outcome, Plan, Row};
use crate::store::{Found, Store, unwritten};

/// One answer for each call of a plan, in their order.
pub(crate) type Answers = Vec<Result<Answer, Error>>;

/// A plan that is carried out.
///
/// One statement locks the rows, in lock order, and inserts the missing ones; another writes what changed.
pub(crate) struct Execution<'a> {
    store: Store<'a>,
    plan: &'a Plan,
    looks: bool,
}

/// What a look without a lock says of calls with alternatives.
pub(crate) enum Chosen {
    /// Nothing is left to lock or to write.
    Settled(Answers),
    /// The same calls, without alternatives behind those that are granted: what is to be locked first.
    Rows(Plan),
}

impl<'a> Execution<'a> {
    pub(crate) fn new(store: Store<'a>, plan: &'a Plan) -> Self {
        Self { store, plan, looks: false }
    }

    /// Whether to look at the rows before they are locked: where a committed balance refuses every call, none takes a
    /// lock. The statement that locks one row looks at it, too, and says if it is missing. Several rows
    /// are looked at by a statement of its own.
    pub(crate) fn looking(self, looks: bool) -> Self {
        Self { looks, ..self }
    }

    /// Locks, decides all calls, and writes what changed. An error of one call leaves the others alone; an error of the
    /// database is the error of all.
    pub(crate) async fn run(mut self) -> Result<Answers, Error> {
        let (plan, rows) = (self.plan, self.plan.rows());
        let seen = match rows {
            _ if !self.looks => None,
            [row] if plan.len() == 1 && !plan.may_repeat() => {
                Some(self.store.lock_one(row, plan.need().as_ref()).await?)
            }
            _ if plan.takes() || plan.may_repeat() => Some(self.store.peek(rows).await?),
            _ => None,
        };
        match seen {
            Some(seen) if !seen.locked => {
                let known = self.store.peek_calls(plan).await?;
                let Outcome { answers, .. } = plan.decide(&seen.states, &known, seen.now);
                if answers.iter().all(is_settled) {
                    return Ok(answers);
                }
            }
            Some(found) if found.states[0].is_some() || !plan.inserts() => return self.finish(found).await,
            _ => {}
        }
        let found = if plan.inserts() { self.claim(rows).await? } else { self.store.lock(rows).await? };
        self.finish(found).await
    }

    /// Looks which alternatives are granted.
    ///
    /// Were all rows claimed at once, those that are missing of alternatives behind the one that is taken would be
    /// inserted and deleted at each call; and whoever claims them later, while it holds others, locks out of order.
    pub(crate) async fn choose(&mut self) -> Result<Chosen, Error> {
        let found = self.store.peek(self.plan.rows()).await?;
        if self.plan.trusts_absence(&found.states) {
            self.store.expect_parts_if_distributed(self.plan.rows()[0].name()).await?;
        }
        let known = self.store.peek_calls(self.plan).await?;
        let Outcome { answers, .. } = self.plan.decide(&found.states, &known, found.now);
        let is_over = answers.iter().all(is_settled);
        Ok(if is_over { Chosen::Settled(answers) } else { Chosen::Rows(self.plan.up_to(&answers)) })
    }

    /// Takes from one row of each limit alone. `candidates` are the places of the rows that held enough when they were
    /// `seen`, the best first. `None` where a row is short by now: what is locked then is the caller's to give up.
    pub(crate) async fn take_from(mut self, seen: Found, candidates: &[Vec<usize>]) -> Result<Option<Answer>, Error> {
        let mut states = seen.states;
        let (chosen, found) = if let Some((place, found)) = self.lock_free(&states, candidates).await? {
            (vec![place], found)
        } else {
            let chosen: Vec<_> = candidates.iter().map(|candidates| choose(&states, candidates)).collect();
            let found = self.claim_some(&chosen).await?;
            (chosen, found)
        };
        for (place, state) in sorted(&chosen).into_iter().zip(found.states) {
            states[place] = state;
        }
        let known = self.store.lock_calls(self.plan).await?;
        let Outcome { answers, changes, calls } = self.plan.decide_in(&chosen, &states, &known, found.now);
        let Ok(answer @ Answer::Granted { .. }) = only(answers) else { return Ok(None) };
        self.save(&changes, &calls, found.xid).await?;
        Ok(Some(answer))
    }

    /// Locks the first row that nobody else holds, where a row of one limit is wanted. Not while the best one is
    /// missing: it would stay full, and waste its refill.
    async fn lock_free(
        &mut self,
        seen: &[Option<State>],
        candidates: &[Vec<usize>],
    ) -> Result<Option<(usize, Found)>, Error> {
        let [candidates] = candidates else { return Ok(None) };
        if seen[candidates[0]].is_none() {
            return Ok(None);
        }
        let rows: Vec<_> = candidates.iter().map(|place| &self.plan.rows()[*place]).collect();
        let free = self.store.lock_free(&rows).await?;
        Ok(free.map(|(place, found)| (candidates[place], found)))
    }

    /// Inserts or locks some of the rows; what is found for them in lock order.
    async fn claim_some(&mut self, places: &[usize]) -> Result<Found, Error> {
        let rows: Vec<_> = sorted(places).into_iter().map(|place| self.plan.rows()[place].clone()).collect();
        self.claim(&rows).await
    }

    async fn claim(&mut self, rows: &[Row]) -> Result<Found, Error> {
        // Outside of a transaction the inserted rows would be others' at once.
        self.store.expect_transaction(rows[0].name()).await?;
        self.store.claim(rows).await
    }

    /// Decides over rows that are locked, and writes what changed. Rows that were inserted for a refusal are deleted
    /// again.
    async fn finish(&mut self, found: Found) -> Result<Answers, Error> {
        let rows = self.plan.rows();
        if self.plan.trusts_absence(&found.states) {
            self.store.expect_parts_if_distributed(rows[0].name()).await?;
        }
        let known = self.store.lock_calls(self.plan).await?;
        let Outcome { answers, changes, calls } = self.plan.decide(&found.states, &known, found.now);
        self.save(&changes, &calls, found.xid).await?;
        let is_vain = |place: &&usize| changes.binary_search_by_key(*place, |change| change.row).is_err();
        let vain: Vec<_> = found.inserted.iter().filter(is_vain).map(|place| rows[*place].clone()).collect();
        if let (Some(xid), false) = (found.xid, vain.is_empty()) {
            self.store.remove(&vain, xid).await?;
        }
        self.store.remove_stale(&self.plan.stale()).await?;
        Ok(answers)
    }

    async fn save(&mut self, changes: &[Change], calls: &[CallChange], xid: Option<i64>) -> Result<(), Error> {
        let (rows, names) = (self.plan.rows(), self.plan.names());
        if changes.is_empty() {
            if !calls.is_empty() {
                self.store.expect_transaction(rows[0].name()).await?;
            }
            return self.store.save_calls(names, calls).await;
        }
        let Some(xid) = xid else {
            // Nothing is locked: what was inserted is not there.
            let row = &rows[changes[0].row];
            self.store.expect_transaction(row.name()).await?;
            return Err(unwritten(row));
        };
        if calls.is_empty() {
            self.store.save(rows, changes, xid).await
        } else {
            self.store.save_with_calls(rows, changes, names, calls, xid).await
        }
    }
}

/// The row to wait for: the best one where it is missing, else the better of two random ones, so that not all wait for
/// the same.
fn choose(seen: &[Option<State>], candidates: &[usize]) -> usize {
    let any = || fastrand::usize(..candidates.len());
    if seen[candidates[0]].is_none() { candidates[0] } else { candidates[any().min(any())] }
}

fn sorted(places: &[usize]) -> Vec<usize> {
    let mut places = places.to_vec();
    places.sort_unstable();
    places
}

/// The answer to a plan's only call.
pub(crate) fn only(answers: Answers) -> Result<Answer, Error> {
    answers.into_iter().next().expect("a plan has one answer for each call")
}

/// Whether nothing is left to lock or to write: the call is refused, or repeats another.
pub(crate) fn is_settled(answer: &Result<Answer, Error>) -> bool {
    match answer {
        Ok(answer) => matches!(answer, Answer::Denied(_)) || answer.source() == Source::Repeated,
        Err(_) => true,
    }
}
