//! Tokens taken ahead: their cost, and the tokens that come back or are forfeited.

use std::time::Duration;

use tollgate::{DAY, Gate, GateBuilder, HOUR, Limit, MINUTE, Request, SECOND, Source, Storage, Tokens};

use crate::gate::stage::{EVER, patient, pool, soon};
use crate::proxy::Proxy;
use crate::teller::both;
use crate::traced::traced;
use crate::world::{World, is_distributed};

const CAPACITY: i64 = 100_000;
/// Nothing comes back while a test runs, and enough in an hour to take ahead.
pub(super) const HOT: Limit =
    Limit::stepped_bucket("hot", CAPACITY.unsigned_abs() - 1, DAY).capacity(CAPACITY.unsigned_abs());
const WINDOW: Limit = Limit::fixed_window("window", 1_000, EVER);

/// A gate that takes ahead, over a wire that counts statements.
pub(super) struct Stage {
    pub(super) gate: Gate,
    pub(super) proxy: Proxy,
    pub(super) world: World,
}

impl Stage {
    pub(super) async fn new(with: impl FnOnce(GateBuilder) -> GateBuilder) -> Self {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let pool = crate::world::one_connection(proxy.options()).await;
        Self { gate: with(patient(&pool)).build(), proxy, world }
    }

    /// A key for which tokens lie in memory, and the number of calls that were granted for it.
    pub(super) async fn filled(&self, limit: &Limit, key: &str) -> (Request, i64) {
        let (request, mut granted) = (limit.key(key), 0);
        while self.gate.prefetched(&request) < Tokens::new(5) {
            self.gate.consume(request.clone()).await.unwrap().granted().unwrap();
            granted += 1;
            assert!(granted < 100, "nothing is taken ahead");
        }
        (request, granted)
    }

    /// The tokens that were charged to a key and are not back, in whole tokens.
    pub(super) async fn charged(&self, limit: &Limit, key: &str) -> i64 {
        let (value, _) = self.world.row(limit.storage, limit.name(), key).await.unwrap();
        -value.micros() / 1_000_000
    }

    /// Spends the tokens that lie in memory, and returns their number.
    pub(super) async fn spent(&self, request: &Request) -> i64 {
        let held = self.held(request);
        for _ in 0..held {
            let grant = self.gate.consume(request.clone()).await.unwrap().granted().unwrap();
            assert_eq!(grant.source, Source::Prefetched);
        }
        held
    }

    pub(super) async fn until_held(&self, request: &Request) {
        let held = async {
            while self.held(request) == 0 {
                tokio::task::yield_now().await;
            }
        };
        soon(held).await;
    }

    /// Waits until as many tokens are charged to the key "k" as were granted or lie in memory.
    pub(super) async fn adds_up(&self, limit: &Limit, granted: i64) {
        let request = limit.key("k");
        soon(async { while self.charged(limit, "k").await != granted + self.held(&request) {} }).await;
    }

    pub(super) fn held(&self, request: &Request) -> i64 {
        self.gate.prefetched(request).micros() / 1_000_000
    }
}

#[tokio::test]
async fn calls_from_memory_cost_no_statement_and_what_is_charged_is_granted_or_lies_there() {
    for limit in both(&HOT) {
        let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
        let (request, mut granted) = stage.filled(&limit, "k").await;
        granted += stage.spent(&request).await;
        // No other call follows the charge of this slice.
        stage.until_held(&request).await;
        let left = stage.world.left(&limit, "k").await.unwrap();
        let mut decided_at = None;
        for place in 0..stage.held(&request) {
            let (statements, held) = (stage.proxy.statements(), stage.held(&request));
            let grant = stage.gate.consume(request.clone()).await.unwrap().granted().unwrap();
            granted += 1;
            assert_eq!((grant.source, stage.proxy.statements()), (Source::Prefetched, statements));
            assert_eq!((stage.held(&request), grant.amount), (held - 1, Tokens::ONE));
            assert_eq!(*decided_at.get_or_insert(grant.decided_at), grant.decided_at);
            // As of the charge; and one grant reports the fall of the balance.
            assert_eq!((grant.remaining, grant.standings[0].remaining), (left, left));
            let edge = f64::from(u32::try_from(left.micros() / 1_000_000 + 1).unwrap()) / 1e5;
            assert_eq!(grant.standings[0].crossed(edge).unwrap(), place == 0, "{grant:?}");
        }
        stage.adds_up(&limit, granted).await;
        let statements = stage.proxy.statements();
        for _ in 0..1_000 {
            stage.gate.consume(request.clone()).await.unwrap().granted().unwrap();
        }
        assert!(stage.proxy.statements() < statements + 50, "{}", stage.proxy.statements() - statements);
        stage.adds_up(&limit, granted + 1_000).await;
    }
}

