//! Every order in which the messages of several sessions can reach the server, one after another.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::line::{Line, Turn};
use crate::world::soon;

/// Which session went on at each step. It is what a failure prints, and what replays it.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    steps: Vec<Step>,
    /// How many of the steps are chosen already: the others follow the first session that can go on, or a draw.
    chosen: usize,
    /// How often a session may be held though it could go on. Few such switches show most faults, as Musuvathi and
    /// Qadeer found ("Iterative context bounding", PLDI 2007), and there are far fewer schedules of few.
    switches: usize,
    dice: Option<fastrand::Rng>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    /// Which session went on.
    session: usize,
    /// Its place among so many that could.
    choice: usize,
    among: usize,
}

impl Schedule {
    /// The first of all with so many switches at most.
    pub(crate) fn first(switches: usize) -> Self {
        Self { steps: Vec::new(), chosen: 0, switches, dice: None }
    }

    /// One that is drawn.
    pub(crate) fn drawn() -> Self {
        Self { dice: Some(fastrand::Rng::new()), ..Self::first(usize::MAX) }
    }

    /// As [`fmt::Display`] writes it.
    pub(crate) fn parse(text: &str) -> Self {
        let step = |c: char| Step { session: c.to_digit(10).unwrap() as usize, choice: usize::MAX, among: 0 };
        let steps: Vec<_> = text.chars().map(step).collect();
        Self { chosen: steps.len(), steps, ..Self::first(usize::MAX) }
    }

    /// The next one, if there is one, by what the last run met.
    pub(crate) fn next(mut self) -> Option<Self> {
        loop {
            let step = self.steps.last_mut()?;
            if step.choice + 1 < step.among {
                step.choice += 1;
                self.chosen = self.steps.len();
                return Some(self);
            }
            self.steps.pop();
        }
    }

    /// The session that goes on at a step, of those that could.
    fn choose(&mut self, nth: usize, held: &[usize]) -> usize {
        let before = |nth: usize| nth.checked_sub(1).map(|before| self.steps[before].session);
        let could_go_on = before(nth).filter(|session| held.contains(session));
        let switched = self.steps.iter().take(nth).filter(|step| step.choice > 0 && step.among > 1).count();
        // The one that went on comes first, so each other choice is a switch.
        let rest = held.iter().copied().filter(|session| Some(*session) != could_go_on);
        let mut among: Vec<_> = could_go_on.into_iter().chain(rest).collect();
        if could_go_on.is_some() && switched >= self.switches {
            among.truncate(1);
        }
        let choice = match self.steps.get(nth) {
            Some(step) if nth < self.chosen && step.choice == usize::MAX => {
                among.iter().position(|session| *session == step.session).unwrap_or(0)
            }
            Some(step) if nth < self.chosen => step.choice.min(among.len() - 1),
            _ => self.dice.as_mut().map_or(0, |dice| dice.usize(..among.len())),
        };
        self.steps.truncate(if nth < self.chosen { self.steps.len() } else { nth });
        let step = Step { session: among[choice], choice, among: among.len() };
        match self.steps.get_mut(nth) {
            Some(chosen) => *chosen = step,
            None => self.steps.push(step),
        }
        step.session
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| write!(f, "{}", step.session))
    }
}

/// What befalls a session before a message of its reaches the server, or before the answer reaches the session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The client is gone, with its connection.
    Gone,
    /// The server process has ended.
    Ended,
    /// The message is carried out, and then the connection breaks.
    Lost,
}

/// Sessions side by side, each on a line of its own.
pub(crate) struct Stage {
    pub(crate) lines: Vec<Line>,
    /// Asks the server who is blocked.
    control: PgConnection,
    events: watch::Sender<u64>,
}

impl Stage {
    pub(crate) fn new(urls: impl Iterator<Item = String>, control: PgConnection) -> Self {
        let events = watch::Sender::new(0);
        let lines = urls.map(|url| Line::new(&url, events.clone())).collect();
        Self { lines, control, events }
    }

