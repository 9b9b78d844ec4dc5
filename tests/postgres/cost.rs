//! The cost of a call: round trips, and, for a refusal, nothing else.

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Call, Limit, Limiter, Request, Tokens, migrate};
use tollgate_embedded::Server;

use crate::proxy::Proxy;
use crate::world::{World, second};

const LIMITER: Limiter = Limiter::new();

const EVER: Duration = Limit::MAX_PERIOD;
const A: Limit = Limit::token_bucket("a", 10, EVER).max_reserved(20);
const B: Limit = Limit::stepped_bucket("b", 10, EVER);
const C: Limit = Limit::fixed_window("c", 10, EVER);
const X: Limit = Limit::token_bucket("x", 10, EVER).ephemeral();
const Y: Limit = Limit::stepped_bucket("y", 10, EVER).ephemeral();

#[tokio::test]
async fn each_verb_takes_so_many_round_trips() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let mut conn = proxy.connect().await;
    let table = [
        ("consume, absent", 3),
        ("consume, granted", 2),
        ("consume, refused", 1),
        ("consume, granted, unlogged", 2),
        ("consume, refused, unlogged", 1),
        ("consume three of one table, absent", 3),
        ("consume three of one table, granted", 3),
        ("consume three of one table, refused", 1),
        ("consume four of both tables, absent", 5),
        ("consume four of both tables, granted", 5),
        ("consume four of both tables, refused", 2),
        ("check", 1),
        ("balance", 1),
        ("credit", 2),
        ("credit, absent", 1),
        ("debit", 2),
        ("debit, absent", 3),
        ("reset", 3),
        ("reset, absent", 2),
        ("reserve", 2),
        ("settle", 2),
        ("cancel", 2),
        ("cancel, in vain", 1),
        ("settle three of one table", 2),
        ("consume, tracked", 2),
        ("settle, tracked", 3),
        ("consume, with an id", 5),
        ("consume, repeated", 2),
    ];
    // The first call of each statement on a connection prepares it.
    count(&proxy, &mut conn, &LIMITER, "cold").await;
    assert_eq!(count(&proxy, &mut conn, &LIMITER, "warm").await, table);
    // A savepoint before, and the lock timeout of before after.
    let table = table.map(|(verb, trips)| (verb, if matches!(verb, "check" | "balance") { trips } else { trips + 2 }));
    let patient = LIMITER.lock_timeout(Duration::from_secs(10));
    assert_eq!(count(&proxy, &mut conn, &patient, "patient").await, table);
}

/// `lock_one.sql` estimates what the plan computes. If it locks a row for nothing, or leaves one alone that suffices,
/// the answer is the same, and only these costs differ.
#[tokio::test]
async fn a_call_of_one_row_locks_it_if_it_is_granted_and_only_then() {
    const SPAN: Duration = Duration::from_secs(10);
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let (mut conn, mut other) = (proxy.connect().await, world.connect().await);
    let limits = [
        Limit::token_bucket("bucket", 8, SPAN),
        Limit::token_bucket("unlogged", 8, SPAN).ephemeral(),
        Limit::stepped_bucket("steps", 4, SPAN).capacity(8),
        Limit::stepped_bucket("unlogged steps", 4, SPAN).capacity(8).ephemeral(),
        Limit::fixed_window("window", 8, SPAN).start(Duration::from_secs(3)),
        Limit::fixed_window("spread", 8, SPAN),
        Limit::sliding_window("sliding", 8, SPAN),
        Limit::wallet("wallet"),
    ];
    for (limit, after, cost) in limits.iter().flat_map(|limit| {
        let asked = move |after| [1_u64, 4, 8].map(|cost| (limit, after, cost));
        [5.0, 8.0, 11.0, 14.0, 23.0].into_iter().flat_map(asked)
    }) {
        // A row whose first entry has left is locked in any case.
        if limit.name() == "sliding" && cost == 8 {
            continue;
        }
        let key = format!("{after} {cost}");
        let mut tx = conn.begin().await.unwrap();
        for before in [0.0, 5.0].map(|before| LIMITER.at(second(before))) {
            if limit.name() == "wallet" {
                before.credit(&mut tx, limit.key(&key).cost(3)).await.unwrap();
            } else {
                before.consume(&mut tx, limit.key(&key).cost(4)).await.unwrap().granted().unwrap();
            }
        }
        tx.commit().await.unwrap();
        let mut tx = conn.begin().await.unwrap();
        let sent = proxy.statements();
        let decision = LIMITER.at(second(after)).consume(&mut tx, limit.key(&key).cost(cost)).await.unwrap();
        let sent = proxy.statements() - sent;
        let (table, name) = (limit.spec().storage, limit.name());
        let free = format!("select from tollgate.{table} where name = $1 and key = $2 for update skip locked");
        let free = sqlx::query(sqlx::AssertSqlSafe(free)).bind(name).bind(&key).fetch_optional(&mut other).await;
        let expected = if decision.is_granted() { (2, false) } else { (1, true) };
        assert_eq!((sent, free.unwrap().is_some()), expected, "{name} {key}: {decision:?}");
        tx.rollback().await.unwrap();
    }
}

