//! Sessions that somebody has used before and left in a state: in a transaction, or under settings. One table of what
//! is left, who works over it, and how the server is reached.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tollgate::migrate::{Callers, grants};
use tollgate::{
    GateBuilder, HOUR, Key, Limiter, NewOverride, OnFailure, Overrides, SECOND, SlowDown, Source, Sweeper, Tokens,
};

use crate::gate::kind::{HOT, Kind, WARM};
use crate::gate::stage::{idle_in_transaction, one_connection, patient, pool, soon};
use crate::pgbouncer::{self, PgBouncer, follows_named_statements};
use crate::proxy::Proxy;
use crate::traced::traced;
use crate::world::{ON_CALL, SERVICE, World};

/// States that somebody leaves. `ROLE` stands for a role without rights.
const LEFT: [(&str, &str); 14] = [
    ("open", "begin; insert into work values (1)"),
    ("open, read only", "begin read only; select 1"),
    ("aborted", "begin; insert into work values (1); select 1 / 0"),
    ("repeatable read", "begin isolation level repeatable read; select from tollgate.durable, tollgate.overrides"),
    ("serializable", "begin isolation level serializable; select from tollgate.durable, tollgate.overrides"),
    ("search_path", "set search_path = nowhere"),
    ("role", "set role ROLE"),
    ("read only", "set default_transaction_read_only = on"),
    ("isolation", "set default_transaction_isolation = 'repeatable read'"),
    ("statement_timeout", "set statement_timeout = '1ms'"),
    ("lock_timeout", "set lock_timeout = '1ms'"),
    ("idle_in_transaction", "set idle_in_transaction_session_timeout = '1ms'"),
    ("timezone", "set timezone = 'Asia/Kathmandu'; set datestyle = 'German'; set row_security = off"),
    ("temporary table", "create temporary table durable (n int); create temporary table overrides (n int)"),
];

/// The part of ours that works over it.
#[derive(Clone, Copy, Debug)]
enum User {
    /// A gate of a kind, on a row that is there or not.
    Gate(Kind, bool),
    Watch,
    SlowDown,
    Pause,
    Sweeper,
    Reaper,
}

/// How the server is reached.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Door {
    Direct,
    /// Over a PgBouncer in transaction mode, without named statements and with them.
    Unnamed,
    Named,
}

struct Stage {
    world: World,
    door: Door,
    pooler: Option<PgBouncer>,
    overrides: Overrides,
    role: String,
}

impl Stage {
    async fn new(door: Door) -> Self {
        let world = World::new().await;
        world.sql(&format!("create table work (n int); grant all on work to {SERVICE}")).await;
        world.sql(&grants(SERVICE, Callers::Reporters)).await;
        let pooler = match door {
            Door::Direct => None,
            Door::Unnamed => Some(PgBouncer::start(&world.direct_url(), 1)),
            Door::Named => Some(PgBouncer::following(&world.direct_url(), 1)),
        };
        let overrides = Kind::Overridden.overrides(&world).await;
        let role = world.role().await;
        Self { world, door, pooler, overrides, role }
    }

    fn url(&self) -> String {
        self.pooler.as_ref().map_or_else(|| self.world.url(), |pooler| pooler.url(self.world.name()))
    }

    fn gate(&self, pool: &PgPool, kind: Kind) -> GateBuilder {
        let gate = kind.of(patient(pool), &self.overrides, HOUR);
        if self.door == Door::Unnamed { gate.unnamed_statements() } else { gate }
    }

    fn sweeper(&self) -> Sweeper {
        let sweeper = Sweeper::new().share(100);
        if self.door == Door::Unnamed { sweeper.unnamed_statements() } else { sweeper }
    }

    async fn in_a_minute(&self) -> DateTime<Utc> {
        let sql = "select clock_timestamp() + interval '1 minute'";
        sqlx::query_scalar(sql).fetch_one(&self.world.pool).await.unwrap()
    }

