//! A storm. Processes of gates of every kind, of callers who join, and of sweepers share rows, and faults strike all
//! the time. Clients print what they did, and the books are judged afterwards. Of budgets each row lacks what its calls
//! cost, and each shard what those cost that were charged to it, to the micro-token. Of what comes back, no more is
//! spent than the bound, dated at the charge of its slice. Beside it, orders of calls on rows of their own are drawn.
//!
//! `./dev storm` makes it last longer than the seconds of a daily run. One seed drives what is drawn: the faults, the
//! calls of each caller, and the orders. Which of them meet is up to the machine.

mod books;
mod calls;
pub(crate) mod client;
mod faults;
mod nodes;
mod place;
mod rates;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};

use self::books::{Books, lacking};
use self::calls::{Caller, LAPSE};
use self::client::Client;
use self::faults::{Fault, deck};
use self::place::Place;
use self::rates::{MAX_AGE, Spent};
use self::report::Report;
use crate::functions::define;
use crate::gate::kind::any_kind;
use crate::orders::{Hand, play_any};
use crate::proxy::Proxy;
use crate::world::{is_on_citus, parts, sweeper};

const CLIENTS: usize = 4;
/// The callers of each client that ask for budgets; one in four decides in transactions of its own.
const CALLERS: u32 = 8;
/// The callers of each client that spend what comes back.
const SPENDERS: u32 = 6;
/// So many calls are settled, and granted from memory, before it ends.
const ENOUGH: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_breaks_books_balance_and_nothing_is_over() {
    let set = |name| std::env::var(name).ok().map(|number| number.parse().unwrap());
    let seconds: u64 = set("TOLLGATE_STORM_SECONDS").unwrap_or(8);
    let seed: u64 = set("TOLLGATE_STORM_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("seed {seed}");
    let mut dice = Rng::with_seed(seed);
    let goes_on = Arc::new(AtomicBool::new(true));
    let theatres = theatres(&mut dice, &goes_on);

    let mut storm = Storm::begin(dice, theatres).await;
    storm.rage(Duration::from_secs(seconds)).await;
    goes_on.store(false, Ordering::SeqCst);
    let [balanced, used] = storm.end().await;
    let schedules = storm.theatres.into_iter().map(|theatre| theatre.join().unwrap()).sum();
    Report { seconds, seed, balanced, used, schedules, counts: storm.spent.counts(), faults: storm.faults }.tell();
}

/// Orders that are drawn, of sessions on rows of their own, on a server that does not crash.
fn theatres(dice: &mut Rng, goes_on: &Arc<AtomicBool>) -> Vec<thread::JoinHandle<u64>> {
    if is_on_citus() {
        return Vec::new();
    }
    let hands = [[Hand::Limiter, Hand::Limiter], [Hand::Gate, Hand::Limiter], [Hand::Sql, Hand::Limiter]];
    let mut begin = |hands| {
        let (dice, goes_on) = (dice.fork(), goes_on.clone());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(play_any(hands, dice, || goes_on.load(Ordering::SeqCst)))
        })
    };
    hands.into_iter().map(&mut begin).collect()
}

struct Storm {
    place: Place,
    proxy: Proxy,
    clients: Vec<Client>,
    theatres: Vec<thread::JoinHandle<u64>>,
    dice: Rng,
    books: Books,
    spent: Spent,
    /// How many lines clients have printed.
    lines: Arc<watch::Sender<u64>>,
    faults: BTreeMap<Fault, u64>,
    /// Instants between the rows that a crash took and those after it.
    crashes: Vec<i64>,
    /// The milliseconds by which the server's clock is ahead.
    ahead: u64,
}

impl Storm {
    async fn begin(mut dice: Rng, theatres: Vec<thread::JoinHandle<u64>>) -> Self {
        let place = Place::new().await;
        let mut conn = PgConnection::connect(&place.url()).await.unwrap();
        let tables = "create table jobs (id text primary key); create table settled (id text primary key)";
        sqlx::raw_sql(tables).execute(&mut conn).await.unwrap();
        define(&mut conn, &rates::LIMIT).await;
        let proxy = Proxy::new(&place.url());
        let seeds: Vec<_> = (0..CLIENTS).map(|_| dice.u64(..)).collect();
        let (books, spent, lines) = (Books::default(), Spent::default(), Arc::default());
        let (clients, faults, crashes) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut storm = Self { place, proxy, clients, theatres, dice, books, spent, lines, faults, crashes, ahead: 0 };
        storm.clients = seeds.into_iter().map(|seed| storm.client(seed)).collect();
        storm
    }