/// The round trips of each verb, in a transaction of their own that was begun before, on rows of `key`.
async fn count(proxy: &Proxy, conn: &mut PgConnection, limiter: &Limiter, key: &str) -> Vec<(&'static str, u64)> {
    let mut tx = conn.begin().await.unwrap();
    let mut counts = Vec::new();
    macro_rules! trips {
        ($verb:literal, $call:ident($($argument:expr),*)) => {{
            let before = proxy.trips();
            let answer = limiter.$call(&mut tx, $($argument),*).await.unwrap();
            counts.push(($verb, proxy.trips() - before));
            answer
        }};
    }
    let other = format!("other {key}");
    let another = format!("another {key}");
    let three = |cost: u64| [A.key(&other).cost(cost), B.key(&other).cost(cost), C.key(&other).cost(cost)];
    let both = |cost: u64| [A, B, X, Y].map(|limit| limit.key(&another).cost(cost));

    assert!(trips!("consume, absent", consume(A.key(key))).is_granted());
    assert!(trips!("consume, granted", consume(A.key(key))).is_granted());
    assert!(!trips!("consume, refused", consume(A.key(key).cost(9))).is_granted());
    assert!(limiter.consume(&mut tx, X.key(key)).await.unwrap().is_granted());
    assert!(trips!("consume, granted, unlogged", consume(X.key(key))).is_granted());
    assert!(!trips!("consume, refused, unlogged", consume(X.key(key).cost(9))).is_granted());
    assert!(trips!("consume three of one table, absent", consume(three(1))).is_granted());
    let three_granted = trips!("consume three of one table, granted", consume(three(1))).granted().unwrap();
    assert!(!trips!("consume three of one table, refused", consume(three(9))).is_granted());
    assert!(trips!("consume four of both tables, absent", consume(both(1))).is_granted());
    assert!(trips!("consume four of both tables, granted", consume(both(1))).is_granted());
    assert!(!trips!("consume four of both tables, refused", consume(both(9))).is_granted());
    assert!(trips!("check", check(A.key(key))).is_granted());
    assert_eq!(trips!("balance", balance(A.key(key))).remaining, Tokens::new(8));
    trips!("credit", credit(A.key(key)));
    trips!("credit, absent", credit(A.key(format!("absent {key}"))));
    trips!("debit", debit(A.key(key)));
    trips!("debit, absent", debit(A.key(format!("in debt {key}"))));
    trips!("reset", reset(A.key(key)));
    trips!("reset, absent", reset(A.key(format!("absent {key}"))));
    let booked = trips!("reserve", reserve(A.key(key).cost(12))).granted().unwrap();
    let grant = limiter.consume(&mut tx, B.key(key).cost(2)).await.unwrap().granted().unwrap();
    trips!("settle", settle(grant.clone(), 1));
    trips!("cancel", cancel(booked));
    let spent = limiter.clone().at(second(1e9));
    let before = proxy.trips();
    spent.cancel(&mut tx, grant).await.unwrap_err();
    counts.push(("cancel, in vain", proxy.trips() - before));
    trips!("settle three of one table", settle(three_granted, 0));
    let stored = trips!("consume, tracked", consume(A.key(key).tracked_for(EVER))).granted().unwrap();
    trips!("settle, tracked", settle(stored, 0));
    let once = || A.key(key).once("job");
    assert!(trips!("consume, with an id", consume(once())).is_granted());
    assert!(trips!("consume, repeated", consume(once())).is_granted());
    tx.commit().await.unwrap();
    counts
}

#[tokio::test]
async fn a_refusal_writes_nothing_and_takes_no_transaction_id() {
    let (server, mut conn) = alone().await;
    let spent = [
        Limit::token_bucket("continuous", 2, EVER),
        Limit::stepped_bucket("stepped", 2, EVER),
        Limit::fixed_window("window", 2, EVER),
        Limit::fixed_window("aligned", 2, EVER).start(Duration::from_secs(1)),
        Limit::token_bucket("continuous", 2, EVER).ephemeral(),
        Limit::stepped_bucket("stepped", 2, EVER).ephemeral(),
        Limit::fixed_window("window", 2, EVER).ephemeral(),
    ];
    let mut tx = conn.begin().await.unwrap();
    for limit in spent.iter().chain([&A, &X]) {
        LIMITER.consume(&mut tx, limit.key("k")).await.unwrap().granted().unwrap();
    }
    tx.commit().await.unwrap();
    for limit in spent {
        // Alone; with rows that are there and that are not; over both tables.
        let asks: [&[Request]; 4] = [
            &[limit.key("k").cost(2)],
            &[limit.key("k").cost(2), limit.key("absent")],
            &[limit.key("k").cost(2), A.key("k"), A.key("absent")],
            &[limit.key("k").cost(2), X.key("k"), X.key("absent")],
        ];
        for ask in asks {
            let mut conn = PgConnection::connect(server.url()).await.unwrap();
            let mut tx = conn.begin().await.unwrap();
            let before = writes(&mut tx).await;
            let mut quiet = false;
            // The server itself writes to the log now and then: one attempt in which it does not is enough.
            for _ in 0..10 {
                let log = log_position(&mut tx).await;
                assert!(!LIMITER.consume(&mut tx, ask.to_vec()).await.unwrap().is_granted(), "{ask:?}");
                quiet = log_position(&mut tx).await == log;
                if quiet {
                    break;
                }
            }
            assert!(quiet, "{ask:?} wrote to the log");
            assert_eq!(writes(&mut tx).await, before, "{ask:?}");
            let id: Option<i64> =
                sqlx::query_scalar("select txid_current_if_assigned()").fetch_one(&mut *tx).await.unwrap();
            assert_eq!(id, None, "{ask:?}");
            tx.commit().await.unwrap();
        }
    }
    let rows = "select (select count(*) from tollgate.ephemeral) + (select count(*) from tollgate.durable)";
    assert_eq!(sqlx::query_scalar::<_, i64>(rows).fetch_one(&mut conn).await.unwrap(), 9);
}

