//! The verbs of the sessions, told to the library and to the plan, and whether both come to the same.

use std::fmt::Write as _;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Connection, PgConnection, PgTransaction};
use tollgate::plan;
use tollgate::{Decision, Limit, Receipt, Tokens};

use super::cast::{Before, Cast, Role, Start};
use super::outcome::Outcome;
use super::rows::Rows;
use super::verb::Verb;
use crate::memory::World as Memory;
use crate::world::limiter;

/// Rows of a key of their own, and a verb for each session.
pub(crate) struct Scene {
    pub(crate) key: String,
    before: DateTime<Utc>,
    memory: Memory,
    /// With the receipts of the database.
    pub(crate) told: Vec<Verb>,
    /// With those of the memory. A call that is decided by itself is one of its own.
    planned: Vec<Verb>,
    /// The session of each of these.
    sessions: Vec<usize>,
    /// Whether the calls of each session are decided one by one.
    apart: Vec<bool>,
}

impl Scene {
    pub(crate) async fn prepare(
        conn: &mut PgConnection,
        key: String,
        cast: &Cast,
        roles: &[Role],
        apart: Vec<bool>,
        start: Start,
        before: DateTime<Utc>,
    ) -> Self {
        let at = if matches!(start, Start::Full) { before - TimeDelta::days(3_000) } else { before };
        let (told, planned, sessions) = (Vec::new(), Vec::new(), Vec::new());
        let mut scene = Self { key, before, memory: Memory::default(), told, planned, sessions, apart };
        let mut tx = conn.begin().await.unwrap();
        for (session, role) in roles.iter().enumerate() {
            let [told, planned] = scene.charge(&mut tx, role.before, at).await;
            scene.told.push((role.verb)(&scene.key, told));
            let planned = (role.verb)(&scene.key, planned);
            scene.planned.extend(if scene.apart[session] { planned.apart() } else { vec![planned] });
            scene.sessions.resize(scene.planned.len(), session);
        }
        for limit in cast.limits {
            match start {
                Start::Empty => {}
                Start::Scarce => scene.use_up(&mut tx, limit, at).await,
                Start::Full => scene.consume(&mut tx, limit, Tokens::ONE, at).await,
            }
        }
        tx.commit().await.unwrap();
        scene
    }

    /// Makes the charge that gives a role a receipt; the receipts of the database and of the memory.
    async fn charge(&mut self, tx: &mut PgTransaction<'_>, before: Before, at: DateTime<Utc>) -> [Receipt; 2] {
        let (asked, at, reserves) = match before {
            Before::Nothing => return [Receipt::default(), Receipt::default()],
            Before::Consume(asked) => (asked(&self.key), at, false),
            Before::Reserve(asked) => (asked(&self.key), at, true),
            Before::Lapsed(asked) => (asked(&self.key), at - TimeDelta::days(1), false),
        };
        let limiter = limiter().at(at);
        if reserves {
            let booked = limiter.reserve(tx, asked.clone()).await.unwrap().granted().unwrap();
            return [booked.receipt, self.memory.taken(plan::Verb::reserve(asked), at.into())];
        }
        let grant = limiter.consume(tx, asked.clone()).await.unwrap().granted().unwrap();
        [grant.receipt, self.memory.taken(plan::Verb::consume(asked), at.into())]
    }

    /// Leaves one token.
    async fn use_up(&mut self, tx: &mut PgTransaction<'_>, limit: &Limit, at: DateTime<Utc>) {
        let left = self.memory.look(limit.key(&self.key), at.into()).remaining;
        let above = left.checked_sub(Tokens::ONE).unwrap();
        if above > Tokens::ZERO {
            self.consume(tx, limit, above, at).await;
        }
    }

    async fn consume(&mut self, tx: &mut PgTransaction<'_>, limit: &Limit, cost: Tokens, at: DateTime<Utc>) {
        let asked = limit.key(&self.key).cost(cost);
        let decision = limiter().at(at).consume(tx, asked.clone()).await.unwrap();
        assert!(matches!(decision, Decision::Granted(_)), "{decision:?}");
        self.memory.granted(asked, at.into());
    }

    /// Whether the outcomes, and the rows that are there now, are those of some serial order; the error shows these.
    /// In it each session comes behind those that had ended before it began.
    pub(crate) async fn judge(
        &self,
        conn: &mut PgConnection,
        cast: &Cast,
        told: Vec<(Outcome, Vec<usize>)>,
    ) -> Result<(), String> {
        let (rows, end) = Rows::of_key(conn, &self.key).await;
        let (told, ended): (Vec<_>, Vec<_>) = told.into_iter().unzip();
        let told: Vec<_> = told
            .into_iter()
            .zip(&self.apart)
            .flat_map(|(told, is_apart)| if *is_apart { told.apart() } else { vec![told] })
            .collect();
        // A function that says no instant leaves rows of another instant, too.
        let is_loose = cast.is_drawn || told.contains(&Outcome::Changed);
        let (rows, told) = if is_loose { (rows.summed(), loosely(&told)) } else { (rows, told) };
        let mut serial = format!("{told:#?}\n{rows:#?}\nbut one after another\n");
        let tables = cast.limits.len();
        for order in orders(told.len()).into_iter().filter(|order| self.is_possible(order, &ended)) {
            let (planned, memory) = self.serially(&order, &told, end);
            let planned_rows = Rows::of(&memory);
            let (planned_rows, planned) =
                if is_loose { (planned_rows.summed(), loosely(&planned)) } else { (planned_rows, planned) };
            if planned_rows == rows
                && told.iter().zip(&planned).all(|(told, planned)| told.is_as_good_as(planned, tables))
            {
                return Ok(());
            }
            let _ = writeln!(serial, "in the order {order:?}:\n{planned:#?}\n{planned_rows:#?}");
        }
        Err(serial)
    }

