//! Parts that move from one node to another while gates ask for their keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::PgPool;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::{Call, DAY, Error, Gate, Grant, HOUR, Limit, MINUTE, SECOND, Source, Tokens, first_of, split};

use super::knows_the_nodes;
use super::shards::{DRAIN, REBALANCE, SPLIT};
use crate::gate::stage::{EVER, patient, soon};
use crate::world::{MOVE, NUMBERS, PARTS, World, is_on_citus, limiter};

/// Nothing comes back while the test runs, and enough in a day to take ahead.
const MILLION: Limit = Limit::stepped_bucket("million", 999_999, DAY).capacity(1_000_000);
/// It has no money.
const WALLET: Limit = Limit::wallet("wallet");
/// All that it grants is granted for later.
const QUEUE: Limit = Limit::token_bucket("queue", 1, EVER).capacity(0).max_reserved(100);
const LEASES: Limit = Limit::concurrency("leases", 100, HOUR);
const KEYS: usize = 8;
const OFTEN: u32 = 20;

/// Each way of asking, through a gate that remembers refusals, one whose statements have no names, one that asks by
/// Citus's names alone, and one that takes tokens ahead. All four ask for the same keys, as does a limiter.
#[tokio::test]
async fn no_token_is_lost_or_spent_twice_while_parts_move() {
    if !is_on_citus() {
        return;
    }
    let world = World::of_parts(PARTS).await;
    let gates = [
        patient(&world.pool).remember_refusals(SECOND).build(),
        patient(&world.pool).unnamed_statements().build(),
        Gate::builder(world.pool.clone()).lock_timeout(MINUTE).statement_timeout(MINUTE).parts(PARTS).build(),
        patient(&world.pool).prefetch(HOUR).build(),
    ];
    let [.., ahead] = &gates;
    for gate in &gates {
        knows_the_nodes(gate, &world).await;
    }
    let taken: Arc<[AtomicU32; KEYS]> = Arc::default();
    let (done, mut callers) = (watch::Sender::new(false), JoinSet::new());
    let mut answers = Vec::new();
    let asked = gates.iter().flat_map(|gate| WAYS.map(|way| (gate, way)));
    for (gate, way) in asked.chain([(ahead, Way::Often); 4]) {
        let (gate, pool) = (gate.clone(), world.pool.clone());
        let (done, taken, answered) = (done.subscribe(), taken.clone(), watch::Sender::new(0));
        answers.push(answered.subscribe());
        callers.spawn(async move {
            while !*done.borrow() {
                let key = fastrand::usize(..KEYS);
                match way.ask(&gate, &pool, key).await {
                    Ok(tokens) => {
                        taken[key].fetch_add(tokens, Ordering::Relaxed);
                        answered.send_modify(|answered| *answered += 1);
                    }
                    Err(error) => assert!(error.is_retryable(), "{way:?}: {error:?}"),
                }
            }
        });
    }
    let broken_off = MOVE.replace("'select", "'begin; select").replace("%L)'", "%L); rollback'");
    let rebalance = format!("select $${REBALANCE}$$ where $1 > 0::int2");
    for (moves, change) in (1..).zip([MOVE, SPLIT, &broken_off, MOVE, DRAIN, &rebalance]) {
        let holds = |key: usize| ahead.prefetched(&MILLION.key(key)) > Tokens::ZERO;
        soon(async {
            while !(0..KEYS).any(holds) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        world.change_part(NUMBERS[0], change).await;
        for answered in &mut answers {
            // A caller that has failed is gone.
            let _ = soon(answered.wait_for(|answered| *answered >= moves)).await;
        }
    }
    done.send_replace(true);
    soon(callers.join_all()).await;
    for gate in &gates {
        gate.close().await;
    }
    for (key, taken) in taken.iter().enumerate() {
        let left = gates[0].balance(MILLION.key(key)).await.unwrap().remaining;
        assert_eq!(left, Tokens::new(1_000_000 - taken.load(Ordering::Relaxed)), "{key}");
        for (limit, key, all) in [(MILLION, key + KEYS, 1_000_000), (QUEUE, key, 0), (LEASES, key, 100)] {
            let left = world.left(&limit, &key.to_string()).await;
            assert!(left.is_none_or(|left| left == Tokens::new(all)), "{} {key}: {left:?}", limit.name());
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Consume,
    Joined,
    Often,
    Reserve,
    Wait,
    FirstOf,
    Split,
    TwoParts,
    Once,
    Cancel,
    Settle,
    Stream,
    Lease,
    Refused,
}

const WAYS: [Way; 13] = [
    Way::Consume,
    Way::Joined,
    Way::Reserve,
    Way::Wait,
    Way::FirstOf,
    Way::Split,
    Way::TwoParts,
    Way::Once,
    Way::Cancel,
    Way::Settle,
    Way::Stream,
    Way::Lease,
    Way::Refused,
];

impl Way {
    /// Asks, and returns how many of the million tokens of the key it took. It repeats a settlement that fails.
    async fn ask(self, gate: &Gate, pool: &PgPool, key: usize) -> Result<u32, Error> {
        let one = || MILLION.key(key);
        let stored = |cost: u32| MILLION.key(key).cost(cost).lapses_after(HOUR);
        let grant = |call: Call| granted(gate, call);
        match self {
            Self::Consume => {
                grant(one().into()).await?;
                Ok(1)
            }
            Self::Joined => {
                let mut tx = pool.begin().await.unwrap();
                limiter().consume(&mut tx, one()).await?.granted().unwrap();
                tx.commit().await.unwrap();
                Ok(1)
            }
            Self::Often => {
                // A gate takes tokens ahead of a key that it is often asked for.
                for _ in 0..OFTEN {
                    retried(|| grant(one().into())).await?;
                }
                Ok(OFTEN)
            }
            Self::Reserve => {
                gate.reserve(one()).await?.granted().unwrap();
                Ok(1)
            }
            Self::Wait => {
                gate.wait(one(), MINUTE).await?.granted().unwrap();
                Ok(1)
            }
            Self::FirstOf => {
                assert_eq!(grant(first_of([WALLET.key(key), one()])).await?.alternative, 1);
                Ok(1)
            }
            Self::Split => {
                grant(split(3, [WALLET.key(key), one()])).await?;
                Ok(3)
            }
            Self::TwoParts => {
                // All but two of these pairs of keys lie in two parts.
                let both = Call::from([one(), MILLION.key(key + KEYS)]).lapses_after(HOUR);
                let receipt = grant(both).await?.receipt;
                retried(|| gate.settle(receipt.clone(), Tokens::ZERO)).await?;
                Ok(0)
            }
            Self::Once => {
                let id = fastrand::u64(..).to_string();
                let first = grant(one().once(&id)).await?;
                assert_eq!(first.source, Source::Database);
                let again = retried(|| grant(one().once(&id))).await?;
                assert_eq!(again.source, Source::Repeated);
                Ok(1)
            }
            Self::Cancel => {
                let booked = gate.reserve(QUEUE.key(key).lapses_after(HOUR)).await?.granted().unwrap();
                retried(|| gate.cancel(booked.receipt.clone())).await?;
                Ok(0)
            }
            Self::Settle => {
                let receipt = grant(stored(5)).await?.receipt;
                retried(|| gate.settle(receipt.clone(), Tokens::new(2))).await?;
                Ok(2)
            }
            Self::Stream => {
                let stream = gate.stream(stored(5)).await?.granted().unwrap();
                stream.add(7);
                stream.settle().await?;
                Ok(7)
            }
            Self::Lease => {
                let receipt = gate.acquire(LEASES.key(key)).await?.granted().unwrap().into_receipt();
                retried(|| gate.release(receipt.clone())).await?;
                Ok(0)
            }
            Self::Refused => {
                assert!(!gate.consume(WALLET.key(key)).await?.is_granted());
                Ok(0)
            }
        }
    }
}

async fn granted(gate: &Gate, call: Call) -> Result<Grant, Error> {
    Ok(gate.consume(call).await?.granted().unwrap())
}

/// Asks until the answer is no error that says to try again.
async fn retried<T, F: Future<Output = Result<T, Error>>>(ask: impl Fn() -> F) -> Result<T, Error> {
    loop {
        match ask().await {
            Err(error) if error.is_retryable() => {}
            answer => return answer,
        }
    }
}
