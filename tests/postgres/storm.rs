//! The books of budgets in a storm: answers get lost, connections break, clients and reapers are killed, and the server
//! crashes, or a node of a cluster. At the end each row lacks what its calls cost, and each shard what those cost that
//! were charged to it, to the micro-token.
//!
//! `TOLLGATE_STORM_SECONDS` makes it last longer than the seconds of a daily run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, interval, timeout};
use tollgate::{DAY, Error, Gate, Limit, LimitSpec, Limiter, Receipt, Request, Settlement, Source, Tokens, migrate};
use tollgate_embedded::Server;

use crate::gate::kind::{KIND, any_kind, next_kind};
use crate::proxy::Proxy;
use crate::world::{World, is_on_citus, nodes, parts, soon, sweeper};

const EVER: Duration = Limit::MAX_PERIOD;
const MOST: u64 = 1_000_000_000;
/// Nothing comes back within the test.
const ORG: Limit = Limit::token_bucket("org", 1, EVER).capacity(MOST).shards(SHARDS);
const TEAM: Limit = Limit::fixed_window("team", MOST, EVER);
const USER: Limit = Limit::wallet("user").overdraft(MOST);
/// The limit of each user. Its steps, and the few calls of a user, keep the list of a row so short that no instant is
/// rounded: rounding may keep more than the calls cost.
const DAILY: Limit = Limit::sliding_window("daily", MOST, DAY).resolution(8);

const SHARDS: u16 = 4;
const USERS: u32 = 1_000;
const TEAMS: u32 = 10;
const CLIENTS: usize = 3;
/// The callers of each client; one in four decides in transactions of its own.
const CALLERS: u32 = 12;
const LAPSE: Duration = Duration::from_secs(2);
/// So many calls are settled before it ends.
const ENOUGH: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_lacks_what_its_calls_cost() {
    let seconds = std::env::var("TOLLGATE_STORM_SECONDS").map_or(8, |seconds| seconds.parse().unwrap());
    let mut scene = Place::new().await;
    let url = scene.url();
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let tables = "create table jobs (id text primary key); create table settled (id text primary key)";
    sqlx::raw_sql(tables).execute(&mut conn).await.unwrap();
    let proxy = Proxy::new(&url);
    let books = Books::default();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::start(&url, &proxy, &books)).collect();

    let (mut faults, mut pace) = ([0_u64; 3], interval(Duration::from_millis(80)));
    let end = Instant::now() + Duration::from_secs(seconds);
    for round in 1.. {
        pace.tick().await;
        books.progress().await;
        if Instant::now() >= end && books.settled() >= ENOUGH {
            break;
        }
        let [cuts, kills, crashes] = &mut faults;
        match round % 50 {
            0 => {
                scene.crash().await;
                *crashes += 1;
            }
            10 | 25 | 40 => {
                let client = &mut clients[fastrand::usize(..CLIENTS)];
                client.kill();
                *client = Client::start(&url, &proxy, &books);
                *kills += 1;
            }
            5 | 30 => {
                proxy.cut().await;
                *cuts += 1;
            }
            // So few that it happens before the next, on a busy machine, too.
            _ => proxy.cut_after(fastrand::u64(1..8)),
        }
    }
    for mut client in clients {
        client.kill();
    }

    let pool = PgPool::connect(&url).await.unwrap();
    sqlx::query(
        "select pg_sleep(greatest(0, extract(epoch from max(lapses_at) - clock_timestamp()))) from tollgate.calls",
    )
    .execute(&pool)
    .await
    .unwrap();
    sweeper().reap(&pool).await.unwrap();
    let open: i64 = sqlx::query_scalar("select count(*) from tollgate.calls where lapses_at is not null")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(open, 0);
    let told = books.judge(&lacking(&pool).await);
    let ([cuts, kills, crashes], disconnects) = (faults, proxy.lost_answers());
    println!("{told}; {disconnects} disconnects, {cuts} of all at once, {kills} kills, {crashes} crashes");

    // A transaction's other work stands or falls with the charge.
    let ids = async |sql| BTreeSet::<String>::from_iter(sqlx::query_scalar(sql).fetch_all(&pool).await.unwrap());
    let [jobs, calls] = ["select id from jobs", "select id from tollgate.calls where id like 'joined%'"].map(ids);
    assert_eq!(jobs.await, calls.await);
}

