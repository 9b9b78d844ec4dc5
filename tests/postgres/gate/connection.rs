//! A connection that breaks or falls silent: an error says whether the outcome is known, and the next call has a
//! connection.

use std::pin::pin;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tollgate::{Error, Gate, Limit, Limiter, MINUTE, Receipt, SECOND, Storage};

use crate::gate::stage::{EVER, one_connection, patient, soon};
use crate::proxy::Proxy;
use crate::world::World;

/// A call that is cut at each of its statements.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Consume,
    ConsumeNew,
    ConsumeBoth,
    ConsumeTables,
    Credit,
    Debit,
    Reset,
    Settle,
}

const VERBS: [Verb; 8] = [
    Verb::Consume,
    Verb::ConsumeNew,
    Verb::ConsumeBoth,
    Verb::ConsumeTables,
    Verb::Credit,
    Verb::Debit,
    Verb::Reset,
    Verb::Settle,
];

const LITTLE: Limit = Limit::token_bucket("little", 10, EVER).max_reserved(10);
const LOCAL: Limit = Limit::token_bucket("local", 10, EVER).ephemeral();

impl Verb {
    async fn call(self, gate: &Gate, receipt: Receipt) -> Result<(), Error> {
        match self {
            Self::Consume => gate.consume(LITTLE.key("k").cost(2)).await.map(|told| drop(told.granted().unwrap())),
            Self::ConsumeNew => gate.consume(LITTLE.key("new")).await.map(|told| drop(told.granted().unwrap())),
            Self::ConsumeBoth => {
                let told = gate.consume([LITTLE.key("k"), LOCAL.key("k"), LITTLE.key("new")]).await;
                told.map(|told| drop(told.granted().unwrap()))
            }
            // All of them there, so that nothing but the two tables keeps the call from one statement.
            Self::ConsumeTables => {
                let told = gate.consume([LOCAL.key("k"), LITTLE.key("k")]).await;
                told.map(|told| drop(told.granted().unwrap()))
            }
            Self::Credit => gate.credit(LITTLE.key("k")).await.map(drop),
            Self::Debit => gate.debit(LITTLE.key("k")).await.map(drop),
            Self::Reset => gate.reset(LITTLE.key("k")).await.map(drop),
            Self::Settle => gate.settle(receipt, 1).await.map(drop),
        }
    }

    fn limits(self) -> &'static [&'static str] {
        if matches!(self, Self::ConsumeBoth | Self::ConsumeTables) { &["little", "local"] } else { &["little"] }
    }
}

/// A database behind a wire that breaks.
struct Stage {
    proxy: Proxy,
    world: World,
    pool: PgPool,
}

impl Stage {
    async fn new() -> Self {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let pool = one_connection(proxy.options()).await;
        Self { proxy, world, pool }
    }

    /// Sets the tables to the same balances as always.
    async fn set(&self) -> Receipt {
        self.world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
        let mut tx = self.world.pool.begin().await.unwrap();
        let limiter = Limiter::new();
        limiter.consume(&mut tx, [LITTLE.key("k").cost(3), LOCAL.key("k").cost(3)]).await.unwrap().granted().unwrap();
        let booked = limiter.reserve(&mut tx, LITTLE.key("owing").cost(15)).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
        booked.into()
    }

    /// All that can change, in micro-tokens; an absent row is a full one.
    async fn state(&self) -> Vec<(String, String, i64)> {
        let sql = "select name, key, value from tollgate.ephemeral
                   union all select name, key, value from tollgate.durable order by 1, 2";
        sqlx::query_as(sql).fetch_all(&self.world.pool).await.unwrap()
    }

    /// The same, once no transaction is under way.
    async fn settled(&self) -> Vec<(String, String, i64)> {
        let sql = "select count(*) from pg_stat_activity
                    where datname = current_database() and state <> 'idle' and pid <> pg_backend_pid()";
        soon(async { while sqlx::query_scalar::<_, i64>(sql).fetch_one(&self.world.pool).await.unwrap() > 0 {} }).await;
        self.state().await
    }

    /// The states before and after a call.
    async fn ends(&self, gate: &Gate, verb: Verb) -> [Vec<(String, String, i64)>; 2] {
        verb.call(gate, self.set().await).await.unwrap();
        let with = self.state().await;
        let _ = self.set().await;
        let without = self.state().await;
        assert_ne!(with, without, "{verb:?}");
        [without, with]
    }
}

