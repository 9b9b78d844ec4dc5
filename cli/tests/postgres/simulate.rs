//! The same calls, simulated by the command and made on a real database, are granted the same.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::Connection;
use tollgate::{Call, Limit, Limiter, Limits, Request};

use crate::world::World;

#[tokio::test]
async fn the_simulation_grants_what_the_database_grants() {
    agree("same", &[]).await;
}

#[tokio::test]
async fn the_simulation_reserves_what_the_database_reserves() {
    agree("reserved", &["--reserve"]).await;
}

#[tokio::test]
async fn the_simulation_gives_back_what_the_database_gives_back() {
    agree("settled", &["--work", "500ms", "--used", "0.5"]).await;
}

/// Makes calls of three clients, of whom one is greedy, on both.
async fn agree(name: &str, options: &[&str]) {
    let [reserving, settling] = ["--reserve", "--used"].map(|option| options.contains(&option));
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.csv", std::process::id()));
    let calls = calls();
    let mut trace = "time,key,cost\n".to_owned();
    for (at, key, cost) in &calls {
        writeln!(trace, "{},{key},{cost}", at.to_rfc3339()).unwrap();
    }
    std::fs::write(&file, trace).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["simulate", "--limit", EACH, "--global", TOTAL, "--json", "--trace"]).arg(&file);
    let output = command.args(options).output().unwrap();
    std::fs::remove_file(file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let trial = &document["trials"][0];

    let (mut granted, mut worst_wait, mut worst_retry_after) = (0, Duration::ZERO, Duration::ZERO);
    let (each, total) = (Limits::from_toml(EACH).unwrap(), Limits::from_toml(TOTAL).unwrap());
    let world = World::new().await;
    let mut conn = world.connect().await;
    let mut ends = VecDeque::new();
    for (at, key, cost) in calls {
        while let Some((ends_at, grant)) = ends.pop_front_if(|(ends_at, _)| *ends_at <= at) {
            let mut tx = conn.begin().await.unwrap();
            Limiter::new().at(ends_at).settle(&mut tx, grant, 0.5).await.unwrap();
            tx.commit().await.unwrap();
        }
        let mut tx = conn.begin().await.unwrap();
        let limiter = Limiter::new().at(at);
        let requests = (each.iter().map(|limit| limit.key(key))).chain(total.iter().map(Limit::global));
        let call: Call = requests.map(|request: Request| request.cost(cost)).collect();
        let denied = if reserving {
            let decision = limiter.reserve(&mut tx, call).await.unwrap();
            decision.granted().map(|booked| worst_wait = worst_wait.max(booked.wait())).err()
        } else {
            let decision = limiter.consume(&mut tx, call).await.unwrap().granted();
            decision.map(|grant| ends.extend(settling.then_some((at + Duration::from_millis(500), grant)))).err()
        };
        tx.commit().await.unwrap();
        match denied {
            None => granted += 1,
            Some(denied) => worst_retry_after = worst_retry_after.max(denied.retry_after().unwrap()),
        }
    }
    assert!((10..CALLS - 10).contains(&granted), "{granted} granted: both must be told apart");
    let of_database = [granted, micros(worst_wait), micros(worst_retry_after)];
    assert_eq!(
        ["granted", "worst_wait_us", "worst_retry_after_us"].map(|field| trial[field].as_u64().unwrap()),
        of_database
    );
}

fn calls() -> Vec<(DateTime<Utc>, &'static str, u32)> {
    let start = DateTime::from_timestamp(1_735_689_600, 0).unwrap();
    let call = |number: u64| {
        // Uneven gaps, and a client that asks more often and for more.
        let at = start + Duration::from_micros(number * 90_001 + number * number * 7_919 % 60_000);
        let (key, cost) = [("greedy", 3), ("ada", 1), ("greedy", 2), ("bob", 1)][usize::try_from(number % 4).unwrap()];
        (at, key, cost)
    };
    (0..CALLS).map(call).collect()
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}

const CALLS: u64 = 160;
const EACH: &str = r#"
    drips = { kind = "token_bucket", rate = 5, per = "1s", capacity = 7, max_reserved = 6 }
    windows = { kind = "fixed_window", rate = 12, per = "3s", max_reserved = 9 }
    steps = { kind = "stepped_bucket", rate = 6, per = "1s", capacity = 9, max_reserved = "unbounded" }"#;
const TOTAL: &str = r#"
    total = { kind = "token_bucket", rate = 10, per = "1s", capacity = 16, max_reserved = 20 }
    spread = { kind = "token_bucket", rate = 40, per = "4s", capacity = 16, max_reserved = 20, shards = 4 }"#;