#[tokio::test]
async fn a_grant_from_memory_is_settled_as_any_other() {
    let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
    let (request, granted) = stage.filled(&HOT, "k").await;
    let held = stage.held(&request);
    let grant = stage.gate.consume(request.clone().cost(3)).await.unwrap().granted().unwrap();
    assert_eq!((grant.source, &grant.receipt.charges[0].key), (Source::Prefetched, &grant.standings[0].key));
    let settled = stage.gate.settle(grant, 1).await.unwrap();
    assert_eq!((settled.charges[0].cost, settled.charges[0].limit()), (Tokens::ONE, "hot"));
    assert_eq!(stage.charged(&HOT, "k").await, granted + held - 2);
    assert_eq!(stage.held(&request), held - 3, "others go on");
}

#[tokio::test]
async fn a_call_of_several_limits_is_granted_from_memory_whole_or_not_at_all() {
    let other = Limit::stepped_bucket("other", 99_999, DAY).capacity(100_000);
    let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
    let ((one, _), (two, _)) = (stage.filled(&HOT, "k").await, stage.filled(&other, "k").await);
    let both = [one.clone().cost(2), two.clone().cost(3)];
    let before = (stage.held(&one), stage.held(&two), stage.proxy.statements());
    let grant = stage.gate.consume(both).await.unwrap().granted().unwrap();
    assert_eq!(grant.source, Source::Prefetched);
    let costs: Vec<_> = grant.receipt.charges.iter().map(|charge| (charge.limit(), charge.cost)).collect();
    assert_eq!(costs, [("hot", Tokens::new(2)), ("other", Tokens::new(3))]);
    assert_eq!((stage.held(&one), stage.held(&two), stage.proxy.statements()), (before.0 - 2, before.1 - 3, before.2));
    // The other has too little: the database decides, over all that there is.
    let most = stage.gate.consume([one.clone(), two.clone().cost(100)]).await.unwrap().granted().unwrap();
    assert_eq!(most.source, Source::Database);
    // Two of one key are one charge.
    let (one, _) = stage.filled(&HOT, "twice").await;
    let twice = stage.gate.consume([one.clone(), one.clone()]).await.unwrap().granted().unwrap();
    assert_eq!((twice.source, twice.receipt.charges.len()), (Source::Database, 1));
}

#[tokio::test]
async fn whatever_memory_does_not_serve_gives_back_first_in_the_same_batch() {
    let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
    let gate = &stage.gate;
    for round in 0..13 {
        let key = round.to_string();
        let (request, granted) = stage.filled(&HOT, &key).await;
        let (before, all) = (stage.proxy.statements(), CAPACITY - granted);
        let (one, all) = (request.clone(), request.clone().cost(all));
        let taken = match round {
            0 => i64::from(!gate.check(all).await.unwrap().is_granted()),
            1 => i64::from(
                gate.balance(one).await.unwrap().remaining != Tokens::new(u32::try_from(CAPACITY - granted).unwrap()),
            ),
            2 => gate.reserve(all).await.unwrap().granted().map(|_| CAPACITY - granted).unwrap(),
            3 => gate.consume(all.once("id")).await.unwrap().granted().map(|_| CAPACITY - granted).unwrap(),
            4 => gate.consume(all.up_to(1)).await.unwrap().granted().unwrap().amount.micros() / 1_000_000,
            5 => gate.consume(all.leaving(0)).await.unwrap().granted().map(|_| CAPACITY - granted).unwrap(),
            6 => gate.consume(all.lapses_after(HOUR)).await.unwrap().granted().map(|_| CAPACITY - granted).unwrap(),
            7 => gate.consume(all.tracked_for(HOUR)).await.unwrap().granted().map(|_| CAPACITY - granted).unwrap(),
            8 => gate.consume(all).await.unwrap().granted().map(|_| CAPACITY - granted).unwrap(),
            9 => gate.consume([WINDOW.key(round), all]).await.unwrap().granted().map(|_| CAPACITY - granted).unwrap(),
            10 => gate.debit(one).await.map(|_| 1).unwrap(),
            11 => gate.wait(all, SECOND).await.unwrap().granted().map(|_| CAPACITY - granted).unwrap(),
            _ => i64::from(!gate.consume(all.cost(Tokens::ZERO).once("id")).await.unwrap().is_granted()),
        };
        if round < 2 {
            let is_tried = u64::from(is_distributed());
            assert_eq!(stage.proxy.statements(), before + is_tried + 2, "it is read, and written");
        }
        assert_eq!(stage.charged(&HOT, &key).await, granted + taken + stage.held(&request), "{round}");
    }
}