/// Where it rages.
enum Place {
    Server(Server),
    /// A database on the nodes of a cluster.
    Cluster(World),
}

impl Place {
    async fn new() -> Self {
        if is_on_citus() {
            return Self::Cluster(World::new().await);
        }
        let server = Server::builder().durable().setting("max_connections", "200").start().unwrap();
        migrate::run(&mut PgConnection::connect(server.url()).await.unwrap()).await.unwrap();
        Self::Server(server)
    }

    fn url(&self) -> String {
        match self {
            Self::Server(server) => server.url().to_owned(),
            Self::Cluster(world) => world.direct_url(),
        }
    }

    /// Crashes the server or a node, and returns once it is back.
    async fn crash(&mut self) {
        match self {
            Self::Server(server) => block_in_place(|| server.crash().and_then(|()| server.restart())).unwrap(),
            Self::Cluster(world) => crash_a_node(world).await,
        }
    }
}

/// Kills one node of the cluster by its own hand, wherever it runs, with SIGKILL; and starts it again.
async fn crash_a_node(world: &World) {
    let node = fastrand::choice(nodes().await).unwrap();
    let started = async || -> Result<String, sqlx::Error> {
        let mut conn = PgConnection::connect_with(node).await?;
        sqlx::query_scalar("select pg_postmaster_start_time()::text").fetch_one(&mut conn).await
    };
    let before = started().await.unwrap();
    let mut conn = PgConnection::connect_with(node).await.unwrap();
    // Its backends end when they notice; until then the memory that they share is in use.
    let crash = "copy (select) to program $program$
                 programs=$(dirname \"$(readlink /proc/$PPID/exe)\")
                 export programs
                 setsid sh -c '
                     kill -9 $(head -n 1 postmaster.pid)
                     until \"$programs/pg_ctl\" -D . restart; do sleep 0.1; done
                 ' >/dev/null 2>&1 </dev/null & $program$";
    // The end of the connection may go unnoticed: the new server inherits the socket.
    let _ = timeout(LAPSE, sqlx::raw_sql(crash).execute(&mut conn)).await;
    let mut pace = interval(Duration::from_millis(20));
    soon(async {
        while started().await.map_or(true, |started| started == before) {
            pace.tick().await;
        }
    })
    .await;
    // Else its prepared transactions keep their locks for up to a minute.
    world.sql("select recover_prepared_transactions()").await;
}

/// An amount for each row of the organisation.
type Shards = [i64; SHARDS as usize];

/// By limit, key and shard.
type Rows = BTreeMap<(String, String, i16), i64>;

/// The micro-tokens that the rows lack of their first balances.
async fn lacking(pool: &PgPool) -> Rows {
    let rows = sqlx::query_as("select name, key, shard, -value from tollgate.durable");
    let rows: Vec<(String, String, i16, i64)> = rows.fetch_all(pool).await.unwrap();
    rows.into_iter().map(|(name, key, shard, lacking)| ((name, key, shard), lacking)).collect()
}

/// A process of callers.
struct Client {
    process: Child,
    reading: Option<JoinHandle<()>>,
}

impl Client {
    fn start(url: &str, proxy: &Proxy, books: &Books) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["storm::call_in_another_process", "--exact", "--ignored", "--nocapture"]);
        command.env(DATABASE, url).env(SOCKET, proxy.options().get_socket().unwrap()).env(KIND, next_kind());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let (said, books) = (BufReader::new(process.stdout.take().unwrap()), books.clone());
        let reading = thread::spawn(move || said.lines().for_each(|line| books.note(&line.unwrap())));
        Self { process, reading: Some(reading) }
    }

    /// With SIGKILL, in the middle of its work.
    fn kill(&mut self) {
        assert!(self.process.try_wait().unwrap().is_none(), "a client has failed");
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.reading.take().unwrap().join().unwrap();
    }
}

