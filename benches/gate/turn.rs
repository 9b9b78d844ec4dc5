//! A contender in a scene for a while.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::{Mutex, mpsc};
use tokio::task::{JoinSet, coop};
use tokio::time::{Instant, sleep_until, timeout};

use crate::beside::Beside;
use crate::contender::{Contender, Servers, Session};
use crate::scene::{Scene, Users, Workload};
use crate::support::cpu::Spent;
use crate::support::{Fault, Latencies, median};

/// The figures of a contender in a scene.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Decisions per second.
    pub(crate) per_second: f64,
    /// Half of the calls are answered within so many microseconds,
    pub(crate) p50_us: f64,
    /// 99 of 100 within so many,
    pub(crate) p99_us: f64,
    /// and 999 of 1 000 within so many. None if there were fewer calls.
    pub(crate) p999_us: Option<f64>,
    /// Microseconds of processor time for each decision, of the server,
    pub(crate) server_us: Option<f64>,
    /// and of this process.
    pub(crate) client_us: Option<f64>,
    /// Decisions for each transaction of PostgreSQL that wrote. None where nothing is written.
    pub(crate) batch: Option<f64>,
    /// Bytes of PostgreSQL's write-ahead log for each decision.
    pub(crate) wal_bytes: f64,
    /// Transactions per second of other work. None where there is none.
    pub(crate) others_per_second: Option<f64>,
}

impl Figures {
    /// Each figure's median by itself.
    pub(crate) fn median(turns: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(turns.iter().map(figure).collect());
        let known = |figure: fn(&Self) -> Option<f64>| Some(median(turns.iter().map(figure).collect::<Option<_>>()?));
        Self {
            per_second: of(|turn| turn.per_second),
            p50_us: of(|turn| turn.p50_us),
            p99_us: of(|turn| turn.p99_us),
            p999_us: known(|turn| turn.p999_us),
            server_us: known(|turn| turn.server_us),
            client_us: known(|turn| turn.client_us),
            batch: known(|turn| turn.batch),
            wal_bytes: of(|turn| turn.wal_bytes),
            others_per_second: known(|turn| turn.others_per_second),
        }
    }
}

/// Measures a contender in a scene. The connection is the bench's own: it vacuums the tables first, so that the order
/// of turns does not matter, and reads the server's counters. `due` says how many calls per second are due in an open
/// load.
pub(crate) async fn take(
    conn: &mut PgConnection,
    servers: &Servers,
    scene: Scene,
    contender: Contender,
    timed: Duration,
    due: Option<f64>,
) -> Result<Figures, Fault> {
    sqlx::raw_sql("vacuum tollgate.ephemeral, tollgate.durable").execute(&mut *conn).await?;
    let session = Arc::new(contender.open(&scene, servers).await?);
    let beside = Beside::begin(servers, scene, &session).await?;
    let before = Counters::read(conn).await?;
    let (warm_up, timed) = if due.is_some() { (DRAIN, timed * 2) } else { (timed.min(WARM_UP), timed) };
    let from = Instant::now() + warm_up.max(contender.warm_up());
    let until = from + timed;
    let (users, load, mut callers) = (Users::of(scene.workload), Load::begin(due, until), JoinSet::new());
    for seed in 0..scene.callers {
        let caller = Caller { scene, users: users.clone(), random: fastrand::Rng::with_seed(seed as u64) };
        callers.spawn(caller.call(session.clone(), load.clone(), from, until));
    }
    let everyone = async {
        sleep_until(from).await;
        let done = beside.done();
        let spent = contender.meter(servers).between(from, until).await?;
        let done = f64::from(beside.done() - done);
        let mut tally = Tally::default();
        while let Some(caller) = callers.join_next().await {
            tally.add(caller??);
        }
        Ok::<_, Fault>((tally, spent, done))
    };
    let patience = until - Instant::now() + LAST_ANSWER;
    let (tally, spent, done) = timeout(patience, everyone).await.map_err(|_| "a call was not answered")??;
    beside.end().await?;
    session.close().await;
    let after = Counters::read(conn).await?;
    let (transactions, wal_bytes) = (after.transactions - before.transactions, after.wal_bytes - before.wal_bytes);
    let others_per_second = (scene.workload == Workload::Shared).then(|| done / timed.as_secs_f64());
    Ok(Figures { others_per_second, ..tally.figures(timed, spent, transactions, wal_bytes) })
}

