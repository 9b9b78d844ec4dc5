use crate::algebra::Timestamp;
use crate::error::Error;
use crate::limit::Storage;
use crate::plan::{Answer, Change, Need, Outcome, Plan, Row};
use crate::receipt::Charge;
use crate::store::{Found, Shards, Store, unwritten};

/// Carries out a plan over the tables, statement by statement.
pub(crate) struct CarryOut<'a> {
    store: Store<'a>,
    plan: &'a Plan,
    /// Tracked charges that the call uses up, once its rows are locked.
    used: Vec<(Row, i64)>,
    /// The transaction that holds the locks: nothing is written in any other.
    xid: Option<i64>,
    /// When this call inserted each row, if it did: such a row stands for a full one until it is written.
    inserted: Vec<Option<Timestamp>>,
}

impl<'a> CarryOut<'a> {
    pub(crate) fn new(store: Store<'a>, plan: &'a Plan) -> Self {
        Self { store, plan, used: Vec::new(), xid: None, inserted: vec![None; plan.rows().len()] }
    }

    /// Uses up the tracked ones among these charges. A receipt that names one of them twice is one that was used before.
    pub(crate) fn using_up(mut self, charges: &[Charge]) -> Result<Self, Error> {
        for charge in charges {
            let Some(id) = charge.tracked else { continue };
            let used = (Row::of(charge), id);
            if self.used.contains(&used) {
                return Err(Error::ReceiptUsed);
            }
            self.used.push(used);
        }
        // Locked in one order, as rows are: where those were swept, nothing else keeps two receipts apart.
        self.used.sort_unstable();
        Ok(self)
    }

    /// Decides the plan's only call without a lock, and changes nothing. Touches no table but those it asks: a standby has only
    /// the durable ones.
    pub(crate) async fn look(mut self) -> Result<Answer, Error> {
        let rows = self.plan.rows();
        if !self.plan.is_pooled() {
            let found = self.store.peek(rows).await?;
            if !found.strange {
                return only(self.decide(&found).answers);
            }
        }
        let shards = self.store.read_shards(rows).await?;
        only(self.decide(&taken_over(self.plan, shards)?).answers)
    }

    /// Locks, decides the plan's only call, and writes what changed.
    pub(crate) async fn run(self) -> Result<Answer, Error> {
        let plan = self.plan;
        let answer = only(self.run_all().await?)?;
        trace(plan, &answer);
        Ok(answer)
    }

    /// As [`run`](Self::run), once: the answer, unless it is a refusal, or depends on strangers. Where the only row was `seen`
    /// there, it is just locked.
    pub(crate) async fn try_once(mut self, seen: bool) -> Result<Option<Answer>, Error> {
        let answers = match self.plan.rows() {
            [_] if seen => {
                let found = self.store.lock_keys(self.plan.rows()).await?;
                if found.misses_one() { None } else { self.finish(found).await? }
            }
            _ => self.attempt().await?,
        };
        let Some(answers) = answers else { return Ok(None) };
        let mut answer = only(answers)?;
        self.store.track(&mut answer, self.xid).await?;
        Ok(matches!(answer, Answer::Granted { .. }).then_some(answer))
    }

    /// Locks, decides all calls, and writes what changed. An error of one call leaves the others alone; one of the database
    /// is the error of all.
    pub(crate) async fn run_all(mut self) -> Result<Answers, Error> {
        let mut strangers = true;
        for _ in 0..TAKE_OVERS {
            if let Some(mut answers) = self.attempt().await? {
                for answer in answers.iter_mut().flatten() {
                    self.store.track(answer, self.xid).await?;
                }
                return Ok(answers);
            }
            strangers = self.take_over().await?;
        }
        let first = &self.plan.rows()[0];
        Err(if strangers { Error::Busy } else { unwritten(first) })
    }

    /// The answers, unless strangers are beside rows of ours that are not there.
    async fn attempt(&mut self) -> Result<Option<Answers>, Error> {
        match self.plan.rows() {
            [row] => self.one(row).await,
            _ if self.plan.inserts() => self.several(self.plan.needs()).await,
            _ => self.existing().await,
        }
    }