#[tokio::test]
async fn an_answer_that_is_lost_at_any_statement_gives_an_error_that_says_what_is_known() {
    let stage = Stage::new().await;
    let gate = patient(&stage.pool).build();
    for verb in VERBS {
        let [without, with] = stage.ends(&gate, verb).await;
        let (mut unknown, mut untouched) = (0, 0);
        for statement in 1.. {
            let receipt = stage.set().await;
            stage.proxy.cut_after(statement);
            let answer = soon(verb.call(&gate, receipt)).await;
            let (found, case) = (stage.settled().await, format!("{verb:?} cut after statement {statement}"));
            match answer {
                Ok(()) => {
                    assert_eq!(found, with, "{case}");
                    stage.proxy.hear();
                    break;
                }
                // The server had carried it out.
                Err(Error::OutcomeUnknown { limit, source }) => {
                    assert!(verb.limits().contains(&&*limit) && source.is_some(), "{case}");
                    assert_eq!(found, with, "{case}");
                    unknown += 1;
                }
                Err(error @ Error::Database { .. }) => {
                    assert!(error.is_retryable(), "{case}: {error:?}");
                    assert_eq!(found, without, "{case}: {error:?}");
                    untouched += 1;
                }
                Err(error) => panic!("{case}: {error:?}"),
            }
            gate.consume(LOCAL.key("others")).await.unwrap().granted().unwrap();
        }
        assert!(unknown >= 1 && untouched >= 1, "{verb:?}: {unknown} and {untouched}");
    }
}

#[tokio::test]
async fn a_connection_cut_before_any_statement_gives_an_error_that_says_what_is_known() {
    let stage = Stage::new().await;
    let gate = patient(&stage.pool).build();
    for verb in VERBS {
        let [without, with] = stage.ends(&gate, verb).await;
        let mut unknown = 0;
        for passed in 0.. {
            let receipt = stage.set().await;
            stage.proxy.hold_after(passed);
            let mut call = pin!(soon(verb.call(&gate, receipt)));
            let (answer, is_cut) = tokio::select! {
                answer = &mut call => (answer, false),
                () = stage.proxy.until_held() => {
                    stage.proxy.cut().await;
                    stage.proxy.release();
                    (call.await, true)
                }
            };
            stage.proxy.release();
            let (found, case) = (stage.settled().await, format!("{verb:?} cut before statement {passed}"));
            match answer {
                // The pool tries its connections before it hands them out.
                Ok(()) => assert_eq!(found, with, "{case}"),
                Err(Error::OutcomeUnknown { .. }) => {
                    assert_eq!(found, without, "{case}");
                    unknown += 1;
                }
                Err(error @ Error::Database { .. }) => {
                    assert!(error.is_retryable(), "{case}: {error:?}");
                    assert_eq!(found, without, "{case}: {error:?}");
                }
                Err(error) => panic!("{case}: {error:?}"),
            }
            gate.consume(LOCAL.key("others")).await.unwrap().granted().unwrap();
            if !is_cut {
                break;
            }
        }
        assert!(unknown >= 1, "{verb:?}");
    }
}

/// The server wrote, and its answer never arrives: after the gate's patience its callers get an error that says that
/// the outcome is unknown. The connection is kept, for the server may be at work on it, until it turns out to be gone.
#[tokio::test]
async fn a_server_that_falls_silent_is_given_up_and_its_connection_is_waited_for() {
    let stage = Stage::new().await;
    let gate = patient(&stage.pool).statement_timeout(2 * SECOND).build();
    let patient = patient(&stage.pool).build();
    let _ = stage.set().await;
    patient.balance(LITTLE.key("k")).await.unwrap();
    let cut = async || {
        stage.proxy.hear();
        let others = "select pg_terminate_backend(pid) from pg_stat_activity
                       where datname = current_database() and pid <> pg_backend_pid()";
        sqlx::query(others).execute(&mut stage.world.connect().await).await.unwrap();
    };
    let took = async |row: &str| {
        let (value, _) = stage.world.row(Storage::Durable, "little", row).await.unwrap();
        -value.micros() / 1_000_000 - 3
    };
    // The reading statement; nothing was begun.
    stage.proxy.silence_after(1);
    let error = soon(gate.consume(LITTLE.key("k"))).await.unwrap_err();
    assert!(matches!(&error, Error::Database { .. }) && error.is_retryable(), "{error:?}");
    cut().await;
    assert_eq!(took("k").await, 0);
    // The writing one, unless the machine takes longer than the gate waits.
    let error = soon(async {
        loop {
            stage.proxy.silence_after(2);
            let error = gate.consume(LITTLE.key("k")).await.unwrap_err();
            cut().await;
            if took("k").await > 0 || !matches!(error, Error::Database { .. } | Error::OutcomeUnknown { .. }) {
                return error;
            }
        }
    })
    .await;
    assert!(matches!(&error, Error::OutcomeUnknown { .. }) && !error.is_retryable(), "{error:?}");
    assert_eq!(took("k").await, 1);
    // The pool of one connection has a new one.
    soon(patient.consume(LITTLE.key("k"))).await.unwrap().granted().unwrap();
    assert_eq!(took("k").await, 2);
}

