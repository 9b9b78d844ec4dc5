//! A caller of alternatives gets the one that is there first: by an instant, by a release, by a raise.

use std::time::Duration;

use tokio::task::{JoinHandle, yield_now};
use tollgate::{Call, Gate, Grant, HOUR, Limit, MINUTE, Request, SECOND, first_of, split};

use crate::gate::stage::{EVER, patient, pool, soon};
use crate::world::World;

const SLOTS: Limit = Limit::concurrency("slots", 1, HOUR);
/// Due before the lease of a slot ends, and not while a test runs.
const SOONER: Limit = Limit::token_bucket("sooner", 2, HOUR).capacity(1);
/// Due after it.
const LATER: Limit = Limit::fixed_window("later", 1, EVER);
const CREDITS: Limit = Limit::wallet("credits");
const FENCE: Limit = Limit::fixed_window("fence", 1_000_000, EVER);

async fn one_lane(world: &World) -> Gate {
    patient(&pool(&world.url(), 1).await).build()
}

/// Returns once every earlier caller has an answer: a lane takes all calls in turn.
async fn fence(gate: &Gate) {
    for _ in 0..3 {
        yield_now().await;
        gate.balance(FENCE.key("k")).await.unwrap();
    }
}

/// A caller that waits by now, without an end.
async fn waiting(gate: &Gate, call: impl Into<Call>) -> JoinHandle<Grant> {
    let (asked, call) = (gate.clone(), call.into());
    let task = tokio::spawn(async move { asked.wait(call, Duration::MAX).await.unwrap().granted().unwrap() });
    fence(gate).await;
    assert!(!task.is_finished(), "it waits");
    task
}

/// Its grant, which is there before seconds have passed.
async fn woken(gate: &Gate, waiting: JoinHandle<Grant>) -> Grant {
    for _ in 0..100 {
        if waiting.is_finished() {
            return waiting.await.unwrap();
        }
        fence(gate).await;
    }
    panic!("it sleeps");
}

async fn take(gate: &Gate, request: Request) -> Grant {
    gate.consume(request).await.unwrap().granted().unwrap()
}

#[tokio::test]
async fn whichever_alternative_is_released_or_raised_first_is_taken() {
    let world = World::new().await;
    let gate = one_lane(&world).await;
    for (number, other) in [SOONER, LATER, CREDITS].into_iter().enumerate() {
        for raised in 0..2 {
            for is_turned in [false, true] {
                let key = format!("{number} {raised} {is_turned}");
                let (slot, other) = (SLOTS.key(&*key), other.key(&*key));
                let held = take(&gate, slot.clone()).await;
                if other.limit() != &CREDITS {
                    take(&gate, other.clone()).await;
                }
                let both = if is_turned { [other.clone(), slot] } else { [slot, other.clone()] };
                let waiting = waiting(&gate, first_of(both)).await;
                let is_slot = raised == 0;
                if is_slot {
                    gate.release(held).await.unwrap();
                } else {
                    gate.credit(other).await.unwrap();
                }
                let grant = woken(&gate, waiting).await;
                assert_eq!(grant.alternative, usize::from(is_slot == is_turned), "{key}");
            }
        }
    }
}

/// Both alternatives have a line, and it is the second in one of them.
#[tokio::test]
async fn whoever_is_first_in_the_line_of_any_alternative_has_its_turn() {
    let world = World::new().await;
    let gate = one_lane(&world).await;
    let held = take(&gate, SLOTS.key("k")).await;
    take(&gate, LATER.key("k")).await;
    let slot = waiting(&gate, vec![SLOTS.key("k")]).await;
    let both = waiting(&gate, first_of([SLOTS.key("k"), LATER.key("k")])).await;
    let later = waiting(&gate, vec![LATER.key("k")]).await;
    // It has come before the last.
    gate.credit(LATER.key("k")).await.unwrap();
    assert_eq!(woken(&gate, both).await.alternative, 1);
    assert!(!later.is_finished() && !slot.is_finished());
    gate.credit(LATER.key("k")).await.unwrap();
    woken(&gate, later).await;
    // One that joins both lines at once, since each has one.
    take(&gate, LATER.key("other")).await;
    let first = waiting(&gate, vec![LATER.key("other")]).await;
    let both = waiting(&gate, first_of([SLOTS.key("k"), LATER.key("other")])).await;
    gate.credit(LATER.key("other")).await.unwrap();
    woken(&gate, first).await;
    gate.reset(LATER.key("other")).await.unwrap();
    assert_eq!(woken(&gate, both).await.alternative, 1);
    gate.release(held).await.unwrap();
    woken(&gate, slot).await;
}

