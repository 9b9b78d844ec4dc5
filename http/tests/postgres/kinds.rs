//! Behind the layer every kind of gate gives the results of a limiter: the same statuses, and the same balances once
//! the gate is closed.

use std::convert::Infallible;
use std::future::ready;

use futures_util::future::join_all;
use http::{Request, Response, request};
use sqlx::{Connection, PgConnection};
use tollgate::{Call, Gate, HOUR, Limit, Tokens};
use tollgate_http::tower::{Rule, TollgateLayer};
use tower::{Layer, ServiceExt, service_fn};

use crate::kind::{HOT, Kind, SPENT, WARM};
use crate::stage::{EVER, pool, soon};
use crate::world::{World, limiter};

const FEW: Limit = Limit::fixed_window("few", 5, EVER);
const SLOTS: Limit = Limit::concurrency("slots", 2, HOUR);

/// Serves a request with estimates, whose response names one actual cost for all. Or resets a limit.
#[derive(Clone, Debug)]
enum Step {
    Serve(Vec<(Limit, u32)>, u32),
    Reset(Limit),
}

use Step::{Reset, Serve};

/// Scripts, each for a key of its name.
fn scripts() -> [(&'static str, Vec<Step>); 2] {
    let one = |used| Serve(vec![(HOT, 5)], used);
    let two = |used| Serve(vec![(HOT, 5), (WARM, 5)], used);
    let few = |used| Serve(vec![(HOT, 5), (FEW, 3)], used);
    let slot = Serve(vec![(HOT, 5), (SLOTS, 1)], 0);
    [
        ("served", vec![one(0), one(5), one(9), two(0), two(7), slot, one(2)]),
        ("refused", vec![few(3), few(3), few(3), Reset(FEW), few(0), few(1)]),
    ]
}

/// The statuses of a script, and what each limit then holds.
type Outcome = (Vec<u16>, Vec<(Tokens, bool)>);

async fn by_gate(gate: &Gate, key: &'static str, step: Step) -> u16 {
    let (rules, used) = match step {
        Serve(rules, used) => (rules, used),
        Reset(limit) => return gate.reset(limit.key(key)).await.map(|_| 200).unwrap(),
    };
    let key = move |_: &request::Parts| Some(key);
    let rules =
        rules.into_iter().map(|(limit, cost)| Rule::new(limit).key(key).cost(cost).settle_by(move |_| Some(used)));
    let layer = rules.fold(TollgateLayer::new(gate.clone()), TollgateLayer::limit);
    let inner = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    layer.layer(inner).oneshot(Request::new(())).await.unwrap().status().as_u16()
}

/// In a transaction of its own, as a gate does.
async fn by_limiter(conn: &mut PgConnection, key: &'static str, step: Step) -> u16 {
    let (limiter, mut tx) = (limiter(), conn.begin().await.unwrap());
    let status = match step {
        Reset(limit) => limiter.reset(&mut tx, limit.key(key)).await.map(|_| 200).unwrap(),
        Serve(rules, used) => {
            let asked: Call = rules.iter().map(|(limit, cost)| limit.key(key).cost(*cost)).collect();
            match limiter.consume(&mut tx, asked).await.unwrap().granted() {
                Ok(grant) => {
                    let used = |(limit, _): &_| if *limit == SLOTS { Tokens::ZERO } else { Tokens::new(used) };
                    limiter.settle_each(&mut tx, grant, &rules.iter().map(used).collect::<Vec<_>>()).await.unwrap();
                    200
                }
                Err(_) => 429,
            }
        }
    };
    tx.commit().await.unwrap();
    status
}

async fn left(conn: &mut PgConnection, key: &str) -> Vec<(Tokens, bool)> {
    let mut left = Vec::new();
    for limit in [HOT, WARM, FEW, SLOTS] {
        let balance = limiter().balance(conn, limit.key(key)).await.unwrap();
        left.push((balance.remaining, balance.is_full()));
    }
    left
}

async fn expected() -> Vec<Outcome> {
    let world = World::new().await;
    let (mut conn, mut expected) = (world.connect().await, Vec::new());
    for (key, steps) in scripts() {
        let spent = Serve([HOT, WARM].map(|hot| (hot, SPENT)).into(), SPENT);
        assert_eq!(by_limiter(&mut conn, key, spent).await, 200);
        let mut statuses = Vec::new();
        for step in steps {
            statuses.push(by_limiter(&mut conn, key, step).await);
        }
        expected.push((statuses, left(&mut conn, key).await));
    }
    expected
}

async fn outcomes(kind: Kind) -> Vec<Outcome> {
    let world = World::new().await;
    let overrides = kind.overrides(&world).await;
    let (pool, mut conn) = (pool(&world.url(), 4).await, world.connect().await);
    let mut outcomes = Vec::new();
    for (key, steps) in scripts() {
        let gate = kind.with_spent(&pool, &overrides, key).await;
        let mut statuses = Vec::new();
        for step in steps {
            statuses.push(soon(by_gate(&gate, key, step)).await);
        }
        soon(gate.close()).await;
        outcomes.push((statuses, left(&mut conn, key).await));
    }
    outcomes
}

#[tokio::test]
async fn behind_the_layer_every_kind_of_gate_comes_to_what_a_limiter_comes_to() {
    let expected = expected().await;
    assert_eq!(expected[1].0, [200, 429, 429, 200, 200, 200]);
    for (kind, outcomes) in Kind::ALL.into_iter().zip(join_all(Kind::ALL.map(outcomes)).await) {
        assert_eq!(outcomes, expected, "{kind:?}");
    }
}