    fn is_possible(&self, order: &[usize], ended: &[Vec<usize>]) -> bool {
        let sessions: Vec<_> = order.iter().map(|place| self.sessions[*place]).collect();
        let comes_too_late =
            |place: usize| sessions[..place].iter().any(|before| ended[*before].contains(&sessions[place]));
        !(0..sessions.len()).any(comes_too_late)
    }

    /// Whether the rows are to the byte as before the one session.
    pub(crate) async fn judge_nothing(&self, conn: &mut PgConnection, before: &Rows) -> Result<(), String> {
        let (rows, _) = Rows::of_key(conn, &self.key).await;
        if rows == *before { Ok(()) } else { Err(format!("{rows:#?}\nbut before\n{before:#?}")) }
    }

    /// Whether its calls are decided as one.
    pub(crate) fn is_one(&self) -> bool {
        self.planned.len() == 1
    }

    /// Whether the rows are as before the one session, or as after it: as after it, if it got its answer. Where the
    /// server crashed, the durable rows; a sweep may then come to nothing.
    pub(crate) async fn judge_cut(
        &self,
        conn: &mut PgConnection,
        told: Option<Outcome>,
        is_crash: bool,
    ) -> Result<(), String> {
        let kept = |rows: Rows| if is_crash { rows.durable().summed() } else { rows.summed() };
        let (rows, end) = Rows::of_key(conn, &self.key).await;
        let (rows, calls) = (kept(rows), self.planned.len());
        let is_nothing = |told: &Outcome| told.is_failed() || is_crash && *told == Outcome::Swept;
        let is_told = told.as_ref().is_some_and(|told| !is_nothing(told));
        let mut serial = format!("{told:#?}\n{rows:#?}\nbut one after another\n");
        // Of calls that are decided one by one some may have happened.
        for order in orders(calls) {
            for happened in if is_told { calls } else { 0 }..=calls {
                let (planned, memory) = self.serially(&order[..happened], &vec![Outcome::Swept; calls], end);
                let planned_rows = kept(Rows::of(&memory));
                if planned_rows == rows {
                    return Ok(());
                }
                let _ = writeln!(serial, "with {happened} of {order:?}:\n{planned:#?}\n{planned_rows:#?}");
            }
        }
        Err(serial)
    }

    /// The answers of the plan to the sessions one after another, each at the instant that its outcome names, and the
    /// rows that they leave.
    fn serially(&self, order: &[usize], told: &[Outcome], end: DateTime<Utc>) -> (Vec<Outcome>, Memory) {
        let (mut memory, mut planned) = (self.memory.clone(), vec![Outcome::Swept; told.len()]);
        let (mut set, mut last) = (None, self.before);
        for place in order {
            let at = match (&self.planned[*place], &told[*place]) {
                // A sweeper goes by the clock that it read before it found anything.
                (Verb::Sweep(_), _) => self.before,
                // Whether a reservation is ready decides what a cancellation gives back.
                (Verb::Cancel(_), Outcome::Changed) => end,
                (_, Outcome::Changed) => last,
                (_, told) => told.at().unwrap_or(end),
            };
            planned[*place] = self.planned[*place].planned(&mut memory, &mut set, at);
            last = at;
        }
        (planned, memory)
    }
}

/// The outcomes without what depends on the row that was drawn, or on the instant that a function does not say.
fn loosely(outcomes: &[Outcome]) -> Vec<Outcome> {
    let loose = |outcome: &Outcome| match outcome.clone() {
        Outcome::Granted { at, source, amount, .. } => {
            Outcome::Granted { at, source, amount, remaining: Tokens::ZERO, charges: Vec::new() }
        }
        Outcome::Done { at, .. } => Outcome::Done { at, remaining: Tokens::ZERO, used: Tokens::ZERO, full_at: None },
        Outcome::Denied { at, .. } => Outcome::Denied { at, by: Vec::new() },
        Outcome::Reserved { at, .. } => Outcome::Reserved { at, ready_at: at, charges: Vec::new() },
        Outcome::Many(each) => Outcome::Many(loosely(&each)),
        other => other,
    };
    outcomes.iter().map(loose).collect()
}

/// All orders of so many.
fn orders(many: usize) -> Vec<Vec<usize>> {
    (0..many).fold(vec![Vec::new()], |shorter, next| {
        let longer = |order: Vec<usize>| {
            (0..=order.len()).map(move |place| {
                let mut longer = order.clone();
                longer.insert(place, next);
                longer
            })
        };
        shorter.into_iter().flat_map(longer).collect()
    })
}