    fn client(&self, seed: u64) -> Client {
        let (books, spent, lines) = (self.books.clone(), self.spent.clone(), self.lines.clone());
        Client::start("storm::call_in_another_process", &self.place.url(), &self.proxy, seed, move |line| {
            lines.send_modify(|lines| *lines += 1);
            if !spent.note(line) {
                books.note(line);
            }
        })
    }

    /// Deals deck after deck of faults, at least one.
    async fn rage(&mut self, span: Duration) {
        let end = Instant::now() + span;
        let mut pace = interval((span / 2_000).max(Duration::from_millis(60)));
        for nth in 0.. {
            for fault in deck(&self.place, nth, &mut self.dice) {
                if nth > 0 && Instant::now() >= end && self.is_enough() {
                    return;
                }
                pace.tick().await;
                self.progress().await;
                *self.faults.entry(fault).or_default() += 1;
                self.strike(fault).await;
            }
            self.look();
        }
    }

    /// Fails where something has gone wrong by now. Budgets balance only at the end.
    fn look(&mut self) {
        self.place.look();
        self.spent.judge(&self.crashes);
        self.clients.iter_mut().for_each(Client::look);
        assert!(!self.theatres.iter().any(thread::JoinHandle::is_finished), "an order has failed");
    }

    fn is_enough(&self) -> bool {
        self.books.settled() >= ENOUGH && (is_on_citus() || self.spent.counts()[0] >= ENOUGH as u64)
    }

    /// Until a client says something: however slow the machine is, there is work between two faults. Not for ever, as
    /// all of them may be waiting for a server that has just been cut off.
    async fn progress(&self) {
        let mut lines = self.lines.subscribe();
        let _ = timeout(LAPSE, lines.changed()).await;
    }

    /// Judges the budgets and the rates, and returns a line on each.
    async fn end(&mut self) -> [String; 2] {
        self.clients.iter_mut().for_each(Client::kill);
        self.faults.insert(Fault::AnswerLost, self.proxy.lost_answers());
        let pool = PgPool::connect(&self.place.url()).await.unwrap();
        let lapsed = "select pg_sleep(greatest(0, extract(epoch from max(lapses_at) - clock_timestamp())))
                        from tollgate.calls";
        sqlx::query(lapsed).execute(&pool).await.unwrap();
        sweeper().reap(&pool).await.unwrap();
        let open = "select count(*) from tollgate.calls where lapses_at is not null";
        assert_eq!(sqlx::query_scalar::<_, i64>(open).fetch_one(&pool).await.unwrap(), 0);
        let balanced = self.books.judge(&lacking(&pool).await);
        // A transaction's other work stands or falls with the charge.
        let ids = async |sql| BTreeSet::<String>::from_iter(sqlx::query_scalar(sql).fetch_all(&pool).await.unwrap());
        let [jobs, calls] = ["select id from jobs", "select id from tollgate.calls where id like 'joined%'"].map(ids);
        assert_eq!(jobs.await, calls.await);
        let shares = self.spent.judge(&self.crashes).into_iter();
        let used = shares.map(|(kind, share)| format!("{}.{} % ({kind})", share / 10, share % 10)).collect::<Vec<_>>();
        [balanced, used.join(", ")]
    }
}

/// A client of the storm: it calls until it is killed.
#[ignore = "a part of another test"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_in_another_process() {
    let Some((pool, seed)) = Client::connections(12) else { return };
    let mut dice = Rng::with_seed(seed);
    let gate = any_kind(&pool, MAX_AGE).await.prefetch(MAX_AGE).parts(parts()).build();
    let mut callers = JoinSet::new();
    for place in 0..CALLERS {
        let mut caller = Caller { gate: gate.clone(), pool: pool.clone(), dice: dice.fork() };
        callers.spawn(async move {
            loop {
                if place % 4 == 0 { caller.call_joined().await } else { caller.call().await }
            }
        });
    }
    if !is_on_citus() {
        for _ in 0..SPENDERS {
            callers.spawn(rates::spend(gate.clone(), pool.clone(), dice.fork()));
        }
        callers.spawn(sweep(pool));
    }
    // Only a panic ends one.
    callers.join_next().await.unwrap().unwrap();
}

/// Rows of rates are full after some seconds, and go. The clock goes back by less than the margin.
async fn sweep(pool: PgPool) {
    loop {
        let _ = sweeper().margin(2 * LAPSE).trusting_the_clock().sweep(&pool).await;
        sleep(LAPSE / 4).await;
    }
}