/// When callers call.
#[derive(Clone)]
enum Load {
    /// Each as soon as its last call is answered, until then.
    Closed(Instant),
    /// At these instants, which are random, whether or not those before are answered. A call waits for a caller that is
    /// free.
    Open(Arc<Mutex<mpsc::UnboundedReceiver<Instant>>>),
}

impl Load {
    fn begin(due: Option<f64>, until: Instant) -> Self {
        let Some(per_second) = due else { return Self::Closed(until) };
        let (sender, receiver) = mpsc::unbounded_channel();
        // A thread mostly wakes within a tenth of a millisecond. A timer of tokio counts whole ones.
        thread::spawn(move || {
            let (mut due, mut random) = (Instant::now(), fastrand::Rng::with_seed(1));
            while due < until && sender.send(due).is_ok() {
                // A Poisson process: its pauses have an exponential distribution.
                due += Duration::from_secs_f64(-(1.0 - random.f64()).ln() / per_second);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        Self::Open(Arc::new(Mutex::new(receiver)))
    }

    /// Waits for the next call, and returns the instant from which it is due. None when there are no more.
    async fn next(&self) -> Option<Instant> {
        match self {
            Self::Closed(until) => Some(Instant::now()).filter(|now| now < until),
            Self::Open(due) => due.lock().await.recv().await,
        }
    }
}

struct Caller {
    scene: Scene,
    users: Users,
    random: fastrand::Rng,
}

impl Caller {
    /// Makes one call after the other.
    async fn call(mut self, session: Arc<Session>, load: Load, from: Instant, until: Instant) -> Result<Tally, Fault> {
        let mut tally = Tally::default();
        while let Some(due) = load.next().await {
            let user = self.users.draw(&mut self.random);
            let granted = session.decide(&self.scene, user).await?;
            let ended = Instant::now();
            if granted != self.scene.is_granted() {
                return Err(if granted { "granted what is exhausted" } else { "refused what is there" }.into());
            }
            tally.decisions += 1;
            // An open load may begin with a queue from the warm-up. Answering that is not counted as speed.
            let since = if matches!(load, Load::Open(_)) { due } else { ended };
            tally.answered += u32::from(since >= from && ended < until);
            if due >= from {
                tally.latencies.record(ended - due);
            }
            // An answer from memory never waits: without this a caller would not let the others have their turn.
            coop::consume_budget().await;
        }
        Ok(tally)
    }
}

/// The counts of the callers.
#[derive(Debug, Default)]
struct Tally {
    /// Of the timed calls.
    latencies: Latencies,
    /// Calls that were answered in the timed span; of an open load, only those that were also due in it.
    answered: u32,
    /// All calls, those of the warm-up too: they are in the server's counters.
    decisions: u32,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.answered += other.answered;
        self.latencies.append(other.latencies);
    }

    fn figures(self, timed: Duration, spent: Option<Spent>, transactions: f64, wal_bytes: f64) -> Figures {
        let (decisions, answered) = (f64::from(self.decisions), f64::from(self.answered));
        let latencies = self.latencies.sorted();
        let each = |seconds: f64| seconds * 1e6 / answered;
        Figures {
            per_second: answered / timed.as_secs_f64(),
            p50_us: latencies.quantile(0.5),
            p99_us: latencies.quantile(0.99),
            p999_us: (latencies.count() >= 1_000.0).then(|| latencies.quantile(0.999)),
            server_us: spent.map(|spent| each(spent.server)),
            client_us: spent.map(|spent| each(spent.client)),
            batch: (transactions > 0.0).then(|| decisions / transactions),
            wal_bytes: wal_bytes / decisions,
            others_per_second: None,
        }
    }
}

/// The counters of PostgreSQL since it began.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
struct Counters {
    /// Transactions that wrote: only those have an id.
    transactions: f64,
    /// Of any origin.
    wal_bytes: f64,
}

impl Counters {
    async fn read(conn: &mut PgConnection) -> Result<Self, Fault> {
        Ok(sqlx::query_as(COUNTERS).fetch_one(conn).await?)
    }
}

const COUNTERS: &str = "
    select pg_snapshot_xmax(pg_current_snapshot())::text::float8 as transactions,
           (pg_current_wal_insert_lsn() - '0/0')::float8 as wal_bytes";

/// Connections prepare their statements, and queues form.
const WARM_UP: Duration = Duration::from_millis(300);

/// In an open load, the calls that queued up while connections were made are answered in this time.
const DRAIN: Duration = Duration::from_secs(1);

/// How long the last answers may take before the run fails.
const LAST_ANSWER: Duration = Duration::from_mins(1);
