//! Carries a plan out over the tables: looks, locks, decides and writes. A gate's swap and a sweeper lock rows, too,
//! but skip those that somebody else has locked.

use crate::algebra::State;
use crate::answer::decision::Source;
use crate::call::StoredCall;
use crate::error::Error;
use crate::plan::{Answer, CallWrite, Chosen, Outcome, Plan, RowId, RowWrite, draw};
use crate::store::{Found, Held, Store, unwritten};

/// One answer for each call of a plan, in their order.
pub(crate) type Answers = Vec<Result<Answer, Error>>;

/// The execution of a plan.
///
/// If a look may suffice, it comes first and takes no lock. Then one statement locks the rows, in lock order, and
/// inserts the missing ones, and another writes the changes.
pub(crate) struct Execution<'a> {
    pub(crate) store: Store<'a>,
    pub(crate) plan: &'a Plan,
    /// Whether to look at the rows before they are locked. If a committed balance refuses every call, none takes a
    /// lock. One row needs no look of its own: the statement that locks it looks first, and says if it is missing.
    pub(crate) looks: bool,
    /// Whether it waits for a row that another transaction holds. Else it fails with [`Error::Locked`].
    pub(crate) waits: bool,
}

/// The rows of a plan as a look without a lock found them, and the answers that its calls would get now.
pub(crate) struct Look {
    seen: Found,
    pub(crate) answers: Answers,
}

impl Look {
    /// Whether nothing is left to lock or to write: each call is refused, or repeats another.
    ///
    /// A fault that a look finds proves nothing. A look reads rows and then stored calls, so it may find a call that
    /// was made in between, and a row that does not list its lease yet.
    pub(crate) fn is_settled(&self) -> bool {
        let is_settled = |answer: &Answer| matches!(answer, Answer::Denied(_)) || answer.source() == Source::Repeated;
        self.answers.iter().all(|answer| answer.as_ref().is_ok_and(is_settled))
    }

    /// The rows that may suffice, if not all are needed.
    pub(crate) fn choose(self, plan: &Plan) -> Option<Chosen> {
        plan.choose(&self.answers, self.seen.states, self.seen.now, fastrand::shuffle)
    }
}

