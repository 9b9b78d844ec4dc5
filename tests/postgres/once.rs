//! Ids that callers choose: a charge that is asked again is the same charge.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{
    Charge, DAY, Decision, Error, Grant, HOUR, Limit, MINUTE, OnFailure, Receipt, Request, SECOND, Source, Sweeper,
};

use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::teller::{Teller, both, tokens};
use crate::world::{ON_CALL, World, limiter, second};

/// Ten, of which none comes back while a test runs; in either table.
fn ten() -> [Limit; 2] {
    both(&Limit::token_bucket("ten", 10, EVER))
}

/// The whole tokens that are left, by a gate that remembers nothing.
async fn left(pool: &PgPool, limit: &Limit) -> i64 {
    let balance = patient(pool).build().balance(limit.global()).await.unwrap();
    balance.value.micros() / 1_000_000
}

/// What a call by a transaction of its own comes to.
async fn consume_in(pool: &PgPool, request: Request) -> Grant {
    let mut tx = pool.begin().await.unwrap();
    let decision = limiter().consume(&mut tx, request).await.unwrap();
    tx.commit().await.unwrap();
    decision.granted().unwrap()
}

/// Many callers ask for each of many jobs at the same moment, through two gates and in transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_who_ask_with_one_id_at_once_one_is_charged() {
    const JOBS: u32 = 15;
    const CALLERS: usize = 6;
    let world = World::new().await;
    for limit in both(&Limit::token_bucket("raced", 1_000, EVER)) {
        let gates = [pool(&world.url(), 2).await, pool(&world.url(), 2).await].map(|pool| patient(&pool).build());
        let barrier = Arc::new(Barrier::new(CALLERS));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (gate, barrier, limit) = (gates[caller % 2].clone(), barrier.clone(), limit.clone());
            let pool = pool(&world.url(), 1).await;
            callers.spawn(async move {
                let mut granted = Vec::new();
                for job in 0..JOBS {
                    barrier.wait().await;
                    let request = limit.global().cost(7).tracked_for(HOUR).once(job);
                    granted.push(if caller < 4 {
                        gate.consume(request).await.unwrap().granted().unwrap()
                    } else {
                        consume_in(&pool, request).await
                    });
                }
                granted
            });
        }
        let granted = soon(callers.join_all()).await;
        for job in 0..JOBS {
            let grants: Vec<_> = granted.iter().map(|grants| &grants[job as usize]).collect();
            let charged = grants.iter().filter(|grant| grant.source == Source::Database).count();
            assert_eq!(charged, 1, "job {job}");
            assert!(grants.iter().all(|grant| grant.source != Source::Degraded && grant.charges == grants[0].charges));
        }
        assert_eq!(left(&world.pool, &limit).await, 1_000 - 7 * i64::from(JOBS));
    }
}

/// The answer is lost at each statement in turn; who asks again with the same id is charged once in all.
#[tokio::test]
async fn a_call_whose_answer_was_lost_is_asked_again_and_charged_once() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let wire = PgPoolOptions::new().max_connections(1).connect_with(proxy.options()).await.unwrap();
    let gate = patient(&wire).on_failure(OnFailure::Local(1.0)).build();
    let [durable, ephemeral] =
        [Limit::token_bucket("lost", 100, EVER), Limit::token_bucket("too", 100, EVER).ephemeral()];
    for (both_tables, key) in [(false, "there"), (false, "new"), (true, "there"), (true, "new")] {
        let (mut unknown, mut charged) = (0, 0);
        for statement in 1.. {
            world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
            if key == "there" {
                consume_in(&world.pool, durable.key(key).cost(0).tracked_for(HOUR)).await;
                consume_in(&world.pool, ephemeral.key(key).cost(0).tracked_for(HOUR)).await;
            }
            // More than half, so that a second charge would be refused.
            let ask = || {
                let limits = if both_tables { vec![&durable, &ephemeral] } else { vec![&durable] };
                let asked = limits.into_iter().map(|limit| limit.key(key).cost(60).tracked_for(HOUR).once("job"));
                gate.consume_all(asked.collect::<Vec<_>>())
            };
            gate.consume(durable.key("others")).await.unwrap().granted().unwrap();
            proxy.cut_after(statement);
            let first = soon(ask()).await;
            proxy.hear();
            match &first {
                Err(Error::OutcomeUnknown { .. }) => {
                    unknown += 1;
                    let again = soon(ask()).await.unwrap().granted().unwrap();
                    assert_eq!(again.source, Source::Repeated, "{key}: after {statement}");
                }
                // Nothing was taken: a failure policy has answered.
                Ok(Decision::Granted(grant)) if grant.source == Source::Degraded => {
                    let again = soon(ask()).await.unwrap().granted().unwrap();
                    assert_eq!(again.source, Source::Database, "{key}: after {statement}");
                }
                Ok(Decision::Granted(_)) => charged += 1,
                other => panic!("{key}: after {statement}: {other:?}"),
            }
            let looked = patient(&world.pool).build().balance(durable.key(key)).await.unwrap();
            assert_eq!(looked.value.micros() / 1_000_000, 40, "{key}: after {statement}");
            if charged > 0 {
                break;
            }
        }
        assert!(unknown >= 1, "{key}");
    }
}

