//! Every order in which the messages of several sessions can reach the server, one after another.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use sqlx::PgConnection;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::line::{Line, Turn};
use crate::world::soon;

/// The session that goes on at each step. A failure prints it, and it replays the failure.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    steps: Vec<Step>,
    /// How often a session may be held though it could go on. Few such switches show most faults, as Musuvathi and
    /// Qadeer found ("Iterative context bounding", PLDI 2007), and there are far fewer schedules of few.
    switches: usize,
    priorities: Option<Priorities>,
}

/// Of all sessions that could go on, the first goes on: the session of the highest priority. At few steps, which are
/// drawn, it falls behind all others. Such a schedule meets a fault of few ordered events with a known probability, as
/// Burckhardt and others found ("A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010).
#[derive(Clone, Debug)]
struct Priorities {
    /// The highest first.
    sessions: Vec<usize>,
    /// The steps at which it falls.
    falls: [usize; 2],
}

#[derive(Clone, Debug)]
struct Step {
    session: usize,
    /// Whether another session could have gone on, which went on before.
    is_switch: bool,
    /// The sessions that are still to be tried here.
    others: Vec<usize>,
    /// Whether each of them would be a switch.
    others_switch: bool,
}

impl Schedule {
    /// The first of all with so many switches at most.
    pub(crate) fn first(switches: usize) -> Self {
        Self { steps: Vec::new(), switches, priorities: None }
    }

    /// One of so many sessions that is drawn.
    pub(crate) fn drawn(sessions: usize, dice: &mut Rng) -> Self {
        let mut sessions: Vec<_> = (0..sessions).collect();
        dice.shuffle(&mut sessions);
        let falls = [dice.usize(..STEPS), dice.usize(..STEPS)];
        Self { priorities: Some(Priorities { sessions, falls }), ..Self::first(0) }
    }

    /// One that [`fmt::Display`] has written.
    pub(crate) fn parse(text: &str) -> Self {
        let step = |c: char| Step::only(c.to_digit(10).unwrap() as usize);
        Self { steps: text.chars().map(step).collect(), ..Self::first(0) }
    }

    /// The next one, if there is one, by the choices that the last run met.
    pub(crate) fn next(mut self) -> Option<Self> {
        loop {
            let step = self.steps.last_mut()?;
            if let Some(session) = step.others.pop() {
                (step.session, step.is_switch) = (session, step.others_switch);
                return Some(self);
            }
            self.steps.pop();
        }
    }

    /// The session that goes on at a step, of those that could.
    fn choose(&mut self, nth: usize, held: &[usize]) -> usize {
        if nth == self.steps.len() {
            let step = self.step(held);
            self.steps.push(step);
        }
        let step = &mut self.steps[nth];
        if !held.contains(&step.session) {
            // The run differs from the one before it, as a gate may have waited for another while.
            step.session = held[0];
        }
        step.session
    }

    fn step(&mut self, held: &[usize]) -> Step {
        if let Some(priorities) = &mut self.priorities {
            return Step::only(priorities.choose(self.steps.len(), held));
        }
        let goes_on = self.steps.last().map(|step| step.session).filter(|session| held.contains(session));
        let session = goes_on.unwrap_or(held[0]);
        let may_switch = self.steps.iter().filter(|step| step.is_switch).count() < self.switches;
        let others = held.iter().copied().filter(|other| *other != session && (goes_on.is_none() || may_switch));
        Step { others: others.collect(), others_switch: goes_on.is_some(), ..Step::only(session) }
    }

    /// Forgets the steps behind the last one of a run.
    fn end(&mut self, steps: usize) {
        self.steps.truncate(steps);
    }
}

impl Priorities {
    fn choose(&mut self, nth: usize, held: &[usize]) -> usize {
        let highest = |sessions: &[usize]| sessions.iter().position(|session| held.contains(session)).unwrap();
        for _ in self.falls.iter().filter(|fall| **fall == nth) {
            let fallen = self.sessions.remove(highest(&self.sessions));
            self.sessions.push(fallen);
        }
        self.sessions[highest(&self.sessions)]
    }
}

impl Step {
    /// One without another choice.
    fn only(session: usize) -> Self {
        Self { session, is_switch: false, others: Vec::new(), others_switch: false }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| write!(f, "{}", step.session))
    }
}