    /// Leaves it in the session that the pool has; a setting behind a pooler is left by another client.
    async fn leave(&self, left: &str, pool: &PgPool) {
        let left = left.replace("ROLE", &self.role);
        if self.pooler.is_some() && !left.starts_with("begin") {
            let mut other = PgConnection::connect(&self.url()).await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(left)).execute(&mut other).await.unwrap();
            return other.close().await.unwrap();
        }
        // One that fails has aborted the transaction.
        let _ = sqlx::raw_sql(AssertSqlSafe(left)).execute(&mut *pool.acquire().await.unwrap()).await;
        until_idle(pool).await;
    }

    /// Fails with the fault after the work of a user over such a session.
    async fn try_out(&self, user: User, left: (&str, &str)) -> Result<(), String> {
        let key = format!("{user:?} {}", left.0);
        let pool = pool(&self.url(), 1).await;
        let done = self.work(user, &pool, &key, left.1).await;
        pool.close().await;
        if let Some(pooler) = &self.pooler {
            pooler.command("reconnect").await;
        }
        done?;
        soon(async { while idle_in_transaction(&self.world.pool).await > 0 {} }).await;
        let work: i64 = sqlx::query_scalar("select count(*) from work").fetch_one(&self.world.pool).await.unwrap();
        if work > 0 { Err("the work of others was committed".to_owned()) } else { Ok(()) }
    }

    async fn work(&self, user: User, pool: &PgPool, key: &str, left: &str) -> Result<(), String> {
        let said = |error: &dyn std::fmt::Debug| format!("{error:?}");
        match user {
            User::Gate(kind, is_there) => self.ask(kind, is_there, pool, key, left).await,
            User::Watch => {
                self.leave(left, pool).await;
                let mut admin = self.world.connect_as(ON_CALL).await;
                NewOverride::deny(&HOT).key(key).lasting(HOUR).reason("x").set(&mut admin).await.unwrap();
                let watched = Overrides::watch(pool.clone()).await.map_err(|error| said(&error))?;
                let seen = watched.live_for("hot", &Key::new(key).unwrap(), self.in_a_minute().await);
                // The other one is about every key.
                if seen.len() == 2 { Ok(()) } else { Err(format!("{seen:?}")) }
            }
            User::SlowDown | User::Pause => {
                let watched = Overrides::watch(pool.clone()).await.unwrap();
                self.leave(left, pool).await;
                let reported = match user {
                    User::Pause => watched.pause_for(HOT.key(key), HOUR).await.map(drop),
                    _ => watched.slow_down(HOT.key(key), &SlowDown::new().forgets(Duration::ZERO)).await.map(drop),
                };
                reported.map_err(|error| said(&error))?;
                let sql = "select count(*) from tollgate.overrides where key = $1";
                let told: i64 = sqlx::query_scalar(sql).bind(key).fetch_one(&self.world.pool).await.unwrap();
                if told == 1 { Ok(()) } else { Err("it was not committed".to_owned()) }
            }
            User::Sweeper => {
                self.leave(left, pool).await;
                let sql = "insert into tollgate.durable values (0, 'd', $1, 0, 0, now() - interval '1 day',
                                                               now() - interval '1 day')";
                sqlx::query(sql).bind(key).execute(&self.world.pool).await.unwrap();
                let swept = self.sweeper().sweep(pool).await.map_err(|error| said(&error))?;
                let is_gone = self.world.row(tollgate::Storage::Durable, "d", key).await.is_none();
                if swept.durable == 1 && is_gone { Ok(()) } else { Err(format!("{swept:?}")) }
            }
            User::Reaper => {
                let mut tx = self.world.pool.begin().await.unwrap();
                let lapses = HOT.key(key).cost(5).lapses_after(SECOND);
                Limiter::new().consume(&mut tx, lapses).await.unwrap().granted().unwrap();
                self.leave(left, pool).await;
                tx.commit().await.unwrap();
                let reaper = self.sweeper().at(self.in_a_minute().await);
                let back = reaper.reap(pool).await.map_err(|error| said(&error))?;
                let now = self.world.left(&HOT, key).await;
                if back == 1 && now == Some(rest(0)) { Ok(()) } else { Err(format!("{back} came back: {now:?}")) }
            }
        }
    }

    /// A gate sees what others have committed since, and commits its own.
    async fn ask(&self, kind: Kind, is_there: bool, pool: &PgPool, key: &str, state: &str) -> Result<(), String> {
        let mut spent = 0_u32;
        self.leave(state, pool).await;
        if is_there {
            let mut tx = self.world.pool.begin().await.unwrap();
            Limiter::new().debit(&mut tx, HOT.key(key).cost(5)).await.unwrap();
            tx.commit().await.unwrap();
            spent = 5;
        }
        let gate = self.gate(pool, kind).build();
        let fails = |error: &dyn std::fmt::Debug| format!("{error:?}");
        let seen = gate.balance(HOT.key(key)).await.map_err(|error| fails(&error))?.remaining;
        if seen != rest(spent) {
            return Err(format!("it saw {seen}"));
        }
        for _ in 0..2 {
            let decided = gate.consume([HOT.key(key), WARM.key(key)]).await.map_err(|error| fails(&error))?;
            let grant = decided.granted().map_err(|error| fails(&error))?;
            if matches!(grant.source, Source::Degraded) {
                return Err("degraded".to_owned());
            }
        }
        gate.close().await;
        let there = [self.world.left(&HOT, key).await, self.world.left(&WARM, key).await];
        if there == [Some(rest(spent + 2)), Some(rest(2))] { Ok(()) } else { Err(format!("{there:?} are left")) }
    }
}

