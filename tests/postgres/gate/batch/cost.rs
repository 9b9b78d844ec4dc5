//! The cost of a gate's call: statements, round trips, and, for a refusal, nothing else.

use sqlx::{Connection, PgConnection, PgPool};
use tokio::task::JoinSet;
use tollgate::{Gate, HOUR, Limit, migrate};
use tollgate_embedded::Server;

use crate::gate::stage::{EVER, one_connection, patient, pool, soon, until_alone};
use crate::proxy::Proxy;
use crate::teller::rows;
use crate::world::World;

const A: Limit = Limit::token_bucket("a", 10, EVER).max_reserved(20);
const B: Limit = Limit::stepped_bucket("b", 10, EVER);
const X: Limit = Limit::token_bucket("x", 1000, EVER).ephemeral();

struct Stage {
    gate: Gate,
    proxy: Proxy,
    pool: PgPool,
    _world: World,
}

impl Stage {
    async fn new() -> Self {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let pool = one_connection(proxy.options()).await;
        Self { gate: patient(&pool).build(), proxy, pool, _world: world }
    }

    /// Returns once the connection is back in the pool, with all that the pool does then.
    async fn until_idle(&self) {
        soon(async {
            while self.pool.num_idle() == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn each_verb_takes_so_many_statements() {
    let stage = Stage::new().await;
    let table = [
        ("consume, absent", 5),
        ("consume, granted", 2),
        ("consume, refused", 1),
        ("consume, granted, unlogged", 2),
        ("consume, refused, unlogged", 1),
        ("consume two of one table, granted", 2),
        ("consume two of one table, refused", 1),
        ("consume of both tables, granted", 7),
        ("consume of both tables, refused", 2),
        ("check", 1),
        ("balance", 1),
        ("credit", 2),
        ("credit, absent", 1),
        ("debit", 2),
        ("reset", 6),
        ("reset, absent", 5),
        ("reserve", 2),
        ("settle", 2),
        ("settle a stored call", 2),
        ("cancel", 2),
    ];
    count(&stage, "cold").await;
    assert_eq!(count(&stage, "warm").await, table);
}

async fn count(stage: &Stage, key: &'static str) -> Vec<(&'static str, u64)> {
    let mut counts = Vec::new();
    macro_rules! statements {
        ($verb:literal, $call:ident($($argument:expr),*)) => {{
            let before = stage.proxy.statements();
            let answer = stage.gate.$call($($argument),*).await.unwrap();
            stage.until_idle().await;
            counts.push(($verb, stage.proxy.statements() - before));
            answer
        }};
    }
    assert!(statements!("consume, absent", consume(A.key(key))).is_granted());
    assert!(statements!("consume, granted", consume(A.key(key))).is_granted());
    assert!(!statements!("consume, refused", consume(A.key(key).cost(9))).is_granted());
    assert!(stage.gate.consume([B.key(key), X.key(key)]).await.unwrap().is_granted());
    stage.until_idle().await;
    assert!(statements!("consume, granted, unlogged", consume(X.key(key))).is_granted());
    assert!(!statements!("consume, refused, unlogged", consume(X.key(key).cost(1000))).is_granted());
    assert!(statements!("consume two of one table, granted", consume([A.key(key), B.key(key)])).is_granted());
    let asks = [A.key(key), B.key(key).cost(9)];
    assert!(!statements!("consume two of one table, refused", consume(asks)).is_granted());
    assert!(statements!("consume of both tables, granted", consume([A.key(key), X.key(key)])).is_granted());
    let asks = [X.key(key), B.key(key).cost(9)];
    assert!(!statements!("consume of both tables, refused", consume(asks)).is_granted());
    assert!(statements!("check", check(A.key(key))).is_granted());
    statements!("balance", balance(A.key(key)));
    statements!("credit", credit(A.key(key)));
    statements!("credit, absent", credit(A.key(format!("absent {key}"))));
    statements!("debit", debit(A.key(key)));
    statements!("reset", reset(A.key(key)));
    statements!("reset, absent", reset(A.key(format!("absent {key}"))));
    let booked = statements!("reserve", reserve(A.key(key).cost(12))).granted().unwrap();
    let grant = stage.gate.consume(B.key(key).cost(2)).await.unwrap().granted().unwrap();
    stage.until_idle().await;
    statements!("settle", settle(grant, 1));
    let stored = B.key(key).tracked_for(HOUR);
    let grant = stage.gate.consume(stored).await.unwrap().granted().unwrap();
    stage.until_idle().await;
    statements!("settle a stored call", settle(grant, 0));
    statements!("cancel", cancel(booked));
    counts
}

/// The round trips of the statements, and two for the pool, which tries its connection before and after.
#[tokio::test]
async fn a_lone_call_takes_the_round_trips_of_its_statements_and_what_the_pool_adds() {
    let stage = Stage::new().await;
    for _ in 0..2 {
        stage.gate.consume(X.key("k")).await.unwrap().granted().unwrap();
        stage.until_idle().await;
    }
    for (cost, statements) in [(1, 2), (1000, 1)] {
        let before = stage.proxy.trips();
        assert_eq!(stage.gate.consume(X.key("k").cost(cost)).await.unwrap().is_granted(), statements == 2);
        stage.until_idle().await;
        assert_eq!(stage.proxy.trips() - before, statements + 2);
    }
}

/// All that came while the lane waited for its connection.
#[tokio::test]
async fn callers_that_come_together_share_their_statements() {
    let stage = Stage::new().await;
    stage.gate.consume(X.key(0)).await.unwrap().granted().unwrap();
    stage.gate.consume(X.key(1)).await.unwrap().granted().unwrap();
    for callers in [10, 200] {
        stage.until_idle().await;
        let before = stage.proxy.statements();
        stage.proxy.hold_after(0);
        let mut asked = JoinSet::new();
        for caller in 0..callers {
            let gate = stage.gate.clone();
            asked.spawn(async move { gate.consume(X.key(caller % 2)).await.unwrap().granted().unwrap() });
        }
        soon(stage.proxy.until_held()).await;
        stage.proxy.release();
        soon(asked.join_all()).await;
        assert_eq!(stage.proxy.statements() - before, 2);
    }
}

/// On a server without neighbours: no row, no transaction id, and nothing in the log.
#[tokio::test]
async fn a_refusal_writes_nothing_and_takes_no_transaction_id() {
    let server = Server::builder().setting("autovacuum", "off").start().unwrap();
    let limits = [A, B, Limit::fixed_window("c", 10, EVER), Limit::stepped_bucket("y", 10, EVER).ephemeral()];
    let pool = pool(server.url(), 4).await;
    migrate::run(&mut pool.acquire().await.unwrap()).await.unwrap();
    let gate = patient(&pool).build();
    for limit in &limits {
        gate.consume(limit.key("k").cost(9)).await.unwrap().granted().unwrap();
    }
    pool.close().await;
    // The server counts a session's writes when the session ends.
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    until_alone(&mut conn).await;
    let (counted, stored) = (writes(&mut conn).await, rows(&mut conn).await);

    let pool = crate::gate::stage::pool(server.url(), 4).await;
    let gate = patient(&pool).build();
    for limit in &limits {
        let mut quiet = false;
        // The server itself writes to the log now and then: one attempt in which it does not is enough.
        for _ in 0..10 {
            let before = position(&mut conn).await;
            for _ in 0..20 {
                let asks = [limit.key("absent"), limit.key("k").cost(9)];
                assert!(!gate.consume(limit.key("k").cost(9)).await.unwrap().is_granted());
                assert!(!gate.consume(asks).await.unwrap().is_granted());
                assert!(!gate.check(limit.key("k").cost(9)).await.unwrap().is_granted());
            }
            quiet = position(&mut conn).await == before;
            if quiet {
                break;
            }
        }
        assert!(quiet, "{limit:?}");
    }
    pool.close().await;
    until_alone(&mut conn).await;
    assert_eq!(writes(&mut conn).await, counted);
    assert_eq!(rows(&mut conn).await, stored);
}

/// Where the log ends, and which transaction id is the next.
async fn position(conn: &mut PgConnection) -> (String, i64) {
    let sql = "select pg_current_wal_insert_lsn()::text, pg_snapshot_xmax(pg_current_snapshot())::text::int8";
    sqlx::query_as(sql).fetch_one(conn).await.unwrap()
}

/// Rows inserted, updated and deleted; not those of the migrations, which this very session counts when it pleases.
async fn writes(conn: &mut PgConnection) -> (i64, i64, i64) {
    let sql = "select sum(n_tup_ins)::int8, sum(n_tup_upd)::int8, sum(n_tup_del)::int8
                 from pg_stat_user_tables where schemaname = 'tollgate' and relname <> 'schema_history'";
    sqlx::query_as(sql).fetch_one(conn).await.unwrap()
}

#[tokio::test]
async fn with_unnamed_statements_no_connection_keeps_any() {
    let stage = Stage::new().await;
    let unnamed = patient(&stage.pool).unnamed_statements().build();
    for (gate, is_named) in [(&unnamed, false), (&stage.gate, true)] {
        for key in ["new", "new", "other"] {
            gate.consume([A.key(key), B.key(key), X.key(key)]).await.unwrap().granted().unwrap();
            gate.consume(A.key(key)).await.unwrap().granted().unwrap();
            let booked = gate.reserve(A.key(key).cost(2)).await.unwrap().granted().unwrap();
            gate.settle(booked, 0).await.unwrap();
            gate.check(A.key(key)).await.unwrap().granted().unwrap();
            gate.reset(A.key(key)).await.unwrap();
        }
        let mut conn = stage.pool.acquire().await.unwrap();
        let sql = "select count(*)::text from pg_prepared_statements where statement like '%tollgate.%'";
        let row = sqlx::raw_sql(sql).fetch_one(&mut *conn).await.unwrap();
        let kept: String = sqlx::Row::get(&row, 0);
        assert_eq!(kept != "0", is_named, "{kept}");
    }
}
