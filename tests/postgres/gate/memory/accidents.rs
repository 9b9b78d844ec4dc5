//! Accidents cost tokens that were taken ahead, and few of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::{Decision, Gate, Limit, Limiter, MINUTE, SECOND, migrate};
use tollgate_embedded::Server;

use crate::proxy::Proxy;
use crate::storm::client::Client;
use crate::world::soon;

const PROCESSES: usize = 4;
const CALLERS: usize = 6;

/// A budget that takes weeks to come back.
const SLOW: Limit = Limit::token_bucket("slow", 1, MINUTE).capacity(BUDGET.unsigned_abs());
const BUDGET: i64 = 100_000;
const SLOW_KEYS: [&str; 4] = ["a", "b", "c", "d"];
/// So many calls each process is answered between two accidents.
const SOME: u64 = 150;
const CALLS: &str = "gate::memory::accidents::call_in_another_process";

/// Seven kills and three lost answers: a token is lost if it does not remain, and no caller that was not refused asked
/// for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accidents_cost_a_slow_budget_less_than_a_thousandth() {
    let server = Server::builder().setting("max_connections", "200").start().unwrap();
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    migrate::run(&mut conn).await.unwrap();
    let (proxy, asked) = (Proxy::new(server.url()), Arc::new(Mutex::new(BTreeMap::<String, i64>::new())));
    let start = || {
        let (asked, answered) = (asked.clone(), watch::Sender::new(0));
        let counted = answered.clone();
        let process = Client::start(CALLS, server.url(), &proxy, 0, move |line| match line.split_once(' ') {
            Some((key, "asked.")) => *asked.lock().unwrap().entry(key.to_owned()).or_default() += 1,
            Some((key, "denied.")) => *asked.lock().unwrap().get_mut(key).unwrap() -= 1,
            Some((_, "granted.")) => counted.send_modify(|count| *count += 1),
            _ => {}
        });
        (process, answered)
    };
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    for accident in 0..7 {
        for (_, answered) in &processes {
            let enough = *answered.borrow() + SOME;
            soon(answered.subscribe().wait_for(|count| *count >= enough)).await.unwrap();
        }
        if accident % 2 == 0 {
            proxy.cut_after(1);
        } else {
            let (process, _) = &mut processes[accident % PROCESSES];
            process.kill();
            processes[accident % PROCESSES] = start();
        }
    }
    for (process, _) in &mut processes {
        process.kill();
    }
    let others = "select exists (select from pg_stat_activity where pid <> pg_backend_pid()
                                     and backend_type = 'client backend')";
    soon(async { while sqlx::query_scalar(others).fetch_one(&mut conn).await.unwrap() {} }).await;
    let mut tx = conn.begin().await.unwrap();
    for key in SLOW_KEYS {
        let left = Limiter::new().balance(&mut tx, SLOW.key(key)).await.unwrap().remaining.micros() / 1_000_000;
        let lost = BUDGET - left - asked.lock().unwrap()[key];
        assert!(lost <= BUDGET / 1_000, "{key}: {lost} are lost, {left} are left");
    }
}

/// A process of the test above: it calls until it is killed.
#[ignore = "a part of another test"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_in_another_process() {
    let Some((pool, _)) = Client::connections(4) else { return };
    let mut callers = JoinSet::new();
    let gate = Gate::builder(pool).prefetch(SECOND).build();
    for caller in 0..CALLERS {
        callers.spawn(spend_slowly(gate.clone(), SLOW_KEYS[caller % SLOW_KEYS.len()]));
    }
    // Only a panic ends one.
    callers.join_next().await.unwrap().unwrap();
}

async fn spend_slowly(gate: Gate, key: &'static str) {
    loop {
        println!("@{key} asked.");
        match gate.consume(SLOW.key(key)).await {
            Ok(Decision::Granted(_)) => println!("@{key} granted."),
            Ok(Decision::Denied(_)) => println!("@{key} denied."),
            // It was granted or not: it counts as asked.
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