#[tokio::test]
async fn who_asks_again_after_the_receipt_was_used_is_not_charged_again() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    for limit in ten() {
        let ask = || limit.global().cost(8).tracked_for(HOUR).once("job");
        let first = gate.consume(ask()).await.unwrap().granted().unwrap();
        let _ = gate.settle(first.clone(), 6).await.unwrap();
        for again in [gate.consume(ask()).await.unwrap().granted().unwrap(), consume_in(&world.pool, ask()).await] {
            assert_eq!((again.source, &again.charges), (Source::Repeated, &first.charges));
            let error = gate.settle(again, 0).await.unwrap_err();
            assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        }
        assert_eq!(left(&world.pool, &limit).await, 4);
        let check = gate.check(ask()).await.unwrap().granted().unwrap();
        assert_eq!(check.source, Source::Repeated);
        for call in [gate.consume(ask().cost(7)).await, gate.check(ask().cost(7)).await] {
            assert!(matches!(&call, Err(Error::OnceMismatch { limit }) if limit == "ten"), "{call:?}");
        }
        assert_eq!(left(&world.pool, &limit).await, 4);
    }
}

#[tokio::test]
async fn a_used_hold_lies_in_its_row_until_it_lapses_and_counts_nothing() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        let ask = || limit.global().cost(8).lapses_after(MINUTE).once("job");
        let grant = teller.consume(0.0, ask()).await.granted().unwrap();
        assert_eq!(teller.settle(1.0, grant, 8).await, tokens(2));
        teller.commit().await;
        let held = "select held::text from tollgate.balances where key = ''";
        let held: Option<String> =
            sqlx::query_scalar(held).fetch_optional(&mut world.connect_as(ON_CALL).await).await.unwrap();
        assert_eq!(held.as_deref(), Some("0.000000"));
        let mut teller = Teller::of(&world).await;
        // Full again, and still known.
        teller.reset(2.0, limit.global()).await;
        teller.commit().await;
        let sweeper = Sweeper::new().share(100).margin(Duration::ZERO);
        assert_eq!(sweeper.clone().at(second(59.999_999)).sweep(&world.pool).await.unwrap().rows(), 0);
        let mut teller = Teller::of(&world).await;
        let again = teller.consume(59.999_999, ask()).await.granted().unwrap();
        assert_eq!((again.source, again.remaining), (Source::Repeated, tokens(10)));
        let new = teller.consume(60.0, ask()).await.granted().unwrap();
        assert_eq!((new.source, new.remaining), (Source::Database, tokens(2)));
        // The receipt of the first life is none of the second.
        let error = limiter().at(second(61.0)).settle(&mut teller.tx, again, 0).await.unwrap_err();
        assert!(matches!(error, Error::Lapsed { .. }), "{error}");
        teller.tx.rollback().await.unwrap();
        assert_eq!(sweeper.at(second(60.0)).sweep(&world.pool).await.unwrap().rows(), 1);
    }
}