/// A fault that strikes a session before a message of its reaches the server, or before the answer comes back.
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

    /// Runs the sessions in the order of the schedule, and returns the result of each, with the sessions that had ended
    /// before it began. The schedule then holds the choices that the run met.
    pub(crate) async fn run<T: Send + 'static>(
        &mut self,
        sessions: Vec<impl Future<Output = T> + Send + 'static>,
        schedule: &mut Schedule,
    ) -> Vec<(T, Vec<usize>)> {
        let sessions = self.begin(sessions);
        let (mut nth, mut ended) = (0, vec![None; sessions.len()]);
        while let Some(held) = soon(self.held(&sessions)).await {
            let next = schedule.choose(nth, &held);
            ended[next].get_or_insert_with(|| (0..sessions.len()).filter(|place| sessions[*place].is_done()).collect());
            self.lines[next].let_go();
            nth += 1;
        }
        schedule.end(nth);
        let told = self.end(sessions).await;
        told.into_iter().zip(ended.into_iter().map(Option::unwrap_or_default)).collect()
    }

    /// Begins the sessions, and holds their first messages.
    fn begin<T: Send + 'static>(&self, sessions: Vec<impl Future<Output = T> + Send + 'static>) -> Vec<Session<T>> {
        self.lines.iter().for_each(Line::close);
        sessions.into_iter().map(|session| Session::begin(session, &self.events)).collect()
    }

    /// Runs the sessions up to their messages of this number, and holds them there. A session that has fewer ends.
    pub(crate) async fn hold<T: Send + 'static>(
        &mut self,
        sessions: Vec<impl Future<Output = T> + Send + 'static>,
        message: usize,
    ) -> Vec<Session<T>> {
        let sessions = self.begin(sessions);
        let mut messages = vec![1; sessions.len()];
        while let Some(mut held) = soon(self.held(&sessions)).await {
            held.retain(|place| messages[*place] < message);
            if held.is_empty() {
                break;
            }
            for place in held {
                self.lines[place].let_go();
                messages[place] += 1;
            }
        }
        sessions
    }

    /// Lets the sessions go on to their ends.
    pub(crate) async fn end<T>(&self, sessions: Vec<Session<T>>) -> Vec<T> {
        self.lines.iter().for_each(Line::open);
        let mut told = Vec::new();
        for session in sessions {
            told.push(soon(session.task).await.unwrap());
        }
        told
    }

    /// Runs the first session up to its message of this number, and lets a fault strike. Returns its result, if the
    /// client is still there; `None` if it has fewer messages.
    pub(crate) async fn strike<T: Send + 'static>(
        &mut self,
        session: impl Future<Output = T> + Send + 'static,
        message: usize,
        fault: Fault,
    ) -> Option<Option<T>> {
        let session = self.hold(vec![session], message).await.pop().unwrap();
        let (line, pid) = (&self.lines[0], self.lines[0].pid());
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

    /// Runs the first session up to its message of this number, counting those that do not act, and tells it to drop
    /// its call there. Returns its result; `None` if it has fewer messages.
    pub(crate) async fn interrupt<T: Send + 'static>(
        &mut self,
        session: impl Future<Output = T> + Send + 'static,
        message: usize,
        dropping: &Notify,
    ) -> Option<T> {
        self.lines[0].hold_all(true);
        if message == 0 {
            dropping.notify_one();
        }
        let session = self.hold(vec![session], message).await.pop().unwrap();
        let is_late = message > 0 && session.is_done();
        dropping.notify_one();
        self.lines[0].open();
        self.lines[0].hold_all(false);
        let told = soon(session.task).await.unwrap();
        (!is_late).then_some(told)
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

/// A session in a task of its own.
pub(crate) struct Session<T> {
    task: JoinHandle<T>,
    is_done: Arc<AtomicBool>,
}

impl<T: Send + 'static> Session<T> {
    fn begin(session: impl Future<Output = T> + Send + 'static, events: &watch::Sender<u64>) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        let end = End { is_done: is_done.clone(), events: events.clone() };
        let task = tokio::spawn(async move {
            let _end = end;
            session.await
        });
        Self { task, is_done }
    }
}

impl<T> Session<T> {
    pub(crate) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::SeqCst)
    }
}

/// Marks the end of a session, also of one that panics.
struct End {
    is_done: Arc<AtomicBool>,
    events: watch::Sender<u64>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::SeqCst);
        self.events.send_modify(|events| *events += 1);
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

/// About as many as three sessions have.
const STEPS: usize = 16;
const MOMENT: Duration = Duration::from_millis(1);
