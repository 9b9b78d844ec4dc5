//! Promise 1, by the instants that the grants themselves record, in whole micro-tokens, without a tolerance.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Charge, Decision, Gate, Limit, Request, SECOND, Tokens};

use crate::gate::stage::{patient, pool, soon};
use crate::judge::{Spent, never_over};
use crate::world::{World, limiter};

const PERIOD: Duration = Duration::from_millis(100);
const KEYS: u32 = 3;
/// Three rows of each of six limits.
const ROWS: usize = 18;

/// Of every kind, in both tables, so narrow that most calls are refused. Rates are whole micro-tokens per microsecond.
fn limits() -> [Limit; 6] {
    [
        Limit::token_bucket("drip", 300, SECOND).capacity(20),
        Limit::token_bucket("drip_too", 300, SECOND).capacity(20).ephemeral(),
        Limit::token_bucket("owing", 300, SECOND).capacity(10).max_reserved(15),
        Limit::stepped_bucket("steps", 30, PERIOD).capacity(40),
        Limit::fixed_window("window", 30, PERIOD).ephemeral(),
        Limit::fixed_window("aligned", 30, PERIOD).start(Duration::from_millis(30)),
    ]
}

/// Charged before the password is verified, and given back if it is right, as `examples/failed_logins.rs` does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_thousand_guesses_at_once_no_more_fail_than_the_limit_allows() {
    let world = World::new().await;
    let limit = Limit::fixed_window("failed_logins", 3, Limit::MAX_PERIOD);
    let gates = [patient(&world.pool).build(), patient(&world.pool).build()];
    let mut guesses = JoinSet::new();
    for (guess, gate) in gates.iter().cycle().take(2_000).enumerate() {
        let (gate, request) = (gate.clone(), limit.key("ada"));
        guesses.spawn(async move {
            let Decision::Granted(grant) = soon(gate.consume(request)).await.unwrap() else { return 0 };
            let is_right = guess % 10 == 0;
            if is_right {
                soon(gate.settle(grant, 0)).await.unwrap();
            }
            u32::from(!is_right)
        });
    }
    let failed: u32 = guesses.join_all().await.into_iter().sum();
    let left = gates[0].balance(limit.key("ada")).await.unwrap().remaining;
    assert!(failed <= 3, "{failed} wrong guesses were verified");
    assert_eq!(left, Tokens::new(3 - failed));
}

/// Two processes with two gates each, and transactions of others, on the same rows for some seconds, and in this
/// process for as long as it takes to tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_between_any_two_grants_of_two_processes() {
    let world = World::new().await;
    world.sql("create table granted (storage text, name text, key text, decided_at timestamptz, cost int8)").await;
    let sql = "select clock_timestamp() + interval '4 seconds'";
    let end: DateTime<Utc> = sqlx::query_scalar(sql).fetch_one(&world.pool).await.unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["gate::promise::spend_in_another_process", "--exact", "--ignored", "--nocapture"]);
    command.env(DATABASE, world.url()).env(END, end.to_rfc3339()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let other = command.spawn().unwrap();
    spend(&world.url(), Until { end, grants: 31, tally: Tally::default() }, 0).await;
    let other = tokio::task::spawn_blocking(move || other.wait_with_output()).await.unwrap().unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));

    let sql = "select storage, name, key, decided_at, cost from granted order by decided_at";
    let rows: Vec<(String, String, String, DateTime<Utc>, i64)> =
        sqlx::query_as(sql).fetch_all(&world.pool).await.unwrap();
    let mut grants = BTreeMap::<_, Vec<Spent>>::new();
    for (storage, name, key, decided_at, cost) in rows {
        grants.entry((storage, name, key)).or_default().push((decided_at.timestamp_micros(), cost));
    }
    assert_eq!(grants.len(), ROWS);
    for limit in limits() {
        let (storage, spec) = (limit.spec().storage, limit.spec());
        for key in 0..KEYS {
            let key = key.to_string();
            let grants = &grants[&(storage.to_string(), limit.name().to_owned(), key.clone())];
            assert!(grants.len() > 30, "only {} grants of {limit:?}", grants.len());
            let (_, step) = world.row(storage, limit.name(), &key).await.unwrap();
            let came_back = |instant: i64| match limit.name() {
                "drip" | "drip_too" | "owing" => 300 * instant,
                _ => 30_000_000 * (instant - step.timestamp_micros()).div_euclid(100_000),
            };
            let most = spec.capacity.unwrap_or(Tokens::new(30)).micros() + spec.max_reserved.micros();
            never_over(grants, most, came_back, limit.name());
        }
    }
}

/// The other process of the test above.
#[ignore = "a part of another test"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spend_in_another_process() {
    let (Ok(url), Ok(end)) = (std::env::var(DATABASE), std::env::var(END)) else { return };
    spend(&url, Until { end: end.parse().unwrap(), grants: 0, tally: Tally::default() }, 1_000_000).await;
}