/// The one has an instant, and the line of the other does not move.
#[tokio::test]
async fn an_alternative_is_taken_at_its_instant_whoever_waits_for_the_other() {
    let world = World::new().await;
    let gate = one_lane(&world).await;
    let soon_there = Limit::token_bucket("soon", 1, SECOND / 5);
    let held = take(&gate, SLOTS.key("k")).await;
    let slot = waiting(&gate, vec![SLOTS.key("k")]).await;
    take(&gate, soon_there.key("k")).await;
    let both = first_of([SLOTS.key("k"), soon_there.key("k")]);
    for _ in 0..5 {
        let decision = soon(gate.wait(both.clone(), Duration::MAX)).await.unwrap();
        assert_eq!(decision.granted().unwrap().alternative, 1);
    }
    gate.release(held).await.unwrap();
    woken(&gate, slot).await;
}

/// Each eighth release is left to other processes: for at least an eighth of the time since the one before it, even if
/// somebody comes.
#[tokio::test]
async fn a_slot_that_is_left_to_others_keeps_nobody_from_what_is_free() {
    let world = World::new().await;
    let gate = one_lane(&world).await;
    for release in 1..=8 {
        let held = take(&gate, SLOTS.key("k")).await;
        // Then the fence is passed long before it is over.
        for _ in 0..if release == 8 { 400 } else { 0 } {
            gate.balance(FENCE.key("k")).await.unwrap();
        }
        gate.release(held).await.unwrap();
    }
    let asked = gate.clone();
    let both = first_of([SLOTS.key("k"), LATER.key("k")]);
    let task = tokio::spawn(async move { asked.wait(both, Duration::MAX).await.unwrap().granted().unwrap() });
    fence(&gate).await;
    assert!(task.is_finished(), "it sleeps");
}

/// The lease of the slot ends too late, and so does the window; but the slot may be released at any time.
#[tokio::test]
async fn nobody_is_refused_whose_other_alternative_may_be_released() {
    let world = World::new().await;
    let gate = one_lane(&world).await;
    let held = take(&gate, SLOTS.key("k")).await;
    for other in [SOONER, LATER, CREDITS] {
        if other != CREDITS {
            take(&gate, other.key("k")).await;
        }
        for both in [[SLOTS.key("k"), other.key("k")], [other.key("k"), SLOTS.key("k")]] {
            let (asked, both) = (gate.clone(), first_of(both));
            let waits = tokio::spawn(async move { asked.wait(both, 10 * MINUTE).await.unwrap() });
            fence(&gate).await;
            assert!(!waits.is_finished());
            waits.abort();
        }
        // Both alternatives need tokens that no release brings, and these do not come in time.
        let neither = first_of([vec![other.key("k")], vec![SLOTS.key("k"), other.key("k")]]);
        assert!(!gate.wait(neither, 10 * MINUTE).await.unwrap().is_granted());
    }
    gate.release(held).await.unwrap();
}

/// Each of the limits that share a cost may bring the missing tokens.
#[tokio::test]
async fn whoever_waits_for_a_split_cost_hears_of_each_limit() {
    let world = World::new().await;
    let gate = one_lane(&world).await;
    let [one, two] = ["one", "two"].map(|name| Limit::token_bucket(name, 1, EVER).capacity(10));
    for (round, raised) in [&one, &two, &CREDITS].into_iter().enumerate() {
        for is_alternative in [false, true] {
            let key = format!("{round} {is_alternative}");
            for limit in [&one, &two] {
                take(&gate, limit.key(&*key).cost(10)).await;
            }
            let held = take(&gate, SLOTS.key(&*key)).await;
            let shared = split(5, [one.key(&*key), two.key(&*key), CREDITS.key(&*key)]);
            let call = if is_alternative { first_of([SLOTS.key(&*key).into(), shared]) } else { shared };
            let waiting = waiting(&gate, call).await;
            gate.credit(raised.key(&*key).cost(3)).await.unwrap();
            fence(&gate).await;
            assert!(!waiting.is_finished(), "two are missing");
            gate.credit(two.key(&*key).cost(2)).await.unwrap();
            woken(&gate, waiting).await;
            drop(held);
        }
    }
}

/// The first caller takes nothing at the instant, as another limit refuses it then. So the next one gets the tokens.
#[tokio::test]
async fn whoever_is_refused_by_another_limit_in_its_turn_leaves_what_is_there_to_the_next() {
    let world = World::new().await;
    let gate = one_lane(&world).await;
    let period = 8 * SECOND;
    let limit = Limit::token_bucket("both", 1, period);
    take(&gate, limit.key("k")).await;
    let first = waiting(&gate, vec![limit.key("k"), LATER.key("k")]).await;
    let second = waiting(&gate, vec![limit.key("k")]).await;
    let due = gate.check(limit.key("k")).await.unwrap().denied().unwrap().retry_at.unwrap();
    // It hears of that in its turn.
    gate.debit(LATER.key("k")).await.unwrap();
    let granted_at = soon(second).await.unwrap().decided_at;
    assert!(granted_at < due + period, "a period late: {granted_at} and {due}");
    gate.reset(LATER.key("k")).await.unwrap();
    gate.reset(limit.key("k")).await.unwrap();
    woken(&gate, first).await;
}
