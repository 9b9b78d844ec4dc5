#![expect(
    clippy::disallowed_methods,
    reason = "how often to look is told by the monotonic clock; what time it is, by the database"
)]

use std::collections::BTreeMap;
use std::slice;
use std::time::{Duration, Instant};

use sqlx::{PgConnection, PgPool};

use crate::algebra::Timestamp;
use crate::error::{Error, chain};
use crate::execution::Execution;
use crate::plan::{Call, Plan};
use crate::store::{Backend, Store, begin, unreaped};
use crate::stored_call::CallRow;

/// Gives back what lapsing calls have charged, once they have lapsed.
///
/// A lapse is an ordinary settlement: it locks the rows of the limits, then the call. So it deadlocks with nobody, and
/// of two who give the same back one finds nothing left.
#[derive(Debug)]
pub(crate) struct Reaper {
    pool: PgPool,
    backend: Backend,
    /// For each part when the last call that was given back had lapsed: what is dead in front of it is not read again.
    since: BTreeMap<u16, Timestamp>,
    from_the_beginning: Option<Instant>,
}

impl Reaper {
    pub(crate) fn new(pool: PgPool, backend: Backend) -> Self {
        Self { pool, backend, since: BTreeMap::new(), from_the_beginning: None }
    }

    /// Gives back all that has lapsed by now, or by an instant; how many calls that were. A call that cannot be given back is left, and an
    /// event says so.
    pub(crate) async fn reap(&mut self, at: Option<Timestamp>) -> Result<u64, Error> {
        if self.from_the_beginning.is_none_or(|last| last.elapsed() >= A_WHILE) {
            self.since.clear();
            self.from_the_beginning = Some(Instant::now());
        }
        let mut reaped = 0;
        for part in self.backend.parts.all() {
            reaped += self.reap_part(part, at).await?;
        }
        Ok(reaped)
    }

    async fn reap_part(&mut self, part: u16, at: Option<Timestamp>) -> Result<u64, Error> {
        let (mut reaped, mut since) = (0, self.since.get(&part).copied().unwrap_or(Timestamp::MIN));
        loop {
            let mut conn = self.pool.acquire().await.map_err(unreaped)?;
            let lapsed = Store::new(&mut conn, at, self.backend).wrapping().find_lapsed(part, since, MOST).await?;
            let Some(last) = lapsed.last().and_then(|call| call.lapses_at) else { break };
            let gone = self.give_back_all(&mut conn, &lapsed, at).await?;
            reaped += gone;
            self.since.insert(part, last.after(-LOOK_BACK));
            if lapsed.len() < MOST as usize {
                break;
            }
            // What cannot be given back must not stand in front of the rest.
            since = if gone == 0 { last } else { since };
        }
        Ok(reaped)
    }

    /// Gives calls back together, or one by one where something is wrong with one.
    async fn give_back_all(
        &self,
        conn: &mut PgConnection,
        lapsed: &[CallRow],
        at: Option<Timestamp>,
    ) -> Result<u64, Error> {
        match self.give_back(conn, lapsed, at, PATIENCE).await {
            Err(error) if error.leaves_connection() => {}
            done => return done,
        }
        let mut reaped = 0;
        for call in lapsed {
            match self.give_back(conn, slice::from_ref(call), at, A_MOMENT).await {
                Ok(gone) => reaped += gone,
                // Somebody has locked one of its rows. It is there the next time.
                Err(error) if error.is_lost_wait() => {}
                Err(error) if error.leaves_connection() => tell(call, &error),
                Err(error) => return Err(error),
            }
        }
        Ok(reaped)
    }

    async fn give_back(
        &self,
        conn: &mut PgConnection,
        lapsed: &[CallRow],
        at: Option<Timestamp>,
        lock_timeout: Duration,
    ) -> Result<u64, Error> {
        let calls = lapsed.iter().map(|call| Call::lapse(call.clone()).checked_for(self.backend.parts));
        let plan = Plan::of(calls.collect::<Result<_, _>>()?);
        let mut tx = begin(conn, self.backend, lock_timeout, PATIENCE).await.map_err(unreaped)?;
        let answers = Execution::new(Store::new(&mut tx, at, self.backend), &plan).run().await?;
        tx.commit().await.map_err(unreaped)?;
        let mut reaped = 0;
        for (call, answer) in lapsed.iter().zip(answers) {
            match answer {
                // Nothing is left where somebody else was faster.
                Ok(answer) => reaped += u64::from(!answer.settlement().charges.is_empty()),
                Err(error) => tell(call, &error),
            }
        }
        Ok(reaped)
    }
}

fn tell(call: &CallRow, error: &Error) {
    let (limit, id) = (call.name.name(), call.name.id());
    tracing::warn!(limit, id, error = %chain(error), "what a lapsed call has charged could not be given back");
}

/// How many calls one transaction gives back at most.
const MOST: u32 = 64;

/// How long it waits for a statement, and for a row that somebody has locked.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long it waits for each row of one call: those of sixty-four calls must not keep the others waiting.
const A_MOMENT: Duration = Duration::from_millis(20);

/// How often it looks from the beginning.
const A_WHILE: Duration = Duration::from_mins(1);

/// By how much it looks behind the last call that it gave back otherwise, for those whose transaction committed late: a
/// minute, in microseconds.
const LOOK_BACK: i64 = 60_000_000;