/// Windows, and buckets that are windows, would carry tokens over an edge; and calls of a limit with shards go another
/// way.
#[tokio::test]
async fn limits_that_memory_does_not_serve_are_asked_of_the_database() {
    let stage = Stage::new(|gate| gate.prefetch(HOUR).prefetch_of(&HOT, Duration::ZERO)).await;
    let limits = [
        WINDOW,
        Limit::stepped_bucket("step", 1_000, EVER),
        Limit::sliding_window("slide", 1_000, EVER),
        Limit::monthly("month", 1_000),
        Limit::meter("meter"),
        Limit::token_bucket("shards", 10_000, SECOND).shards(2),
        HOT,
        Limit::token_bucket("small", 31, SECOND),
    ];
    for limit in limits {
        for _ in 0..12 {
            let grant = stage.gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
            assert_eq!(grant.source, Source::Database, "{limit:?}");
        }
        assert_eq!(stage.gate.prefetched(&limit.key("k")), Tokens::ZERO);
    }
}

/// Tokens that are lost with a process come back after a while, however large the capacity is. A slice is no more than
/// comes back in ten seconds, or in `max_age`.
#[tokio::test]
async fn a_slice_is_no_more_than_comes_back_in_a_short_time() {
    let whole = |limit: Limit| limit.capacity(CAPACITY.unsigned_abs());
    let slow = |name| whole(Limit::token_bucket(name, 1, MINUTE));
    let none = || slow("none").rate_and_capacity(Tokens::from_micros(2), Tokens::from_micros(CAPACITY * 1_000_000));
    for (limit, max_age, cost, most) in [
        (slow("minute"), SECOND, 1, 0),
        (slow("minute"), HOUR, 1, 60),
        (slow("dear"), HOUR, 31, 0),
        (none(), HOUR, 1, 0),
        (whole(Limit::token_bucket("drips", 7, SECOND)), SECOND, 1, 70),
        (whole(Limit::token_bucket("tens", 7, SECOND)), SECOND, 10, 70),
        (whole(Limit::stepped_bucket("steps", 7_200, HOUR)), SECOND, 1, 20),
        (whole(Limit::stepped_bucket("days", 100, DAY)), SECOND, 1, 0),
    ] {
        let stage = Stage::new(|gate| gate.prefetch(max_age)).await;
        let request = limit.key("k").cost(cost);
        let mut held = Tokens::ZERO;
        for _ in 0..300 {
            stage.gate.consume(request.clone()).await.unwrap().granted().unwrap();
            held = held.max(stage.gate.prefetched(&request));
        }
        assert!(held <= Tokens::new(most), "{held} of {limit:?}");
        assert!(held.micros() >= i64::from(most) * 500_000, "{held} of {limit:?}");
    }
}

#[tokio::test]
async fn what_this_gate_raises_gives_back_first_and_what_it_defines_anew_forfeits_the_rest() {
    let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
    let anew: Limit = HOT.spec().with(|spec| spec.rate = Tokens::new(2)).try_into().unwrap();
    for round in 0..4 {
        let key = round.to_string();
        let (request, granted) = stage.filled(&HOT, &key).await;
        let held = stage.held(&request);
        let given = match round {
            0 => stage.gate.credit(request.clone()).await.map(|_| held + 1).unwrap(),
            1 => stage.gate.reset(request.clone()).await.map(|_| granted + held).unwrap(),
            2 => stage.gate.balance(anew.key(&*key)).await.map(|_| 0).unwrap(),
            _ => {
                let grant = stage.gate.consume(anew.key(&*key)).await.unwrap().granted().unwrap();
                assert_eq!(grant.source, Source::Database);
                -1
            }
        };
        assert_eq!(stage.held(&request), 0);
        assert_eq!(stage.charged(&HOT, &key).await, granted + held - given, "{round}");
        // Also where it changes back.
        let grant = stage.gate.consume(request.clone()).await.unwrap().granted().unwrap();
        assert_eq!(grant.source, Source::Database);
        assert_eq!(stage.charged(&HOT, &key).await, granted + held - given + 1 + stage.held(&request), "{round}");
    }
}

