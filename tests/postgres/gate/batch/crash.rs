//! A server that dies: nobody hangs, and no caller hears of tokens that were not taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use fastrand::Rng;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Error, Gate, Limit, Limiter, SECOND, migrate};
use tollgate_embedded::Server;

use crate::gate::stage::{EVER, patient, pool, soon};
use crate::world::World;

const CAPACITY: u64 = 1_000_000;
const KEYS: usize = 10;
const DURABLE: Limit = Limit::token_bucket("durable", CAPACITY, EVER);
const STEPPED: Limit = Limit::stepped_bucket("stepped", CAPACITY, EVER);
const SPREAD: Limit = Limit::token_bucket("spread", CAPACITY, EVER).shards(4);
const EPHEMERAL: Limit = Limit::token_bucket("ephemeral", CAPACITY, EVER).ephemeral();

/// The answers that callers got about the durable rows, in whole tokens.
#[derive(Default)]
pub(crate) struct Told {
    granted: [AtomicI64; 3 * KEYS],
    unknown: [AtomicI64; 3 * KEYS],
    answers: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) done: AtomicBool,
}

impl Told {
    /// Asks until it is done, on every path that a call may take.
    pub(crate) async fn ask(self: Arc<Self>, gate: Gate, seed: u64) {
        let mut dice = Rng::with_seed(seed);
        while !self.done.load(Ordering::SeqCst) {
            // Half of the calls on one row.
            let key = if dice.bool() { 0 } else { dice.usize(..KEYS) };
            let (cost, other) = (dice.u32(1..=3), dice.usize(..KEYS));
            let durable = || DURABLE.key(key).cost(cost);
            let (rows, call) = match dice.u32(..6) {
                0 => (vec![key], soon(gate.consume([EPHEMERAL.key(key), durable()])).await.map(drop)),
                1 => {
                    let both = [durable(), STEPPED.key(other).cost(cost)];
                    (vec![key, KEYS + other], soon(gate.consume(both)).await.map(drop))
                }
                2 => (vec![], soon(gate.consume(EPHEMERAL.key(key))).await.map(drop)),
                3 => (vec![key], soon(gate.debit(durable())).await.map(drop)),
                4 => {
                    let both = [durable(), SPREAD.key(other).cost(cost)];
                    (vec![key, 2 * KEYS + other], soon(gate.consume(both)).await.map(drop))
                }
                _ => (vec![key], soon(gate.consume(durable())).await.map(|told| drop(told.granted().unwrap()))),
            };
            let told = match call {
                Ok(()) => {
                    self.answers.fetch_add(1, Ordering::SeqCst);
                    &self.granted
                }
                Err(Error::OutcomeUnknown { .. }) => {
                    self.errors.fetch_add(1, Ordering::SeqCst);
                    &self.unknown
                }
                // A server that is gone, or is a standby yet.
                Err(error) if error.is_retryable() || matches!(error, Error::ReadOnly { .. }) => {
                    self.errors.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                Err(error) => panic!("{error:?}"),
            };
            for row in rows {
                told[row].fetch_add(cost.into(), Ordering::SeqCst);
            }
        }
    }

    /// Returns once so many calls more were answered.
    pub(crate) async fn until_answered(&self, more: u64) {
        let until = self.answers.load(Ordering::SeqCst) + more;
        soon(async {
            while self.answers.load(Ordering::SeqCst) < until {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Returns once so many calls more have failed.
    pub(crate) async fn until_failed(&self, more: u64) {
        let until = self.errors.load(Ordering::SeqCst) + more;
        soon(async {
            while self.errors.load(Ordering::SeqCst) < until {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Tokens that callers were granted are missing in the rows; tokens of calls whose outcome is unknown may be.
    pub(crate) async fn agrees_with(&self, conn: &mut PgConnection) {
        let mut total = 0;
        for row in 0..3 * KEYS {
            let limit = [DURABLE, STEPPED, SPREAD][row / KEYS].clone();
            let balance = Limiter::new().balance(conn, limit.key(row % KEYS)).await.unwrap().remaining;
            let missing = i64::try_from(CAPACITY).unwrap() - balance.micros() / 1_000_000;
            let [granted, unknown] = [&self.granted, &self.unknown].map(|told| told[row].load(Ordering::SeqCst));
            assert!(
                (granted..=granted + unknown).contains(&missing),
                "row {row}: {missing} taken, {granted} granted, {unknown} unknown"
            );
            total += granted;
        }
        assert!(total > 0);
    }
}

/// Again and again, under the same gate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_in_mid_batch_loses_no_grant_and_no_caller() {
    let mut server = Server::builder().durable().start().unwrap();
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    migrate::run(&mut conn).await.unwrap();
    let pool = pool(server.url(), 4).await;
    let gate = Gate::builder(pool).acquire_timeout(2 * SECOND).build();
    let told = Arc::new(Told::default());
    let mut callers = JoinSet::new();
    for caller in 0..48 {
        callers.spawn(told.clone().ask(gate.clone(), caller));
    }
    for crash in 0..6 {
        told.until_answered(200).await;
        let errors = told.errors.load(Ordering::SeqCst);
        server.crash().unwrap();
        server.restart().unwrap();
        told.until_answered(1).await;
        assert!(told.errors.load(Ordering::SeqCst) > errors, "nobody noticed crash {crash}");
    }
    told.done.store(true, Ordering::SeqCst);
    soon(callers.join_all()).await;
    told.agrees_with(&mut PgConnection::connect(server.url()).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_terminated_in_mid_batch_lose_no_grant_and_no_caller() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 4).await).build();
    let told = Arc::new(Told::default());
    let mut callers = JoinSet::new();
    for caller in 0..32 {
        callers.spawn(told.clone().ask(gate.clone(), caller));
    }
    let mut conn = world.connect().await;
    let terminate = "select pg_terminate_backend(pid) from pg_stat_activity
                      where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle'";
    soon(async {
        while told.errors.load(Ordering::SeqCst) < 100 {
            told.until_answered(5).await;
            sqlx::query(terminate).execute(&mut conn).await.unwrap();
        }
    })
    .await;
    told.until_answered(100).await;
    told.done.store(true, Ordering::SeqCst);
    soon(callers.join_all()).await;
    told.agrees_with(&mut conn).await;
}
