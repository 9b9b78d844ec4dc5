//! Every version migrates and reads what an earlier one wrote: rows of every kind, receipts, stored calls, overrides
//! and definitions.
//!
//! `upgrade/0.1.0.sql` has the rows of a database that [`fill`] has written, and its history: the migrations that the
//! history names are frozen. `upgrade/0.1.0.txt` is what [`read`] finds there, and must find in every later version.
//! Nobody writes the two files again. A later version that stores something new gets a pair of its own, by
//! `UPDATE_UPGRADE=1`.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use sqlx::{PgTransaction, Row};
use tollgate::migrate::MigrateError;
use tollgate::{
    Balance, Call, DAY, HOUR, Limit, Limits, MINUTE, NewOverride, Overrides, Receipt, Request, Tokens, migrate,
};
use tollgate_embedded::find_programs;

use crate::ROOT;
use crate::teller::run;
use crate::world::{OWNER, World, is_distributed, limiter, second, sweeper};

#[tokio::test]
async fn rows_of_each_version_are_migrated_and_read() {
    // The rows are those of plain tables.
    if is_distributed() {
        return;
    }
    let folder = PathBuf::from(format!("{ROOT}/tests/postgres/upgrade"));
    if std::env::var_os("UPDATE_UPGRADE").is_some() {
        let world = served().await;
        migrate::run(&mut world.connect().await).await.unwrap();
        fill(&world).await;
        let written = folder.join(env!("CARGO_PKG_VERSION"));
        std::fs::write(written.with_added_extension("sql"), rows(&world, &[])).unwrap();
        std::fs::write(written.with_added_extension("txt"), read(&world).await).unwrap();
    }
    let mut versions = 0;
    for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "sql") {
            let world = of_an_earlier_version(&std::fs::read_to_string(&file).unwrap()).await;
            migrate::run(&mut world.connect().await).await.unwrap();
            assert_eq!(read(&world).await, std::fs::read_to_string(file.with_extension("txt")).unwrap());
            versions += 1;
        }
    }
    assert!(versions > 0);
}

/// As `docs/operating.md` says.
#[tokio::test]
async fn rows_of_an_edited_version_can_move() {
    if is_distributed() {
        return;
    }
    let world = served().await;
    let mut conn = world.connect().await;
    migrate::run(&mut conn).await.unwrap();
    fill(&world).await;
    world.sql("update tollgate.schema_history set checksum = '42' where version = 2").await;
    assert!(matches!(migrate::run(&mut conn).await, Err(MigrateError::Edited { .. })));

    let moved = rows(&world, &["--exclude-table=tollgate.schema_history", "--exclude-schema=service"]);
    run(&mut conn, "drop schema tollgate cascade").await;
    migrate::run(&mut conn).await.unwrap();
    run(&mut conn, &moved).await;
    assert_eq!(rows(&world, &["--exclude-table=tollgate.schema_history", "--exclude-schema=service"]), moved);
}

/// A database with the migrations that its history names, and its rows.
async fn of_an_earlier_version(rows: &str) -> World {
    let world = served().await;
    let mut conn = world.connect().await;
    run(&mut conn, HISTORY).await;
    let (history, rows): (Vec<_>, Vec<_>) = rows.lines().partition(|row| row.contains("tollgate.schema_history"));
    run(&mut conn, &history.join("\n")).await;
    let applied = sqlx::query_as("select version, name from tollgate.schema_history order by version");
    let applied: Vec<(i32, String)> = applied.fetch_all(&mut conn).await.unwrap();
    for (version, name) in applied {
        run(&mut conn, &std::fs::read_to_string(format!("{ROOT}/migrations/V{version}__{name}.sql")).unwrap()).await;
    }
    run(&mut conn, &rows.join("\n")).await;
    world
}

/// The schema and its history, as refinery makes them before the first migration.
const HISTORY: &str = "
    create schema tollgate;
    create table tollgate.schema_history (
        version int4 primary key, name varchar(255), applied_on varchar(255), checksum varchar(255)
    );
    set search_path = pg_catalog, pg_temp";

/// A database with a service that stores receipts.
async fn served() -> World {
    let world = World::unmigrated().await;
    world.sql(&format!("create schema service authorization {OWNER}")).await;
    let receipts = "create table service.receipts (limit_name text primary key, receipt jsonb not null)";
    run(&mut world.connect().await, receipts).await;
    world
}