/// The answer to the write is lost: it is not made again.
#[tokio::test]
async fn what_is_sent_is_never_sent_again() {
    for lost in 1..4 {
        let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
        let (request, granted) = stage.filled(&HOT, "k").await;
        let held = stage.held(&request);
        stage.proxy.cut_after(lost);
        drop(soon(stage.gate.check(request.clone())).await);
        stage.proxy.hear();
        soon(async { while stage.gate.balance(request.clone()).await.is_err() {} }).await;
        let charged = stage.charged(&HOT, "k").await;
        assert!(charged == granted || charged == granted + held, "{charged} of {granted} and {held}, {lost}");
    }
}

/// After a crash the table of ephemeral limits is empty, and tokens that were given back to it would count twice.
#[tokio::test]
async fn rests_of_ephemeral_limits_are_forfeited_when_a_connection_broke() {
    for limit in both(&HOT) {
        let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
        let (request, granted) = stage.filled(&limit, "k").await;
        let held = stage.held(&request);
        stage.proxy.cut().await;
        soon(async { while stage.gate.check(request.clone()).await.is_err() {} }).await;
        let back = if limit.storage == Storage::Ephemeral { 0 } else { held };
        assert_eq!(stage.charged(&limit, "k").await, granted + held - back, "{limit:?}");
    }
}

#[tokio::test]
async fn a_closed_gate_owes_nothing() {
    let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
    let slots = Limit::concurrency("slots", 1, HOUR);
    let (request, granted) = stage.filled(&HOT, "k").await;
    let lease = stage.gate.acquire(slots.global()).await.unwrap().granted().unwrap();
    let waiting = tokio::spawn({
        let gate = stage.gate.clone();
        async move { gate.wait(HOT.key("k").cost(u32::try_from(CAPACITY).unwrap()), MINUTE * 100_000_000).await }
    });
    let leased = tokio::spawn({
        let (gate, slots) = (stage.gate.clone(), slots.clone());
        async move { gate.acquire_within(slots.global(), HOUR).await }
    });
    // Both wait, once they are refused.
    soon(async {
        while stage.gate.prefetched(&request) > Tokens::ZERO {
            tokio::task::yield_now().await;
        }
    })
    .await;
    stage.gate.balance(slots.global()).await.unwrap();
    soon(stage.gate.close()).await;
    assert!(soon(waiting).await.unwrap().unwrap().denied().is_some());
    drop(soon(leased).await.unwrap().unwrap());
    assert_eq!((stage.charged(&HOT, "k").await, stage.held(&request)), (granted, 0));
    assert!(soon(stage.gate.balance(slots.global())).await.unwrap().is_full());
    soon(lease.lapsed()).await;
    // It still answers, by the database alone.
    for _ in 0..10 {
        assert_eq!(stage.gate.consume(request.clone()).await.unwrap().granted().unwrap().source, Source::Database);
    }
    assert_eq!(stage.charged(&HOT, "k").await, granted + 10);
}

#[test]
fn a_gate_that_is_dropped_leaves_what_it_holds_charged_and_says_so() {
    let log = traced(async {
        let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
        let (request, granted) = stage.filled(&HOT, "k").await;
        let held = stage.held(&request);
        let Stage { gate, world, proxy } = stage;
        drop(gate);
        let left = world.left(&HOT, "k").await.unwrap();
        assert_eq!(left.micros(), (CAPACITY - granted - held) * 1_000_000);
        drop(proxy);
    });
    assert_eq!(log.matches("dropped without being closed").count(), 1, "{log}");
}

/// Many callers in two gates that hold tokens of one key: all that is there is granted, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gates_grant_all_that_is_there_and_no_more() {
    let limit = Limit::stepped_bucket("few", 2_999, HOUR / 2).capacity(3_000);
    let world = World::new().await;
    let gates = [patient(&pool(&world.url(), 4).await), patient(&pool(&world.url(), 4).await)];
    let gates = gates.map(|gate| gate.prefetch(SECOND).build());
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..16 {
        let (gate, limit) = (gates[caller % 2].clone(), limit.clone());
        callers.spawn(async move {
            let (mut granted, mut hits, mut refused) = (0, 0, 0);
            // Until the tokens of the other gate are back, too.
            while refused < 50 {
                if let Ok(grant) = gate.consume(limit.key("k")).await.unwrap().granted() {
                    granted += 1;
                    hits += u32::from(grant.source == Source::Prefetched);
                } else {
                    refused += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                tokio::task::consume_budget().await;
            }
            (granted, hits)
        });
    }
    let counts = soon(callers.join_all()).await;
    let (granted, hits) =
        counts.iter().fold((0, 0), |(all, from_memory), (granted, hits)| (all + granted, from_memory + hits));
    assert_eq!(granted, 3_000);
    assert!(hits > 1_000, "{hits}");
}