    /// Locks the rows of all shards in place of strangers, and charges to them what those lack; says whether there were
    /// any. From here on the plan's rows are there.
    async fn take_over(&mut self) -> Result<bool, Error> {
        let rows = self.plan.rows();
        // Outside of a transaction the rows that it inserts would be others' at once.
        self.store.expect_transaction(rows[0].name()).await?;
        // Ours first, as whoever finds strangers only when it saves has done: so those of one release cannot deadlock.
        let found = self.claim(None, false).await?;
        let strangers = self.store.lock_strangers(rows).await?;
        if strangers.is_empty() {
            return Ok(false);
        }
        let changes = match self.plan.adopt(&found.states, &strangers, found.now) {
            Ok(changes) => changes,
            Err(error) => return self.release(&[]).await.and(Err(error)),
        };
        self.xid = found.xid;
        self.store.take_over(rows, &changes, &strangers, self.xid()?).await?;
        self.inserted.fill(None);
        Ok(true)
    }

    /// One row: locked, or inserted if it is absent.
    async fn one(&mut self, row: &Row) -> Result<Option<Answers>, Error> {
        let need = self.plan.needs().and_then(|needs| needs.first().copied());
        let insert = self.plan.inserts().then(|| self.plan.capacities()[0]);
        let mut found = self.store.lock_one(row, need.as_ref(), insert).await?;
        if !found.held {
            if let Some(refusal) = self.refusal(&found) {
                return Ok(Some(refusal));
            }
            // The statement's estimate was too low, by a rounding or by a moment: lock in any case.
            found = self.store.lock_one(row, None, insert).await?;
        }
        if found.strange {
            return Ok(None);
        }
        if insert.is_some() && found.misses_one() {
            // Somebody else inserted it meanwhile. From here on it cannot get away.
            return self.several(None).await;
        }
        self.finish(found).await
    }

    /// Rows that are locked in order if they are there, and left alone if they are not: an absent row is full.
    async fn existing(&mut self) -> Result<Option<Answers>, Error> {
        let found = self.store.lock(self.plan.rows()).await?;
        if found.strange { Ok(None) } else { self.finish(found).await }
    }

    /// Rows that are inserted or locked in order.
    async fn several(&mut self, needs: Option<Vec<Need>>) -> Result<Option<Answers>, Error> {
        if self.is_over_both_tables() && needs.is_some() {
            // The first table would be locked before the second is looked at: so look at both first, without a lock.
            let found = self.store.read(self.plan.rows()).await?;
            if let Some(refusal) = self.refusal(&found) {
                return Ok(Some(refusal));
            }
        }
        let mut found = self.claim(needs.as_deref(), true).await?;
        if !found.held && !found.strange {
            if let Some(refusal) = self.refusal(&found) {
                self.release(&[]).await?;
                return Ok(Some(refusal));
            }
            // As for one row: the estimate was too low.
            found = self.claim(None, true).await?;
        }
        if found.strange { Ok(None) } else { self.finish(found).await }
    }

    fn is_over_both_tables(&self) -> bool {
        let has = |storage| self.plan.rows().iter().any(|row| row.storage() == storage);
        has(Storage::Ephemeral) && has(Storage::Durable)
    }

    /// Inserts or locks all rows, and reads again what the claiming statement could not see: it is locked by then.
    async fn claim(&mut self, needs: Option<&[Need]>, wary: bool) -> Result<Found, Error> {
        let rows = self.plan.rows();
        let mut found = self.store.claim(rows, needs, &self.plan.capacities(), wary).await?;
        self.note_inserted(&mut found);
        if found.held && found.misses_one() {
            found = self.store.lock(rows).await?;
            self.note_inserted(&mut found);
        }
        Ok(found)
    }

    /// A row that an earlier statement of this call inserted is still an absent one.
    fn note_inserted(&mut self, found: &mut Found) {
        let Found { states, inserted, .. } = found;
        for ((mine, new), state) in self.inserted.iter_mut().zip(inserted).zip(states) {
            *mine = mine.or(*new);
            *new = *mine;
            if mine.is_some() {
                *state = None;
            }
        }
    }

