use crate::error::Error;
use crate::plan::{Answer, Outcome, Plan, Row};
use crate::store::{Found, Store, unwritten};

/// One answer for each call of a plan, in their order.
pub(crate) type Answers = Vec<Result<Answer, Error>>;

/// A plan that is carried out over the tables, under locks, statement by statement.
///
/// One row is locked by one statement and written by another; a missing one is inserted and locked in between. On Citus
/// the row of a call that may be refused is read before it is locked. Several rows are looked at first, without a lock.
/// Then one statement inserts or locks each, in lock order, and another writes what changed. A refusal that a committed
/// balance proves takes no lock.
pub(crate) struct Execution<'a> {
    store: Store<'a>,
    plan: &'a Plan,
    /// The rows that this call inserted as full ones. Until they are written they count as missing.
    inserted: Vec<Row>,
}

impl<'a> Execution<'a> {
    pub(crate) fn new(store: Store<'a>, plan: &'a Plan) -> Self {
        Self { store, plan, inserted: Vec::new() }
    }

    /// Locks, decides all calls, and writes what changed. An error of one call leaves the others alone; an error of the
    /// database is the error of all.
    pub(crate) async fn run(mut self) -> Result<Answers, Error> {
        match self.plan.rows() {
            [row] => self.one(row).await,
            _ => self.several().await,
        }
    }

    /// One row: locked and written. If it is missing, it is inserted as a full one, and asked again.
    async fn one(&mut self, row: &Row) -> Result<Answers, Error> {
        let mut need = self.plan.need();
        for _ in 0..TRIES {
            let mut found = self.store.lock_one(row, need.as_ref()).await?;
            if !found.locked {
                if let Some(refusal) = self.refusal(&found) {
                    return Ok(refusal);
                }
                // It was read without a lock, or its estimate was too low by a rounding or a moment: lock in any case.
                need = None;
                continue;
            }
            if found.states[0].is_some() || !self.plan.inserts() {
                found.states[0] = found.states[0].take().filter(|_| self.inserted.is_empty());
                return self.finish(&found).await;
            }
            // Outside of a transaction the row would be others' at once.
            self.store.expect_transaction(row.name()).await?;
            if self.store.insert_one(row, self.plan.capacities()[0]).await? {
                self.inserted.push(row.clone());
                // It is full and ours, so it refuses nothing: Citus need not read it first.
                need = None;
            }
        }
        // No sweeper is so quick: a trigger or a policy keeps the row from being inserted.
        Err(unwritten(row))
    }

    /// Several rows: looked at, inserted where they are missing, locked, and written.
    async fn several(&mut self) -> Result<Answers, Error> {
        let rows = self.plan.rows();
        let seen = self.store.peek(rows).await?;
        if let Some(refusal) = self.refusal(&seen) {
            return Ok(refusal);
        }
        if !self.plan.inserts() {
            let found = self.store.lock(rows).await?;
            return self.finish(&found).await;
        }
        // Outside of a transaction the inserted rows would be others' at once.
        self.store.expect_transaction(rows[0].name()).await?;
        let (found, inserted) = self.store.claim(rows, &self.plan.capacities()).await?;
        self.inserted = inserted;
        self.finish(&found).await
    }

    /// Decides over rows that are locked, and writes what changed. What was inserted in vain is deleted again.
    async fn finish(&mut self, found: &Found) -> Result<Answers, Error> {
        let rows = self.plan.rows();
        let Outcome { answers, changes } = self.plan.decide(&found.states, found.now);
        if changes.is_empty() {
            // No statement tells whether there is a transaction. A caller who forgot to begin one hears it all the
            // same, and not only once there is something to lose.
            let refused = |answer: &Result<Answer, Error>| matches!(answer, Ok(Answer::Denied(_)) | Err(_));
            if !answers.iter().all(refused) {
                self.store.expect_transaction(rows[0].name()).await?;
            }
        } else {
            let Some(xid) = found.xid else {
                // Nothing is locked: what was inserted is not there.
                self.store.expect_transaction(rows[0].name()).await?;
                return Err(unwritten(&rows[0]));
            };
            self.store.save(rows, &changes, xid).await?;
        }
        let is_written = |row: &Row| changes.iter().any(|change| &rows[change.row] == row);
        let vain: Vec<_> = self.inserted.iter().filter(|row| !is_written(row)).cloned().collect();
        if let (Some(xid), false) = (found.xid, vain.is_empty()) {
            self.store.remove(&vain, xid).await?;
        }
        self.store.remove_stale(&self.plan.stale()).await?;
        Ok(answers)
    }

    /// The refusal of the plan's only call that follows from what was found, or its error, if it is one.
    fn refusal(&self, found: &Found) -> Option<Answers> {
        if self.plan.len() > 1 {
            return None;
        }
        let Outcome { answers, .. } = self.plan.decide(&found.states, found.now);
        matches!(answers.as_slice(), [Ok(Answer::Denied(_)) | Err(_)]).then_some(answers)
    }
}

/// How often a missing row is asked and inserted.
const TRIES: usize = 100;
