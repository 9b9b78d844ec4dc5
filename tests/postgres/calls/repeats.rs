//! Calls with an id, which charge once, however often somebody repeats them.

use std::sync::Arc;

use sqlx::Connection;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{Call, Decision, Error, HOUR, Limit, MINUTE, OnFailure, Source, Sweeper};

use super::{consume_in, left, levels, stored, ten};
use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::teller::{Teller, both};
use crate::world::{World, limiter, second};

/// Many callers ask for each of many jobs at the same moment, through two gates and in transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_who_ask_with_one_id_at_once_one_is_charged() {
    const JOBS: u32 = 15;
    const CALLERS: usize = 6;
    let world = World::new().await;
    let gates = [pool(&world.url(), 2).await, pool(&world.url(), 2).await].map(|pool| patient(&pool).build());
    let barrier = Arc::new(Barrier::new(CALLERS));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (gate, barrier) = (gates[caller % 2].clone(), barrier.clone());
        let pool = pool(&world.url(), 1).await;
        callers.spawn(async move {
            let mut granted = Vec::new();
            for job in 0..JOBS {
                barrier.wait().await;
                let [org, team, user] = levels(7);
                let asked = Call::from([org, team, user]).once(job);
                granted.push(if caller < 4 {
                    gate.consume(asked).await.unwrap().granted().unwrap()
                } else {
                    consume_in(&pool, asked).await
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
        assert!(grants.iter().all(|grant| grant.receipt == grants[0].receipt));
    }
    for request in levels(0) {
        assert_eq!(left(&world.pool, request).await, 1_000 - 7 * i64::from(JOBS));
    }
}

/// The answer is lost at each statement in turn; who asks again with the same id is charged once in all.
#[tokio::test]
async fn a_call_whose_answer_was_lost_is_asked_again_and_charged_once() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let wire = PgPoolOptions::new().max_connections(1).connect_with(proxy.options()).await.unwrap();
    let gate = patient(&wire).on_failure(OnFailure::Open).build();
    let [durable, ephemeral] =
        [Limit::token_bucket("lost", 100, EVER), Limit::token_bucket("too", 100, EVER).ephemeral()];
    for (both_tables, key) in [(false, "there"), (false, "new"), (true, "there"), (true, "new")] {
        let (mut unknown, mut charged) = (0, 0);
        for statement in 1.. {
            world.sql("truncate tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
            if key == "there" {
                consume_in(&world.pool, Call::from([durable.key(key), ephemeral.key(key)]).tracked_for(HOUR)).await;
                world.sql("update tollgate.durable set value = 0").await;
                world.sql("update tollgate.ephemeral set value = 0").await;
            }
            // More than half, so that a second charge would be refused.
            let ask = || {
                let limits = if both_tables { vec![&durable, &ephemeral] } else { vec![&durable] };
                let asked: Call = limits.into_iter().map(|limit| limit.key(key).cost(60)).collect();
                gate.consume(asked.once("job"))
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
            assert_eq!(left(&world.pool, durable.key(key)).await, 40, "{key}: after {statement}");
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
        let ask_for = |cost: u32| limit.global().cost(cost).once("job");
        let ask = || ask_for(8);
        let first = gate.consume(ask()).await.unwrap().granted().unwrap();
        gate.settle(first.clone(), 6).await.unwrap();
        for again in [gate.consume(ask()).await.unwrap().granted().unwrap(), consume_in(&world.pool, ask()).await] {
            assert_eq!((again.source, &again.receipt), (Source::Repeated, &first.receipt));
            let error = gate.settle(again, 0).await.unwrap_err();
            assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        }
        let check = gate.check(ask()).await.unwrap().granted().unwrap();
        assert_eq!(check.source, Source::Repeated);
        for call in [gate.consume(ask_for(7)).await, gate.check(ask_for(7)).await] {
            assert!(matches!(&call, Err(Error::OnceMismatch { limit }) if limit == "ten"), "{call:?}");
        }
        assert_eq!(left(&world.pool, limit.global()).await, 4);
        world.sql("truncate tollgate.calls").await;
    }
}

#[tokio::test]
async fn an_id_is_forgotten_when_it_need_not_be_known_any_more() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let [limit, _] = ten();
    let ask = || limit.global().cost(4).once_for("job", HOUR);
    let first = teller.consume(0.0, ask()).await.granted().unwrap();
    teller.consume(0.0, limit.global().cost(0).tracked_for(HOUR)).await.granted().unwrap();
    teller.consume(0.0, limit.key("held").cost(0).once_for("held", HOUR)).await.granted().unwrap();
    teller.commit().await;
    consume_in(&world.pool, limit.key("now").cost(0).once_for("now", HOUR)).await;
    let sweeper = |seconds| Sweeper::new().share(100).margin(MINUTE).at(second(seconds));
    let forgotten = async |seconds| sweeper(seconds).sweep(&world.pool).await.unwrap().calls;
    assert_eq!(forgotten(3_659.999_999).await, 0);
    assert_eq!(Sweeper::new().dry_run().at(second(9e3)).sweep(&world.pool).await.unwrap().calls, 0);
    let mut conn = world.connect().await;
    let mut held = conn.begin().await.unwrap();
    sqlx::query("select from tollgate.calls where id = 'held' for update").execute(&mut *held).await.unwrap();
    assert_eq!(soon(forgotten(3_660.0)).await, 2, "and waits for nobody");
    held.rollback().await.unwrap();
    let by_clock = Sweeper::new().share(100).margin(MINUTE).sweep(&world.pool).await.unwrap();
    assert_eq!(by_clock.calls, 1);
    let mut teller = Teller::of(&world).await;
    let error = limiter().at(second(3_660.0)).settle(&mut teller.tx, first.clone(), 0).await.unwrap_err();
    assert!(matches!(error, Error::Lapsed { .. }), "{error}");
    let second = teller.consume(3_660.0, ask()).await.granted().unwrap();
    assert_eq!(second.source, Source::Database);
    teller.commit().await;
    // The id is another call's by now, with other charges.
    let error = patient(&world.pool).build().settle(first, 0).await.unwrap_err();
    assert!(matches!(error, Error::Lapsed { .. }), "{error}");
    assert_eq!((left(&world.pool, limit.global()).await, stored(&mut conn).await), (2, 2));
}

/// A settlement locks its call before it writes it, and the sweeper passes over what is locked.
#[tokio::test]
async fn an_id_is_not_forgotten_while_its_call_is_settled() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let mut conn = proxy.connect().await;
    let [limit, _] = ten();
    let grant = consume_in(&world.pool, limit.key("k").cost(4).once_for("job", HOUR)).await;
    let later = Sweeper::new().share(100).margin(MINUTE).at(grant.decided_at + 2 * HOUR);
    proxy.hold_after(3);
    let settled = tokio::spawn(async move {
        let mut tx = conn.begin().await.unwrap();
        let settled = limiter().settle(&mut tx, grant, 1).await;
        tx.commit().await.unwrap();
        settled
    });
    soon(proxy.until_held()).await;
    assert_eq!(later.sweep(&world.pool).await.unwrap().calls, 0);
    proxy.release();
    soon(settled).await.unwrap().unwrap();
    assert_eq!((left(&world.pool, limit.key("k")).await, stored(&mut world.connect().await).await), (9, 1));
}

/// A call that waits for the row of another sees the row that the other has left, and not the row that it read before.
#[tokio::test]
async fn who_waits_for_a_row_in_which_the_id_is_being_charged_is_charged_nothing() {
    let world = World::new().await;
    for limit in ten() {
        let ask = || limit.global().cost(10).once("job");
        let mut tx = world.begin().await;
        limiter().consume(&mut tx, ask()).await.unwrap().granted().unwrap();
        let gate = patient(&pool(&world.url(), 2).await).build();
        let by_gate = tokio::spawn({
            let asked = ask();
            async move { soon(gate.consume(asked)).await.unwrap().granted().unwrap() }
        });
        let in_transaction = tokio::spawn({
            let (mut tx, asked) = (world.begin().await, ask());
            async move {
                let grant = limiter().consume(&mut tx, asked).await.unwrap().granted().unwrap();
                tx.commit().await.unwrap();
                grant
            }
        });
        world.until_anyone_is_blocked().await;
        tx.commit().await.unwrap();
        assert_eq!(by_gate.await.unwrap().source, Source::Repeated);
        assert_eq!(soon(in_transaction).await.unwrap().source, Source::Repeated);
        assert_eq!(left(&world.pool, limit.global()).await, 0);
        world.sql("truncate tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
    }
}

/// Two calls of one id that write no common row meet only at the id: the second repeats the first, and nobody beside it
/// in the batch is the worse for it.
#[tokio::test]
async fn who_meets_another_only_at_the_id_repeats_it() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).lanes(1).build();
    for limit in ten() {
        // Full: a credit writes nothing.
        let pay = || limit.key("full").once("pay");
        gate.credit(limit.key("full")).await.unwrap();
        assert!(gate.consume(limit.key("other").cost(0)).await.unwrap().is_granted());
        let mut tx = world.begin().await;
        limiter().credit(&mut tx, pay()).await.unwrap();
        let beside = tokio::spawn({
            let gate = gate.clone();
            let (one, two) = (pay(), limit.key("other").once("two"));
            async move { tokio::join!(gate.credit(one), gate.consume(two)) }
        });
        world.until_anyone_is_blocked().await;
        tx.commit().await.unwrap();
        let (credited, consumed) = soon(beside).await.unwrap();
        assert_eq!(credited.unwrap().source, Source::Repeated);
        assert!(consumed.unwrap().is_granted());
        world.sql("truncate tollgate.calls").await;
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
        assert_eq!(left(&world.pool, limit.global()).await, 1);
        first.release().await.unwrap();
        let error = again.release().await.unwrap_err();
        assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        assert_eq!(left(&world.pool, limit.global()).await, 2);
        // The late caller holds no slot, and would work beside two others.
        let error = gate.acquire(ask()).await.unwrap_err();
        assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        world.sql("truncate tollgate.calls").await;
    }
}

/// The look has read the row before the lease is taken, and finds the stored call of the lease.
#[tokio::test]
async fn a_look_during_which_a_lease_is_taken_looks_again() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    for limit in both(&Limit::concurrency("leases", 2, MINUTE)) {
        let ask = move || limit.global().once("job");
        let mut conn = proxy.connect().await;
        let before = proxy.statements();
        limiter().check(&mut conn, ask()).await.unwrap().granted().unwrap();
        let of_one = proxy.statements() - before;
        proxy.hold_after(of_one - 1);
        let held = ask();
        let look = tokio::spawn(async move { limiter().check(&mut conn, held).await });
        soon(proxy.until_held()).await;
        consume_in(&world.pool, ask()).await;
        let before = proxy.statements();
        proxy.release();
        let seen = soon(look).await.unwrap().unwrap().granted().unwrap();
        assert_eq!((seen.source, proxy.statements() - before), (Source::Repeated, 1 + of_one));
        world.sql("truncate tollgate.calls").await;
    }
}

/// Memory knows nothing of the database's grants; its answer says that memory has decided.
#[tokio::test]
async fn without_the_database_an_id_is_decided_in_memory_and_the_database_forgets_none() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let [limit, _] = ten();
    let ask = || limit.global().cost(8).once("job");
    let gate = patient(&one_connection(proxy.options()).await).on_failure(OnFailure::Local(1.0)).build();
    gate.consume(ask()).await.unwrap().granted().unwrap();
    proxy.lead_to("postgres://nobody@localhost/none?host=/nowhere");
    proxy.cut().await;
    let grant = gate.consume(ask()).await.unwrap().granted().unwrap();
    assert!(grant.source == Source::Degraded && grant.receipt.charges.is_empty(), "{grant:?}");
    proxy.lead_to(&world.url());
    assert_eq!(gate.consume(ask()).await.unwrap().granted().unwrap().source, Source::Repeated);
}
