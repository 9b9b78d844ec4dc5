//! Nodes of a cluster die and stand still under gates that go by node. A call costs one token of a durable row, and
//! none comes back. So a row lacks what its grants cost, and at most the tokens of those calls on top whose outcome
//! nobody knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::{Decision, Error, Gate, Limit, SECOND};

use super::place::crash_a_node;
use crate::gate::nodes::{is_asked, workers};
use crate::world::{PARTS, World, nodes, soon};

const LIMIT: Limit = Limit::token_bucket("million", 1_000_000, Limit::MAX_PERIOD);
const KEYS: usize = 32;
const CALLERS: usize = 32;
const FAULTS: u64 = 24;
/// So many calls are granted between two faults.
const BETWEEN: u64 = 100;

#[ignore = "a part of another test"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_and_answers_agree_while_nodes_die() {
    let world = World::of_parts(PARTS).await;
    let gate = || Gate::builder(world.pool.clone()).parts(PARTS).by_node().statement_timeout(SECOND).build();
    let gates = [gate(), gate()];
    let tallies: Arc<[_]> = (0..KEYS).map(|_| Tally::default()).collect();
    let (calls, is_over) = (watch::Sender::new(0_u64), watch::Sender::new(false));
    let mut callers = JoinSet::new();
    for place in 0..CALLERS {
        let (gate, tallies) = (gates[place % 2].clone(), tallies.clone());
        let (calls, is_over) = (calls.clone(), is_over.subscribe());
        callers.spawn(async move {
            while !*is_over.borrow() {
                let key = fastrand::usize(..KEYS);
                tallies[key].note(gate.consume(LIMIT.key(key)).await);
                calls.send_modify(|calls| *calls += 1);
            }
        });
    }
    // Else the entry would serve them all.
    for mut worker in workers(&world).await {
        soon(async { while !is_asked(&mut worker).await {} }).await;
    }
    let granted = || tallies.iter().map(|tally| tally.granted.load(Ordering::Relaxed)).sum::<u64>();
    for nth in 0..FAULTS {
        let enough = granted() + BETWEEN;
        soon(calls.subscribe().wait_for(|_| granted() >= enough)).await.unwrap();
        if nth % 2 == 0 { crash_a_node(&world).await } else { stop_a_node().await }
    }
    is_over.send_replace(true);
    soon(callers.join_all()).await;
    for gate in &gates {
        gate.close().await;
    }
    // A node that died in the middle of a commit over several has left it prepared.
    world.sql("select recover_prepared_transactions()").await;
    let mut unknown = 0;
    for (key, tally) in tallies.iter().enumerate() {
        let left = world.left(&LIMIT, &key.to_string()).await.expect("each key was asked");
        unknown += tally.judge(1_000_000 - left.micros().cast_unsigned() / 1_000_000, key);
    }
    println!("{FAULTS} faults, {} calls, {} granted, {unknown} unknown", *calls.borrow(), granted());
}

/// The calls of a key.
#[derive(Debug, Default)]
struct Tally {
    granted: AtomicU64,
    unknown: AtomicU64,
}

impl Tally {
    fn note(&self, answer: Result<Decision, Error>) {
        match answer {
            Ok(decision) => {
                decision.granted().unwrap();
                self.granted.fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::OutcomeUnknown { .. }) => {
                self.unknown.fetch_add(1, Ordering::Relaxed);
            }
            // Nothing was taken.
            Err(_) => {}
        }
    }

    /// Fails if so many tokens cannot have been taken. Returns how many calls nobody knows the outcome of.
    fn judge(&self, taken: u64, key: usize) -> u64 {
        let [granted, unknown] = [&self.granted, &self.unknown].map(|count| count.load(Ordering::Relaxed));
        assert!((granted..=granted + unknown).contains(&taken), "{taken} taken of key {key}: {self:?}");
        unknown
    }
}

/// Lets all processes of a node stand still for two seconds.
async fn stop_a_node() {
    let mut conn = PgConnection::connect_with(fastrand::choice(nodes().await).unwrap()).await.unwrap();
    let stop = r#"copy (select) to program $program$
                  setsid sh -c '
                      postmaster=$(head -n 1 postmaster.pid)
                      children=$(grep -ls "^PPid:[[:space:]]*$postmaster\$" /proc/[0-9]*/status | cut -d / -f 3)
                      kill -STOP $postmaster $children
                      sleep 2
                      kill -CONT $postmaster $children
                  ' >/dev/null 2>&1 </dev/null &
                  cat $program$"#;
    sqlx::raw_sql(stop).execute(&mut conn).await.unwrap();
}