#[tokio::test]
async fn a_remembered_refusal_is_none_of_a_call_that_was_granted_before() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).remember_refusals(HOUR).build();
    for limit in ten() {
        let ask = |id: &str| limit.global().cost(10).tracked_for(HOUR).once(id);
        let _ = gate.consume(ask("job")).await.unwrap().granted().unwrap();
        for source in [Source::Database, Source::Memory] {
            let denied = gate.consume(limit.global().cost(10)).await.unwrap().denied().unwrap();
            assert_eq!(denied.source, source);
        }
        let again = gate.consume(ask("job")).await.unwrap().granted().unwrap();
        assert_eq!(again.source, Source::Repeated);
        let denied = gate.consume(ask("other")).await.unwrap().denied().unwrap();
        assert_eq!(denied.source, Source::Database);
    }
}

/// Who waits for the row of another sees what that one has left in it, and not what it read before.
#[tokio::test]
async fn who_waits_for_a_row_in_which_the_id_is_being_charged_is_charged_nothing() {
    let world = World::new().await;
    for limit in ten() {
        let other = Limit::token_bucket("other", 10, EVER);
        let ask = || limit.global().cost(10).tracked_for(HOUR).once("job");
        let mut tx = world.begin().await;
        let _ = limiter().consume(&mut tx, ask()).await.unwrap().granted().unwrap();
        let gate = patient(&pool(&world.url(), 2).await).build();
        let by_gate = tokio::spawn({
            let (gate, asked) = (gate.clone(), ask());
            async move { soon(gate.consume(asked)).await.unwrap().granted().unwrap() }
        });
        let in_transaction = tokio::spawn({
            let (mut tx, asked) = (world.begin().await, [ask(), other.global()]);
            async move {
                let grant = limiter().consume_all(&mut tx, asked).await.unwrap().granted().unwrap();
                tx.commit().await.unwrap();
                grant
            }
        });
        world.until_anyone_is_blocked().await;
        tx.commit().await.unwrap();
        assert_eq!(by_gate.await.unwrap().source, Source::Repeated);
        let grant = soon(in_transaction).await.unwrap();
        assert_eq!(grant.source, Source::Database, "the other limit is charged");
        assert_eq!(left(&world.pool, &limit).await, 0);
        world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
    }
}

#[tokio::test]
async fn a_limit_with_shards_beside_one_with_an_id_is_charged_each_time() {
    let world = World::new().await;
    let sharded = Limit::token_bucket("sharded", 100, EVER).shards(4);
    let gate = patient(&pool(&world.url(), 2).await).build();
    // Once with too little left for another charge, once with enough.
    for (limit, cost) in ten().into_iter().zip([8, 3]) {
        let asked = || [limit.global().cost(cost).tracked_for(HOUR).once("job"), sharded.global().cost(2)];
        for left in [98, 96, 94] {
            let mut tx = world.begin().await;
            let grant = limiter().consume_all(&mut tx, asked()).await.unwrap().granted().unwrap();
            assert_eq!(grant.charges[0].cost, tokens(cost));
            tx.commit().await.unwrap();
            assert_eq!(gate.balance(sharded.global()).await.unwrap().value.micros() / 1_000_000, left);
        }
        assert_eq!(gate.balance(limit.global()).await.unwrap().value.micros() / 1_000_000, i64::from(10 - cost));
        gate.reset(sharded.global()).await.unwrap();
    }
}

/// Several who ask for one lease share it: it counts once, and ends for all of them together.
#[tokio::test]
async fn a_lease_with_an_id_is_shared_and_ends_for_all_at_once() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    for limit in both(&Limit::concurrency("leases", 2, MINUTE)) {
        let ask = || limit.global().once("job");
        let first = gate.acquire(ask()).await.unwrap().granted().unwrap();
        let again = gate.acquire(ask()).await.unwrap().granted().unwrap();
        assert_eq!((first.grant().source, again.grant().source), (Source::Database, Source::Repeated));
        assert_eq!(left(&world.pool, &limit).await, 1);
        first.release().await.unwrap();
        let error = again.release().await.unwrap_err();
        assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        assert_eq!(left(&world.pool, &limit).await, 2);
        // Who is late holds nothing, and would work beside two others.
        let error = gate.acquire(ask()).await.unwrap_err();
        assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
    }
}