/// All rows, as statements.
fn rows(world: &World, but: &[&str]) -> String {
    let mut dump = Command::new(find_programs().unwrap().join("pg_dump"));
    dump.args(["--data-only", "--inserts", "--schema=tollgate", "--schema=service", "--dbname", &world.url_of(OWNER)]);
    let dump = dump.args(but).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let dump = String::from_utf8(dump.stdout).unwrap();
    dump.lines().filter(|line| line.starts_with("INSERT")).fold(String::new(), |rows, line| rows + line + "\n")
}

const MONEY: Limit = Limit::wallet("money");
const BOOKED: Limit = Limit::token_bucket("booked", 1, MINUTE).max_reserved(20);
const CONTRACT: Limit = Limit::token_bucket("contract", 5, DAY);

/// Calls that write a row in each way that it can lie on the disk.
fn plain() -> Vec<Request> {
    let thirds = Limit::token_bucket("thirds", 1, MINUTE);
    vec![
        Limit::token_bucket("bucket", 10, HOUR).key("ada"),
        Limit::token_bucket("ephemeral_bucket", 10, HOUR).ephemeral().key("ada"),
        thirds.rate_and_capacity(Tokens::from_micros(333_333), Tokens::from_micros(7_000_001)).key("ada"),
        Limit::token_bucket("everybody", 100, DAY).global(),
        Limit::token_bucket("bounded", 5, DAY).max_reserved(10).key(("eu", "a|b")),
        Limit::token_bucket("sharded", 100, HOUR).shards(4).key("ada"),
        Limit::fixed_window("spread_window", 10, HOUR).key("ada"),
        Limit::fixed_window("window", 10, DAY).start(Duration::ZERO).key(7),
        Limit::fixed_window("ephemeral_window", 10, DAY).start(HOUR).ephemeral().key(7),
        Limit::billing("period", 10).key("ada").period(at(-259_200), at(2_332_800)),
        Limit::monthly("month", 10).key("ada"),
        Limit::monthly("month_from_the_15th", 10).start(14 * DAY).key("ada"),
        Limit::stepped_bucket("steps", 5, HOUR).capacity(20).key("ada"),
        Limit::meter("bill").key(("2026-11", "ada")),
        Limit::sliding_window("sliding", 10, HOUR).key("ada"),
        Limit::sliding_window("coarse", 10, HOUR).resolution(4).key("ada"),
    ]
}

/// Calls with a row of their own.
fn stored() -> Vec<Call> {
    vec![
        Limit::token_bucket("once", 10, DAY).key("ada").cost(4).once("order_1"),
        Limit::sliding_window("lapsing", 10, DAY).key("ada").cost(4).lapses_after(HOUR),
        Limit::fixed_window("tracked", 10, DAY).key("ada").cost(4).tracked_for(HOUR),
        Limit::concurrency("leased", 3, HOUR).key("ada").once("job_1"),
    ]
}

/// The only request of a call.
fn asked(call: &Call) -> &Request {
    call.requests().next().unwrap()
}

fn at(seconds: i32) -> DateTime<Utc> {
    second(f64::from(seconds))
}

/// Writes what this version can write.
async fn fill(world: &World) {
    let mut conn = world.connect().await;
    run(&mut conn, DEFINITIONS).await;
    let numbers = NewOverride::numbers(&CONTRACT.capacity(50)).key("acme").label("contract").reason("of 2026");
    let ban = NewOverride::deny(&CONTRACT).key("mallory").label("ban").reason("spam").until(at(1_000_000_000));
    for new in [numbers, ban] {
        new.by("on call").set(&mut conn).await.unwrap();
    }
    let mut tx = world.begin().await;
    limiter().at(at(0)).credit(&mut tx, MONEY.key("acme").cost(100).once("payment_7")).await.unwrap();
    let more = [MONEY.key("acme").cost(30), CONTRACT.key("acme")];
    for request in plain().into_iter().chain(more) {
        // The second call finds a row.
        let _ = consume(&mut tx, 0, request.clone()).await;
        let receipt = consume(&mut tx, 600, request.clone()).await;
        keep(&mut tx, request.limit(), &receipt).await;
    }
    for call in stored() {
        let receipt = consume(&mut tx, 600, call.clone()).await;
        keep(&mut tx, asked(&call).limit(), &receipt).await;
    }
    let booked = limiter().at(at(600)).reserve(&mut tx, BOOKED.key("ada").cost(6)).await.unwrap().granted().unwrap();
    keep(&mut tx, &BOOKED, &booked.into()).await;
    tx.commit().await.unwrap();
}