impl Execution<'_> {
    /// Looks at the rows without a lock.
    pub(crate) async fn look(&mut self) -> Result<Look, Error> {
        let seen = self.store.peek(self.plan.rows()).await?;
        self.judge(seen).await
    }

    /// Locks, decides all calls, and writes the changes. An error of one call does not affect the others; an error of
    /// the database is the error of all.
    pub(crate) async fn run(mut self) -> Result<Answers, Error> {
        let (plan, rows) = (self.plan, self.plan.rows());
        let look = match rows {
            _ if !self.looks => None,
            [row] if plan.len() == 1 && !plan.may_repeat() => {
                let found = self.store.lock_one(row, plan.need().as_ref()).await?;
                if found.locked && (found.states[0].is_some() || !plan.inserts()) {
                    return self.finish(found).await;
                }
                if found.locked { None } else { Some(self.judge(found).await?) }
            }
            _ if plan.takes() || plan.may_repeat() => Some(self.look().await?),
            _ => None,
        };
        if let Some(look) = look.filter(Look::is_settled) {
            return Ok(look.answers);
        }
        let found = self.hold(rows).await?;
        self.finish(found).await
    }

    /// Locks and takes from the rows that a look chose. `None` if they no longer suffice: then the caller gives up the
    /// locked rows.
    pub(crate) async fn run_chosen(self, chosen: Chosen) -> Result<Option<Answers>, Error> {
        match chosen {
            Chosen::Alternatives(chosen) => {
                let answers =
                    Execution { store: self.store, plan: &chosen, looks: false, waits: self.waits }.run().await?;
                Ok((!chosen.falls_short(self.plan, &answers)).then_some(answers))
            }
            Chosen::Shards(seen, candidates) => self.take_from(seen, &candidates).await,
        }
    }

    /// The answers over rows that are not locked.
    async fn judge(&mut self, seen: Found) -> Result<Look, Error> {
        self.expect_rows(&seen).await?;
        let known = self.store.known_calls(self.plan, false).await?;
        let Outcome { answers, .. } = self.plan.decide(&seen.states, &known, seen.now);
        Ok(Look { seen, answers })
    }

    /// Fails if rows are missing because they lie in another part, and no insert would find that out. A process without
    /// a number of parts gets the error at its first insert: it would pay for the check at each look.
    async fn expect_rows(&mut self, found: &Found) -> Result<(), Error> {
        if self.store.is_distributed() && self.plan.trusts_absence(&found.states) {
            self.store.expect_parts(self.plan.rows()[0].name()).await?;
        }
        Ok(())
    }

    /// Takes from only one row of each limit.
    async fn take_from(
        mut self,
        mut states: Vec<Option<State>>,
        candidates: &[Vec<usize>],
    ) -> Result<Option<Answers>, Error> {
        let (chosen, found) = if let Some((place, found)) = self.lock_any(&states, candidates).await? {
            (vec![place], found)
        } else {
            let chosen: Vec<_> = candidates
                .iter()
                .map(|candidates| draw(&states, candidates, |below| fastrand::usize(..below)))
                .collect();
            let rows: Vec<_> = sorted(&chosen).into_iter().map(|place| self.plan.rows()[place].clone()).collect();
            let found = self.hold(&rows).await?;
            (chosen, found)
        };
        for (place, state) in sorted(&chosen).into_iter().zip(found.states) {
            states[place] = state;
        }
        let known = self.store.known_calls(self.plan, true).await?;
        let Outcome { answers, changes, calls } = self.plan.decide_in(&chosen, &states, &known, found.now);
        if !matches!(answers[..], [Ok(Answer::Granted { .. })]) {
            return Ok(None);
        }
        self.save((&states, &known), &changes, &calls, found.xid).await?;
        Ok(Some(answers))
    }

    /// Locks the first row that no other transaction holds, if a row of one limit is wanted. It does not do so while
    /// the best row is missing, which would stay full and waste its refill.
    async fn lock_any(
        &mut self,
        seen: &[Option<State>],
        candidates: &[Vec<usize>],
    ) -> Result<Option<(usize, Found)>, Error> {
        let [candidates] = candidates else { return Ok(None) };
        if seen[candidates[0]].is_none() {
            return Ok(None);
        }
        let rows: Vec<_> = candidates.iter().map(|place| &self.plan.rows()[*place]).collect();
        let free = self.store.lock_any(&rows).await?;
        Ok(free.map(|(place, found)| (candidates[place], found)))
    }

    /// Locks rows, and inserts the missing ones if a call may need them.
    async fn hold(&mut self, rows: &[RowId]) -> Result<Found, Error> {
        let inserts = self.plan.inserts();
        if inserts {
            // Outside of a transaction other callers could use the inserted rows at once.
            self.store.expect_transaction(rows[0].name()).await?;
        }
        match (self.waits, inserts) {
            (false, _) => self.store.claim_free(rows, inserts).await,
            (true, true) => self.store.claim(rows).await,
            (true, false) => self.store.lock(rows).await,
        }
    }

    /// Decides over locked rows, and writes the changes. Rows that were inserted for a refusal are deleted again.
    async fn finish(&mut self, found: Found) -> Result<Answers, Error> {
        self.expect_rows(&found).await?;
        let rows = self.plan.rows();
        let known = self.store.known_calls(self.plan, true).await?;
        let Outcome { answers, changes, calls } = self.plan.decide(&found.states, &known, found.now);
        // Before the rows: if the caller goes away in between, the balance shows that the reset is to be repeated.
        self.store.remove_stale(&self.plan.stale()).await?;
        self.save((&found.states, &known), &changes, &calls, found.xid).await?;
        let is_vain = |place: &&usize| changes.binary_search_by_key(*place, |change| change.row).is_err();
        let vain: Vec<_> = found.inserted.iter().filter(is_vain).map(|place| rows[*place].clone()).collect();
        if let (Some(xid), false) = (found.xid, vain.is_empty()) {
            self.store.remove(&vain, xid).await?;
        }
        Ok(answers)
    }

    /// Writes the changes of rows and calls that were locked, and read as such.
    async fn save(
        &mut self,
        (states, known): (&[Option<State>], &[Option<StoredCall>]),
        changes: &[RowWrite],
        calls: &[CallWrite],
        xid: Option<i64>,
    ) -> Result<(), Error> {
        let (rows, names) = (self.plan.rows(), self.plan.names());
        let held = Held { rows, states, names, known };
        if changes.is_empty() {
            if !calls.is_empty() {
                self.store.expect_transaction(rows[0].name()).await?;
            }
            return self.store.save_calls(&held, calls).await;
        }
        let Some(xid) = xid else {
            // Without a transaction nothing is locked, and the inserted rows are not there.
            let row = &rows[changes[0].row];
            self.store.expect_transaction(row.name()).await?;
            return Err(unwritten(&row.name));
        };
        self.store.save(&held, changes, calls, xid).await
    }
}

fn sorted(places: &[usize]) -> Vec<usize> {
    let mut places = places.to_vec();
    places.sort_unstable();
    places
}