/// Who is given a lease that has run for a while must stop when it ends, not a whole lease later.
#[tokio::test]
async fn a_repeated_lease_ends_when_the_first_one_does() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let limit = Limit::concurrency("leases", 2, HOUR);
    let ask = || limit.global().once("job");
    // As if it had run for an hour but for a moment, and nobody renewed it.
    let receipt = gate.acquire(ask()).await.unwrap().granted().unwrap().into_receipt();
    assert_eq!(receipt.charges.len(), 1);
    let almost = format!(
        "update tollgate.durable set holds[1] = (extract(epoch from clock_timestamp()) * 1e6)::int8 + {}",
        (10 * SECOND).as_micros()
    );
    sqlx::query(AssertSqlSafe(almost)).execute(&world.pool).await.unwrap();
    let again = gate.acquire(ask()).await.unwrap().granted().unwrap();
    let held: &Charge = &again.grant().charges[0];
    let left = held.hold.unwrap().lapses_at - again.grant().observed_at;
    assert!(left.num_seconds() < 10, "{left}");
    // It is renewed well before.
    let renewed = soon(async {
        loop {
            let row: Vec<i64> =
                sqlx::query_scalar("select holds from tollgate.durable").fetch_one(&world.pool).await.unwrap();
            if row[0] > held.hold.unwrap().lapses_at.timestamp_micros() {
                break;
            }
        }
    });
    renewed.await;
    again.release().await.unwrap();
}

/// A window's hold is asked again after its receipt went to another process as text.
#[tokio::test]
async fn a_sliding_window_counts_an_id_once_and_gives_back_what_was_spared() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::sliding_window("sliding", 10, MINUTE)) {
        let ask = || limit.global().cost(8).tracked_for(SECOND).once("job");
        let first = teller.consume(0.0, ask()).await.granted().unwrap();
        let again = teller.consume(20.0, ask()).await.granted().unwrap();
        assert_eq!((again.source, &again.charges), (Source::Repeated, &first.charges));
        let stored = serde_json::to_string(&Receipt::from(again)).unwrap();
        assert_eq!(teller.settle(30.0, serde_json::from_str::<Receipt>(&stored).unwrap(), 3).await, tokens(7));
        let again = teller.consume(59.999_999, ask()).await.granted().unwrap();
        assert_eq!((again.source, again.remaining), (Source::Repeated, tokens(7)));
        let new = teller.consume(60.0, ask()).await.granted().unwrap();
        assert_eq!((new.source, new.remaining), (Source::Database, tokens(2)), "what was kept has left with its grant");
    }
}

/// Memory knows nothing of what the database has granted; it says that it has decided.
#[tokio::test]
async fn without_the_database_an_id_is_decided_in_memory_and_the_database_forgets_none() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let limit = Limit::token_bucket("ten", 10, DAY);
    let ask = || limit.global().cost(8).tracked_for(HOUR).once("job");
    let gate = patient(&one_connection(proxy.options()).await).on_failure(OnFailure::Local(1.0)).build();
    let _ = gate.consume(ask()).await.unwrap().granted().unwrap();
    proxy.lead_to("postgres://nobody@localhost/none?host=/nowhere");
    proxy.cut().await;
    for _ in 0..2 {
        let grant = gate.consume(ask()).await.unwrap().granted().unwrap();
        assert!(grant.source == Source::Degraded && grant.charges.is_empty(), "{grant:?}");
    }
    assert!(!gate.consume(limit.global().cost(8)).await.unwrap().is_granted(), "memory was charged once");
    proxy.lead_to(&world.url());
    assert_eq!(gate.consume(ask()).await.unwrap().granted().unwrap().source, Source::Repeated);
}