/// The lines that clients printed about their calls, before and after each step.
#[derive(Clone, Default)]
struct Books {
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
    lines: Arc<watch::Sender<u64>>,
}

#[derive(Debug)]
struct Entry {
    user: u32,
    /// Which row of the organisation was charged.
    shard: usize,
    /// Its cost if it lapses: one of these.
    lapsed: BTreeSet<i64>,
    /// The cost that it may be settled at.
    settling: Option<i64>,
    is_settled: bool,
}

impl Books {
    /// A line such as `@settling joined7 1200000`, or `@granted joined7 user:shard`.
    fn note(&self, line: &str) {
        let Some((_, line)) = line.split_once('@') else { return };
        let [what, id, number] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        self.lines.send_modify(|lines| *lines += 1);
        let mut entries = self.entries.lock().unwrap();
        if let Some((user, shard)) = number.split_once(':') {
            let (user, shard) = (user.parse().unwrap(), shard.parse().unwrap());
            let entry = Entry { user, shard, lapsed: BTreeSet::from([0]), settling: None, is_settled: false };
            entries.insert(id.to_owned(), entry);
            return;
        }
        let number: i64 = number.parse().unwrap();
        let entry = entries.get_mut(id).unwrap();
        match what {
            "reporting" => drop(entry.lapsed.insert(number)),
            "reported" => entry.lapsed = BTreeSet::from([number]),
            "settling" => entry.settling = Some(number),
            "settled" => entry.is_settled = true,
            "lapsed" => entry.settling = None,
            other => panic!("{other}"),
        }
    }

    /// Until a client says something: however slow the machine is, there is work between two faults. Not for ever, as
    /// all of them may be waiting for a server that has just been cut off.
    async fn progress(&self) {
        let mut lines = self.lines.subscribe();
        let _ = timeout(LAPSE, lines.changed()).await;
    }

    fn settled(&self) -> usize {
        self.entries.lock().unwrap().values().filter(|entry| entry.is_settled).count()
    }

    /// Whether each row lacks what its calls cost. Where a client did not hear what became of a call, any of its costs
    /// may be true: they have so many digits that no wrong ones add up. So the row of a user tells which they were, and
    /// with it what the others lack.
    fn judge(&self, lacking: &Rows) -> String {
        let entries = self.entries.lock().unwrap();
        let (mut settled, mut unknown) = (0_u32, 0_u32);
        // The costs of a user's calls in all, and the part in each shard.
        let mut sums = BTreeMap::<u32, BTreeMap<i64, Shards>>::new();
        for entry in entries.values() {
            let costs: BTreeSet<i64> = match (entry.is_settled, entry.settling) {
                (true, Some(cost)) => BTreeSet::from([cost]),
                (_, settling) => entry.lapsed.iter().copied().chain(settling).collect(),
            };
            settled += u32::from(entry.is_settled);
            unknown += u32::from(costs.len() > 1);
            let sums = sums.entry(entry.user).or_insert_with(|| BTreeMap::from([(0, Shards::default())]));
            let with = |(sum, shards): (&i64, &Shards), cost: &i64| {
                let mut shards = *shards;
                shards[entry.shard] += cost;
                (sum + cost, shards)
            };
            *sums = sums.iter().flat_map(|sum| costs.iter().map(move |cost| with(sum, cost))).collect();
            assert!(sums.len() < 1_000_000, "too much is unknown");
        }
        let lacks = |name: &str, key: &dyn ToString, shard| {
            let row = (name.to_owned(), key.to_string(), shard);
            lacking.get(&row).copied().unwrap_or(0)
        };
        let (mut org, mut teams) = (Shards::default(), BTreeMap::<u32, i64>::new());
        for (user, sums) in sums {
            let [lacks, of_window] = ["user", "daily"].map(|level| lacks(level, &user, 0));
            let calls = || entries.iter().filter(|(_, entry)| entry.user == user).collect::<Vec<_>>();
            let shards = sums.get(&lacks);
            let shards = shards.unwrap_or_else(|| panic!("user {user} lacks {lacks}, no sum of {:?}", calls()));
            assert_eq!(of_window, lacks, "window of user {user}");
            org.iter_mut().zip(shards).for_each(|(sum, lacks)| *sum += lacks);
            *teams.entry(user % TEAMS).or_default() += lacks;
        }
        for (team, sum) in teams {
            assert_eq!(lacks("team", &team, 0), sum, "team {team}");
        }
        for (shard, sum) in (0..).zip(org) {
            assert_eq!(lacks("org", &"acme", shard), sum, "shard {shard}");
        }
        let joined = entries.keys().filter(|id| id.starts_with("joined")).count();
        let by_gates = entries.len() - joined;
        format!("{by_gates} calls granted by gates, {joined} joined; {settled} settled, {unknown} outcomes not heard")
    }
}