    /// Runs what each session does in the order of the schedule, and returns what each came to. From its end on the
    /// schedule holds the choices that were left.
    pub(crate) async fn run<T: Send + 'static>(
        &mut self,
        sessions: Vec<impl Future<Output = T> + Send + 'static>,
        schedule: &mut Schedule,
    ) -> Vec<T> {
        self.lines.iter().for_each(Line::close);
        let sessions: Vec<_> = sessions.into_iter().map(|session| Session::begin(session, &self.events)).collect();
        let mut nth = 0;
        while let Some(held) = soon(self.held(&sessions)).await {
            self.lines[schedule.choose(nth, &held)].let_go();
            nth += 1;
        }
        self.lines.iter().for_each(Line::open);
        let mut told = Vec::new();
        for session in sessions {
            told.push(soon(session.task).await.unwrap());
        }
        told
    }

    /// Runs what the first session does up to its message of this number, and then a fault strikes. What it came to, if
    /// it was not the client that was gone; `None` if it has fewer messages.
    pub(crate) async fn strike<T: Send + 'static>(
        &mut self,
        session: impl Future<Output = T> + Send + 'static,
        message: usize,
        fault: Fault,
    ) -> Option<Option<T>> {
        self.lines[0].close();
        let session = [Session::begin(session, &self.events)];
        let mut messages = 1;
        while soon(self.held(&session)).await.is_some() && messages < message {
            self.lines[0].let_go();
            messages += 1;
        }
        let (line, [session], pid) = (&self.lines[0], session, self.lines[0].pid());
        if session.is_done() {
            line.open();
            return None;
        }
        match fault {
            Fault::Gone => {
                session.task.abort();
                line.cut();
            }
            Fault::Ended => {
                sqlx::query("select pg_terminate_backend($1)").bind(pid).execute(&mut self.control).await.unwrap();
            }
            Fault::Lost => line.lose_answer(),
        }
        line.open();
        let told = soon(session.task).await;
        soon(until_gone(&mut self.control, pid)).await;
        Some(told.ok())
    }

    /// The sessions that could go on, once none moves any more; `None` once no session has a choice left.
    ///
    /// A gate that was kept waiting tries again by its own clock. It goes on without a scheduler from then on.
    async fn held<T>(&mut self, sessions: &[Session<T>]) -> Option<Vec<usize>> {
        let mut events = self.events.subscribe();
        loop {
            events.borrow_and_update();
            let (mut held, mut waiting, mut is_moving) = (Vec::new(), Vec::new(), false);
            for (place, (session, line)) in sessions.iter().zip(&self.lines).enumerate() {
                if session.is_done() {
                    continue;
                }
                if line.has_timed_out() {
                    line.open();
                    continue;
                }
                match line.turn() {
                    Turn::Client => is_moving = true,
                    Turn::Scheduler => held.push(place),
                    Turn::Server => waiting.push(line.pid()),
                }
            }
            if is_moving {
                events.changed().await.unwrap();
                continue;
            }
            if waiting.is_empty() {
                return (!held.is_empty()).then_some(held);
            }
            // Most answers come within a moment.
            if tokio::time::timeout(MOMENT, events.changed()).await.is_ok() {
                continue;
            }
            let all: Vec<_> = self.lines.iter().map(Line::pid).collect();
            let are_blocked = are_blocked(&mut self.control, &waiting, &all).await;
            // Where nobody is held they wait for each other, and the server ends one of them.
            if are_blocked && !held.is_empty() && !events.has_changed().unwrap() {
                return Some(held);
            }
        }
    }
}

/// What a session does, in a task of its own.
struct Session<T> {
    task: JoinHandle<T>,
    is_done: Arc<AtomicBool>,
}

impl<T: Send + 'static> Session<T> {
    fn begin(session: impl Future<Output = T> + Send + 'static, events: &watch::Sender<u64>) -> Self {
        let (is_done, events) = (Arc::new(AtomicBool::new(false)), events.clone());
        let done = is_done.clone();
        let task = tokio::spawn(async move {
            let told = session.await;
            done.store(true, Ordering::SeqCst);
            events.send_modify(|events| *events += 1);
            told
        });
        Self { task, is_done }
    }
}

impl<T> Session<T> {
    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::SeqCst) || self.task.is_finished()
    }
}

/// Whether each of these server processes waits for a lock that one of `all` has.
async fn are_blocked(control: &mut PgConnection, waiting: &[i32], all: &[i32]) -> bool {
    let sql = "select bool_and(pg_isolation_test_session_is_blocked(pid, $2)) from unnest($1) pid";
    sqlx::query_scalar(sql).bind(waiting).bind(all).fetch_one(control).await.unwrap()
}

/// Returns once a server process has ended, with all that it held.
async fn until_gone(control: &mut PgConnection, pid: i32) {
    let sql = "select exists (select from pg_stat_activity where pid = $1)";
    while sqlx::query_scalar(sql).bind(pid).fetch_one(&mut *control).await.unwrap() {}
}

const MOMENT: Duration = Duration::from_millis(1);