/// The tokens that remain of a full row after so many.
fn rest(spent: u32) -> Tokens {
    Tokens::new(100_000 - spent)
}

/// The table, as far as it is about one door.
async fn table(door: Door, lasts: impl Fn(&str) -> bool) {
    if door != Door::Direct && pgbouncer::is_missing() {
        return;
    }
    let stage = Stage::new(door).await;
    let gates = Kind::ALL.map(|kind| User::Gate(kind, true)).into_iter();
    let users: Vec<_> = gates
        .chain([User::Gate(Kind::Plain, false), User::Watch, User::SlowDown, User::Pause, User::Sweeper, User::Reaper])
        .collect();
    let (mut shown, mut wrong) = (format!("{door:?}\n"), 0);
    for left in LEFT.into_iter().filter(|(name, _)| lasts(name)) {
        write!(shown, "{:<22}", left.0).unwrap();
        for user in &users {
            match soon(stage.try_out(*user, left)).await {
                Ok(()) => write!(shown, " ok").unwrap(),
                Err(what) => {
                    wrong += 1;
                    write!(shown, "\n    {user:?}: {what}\n    ").unwrap();
                }
            }
        }
        shown.push('\n');
    }
    println!("{shown}");
    assert_eq!(wrong, 0, "{shown}");
}

#[tokio::test]
async fn nothing_that_is_left_in_a_session_counts() {
    table(Door::Direct, |_| true).await;
}

#[tokio::test]
async fn nothing_that_is_left_in_a_session_counts_behind_a_pooler() {
    table(Door::Unnamed, |_| true).await;
}

/// A named statement runs in no transaction of its own, so nothing could set the role before it.
#[tokio::test]
async fn nothing_that_is_left_in_a_session_counts_behind_a_pooler_that_follows_names() {
    if !pgbouncer::is_missing() && follows_named_statements() {
        table(Door::Named, |left| left != "role").await;
    }
}

/// A caller of sqlx that is cancelled while it begins leaves an open transaction in the pool.
async fn cancel_a_begin(proxy: &Proxy, pool: &PgPool) {
    let mut conn = pool.acquire().await.unwrap();
    proxy.hold_after(0);
    tokio::select! {
        biased;
        () = soon(proxy.until_held()) => {}
        _ = conn.begin() => unreachable!("the proxy holds it"),
    }
    proxy.release();
    drop(conn);
    until_idle(pool).await;
}