/// Rows inserted, updated and deleted by this connection.
async fn writes(conn: &mut PgConnection) -> (i64, i64, i64) {
    let sql = "select sum(n_tup_ins)::int8, sum(n_tup_upd)::int8, sum(n_tup_del)::int8
                 from pg_stat_xact_user_tables where schemaname = 'tollgate'";
    sqlx::query_as(sql).fetch_one(conn).await.unwrap()
}

async fn log_position(conn: &mut PgConnection) -> String {
    sqlx::query_scalar("select pg_current_wal_insert_lsn()::text").fetch_one(conn).await.unwrap()
}

/// No index is touched, and no page is left behind: an update finds room beside the row's last version.
#[tokio::test]
async fn updates_of_many_rows_are_all_heap_only() {
    const ROWS: i64 = 200;
    const UPDATES: i64 = 20;
    let (_server, mut conn) = alone().await;
    let mut updated = Vec::new();
    for update in 0..=UPDATES {
        for keys in (0..ROWS / 5).map(|fives| 5 * fives..5 * (fives + 1)) {
            // Five rows of each table in a transaction; the first time they are inserted.
            let ask = keys.flat_map(|key| [X.key(key).cost(0.1), A.key(key).cost(0.1)]);
            let counts = updates(&mut conn, ask.collect::<Call>()).await;
            if update > 0 {
                updated.push(counts);
            }
        }
    }
    let all = 2 * ROWS * UPDATES;
    assert_eq!(total(&updated), (all, all), "all, heap-only");
}

/// The page can only be tidied while nobody else looks at it, so a few updates go elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_of_one_busy_row_are_heap_only() {
    let (server, _conn) = alone().await;
    let (hot, cold) = (Limit::token_bucket("hot", 10_000, EVER), Limit::token_bucket("cold", 10_000, EVER).ephemeral());
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let (url, hot, cold) = (server.url().to_owned(), hot.clone(), cold.clone());
        callers.spawn(async move {
            let mut conn = PgConnection::connect(&url).await.unwrap();
            let mut updated = Vec::new();
            for _ in 0..250 {
                updated.push(updates(&mut conn, [hot.global(), cold.global()]).await);
            }
            total(&updated)
        });
    }
    // The first call inserts the rows, and saves them too.
    let (all, heap_only) = total(&callers.join_all().await);
    assert_eq!(all, 2000);
    assert!(heap_only >= 1980, "{heap_only} of {all}");
}

/// A migrated server without neighbours, and a connection to it. A transaction that is open in any database of a server
/// delays the tidying of pages in all of them, and so does autovacuum.
async fn alone() -> (Server, PgConnection) {
    let server = Server::builder().setting("autovacuum", "off").start().unwrap();
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    migrate::run(&mut conn).await.unwrap();
    (server, conn)
}

/// Takes from limits in a transaction: how many rows it updated, and how many of them beside their last version.
async fn updates(conn: &mut PgConnection, ask: impl Into<Call>) -> (i64, i64) {
    let mut tx = conn.begin().await.unwrap();
    // The updates of earlier transactions are counted, too, until the session reports them.
    let before = session_updates(&mut tx).await;
    LIMITER.consume(&mut tx, ask).await.unwrap().granted().unwrap();
    let after = session_updates(&mut tx).await;
    tx.commit().await.unwrap();
    (after.0 - before.0, after.1 - before.1)
}

async fn session_updates(conn: &mut PgConnection) -> (i64, i64) {
    let sql = "select sum(n_tup_upd)::int8, sum(n_tup_hot_upd)::int8
                 from pg_stat_xact_user_tables where schemaname = 'tollgate'";
    sqlx::query_as(sql).fetch_one(conn).await.unwrap()
}

fn total(updated: &[(i64, i64)]) -> (i64, i64) {
    updated.iter().fold((0, 0), |(all, heap_only), counts| (all + counts.0, heap_only + counts.1))
}