    /// Decides over rows that are locked, and writes what changed. What was inserted in vain is deleted again.
    async fn finish(&mut self, mut found: Found) -> Result<Option<Answers>, Error> {
        self.xid = found.xid;
        self.note_inserted(&mut found);
        let Outcome { answers, changes } = self.decide(&found);
        let refused = |answer: &Result<Answer, Error>| matches!(answer, Ok(Answer::Denied(_)) | Err(_));
        let saved = if answers.iter().all(refused) { Ok(true) } else { self.save(&changes).await };
        match saved {
            Ok(true) => self.release(&changes).await.map(|()| Some(answers)),
            Ok(false) => Ok(None),
            // PostgreSQL has aborted the transaction: there is nothing to take back.
            Err(error) if error.is_of_the_database() => Err(error),
            Err(error) => self.release(&[]).await.and(Err(error)),
        }
    }

    /// Writes what changed, and uses up the call's tracked charges.
    ///
    /// Where there is neither, no statement tells whether there is a transaction: a caller who forgot to begin one should
    /// hear it all the same, and not only once there is something to lose.
    ///
    /// Says whether there are no strangers beside what was inserted; else nothing is written.
    async fn save(&mut self, changes: &[Change]) -> Result<bool, Error> {
        let rows = self.plan.rows();
        if changes.is_empty() && self.used.is_empty() {
            return self.store.expect_transaction(rows[0].name()).await.map(|()| true);
        }
        let fresh = self.inserted.iter().any(Option::is_some);
        self.store.save(rows, changes, &self.used, self.xid()?, fresh).await
    }

    /// Deletes the rows that this call inserted and did not write.
    async fn release(&mut self, changes: &[Change]) -> Result<(), Error> {
        let is_written = |place| changes.iter().any(|change| change.row == place);
        let capacities = self.plan.capacities();
        let vain: Vec<_> = (self.plan.rows().iter().zip(capacities).zip(&self.inserted).enumerate())
            .filter(|(place, _)| !is_written(*place))
            .filter_map(|(_, ((row, capacity), inserted))| Some((row, capacity, (*inserted)?)))
            .collect();
        self.store.release(&vain).await
    }

    /// The refusal of the plan's only call that follows from what was found, or its error, if it is one.
    fn refusal(&self, found: &Found) -> Option<Answers> {
        let Outcome { answers, .. } = self.decide(found);
        matches!(answers.as_slice(), [Ok(Answer::Denied(_)) | Err(_)]).then_some(answers)
    }

    fn decide(&self, found: &Found) -> Outcome {
        self.plan.decide(&found.states, found.now)
    }

    fn xid(&self) -> Result<i64, Error> {
        self.xid.ok_or(Error::NotInTransaction)
    }
}

/// What is found of rows that stand for strangers as well, before they do.
pub(super) fn taken_over(plan: &Plan, shards: Shards) -> Result<Found, Error> {
    let Shards { mut found, strangers, .. } = shards;
    for change in plan.adopt(&found.states, &strangers, found.now)? {
        found.states[change.row] = Some(change.state);
    }
    Ok(found)
}

/// How often strangers are taken over before others who go on making them are too many.
const TAKE_OVERS: usize = 4;

/// One answer for each call of the plan, in their order.
type Answers = Vec<Result<Answer, Error>>;

pub(super) fn only(answers: Vec<Result<Answer, Error>>) -> Result<Answer, Error> {
    answers.into_iter().next().unwrap_or(Err(Error::NothingAsked))
}

pub(super) fn trace(plan: &Plan, answer: &Answer) {
    let limit = match answer {
        Answer::Denied(denied) => &*denied.limit,
        Answer::Granted { .. } | Answer::Done(_) => plan.rows()[0].name(),
    };
    tracing::debug!(limit, rows = plan.rows().len(), outcome = answer.outcome());
}
