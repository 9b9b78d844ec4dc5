//! How fast a line of waiting callers goes: the last answer says how many of them ask next.

use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tollgate::{Gate, Grant, HOUR, Limit, Request, SECOND, Tokens};

use crate::gate::stage::{EVER, one_connection, patient, soon};
use crate::proxy::Proxy;
use crate::world::World;

/// How late each answer is.
const DELAY: Duration = Duration::from_millis(10);

const DRIP: Limit = Limit::token_bucket("drip", 500, SECOND);
const FENCE: Limit = Limit::fixed_window("fence", 1_000_000, EVER);

/// A gate of one lane behind a wire that counts.
async fn behind_a_wire() -> (World, Proxy, Gate) {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    (world, proxy, gate)
}

/// Takes all that there is. Returns callers that wait for a token each.
async fn waiting(gate: &Gate, all: Request, callers: usize) -> JoinSet<Grant> {
    gate.consume(all.clone()).await.unwrap().granted().unwrap();
    let mut waits = JoinSet::new();
    for _ in 0..callers {
        let (gate, one) = (gate.clone(), all.clone().cost(1));
        waits.spawn(async move { soon(gate.wait(one, HOUR)).await.unwrap().granted().unwrap() });
    }
    // A lane takes all calls in turn.
    for _ in 0..3 {
        yield_now().await;
        gate.balance(FENCE.key("k")).await.unwrap();
    }
    waits
}

/// The first caller asks when the window opens, and then all whom its answer pays for.
#[tokio::test]
async fn a_window_that_opens_serves_all_who_wait_in_a_few_batches() {
    let (_world, proxy, gate) = behind_a_wire().await;
    let mut period = SECOND;
    let asked = loop {
        let request = Limit::fixed_window("window", 100, period).key(format!("{period:?}"));
        let waits = waiting(&gate, request.clone().cost(100), 100).await;
        let asked = proxy.statements();
        if gate.check(request).await.unwrap().is_granted() {
            // The window opened before all of them waited.
            period *= 2;
            assert!(period < HOUR, "nothing is refused");
            continue;
        }
        waits.join_all().await;
        break proxy.statements() - asked;
    };
    // The check takes one statement, and each batch two.
    assert!(asked <= 1 + 4 * 2, "{asked} statements");
}

/// The row comes so fast that it would be full most of the time if callers asked one after another.
#[tokio::test]
async fn behind_a_slow_wire_hardly_any_token_is_lost() {
    let (_world, proxy, gate) = behind_a_wire().await;
    proxy.slow_down(DELAY);
    let mut grants = waiting(&gate, DRIP.key("k").cost(500), 1_000).await.join_all().await;
    grants.sort_by_key(|grant| (grant.decided_at, -grant.remaining.micros()));
    let (first, last) = (&grants[0], &grants[999]);
    // By the clock of the database. Each microsecond brings so many millionths of a token.
    let came = (last.decided_at - first.decided_at).num_microseconds().unwrap() * 500;
    let kept = Tokens::new(999).micros() + last.remaining.micros() - first.remaining.micros();
    assert!(kept >= came / 10 * 9, "{kept} of {came}");
}

/// The row is full when a question arrives, however fast this machine is.
#[tokio::test]
async fn behind_a_slow_wire_each_batch_takes_all_that_a_small_bucket_holds() {
    let (_world, proxy, gate) = behind_a_wire().await;
    proxy.slow_down(DELAY);
    let waits = waiting(&gate, DRIP.capacity(5).key("k").cost(5), 200).await;
    let asked = proxy.statements();
    waits.join_all().await;
    let asked = proxy.statements() - asked;
    // Forty batches of two statements; it would be twice as many if callers did not count on what comes meanwhile.
    assert!(asked <= 110, "{asked} statements");
}