/// A router forgets the gate's connections, or the primary vanishes: the gate finds that a new one works, and leaves
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_off_is_left_for_a_new_one() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(5 * MINUTE).connect_with(proxy.options()).await;
    let pool = pool.unwrap();
    let gate = patient(&pool).lanes(1).statement_timeout(2 * SECOND).build();
    gate.consume(LITTLE.key("k")).await.unwrap().granted().unwrap();
    // The host application's connections lie idle.
    let idle = futures_util::future::join_all((0..4).map(|_| pool.acquire())).await;
    drop(idle);
    soon(async { while pool.num_idle() < 4 {} }).await;
    // The gate holds one of them at its next statement.
    proxy.hold_after(1);
    let call = tokio::spawn({
        let gate = gate.clone();
        async move { gate.consume(LITTLE.key("k")).await }
    });
    soon(proxy.until_held()).await;
    proxy.strand();
    proxy.release();
    let error = soon(call).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
    // No waiting caller gets another error: the next batch has a connection that works.
    soon(gate.consume(LITTLE.key("k"))).await.unwrap().granted().unwrap();
}

/// The rows of a transaction whose gate is cut off are free once the server has waited for it long enough.
#[tokio::test]
async fn a_gate_that_is_cut_off_in_a_transaction_leaves_no_row_locked() {
    let stage = Stage::new().await;
    let gate = patient(&stage.pool).statement_timeout(5 * SECOND).build();
    let _ = stage.set().await;
    let both = || [LITTLE.key("k"), LOCAL.key("k")];
    let before = stage.proxy.statements();
    soon(gate.consume(both())).await.unwrap().granted().unwrap();
    // All but the one that commits.
    let others = stage.proxy.statements() - before - 1;
    let before = stage.proxy.statements();
    stage.proxy.hold_after(others);
    let call = tokio::spawn(async move { gate.consume(both()).await });
    soon(stage.proxy.until_held()).await;
    stage.proxy.strand();
    assert_eq!(stage.proxy.statements() - before, others);
    soon(call).await.unwrap().unwrap_err();
    let mut tx = stage.world.begin().await;
    soon(Limiter::new().consume(&mut tx, both())).await.unwrap().granted().unwrap();
}

/// A row that somebody locks divides the batch; those whose turn did not come know that nothing of theirs was begun.
#[tokio::test]
async fn where_one_group_of_a_batch_loses_its_commit_those_behind_it_are_not_told_that_nobody_knows() {
    let stage = Stage::new().await;
    let gate = patient(&stage.pool).lanes(1).build();
    for statement in 1.. {
        let _ = stage.set().await;
        let mut holder = stage.world.begin().await;
        sqlx::query("select from tollgate.durable where key = 'k' for update").execute(&mut *holder).await.unwrap();
        // Until all are in one batch.
        stage.proxy.hold_after(0);
        let keys = ["k", "new", "newer", "newest"];
        let calls = keys.map(|key| {
            let gate = gate.clone();
            tokio::spawn(async move { soon(gate.consume(LITTLE.key(key))).await })
        });
        soon(stage.proxy.until_held()).await;
        stage.proxy.cut_after(statement);
        stage.proxy.release();
        let [k, new @ ..] = calls;
        let (mut unknown, mut failed) = (0, 0);
        for (key, call) in keys[1..].iter().zip(new) {
            match call.await.unwrap() {
                Ok(decision) => drop(decision.granted().unwrap()),
                Err(Error::OutcomeUnknown { .. }) => unknown += 1,
                Err(error) => {
                    assert!(error.is_retryable(), "{error:?}");
                    assert_eq!(stage.world.row(Storage::Durable, "little", key).await, None, "{statement}: {key}");
                    failed += 1;
                }
            }
        }
        holder.rollback().await.unwrap();
        let k = k.await.unwrap();
        assert!(unknown <= 1, "{unknown} after statement {statement}");
        stage.proxy.hear();
        if unknown + failed == 0 && k.is_ok() {
            assert!(statement > 10, "{statement}");
            return;
        }
    }
}