const DEFINITIONS: &str = "
    select tollgate.define('contract', 'token_bucket', 5, '1 day'),
           tollgate.define('steps', 'stepped_bucket', 5, '1 hour', 20),
           tollgate.define('booked', 'token_bucket', 1, '1 minute', max_reserved => 20),
           tollgate.define('coarse', 'sliding_window', 10, '1 hour', resolution => 4),
           tollgate.define('sharded', 'token_bucket', 100, '1 hour', shards => 4),
           tollgate.define('leased', 'concurrency', 3, '1 hour'),
           tollgate.define('window', 'fixed_window', 10, '1 day', start => '0'),
           tollgate.define('money', 'wallet')";

async fn consume(tx: &mut PgTransaction<'static>, now: i32, call: impl Into<Call>) -> Receipt {
    limiter().at(at(now)).consume(tx, call).await.unwrap().granted().unwrap().into()
}

/// Stores a receipt as a service does with its job.
async fn keep(tx: &mut PgTransaction<'static>, limit: &Limit, receipt: &Receipt) {
    let insert = sqlx::query("insert into service.receipts values ($1, $2)").bind(limit.name()).bind(Json(receipt));
    insert.execute(&mut **tx).await.unwrap();
}

/// Asks for all that [`fill`] wrote, uses each receipt, and lets the rest lapse: a line for each answer.
async fn read(world: &World) -> String {
    let mut told = String::new();
    let mut conn = world.connect().await;
    let limits = Limits::from_table(&mut conn).await.unwrap();
    for limit in limits.iter() {
        writeln!(told, "defined {}", serde_json::to_string(limit).unwrap()).unwrap();
    }
    let overrides = Overrides::read(&mut conn).await.unwrap();
    for over in overrides.all() {
        writeln!(told, "{} {:?} {:?} {:?} {:?}", over.limit, over.key, over.label, over.effect, over.ends_at).unwrap();
    }

    let mut tx = world.begin().await;
    let more = [MONEY.key("acme"), CONTRACT.key("acme"), BOOKED.key("ada")];
    let kept = stored();
    let all: Vec<_> = plain().into_iter().chain(kept.iter().map(asked).cloned()).chain(more).collect();
    for now in [601, 4_000, 90_000] {
        for request in &all {
            tell(&mut told, now, &balance(&mut tx, now, request).await);
        }
    }
    for (key, cost) in [("acme", 49), ("mallory", 1)] {
        let asked = CONTRACT.key(key).cost(cost);
        let answer = limiter().overrides(&overrides).at(at(500_000_000)).check(&mut tx, asked).await.unwrap();
        writeln!(told, "under its override {key} is granted {cost}: {}", answer.is_granted()).unwrap();
    }
    for call in kept.iter().filter(|call| ["once", "leased"].contains(&asked(call).limit().name())) {
        let again = limiter().at(at(700)).consume(&mut tx, call.clone()).await.unwrap().granted().unwrap();
        writeln!(told, "700 {} again: {:?}", asked(call).limit().name(), again.source).unwrap();
    }
    let receipts = sqlx::query("select limit_name, receipt from service.receipts order by 1").fetch_all(&mut *tx);
    for row in receipts.await.unwrap() {
        let (name, Json(receipt)): (String, Json<Receipt>) = (row.get(0), row.get(1));
        let request = all.iter().find(|request| request.limit().name() == name).unwrap();
        match &*name {
            "lapsing" => continue,
            "booked" => drop(limiter().at(at(601)).cancel(&mut tx, receipt).await.unwrap()),
            "leased" => drop(limiter().at(at(800)).release(&mut tx, receipt).await.unwrap()),
            _ => drop(limiter().at(at(800)).settle(&mut tx, receipt, 0).await.unwrap()),
        }
        tell(&mut told, 800, &balance(&mut tx, 800, request).await);
    }
    tx.commit().await.unwrap();

    let lapsed = sweeper().at(at(5_000)).reap(&world.pool).await.unwrap();
    writeln!(told, "5000 lapsed: {lapsed}").unwrap();
    let swept = sweeper().at(at(100_000_000)).trusting_the_clock().sweep(&world.pool).await.unwrap();
    writeln!(told, "swept: {} + {} rows, {} calls", swept.ephemeral, swept.durable, swept.calls).unwrap();
    told
}

async fn balance(tx: &mut PgTransaction<'static>, now: i32, request: &Request) -> Balance {
    limiter().at(at(now)).balance(tx, request.clone()).await.unwrap()
}

fn tell(told: &mut String, now: i32, balance: &Balance) {
    let Balance { limit, key, remaining, used, full_at, .. } = balance;
    writeln!(told, "{now} {limit} {key}: {remaining} remaining, {used} used, full at {full_at:?}").unwrap();
}