async fn until_idle(pool: &PgPool) {
    soon(async {
        while pool.num_idle() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_gate_commits_and_frees_its_rows_after_a_cancelled_begin() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let (gate, other) = (patient(&pool).build(), world.gate());
    for spent in 1..4 {
        cancel_a_begin(&proxy, &pool).await;
        soon(gate.consume(HOT.key("k"))).await.unwrap().granted().unwrap();
        assert_eq!(world.left(&HOT, "k").await, Some(rest(2 * spent - 1)));
        soon(other.consume(HOT.key("k"))).await.unwrap().granted().unwrap();
    }
}

/// A table that is locked for a moment makes each statement outlast the timeout that somebody left.
#[tokio::test]
async fn a_statement_timeout_that_somebody_left_opens_no_gate() {
    let world = World::new().await;
    for left in ["set statement_timeout = '1ms'", "set lock_timeout = '1ms'"] {
        let pool = pool(&world.url(), 1).await;
        let gate = patient(&pool).on_failure(OnFailure::Open).build();
        gate.consume(HOT.key("k")).await.unwrap().granted().unwrap();
        sqlx::raw_sql(left).execute(&pool).await.unwrap();
        let mut holder = world.admin().await;
        let mut held = holder.begin().await.unwrap();
        sqlx::raw_sql("lock table tollgate.durable").execute(&mut *held).await.unwrap();
        let (decided, ()) = tokio::join!(soon(gate.consume(HOT.key("k"))), async {
            world.until_anyone_is_blocked().await;
            held.rollback().await.unwrap();
        });
        assert_eq!(decided.unwrap().granted().unwrap().source, Source::Database, "{left}");
    }
}

/// A statement that somebody ends before the gate's own timeout is no outage.
#[tokio::test]
async fn a_statement_that_somebody_cancels_opens_no_gate() {
    let world = World::new().await;
    let pool = pool(&world.url(), 1).await;
    let gate = patient(&pool).on_failure(OnFailure::Open).build();
    gate.consume(HOT.key("k")).await.unwrap().granted().unwrap();
    let mut holder = world.admin().await;
    let mut held = holder.begin().await.unwrap();
    sqlx::raw_sql("lock table tollgate.durable").execute(&mut *held).await.unwrap();
    let cancel = "select count(pg_cancel_backend(pid)) from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock'";
    let (decided, ()) = tokio::join!(
        soon(gate.consume(HOT.key("k"))),
        soon(async {
            let mut cancelled = 0;
            while cancelled < 3 {
                cancelled += sqlx::query_scalar::<_, i64>(cancel).fetch_one(&mut *held).await.unwrap();
            }
            held.rollback().await.unwrap();
        })
    );
    // Its caller hears of it, or the gate tried again.
    if let Ok(decided) = decided {
        assert_eq!(decided.granted().unwrap().source, Source::Database);
    }
}

/// In a process of its own, since it says so once in a process.
#[test]
fn the_log_says_once_what_to_do_about_a_session_that_was_left() {
    const ALONE: &str = "TOLLGATE_TEST_LOG";
    if std::env::var_os(ALONE).is_some() {
        let log = traced(async {
            let world = World::new().await;
            let proxy = Proxy::new(&world.url());
            let pool = one_connection(proxy.options()).await;
            for _ in 0..3 {
                cancel_a_begin(&proxy, &pool).await;
                patient(&pool).build().consume(HOT.key("k")).await.unwrap().granted().unwrap();
            }
        });
        return assert_eq!(log.matches("somebody left a connection of the pool in a transaction").count(), 1);
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["the_log_says_once_what_to_do_about_a_session_that_was_left"]).env(ALONE, "1");
    let output = alone.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// A joined call is in the caller's transaction, and its settings are the caller's will. These are those that
/// SECURITY.md names, and some that change nothing.
#[tokio::test]
async fn a_joined_call_goes_by_the_settings_of_its_caller() {
    let world = World::new().await;
    let role = world.role().await;
    let mut holder = world.pool.begin().await.unwrap();
    Limiter::new().consume(&mut holder, HOT.key("held")).await.unwrap().granted().unwrap();
    for (setting, key, expected) in [
        ("role = ROLE", "k", Some("42501")),
        ("transaction_read_only = on", "k", Some("25006")),
        ("statement_timeout = '50ms'", "held", Some("57014")),
        ("lock_timeout = '50ms'", "held", Some("55P03")),
        ("statement_timeout = 0", "k", None),
        ("synchronous_commit = off", "k", None),
        ("row_security = off", "k", None),
        ("search_path = nowhere", "k", None),
        ("timezone = 'Asia/Kathmandu'", "k", None),
        ("datestyle = 'German'", "k", None),
    ] {
        let mut tx = world.pool.begin().await.unwrap();
        let set = AssertSqlSafe(format!("set local {}", setting.replace("ROLE", &role)));
        sqlx::raw_sql(set).execute(&mut *tx).await.unwrap();
        let decided = soon(Limiter::new().consume(&mut tx, HOT.key(key))).await;
        let code = decided.as_ref().err().map(|error| {
            let cause = std::error::Error::source(error).unwrap().downcast_ref::<sqlx::Error>().unwrap();
            cause.as_database_error().unwrap().code().unwrap().into_owned()
        });
        assert_eq!(code.as_deref(), expected, "{setting}: {decided:?}");
    }
    let mut tx = world.pool.begin_with("begin isolation level repeatable read").await.unwrap();
    sqlx::raw_sql("select from tollgate.durable").execute(&mut *tx).await.unwrap();
    holder.commit().await.unwrap();
    let lost = Limiter::new().consume(&mut tx, HOT.key("held")).await.unwrap_err();
    assert!(lost.is_retryable(), "{lost:?}");
}