/// A client of the test above: it calls until it is killed.
#[ignore = "a part of another test"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_in_another_process() {
    let (Ok(url), Ok(socket)) = (std::env::var(DATABASE), std::env::var(SOCKET)) else { return };
    // The proxy reads what clients send.
    let options = url.parse::<PgConnectOptions>().unwrap().ssl_mode(PgSslMode::Disable).socket(socket);
    let pool = PgPoolOptions::new().max_connections(12).acquire_timeout(5 * LAPSE).connect_lazy_with(options);
    let gate = any_kind(&pool, LAPSE / 4).await.parts(parts()).build();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (gate, pool) = (gate.clone(), pool.clone());
        callers.spawn(async move {
            loop {
                if caller % 4 == 0 { call_joined(&pool).await } else { call(&gate).await }
            }
        });
    }
    // Only a panic ends one.
    callers.join_next().await.unwrap().unwrap();
}

/// A user, and the requests of one of his calls: by the definitions, or by larger ones, which change nothing of the
/// tokens used.
fn asked(id: &str) -> (u32, Tokens, Vec<Request>) {
    let (user, cost) = (fastrand::u32(..USERS), Tokens::from_micros(fastrand::i64(1_000_000..10_000_000_000)));
    let larger = fastrand::bool();
    let of = |limit: Limit| if larger { limit.spec().with(twice).try_into().unwrap() } else { limit };
    let levels = [of(ORG).key("acme"), of(TEAM).key(user % TEAMS), of(USER).key(user), of(DAILY).key(user)];
    let mut requests: Vec<_> = levels.map(|request| request.cost(cost)).into();
    requests[1] = requests[1].clone().once(id).lapses_after(LAPSE);
    (user, cost, requests)
}

fn twice(spec: &mut LimitSpec) {
    let twice = |amount: Tokens| Tokens::from_micros(2 * amount.micros());
    spec.capacity = spec.capacity.map(twice);
    (spec.rate, spec.max_reserved) = (twice(spec.rate), twice(spec.max_reserved));
}

/// Which row of the organisation was charged. Each has so much that one is enough.
fn shard(receipt: &Receipt) -> u16 {
    let mut of_org = receipt.charges.iter().filter(|charge| charge.limit() == "org");
    let (Some(charge), None) = (of_org.next(), of_org.next()) else { panic!("{receipt:?}") };
    charge.shard
}

/// The tokens used: at most the estimate, and for one call in ten up to twice as much.
fn used(cost: Tokens) -> Tokens {
    let most = if fastrand::u8(..10) == 0 { 2 * cost.micros() } else { cost.micros() };
    Tokens::from_micros(fastrand::i64(0..=most))
}