/// When to stop: after an instant of the database, and so many grants of each limit and key.
struct Until {
    end: DateTime<Utc>,
    grants: u32,
    tally: Tally,
}

/// How often each limit and key was granted.
type Tally = Mutex<BTreeMap<(String, String), u32>>;

impl Until {
    fn is_over(&self, charges: &[Charge], decided_at: DateTime<Utc>) -> bool {
        let mut tally = self.tally.lock().unwrap();
        for charge in charges {
            *tally.entry((charge.limit().to_owned(), charge.key.to_string())).or_default() += 1;
        }
        let is_enough = || tally.len() == ROWS && tally.values().all(|granted| *granted >= self.grants);
        decided_at >= self.end && (self.grants == 0 || is_enough())
    }
}

/// Asks at random until it is over, and writes down the grants.
async fn spend(url: &str, until: Until, seed: u64) {
    let until = Arc::new(until);
    let gates = [
        patient(&pool(url, 4).await).lanes(3).max_batch(16).build(),
        patient(&pool(url, 2).await).remember_refusals(Duration::from_millis(200)).build(),
    ];
    let mut callers = JoinSet::new();
    for caller in 0..32 {
        callers.spawn(ask(gates[caller % 2].clone(), until.clone(), seed + u64::try_from(caller).unwrap()));
    }
    for caller in 32..34 {
        callers.spawn(join_in(url.to_owned(), until.clone(), seed + caller));
    }
    let charges = soon(callers.join_all()).await.concat();
    let column = |of: fn(&Charge) -> String| charges.iter().map(|(charge, _)| of(charge)).collect::<Vec<_>>();
    let mut conn = PgConnection::connect(url).await.unwrap();
    sqlx::query(
        "insert into granted select * from unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::int8[])",
    )
    .bind(column(|charge| {
        // The charge of a durable limit leaves the storage out.
        serde_json::to_value(charge).unwrap()["storage"].as_str().unwrap_or("durable").to_owned()
    }))
    .bind(column(|charge| charge.limit().to_owned()))
    .bind(column(|charge| charge.key.to_string()))
    .bind(charges.iter().map(|(_, decided_at)| *decided_at).collect::<Vec<_>>())
    .bind(charges.iter().map(|(charge, _)| charge.cost.micros()).collect::<Vec<_>>())
    .execute(&mut conn)
    .await
    .unwrap();
}

type Charges = Vec<(Charge, DateTime<Utc>)>;

async fn ask(gate: Gate, until: Arc<Until>, seed: u64) -> Charges {
    let (mut dice, mut spent_on) = (Rng::with_seed(seed), Vec::new());
    loop {
        let asks = asks(&mut dice);
        let reserving = dice.bool();
        let (charges, decided_at) = if reserving {
            match gate.reserve(asks).await.unwrap() {
                Decision::Granted(booked) => (booked.receipt.charges, booked.decided_at),
                Decision::Denied(denied) => (Vec::new(), denied.decided_at),
            }
        } else {
            match gate.consume(asks).await.unwrap() {
                Decision::Granted(grant) => (grant.receipt.charges, grant.decided_at),
                Decision::Denied(denied) => (Vec::new(), denied.decided_at),
            }
        };
        let is_over = until.is_over(&charges, decided_at);
        spent_on.extend(charges.into_iter().map(|charge| (charge, decided_at)));
        if is_over {
            return spent_on;
        }
        // Refusals from memory wait for nobody, and would let nobody else work.
        gate.balance(limits()[0].key(0)).await.unwrap();
    }
}

/// The same in transactions of the caller's own, some of which are rolled back.
async fn join_in(url: String, until: Arc<Until>, seed: u64) -> Charges {
    let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Rng::with_seed(seed));
    let mut spent_on = Vec::new();
    loop {
        let mut tx = conn.begin().await.unwrap();
        let decision = limiter().consume(&mut tx, asks(&mut dice)).await.unwrap();
        let (charges, decided_at) = match decision {
            Decision::Granted(grant) => (grant.receipt.charges, grant.decided_at),
            Decision::Denied(denied) => (Vec::new(), denied.decided_at),
        };
        if dice.u32(..4) == 0 {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            spent_on.extend(charges.into_iter().map(|charge| (charge, decided_at)));
        }
        if until.is_over(&[], decided_at) {
            return spent_on;
        }
    }
}

fn asks(dice: &mut Rng) -> Vec<Request> {
    let mut limits = limits();
    dice.shuffle(&mut limits);
    let count = if dice.bool() { 1 } else { dice.usize(1..=3) };
    let mut ask = |limit: &Limit| limit.key(dice.u32(..KEYS)).cost(Tokens::from_micros(dice.i64(100_000..4_000_000)));
    limits.iter().take(count).map(&mut ask).collect()
}

const DATABASE: &str = "TOLLGATE_TEST_DATABASE";
const END: &str = "TOLLGATE_TEST_END";