/// Through a gate: an estimate that is reported or not, and settled or left.
async fn call(gate: &Gate) {
    let id = format!("gate{:x}", fastrand::u64(..));
    let (user, cost, requests) = asked(&id);
    let (stream, _) = until_known(|| gate.stream(requests.clone())).await;
    let stream = stream.unwrap().granted().unwrap();
    if stream.grant().source == Source::Degraded {
        // Nothing was charged, or nobody heard of it: then it lapses.
        return;
    }
    println!("@granted {id} {user}:{}", shard(&stream.grant().receipt));
    if fastrand::u8(..4) == 0 {
        stream.add(used(cost));
        let count = stream.used().micros();
        println!("@reporting {id} {count}");
        match until_known(|| stream.report()).await.0 {
            Ok(()) => println!("@reported {id} {count}"),
            // It has lapsed, before or after it was reported.
            Err(Error::ReceiptUsed { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let receipt = stream.into_receipt();
    if fastrand::u8(..10) > 0 {
        let actual = used(cost);
        println!("@settling {id} {}", actual.micros());
        settled(&id, until_known(|| gate.settle(receipt.clone(), actual)).await);
    }
}

/// Beside work of the caller's: a job is inserted with its charge, and another row with its settlement.
async fn call_joined(pool: &PgPool) {
    let id = format!("joined{:x}", fastrand::u64(..));
    let (user, cost, requests) = asked(&id);
    let receipt: Receipt = loop {
        if let Ok(receipt) = charge(pool, &id, requests.clone()).await {
            break receipt;
        }
    };
    println!("@granted {id} {user}:{}", shard(&receipt));
    let actual = used(cost);
    println!("@settling {id} {}", actual.micros());
    // The answer may be that the receipt is used or has lapsed, and is passed over: a transaction whose commit got lost
    // may have used it.
    while let Err(fault) = settle(pool, &id, receipt.clone(), actual).await {
        if let Some(Error::ReceiptUsed { .. } | Error::Lapsed { .. }) = fault.downcast_ref() {
            return;
        }
    }
    println!("@settled {id} 0");
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

async fn charge(pool: &PgPool, id: &str, requests: Vec<Request>) -> Result<Receipt, Fault> {
    let mut tx = pool.begin().await?;
    let grant = Limiter::new().parts(parts()).consume(&mut tx, requests).await?.granted()?;
    let job = sqlx::query("insert into jobs values ($1) on conflict do nothing").bind(id);
    job.execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(grant.into())
}

async fn settle(pool: &PgPool, id: &str, receipt: Receipt, actual: Tokens) -> Result<(), Fault> {
    let mut tx = pool.begin().await?;
    Limiter::new().parts(parts()).settle(&mut tx, receipt, actual).await?;
    sqlx::query("insert into settled values ($1)").bind(id).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

fn settled(id: &str, (answer, may_be_done): (Result<Settlement, Error>, bool)) {
    match answer {
        Ok(_) => println!("@settled {id} 0"),
        Err(Error::Lapsed { .. }) if !may_be_done => println!("@lapsed {id} 0"),
        // By a try whose answer was lost, or by the reaper that gave it back when it had lapsed.
        Err(Error::Lapsed { .. } | Error::ReceiptUsed { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Asks until there is an answer; also whether an earlier try, whose answer was lost, may have done it.
async fn until_known<T, A: Future<Output = Result<T, Error>>>(ask: impl Fn() -> A) -> (Result<T, Error>, bool) {
    let mut may_be_done = false;
    loop {
        match ask().await {
            Err(error) if error.is_retryable() => {}
            // No answer came, or nobody listens where the server was.
            Err(Error::OutcomeUnknown { .. } | Error::Database { .. }) => may_be_done = true,
            answer => return (answer, may_be_done),
        }
    }
}

const DATABASE: &str = "TOLLGATE_TEST_STORM_DATABASE";
const SOCKET: &str = "TOLLGATE_TEST_STORM_SOCKET";
