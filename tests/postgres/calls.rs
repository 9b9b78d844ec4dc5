//! Calls with a row of their own: charged once under an id, settled once, or back by a lapse.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{
    BegunByHand, DAY, Decision, Error, FitError, Gate, Grant, HOUR, Limit, MINUTE, OnFailure, Receipt, Request, SECOND,
    Settlement, Source, Sweeper, Tokens,
};

use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::teller::{Teller, both, tokens};
use crate::traced::traced;
use crate::world::{World, limiter, part, second, sweeper};

/// Ten, of which none comes back while a test runs; in either table.
fn ten() -> [Limit; 2] {
    both(&Limit::token_bucket("ten", 10, EVER))
}

/// A day's budget of an organisation, a team and a user.
const ORG: Limit = Limit::fixed_window("org", 1_000, DAY).start(Duration::ZERO);
const TEAM: Limit = Limit::sliding_window("team", 1_000, DAY);
const USER: Limit = Limit::token_bucket("user", 1_000, EVER).ephemeral();

fn levels(cost: u32) -> [Request; 3] {
    [ORG.key("acme"), TEAM.key("blue"), USER.key("ada")].map(|request| request.cost(cost))
}

/// How many calls are stored.
pub(crate) async fn stored(conn: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from tollgate.calls").persistent(false).fetch_one(conn).await.unwrap()
}

/// The whole tokens that are left, by a gate that remembers nothing.
pub(crate) async fn left(pool: &PgPool, request: Request) -> i64 {
    patient(pool).build().balance(request).await.unwrap().remaining.micros() / 1_000_000
}

/// The grant of a call in a transaction of its own.
pub(crate) async fn consume_in(pool: &PgPool, requests: impl IntoIterator<Item = Request>) -> Grant {
    let mut tx = pool.begin().await.unwrap();
    let decision = limiter().consume(&mut tx, requests).await.unwrap();
    tx.commit().await.unwrap();
    decision.granted().unwrap()
}

#[tokio::test]
async fn a_plain_call_stores_nothing_and_one_with_a_lapse_one_row_whatever_it_asks() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let mut conn = world.connect().await;
    gate.consume(levels(1)).await.unwrap().granted().unwrap();
    assert_eq!(stored(&mut conn).await, 0);
    // Several calls, because the first may go another way through the gate than the later ones.
    for calls in 1..=3 {
        let [org, team, user] = levels(1);
        gate.consume([org, team.lapses_after(HOUR), user]).await.unwrap().granted().unwrap();
        assert_eq!(stored(&mut conn).await, calls);
    }
    let [org, team, user] = levels(1);
    let grant = consume_in(&world.pool, [org, team, user.tracked_for(HOUR)]).await;
    assert_eq!(stored(&mut conn).await, 4);
    gate.settle(grant, 0).await.unwrap();
    assert_eq!(stored(&mut conn).await, 3);
}

#[tokio::test]
async fn a_receipt_is_used_once_in_either_table_and_by_either_of_the_two() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    for limit in ten() {
        let asked = || limit.key("shared").cost(3).lapses_after(HOUR);
        let of_gate = gate.consume(asked()).await.unwrap().granted().unwrap();
        let of_limiter = consume_in(&world.pool, [asked()]).await;
        let mut tx = world.begin().await;
        limiter().settle(&mut tx, of_gate.clone(), 1).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(left(&world.pool, limit.key("shared")).await, 6);
        gate.settle(of_limiter.clone(), 0).await.unwrap();
        assert_eq!(left(&world.pool, limit.key("shared")).await, 9);
        for used in [of_gate, of_limiter] {
            let error = gate.settle(used.clone(), 0).await.unwrap_err();
            assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
            let mut tx = world.begin().await;
            let error = limiter().cancel(&mut tx, used).await.unwrap_err();
            assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        }
    }
}

/// A settlement at the cost that was charged changes no row of a limit, and takes other statements than one that does.
/// A gate has statements of its own.
#[tokio::test]
async fn a_settlement_uses_its_call_and_no_other_and_none_outside_of_a_transaction() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    let [one, other] = ["one", "other"].map(|name| Limit::token_bucket(name, 10, EVER));
    let gate = patient(&world.pool).build();
    let ways = [(true, 1), (true, 0), (false, 1), (false, 0)].into_iter().flat_map(|way| [(way, false), (way, true)]);
    for (limit, ((has_id, cost), by_gate)) in both(&one).iter().flat_map(|one| ways.clone().map(move |way| (one, way)))
    {
        let with = |request: Request, id| if has_id { request.once(id) } else { request.lapses_after(HOUR) };
        let mut grants = Vec::new();
        for (limit, key, id) in [(limit, "k", "a"), (limit, "k", "b"), (limit, "l", "a"), (&other, "k", "a")] {
            grants.push(consume_in(&world.pool, [with(limit.key(key), id)]).await);
        }
        let before = rows_and_calls(&world).await;
        let outside = &mut BegunByHand(&mut conn);
        let settled = limiter().settle(outside, grants[0].clone(), cost).await.map(drop);
        let asked = limiter().consume(outside, limit.key("k").once("new")).await.map(drop);
        for answer in [settled, asked] {
            assert!(matches!(answer, Err(Error::NotInTransaction)), "{answer:?}");
        }
        assert_eq!(rows_and_calls(&world).await, before);
        let settle = async |grant: &Grant, cost| settle(&world, by_gate.then_some(&gate), grant.clone(), cost).await;
        settle(&grants[0], cost).await.unwrap();
        let error = settle(&grants[0], 0).await.unwrap_err();
        assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        for grant in &grants[1..] {
            settle(grant, 0).await.unwrap();
        }
        assert_eq!(left(&world.pool, limit.key("k")).await, 10 - i64::from(cost));
        assert_eq!(stored(&mut conn).await, if has_id { 4 } else { 0 });
        world.sql("truncate tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
    }
}

/// Settles by a gate, or in a transaction of its own.
pub(crate) async fn settle(
    world: &World,
    gate: Option<&Gate>,
    receipt: impl Into<Receipt>,
    cost: u32,
) -> Result<Settlement, Error> {
    if let Some(gate) = gate {
        return gate.settle(receipt, cost).await;
    }
    let mut tx = world.begin().await;
    let settled = limiter().settle(&mut tx, receipt, cost).await;
    tx.commit().await.unwrap();
    settled
}

/// All rows and stored calls, as texts.
pub(crate) async fn rows_and_calls(world: &World) -> Vec<String> {
    let sql = "select r::text from tollgate.durable r union all select r::text from tollgate.ephemeral r
                union all select c::text from tollgate.calls c order by 1";
    sqlx::query_scalar(sql).fetch_all(&world.pool).await.unwrap()
}

/// One addition over three levels, in two tables, each by its own rule.
#[tokio::test]
async fn three_levels_are_settled_together_or_not_at_all() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    gate.consume(levels(0)).await.unwrap().granted().unwrap();
    let balances = async || {
        let mut balances = Vec::new();
        for request in levels(0) {
            balances.push(left(&world.pool, request).await);
        }
        balances
    };
    for used in [10, 40, 70] {
        let [org, team, user] = levels(40);
        let grant = gate.consume([org.lapses_after(HOUR), team, user]).await.unwrap().granted().unwrap();
        assert_eq!(balances().await, [960; 3]);
        // One corrupt row fails all.
        world.sql("update tollgate.durable set list = '{9}' where name = 'team'").await;
        let error = gate.settle(grant.clone(), used).await.unwrap_err();
        assert!(matches!(&error, Error::CorruptRow { limit, .. } if limit == "team"), "{error:?}");
        world.sql("update tollgate.durable set list = null where name = 'team'").await;
        assert_eq!(stored(&mut world.connect().await).await, 1);
        gate.settle(grant, used).await.unwrap();
        let [org, _, user] = *balances().await else { panic!() };
        assert_eq!([org, user], [1_000 - i64::from(used); 2]);
        for request in levels(0) {
            gate.reset(request).await.unwrap();
        }
    }
    assert_eq!(stored(&mut world.connect().await).await, 0);
}

/// Many callers settle each of many receipts at the same moment, through gates and in transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_who_settle_one_receipt_at_once_one_succeeds() {
    const RECEIPTS: usize = 30;
    const CALLERS: usize = 6;
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let mut receipts = Vec::new();
    for _ in 0..RECEIPTS {
        let [org, team, user] = levels(10);
        let grant = gate.consume([org, team, user.tracked_for(HOUR)]).await.unwrap().granted().unwrap();
        receipts.push(Receipt::from(grant));
    }
    let (barrier, used) = (Arc::new(Barrier::new(CALLERS)), Arc::new(AtomicU32::new(0)));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (gate, receipts, barrier, used) = (gate.clone(), receipts.clone(), barrier.clone(), used.clone());
        let pool = pool(&world.url(), 1).await;
        callers.spawn(async move {
            for receipt in receipts {
                barrier.wait().await;
                let answer = if caller % 2 == 0 {
                    gate.settle(receipt, 4).await
                } else {
                    let mut tx = pool.begin().await.unwrap();
                    let answer = limiter().settle(&mut tx, receipt, 4).await;
                    tx.commit().await.unwrap();
                    answer
                };
                match answer {
                    Ok(_) => used.fetch_add(1, Ordering::Relaxed),
                    Err(Error::ReceiptUsed { .. }) => 0,
                    Err(error) => panic!("{error}"),
                };
            }
        });
    }
    soon(callers.join_all()).await;
    assert_eq!(used.load(Ordering::Relaxed) as usize, RECEIPTS);
    for request in levels(0) {
        assert_eq!(left(&world.pool, request).await, 880);
    }
}

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
                let asked = [org, team.once(job), user];
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
                consume_in(&world.pool, [durable.key(key).tracked_for(HOUR), ephemeral.key(key)]).await;
                world.sql("update tollgate.durable set value = 0").await;
                world.sql("update tollgate.ephemeral set value = 0").await;
            }
            // More than half, so that a second charge would be refused.
            let ask = || {
                let limits = if both_tables { vec![&durable, &ephemeral] } else { vec![&durable] };
                let mut asked: Vec<_> = limits.into_iter().map(|limit| limit.key(key).cost(60)).collect();
                asked[0] = asked[0].clone().once("job");
                gate.consume(asked)
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
        let ask = || limit.global().cost(8).once("job");
        let first = gate.consume(ask()).await.unwrap().granted().unwrap();
        gate.settle(first.clone(), 6).await.unwrap();
        for again in [gate.consume(ask()).await.unwrap().granted().unwrap(), consume_in(&world.pool, [ask()]).await] {
            assert_eq!((again.source, &again.receipt), (Source::Repeated, &first.receipt));
            let error = gate.settle(again, 0).await.unwrap_err();
            assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        }
        let check = gate.check(ask()).await.unwrap().granted().unwrap();
        assert_eq!(check.source, Source::Repeated);
        for call in [gate.consume(ask().cost(7)).await, gate.check(ask().cost(7)).await] {
            assert!(matches!(&call, Err(Error::OnceMismatch { limit }) if limit == "ten"), "{call:?}");
        }
        assert_eq!(left(&world.pool, limit.global()).await, 4);
        world.sql("truncate tollgate.calls").await;
    }
}

/// A payment is credited once, however often its webhook comes.
#[tokio::test]
async fn a_wallet_is_credited_once_for_each_payment_and_pays_only_what_it_has() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let wallet = Limit::wallet("credits");
    let denied = gate.consume(wallet.key(1)).await.unwrap().denied().unwrap();
    assert_eq!((denied.retry_at, denied.remaining), (None, Tokens::ZERO));
    for source in [Source::Database, Source::Repeated, Source::Repeated] {
        let balance = gate.credit(wallet.key(1).cost(500).once("payment 7")).await.unwrap();
        assert_eq!((balance.source, balance.remaining, balance.full_at), (source, tokens(500), None));
    }
    let mut tx = world.begin().await;
    let again = limiter().credit(&mut tx, wallet.key(1).cost(500).once("payment 7")).await.unwrap();
    assert_eq!(again.source, Source::Repeated);
    tx.rollback().await.unwrap();
    let grant = gate.consume(wallet.key(1).cost(400)).await.unwrap().granted().unwrap();
    assert!(!gate.consume(wallet.key(1).cost(101)).await.unwrap().is_granted());
    assert!(gate.consume(wallet.clone().overdraft(1).key(1).cost(101)).await.unwrap().is_granted());
    gate.settle(grant, 0).await.unwrap();
    assert_eq!(left(&world.pool, wallet.key(1)).await, 399);
    // A balance of nothing needs no row, and a settlement brings one back.
    let grant = gate.consume(wallet.key(1).cost(399)).await.unwrap().granted().unwrap();
    let swept = Sweeper::new().share(100).margin(Duration::ZERO).trusting_the_clock().sweep(&world.pool).await.unwrap();
    assert_eq!(swept.durable, 1);
    gate.settle(grant, 99).await.unwrap();
    assert_eq!(left(&world.pool, wallet.key(1)).await, 300);
    // Money is not capacity.
    let bucket = Limit::token_bucket("credits", 10, MINUTE);
    let error = gate.consume(bucket.key(1)).await.unwrap_err();
    assert!(matches!(error, Error::DoesNotFit { source: FitError::MixedMoney, .. }), "{error:?}");
    let error = gate.credit(wallet.key(1).cost(Tokens::MAX)).await.unwrap_err();
    assert!(matches!(error, Error::DoesNotFit { source: FitError::BalanceTooLarge, .. }), "{error:?}");
}

/// In a transaction that goes on without it, a call that was dropped between its statements leaves no bucket where
/// a wallet was to be.
#[tokio::test]
async fn a_row_of_a_wallet_that_was_only_inserted_is_still_one() {
    let world = World::new().await;
    let wallet = Limit::wallet("credits");
    let row = format!("insert into tollgate.durable values ({}, 'credits', '1', 0, 0, now(), now())", part("1"));
    world.sql(&row).await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    gate.credit(wallet.key(1).cost(5)).await.unwrap();
    assert_eq!(left(&world.pool, wallet.key(1)).await, 5);
}

#[tokio::test]
async fn what_nobody_settles_comes_back_less_what_was_reported() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let ask = |span: Duration| {
        let [org, team, user] = levels(40);
        [org, team, user.lapses_after(span)]
    };
    let stream = gate.stream(ask(Duration::from_millis(300))).await.unwrap().granted().unwrap();
    consume_in(&world.pool, levels(0).map(|request| request.lapses_after(HOUR))).await;
    stream.add(9_u32);
    stream.report().await.unwrap();
    let reported = sqlx::query_scalar("select count(*) from tollgate.calls where reported > 0");
    let reported: i64 = reported.fetch_one(&world.pool).await.unwrap();
    assert_eq!(reported, 1);
    stream.add(8_u32);
    // The gate itself gives it back, and a late caller gets an error that says so.
    soon(async { while left(&world.pool, levels(0)[0].clone()).await != 991 {} }).await;
    for request in levels(0) {
        assert_eq!(left(&world.pool, request).await, 991);
    }
    let error = stream.report().await.unwrap_err();
    assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
    let error = gate.settle(stream.into_receipt(), 17).await.unwrap_err();
    assert!(matches!(error, Error::Lapsed { .. }), "{error}");
}

#[tokio::test]
async fn a_sweeper_gives_back_what_a_process_that_died_has_charged() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let mut receipts = Vec::new();
    for limit in ten() {
        let asked = limit.global().cost(4).lapses_after(MINUTE);
        receipts.push(Receipt::from(teller.consume(0.0, asked).await.granted().unwrap()));
    }
    teller.commit().await;
    let at = |seconds| Sweeper::new().share(100).at(second(seconds));
    assert_eq!(at(59.999_999).reap(&world.pool).await.unwrap(), 0);
    assert_eq!(at(60.0).sweep(&world.pool).await.unwrap().lapsed, 2);
    assert_eq!(at(61.0).reap(&world.pool).await.unwrap(), 0);
    let mut teller = Teller::of(&world).await;
    for (limit, receipt) in ten().iter().zip(receipts) {
        assert_eq!(teller.balance(60.0, limit.global()).await.remaining, tokens(10));
        let error = limiter().at(second(60.0)).settle(&mut teller.tx, receipt, 0).await.unwrap_err();
        assert!(matches!(error, Error::Lapsed { .. }), "{error}");
    }
}

/// A late settlement is as good as one in time, until somebody has given the charge back.
#[tokio::test]
async fn the_row_of_the_call_decides_and_not_the_clock() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in ten() {
        let asked = limit.global().cost(8).lapses_after(MINUTE);
        let grant = teller.consume(0.0, asked).await.granted().unwrap();
        let error = limiter().at(second(1.0)).cancel(&mut teller.tx, grant.clone()).await.unwrap_err();
        assert!(matches!(error, Error::TooLateToCancel { .. }), "{error}");
        assert_eq!(stored(&mut teller.tx).await, 1, "it lapses as before");
        assert_eq!(teller.settle(61.0, grant, 3).await, tokens(7));
        assert_eq!(stored(&mut teller.tx).await, 0);
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
    consume_in(&world.pool, [limit.key("now").cost(0).once_for("now", HOUR)]).await;
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
    let grant = consume_in(&world.pool, [limit.key("k").cost(4).once_for("job", HOUR)]).await;
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

/// Four reapers, and as many who settle, over the same calls: each token comes back once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reapers_and_late_settlers_give_back_each_call_once() {
    const CALLS: u32 = 200;
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 4).await).build();
    let mut receipts = Vec::new();
    for _ in 0..CALLS {
        let [org, team, user] = levels(5);
        // They lapse at once, for any caller that looks a little later.
        let asked = [org, team, user.lapses_after(Duration::from_micros(1))];
        receipts.push(Receipt::from(consume_in(&world.pool, asked).await));
    }
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        let (pool, gate, receipts) = (pool(&world.url(), 2).await, gate.clone(), receipts.clone());
        workers.spawn(async move {
            if worker % 2 == 0 {
                return i64::try_from(sweeper().reap(&pool).await.unwrap()).unwrap() * 5;
            }
            let mut back = 0;
            for receipt in receipts {
                match gate.settle(receipt, 2).await {
                    Ok(_) => back += 3,
                    Err(Error::ReceiptUsed { .. } | Error::Lapsed { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            back
        });
    }
    let back: i64 = soon(workers.join_all()).await.into_iter().sum();
    for request in levels(0) {
        assert_eq!(left(&world.pool, request).await, 1_000 - 5 * i64::from(CALLS) + back);
    }
    assert_eq!(stored(&mut world.connect().await).await, 0);
}

/// A call that cannot be given back, or read, stands in nobody's way, and an event names it.
#[test]
fn a_call_that_cannot_be_given_back_leaves_the_others_alone() {
    let mut owed = String::new();
    let log = traced(async {
        let world = World::new().await;
        let wallet = Limit::wallet("full");
        for key in 0..100 {
            consume_in(&world.pool, [USER.key(key).cost(5).lapses_after(Duration::from_micros(1))]).await;
        }
        let gate = patient(&pool(&world.url(), 1).await).build();
        gate.credit(wallet.global().cost(5)).await.unwrap();
        consume_in(&world.pool, [wallet.global().cost(5).lapses_after(Duration::from_micros(1))]).await;
        world.sql(&format!("update tollgate.durable set value = {}, full_at = '9999-01-01'", i64::MAX)).await;
        world.sql("update tollgate.calls set lapses_at = 'epoch' where name = 'full'").await;
        consume_in(&world.pool, [USER.key("later").lapses_after(HOUR)]).await;
        consume_in(&world.pool, [USER.key("torn").lapses_after(Duration::from_micros(1))]).await;
        world.sql("update tollgate.calls set lapses_at = 'epoch', charges = '3' where key = 'torn'").await;
        assert_eq!(sweeper().reap(&world.pool).await.unwrap(), 100);
        assert_eq!(stored(&mut world.connect().await).await, 3, "both stay owed, and one has not lapsed");
        let id = sqlx::query_scalar("select id from tollgate.calls where name = 'full'");
        owed = id.fetch_one(&world.pool).await.unwrap();
        world.sql("update tollgate.durable set value = 0, full_at = ts").await;
        assert_eq!(sweeper().reap(&world.pool).await.unwrap(), 1);
        assert_eq!(left(&world.pool, wallet.global()).await, 5);
    });
    assert_eq!(log.lines().filter(|line| line.contains("cannot be read")).count(), 2);
    let told: Vec<_> = log.lines().filter(|line| line.contains("could not be given back")).collect();
    assert!(matches!(told[..], [line] if line.contains(&format!("limit=\"full\" id=\"{owed}\""))), "{told:?}");
}

/// A call of a limit with shards is one call, with any number of charged rows.
#[tokio::test]
async fn limits_with_shards_keep_ids_receipts_and_lapses() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    for limit in both(&Limit::token_bucket("sharded", 100, EVER).shards(4)) {
        let ask = |id: &str| limit.global().cost(60).once(id).lapses_after(HOUR);
        let first = gate.consume(ask("one")).await.unwrap().granted().unwrap();
        assert!(first.receipt.charges.len() > 1);
        for again in
            [gate.consume(ask("one")).await.unwrap().granted().unwrap(), consume_in(&world.pool, [ask("one")]).await]
        {
            assert_eq!((again.source, &again.receipt), (Source::Repeated, &first.receipt));
        }
        assert_eq!(left(&world.pool, limit.global()).await, 40);
        gate.settle(first, 10).await.unwrap();
        assert_eq!(left(&world.pool, limit.global()).await, 90);
        let alone = consume_in(&world.pool, [limit.global().cost(10).once("two")]).await;
        assert_eq!(alone.receipt.charges.len(), 1);
        let again = consume_in(&world.pool, [limit.global().cost(10).once("two")]).await;
        assert_eq!((again.source, again.receipt), (Source::Repeated, alone.receipt));
        assert_eq!(left(&world.pool, limit.global()).await, 80);
        world.sql("truncate tollgate.calls").await;
    }
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
        limiter().check(&mut conn, [ask()]).await.unwrap().granted().unwrap();
        let of_one = proxy.statements() - before;
        proxy.hold_after(of_one - 1);
        let held = ask();
        let look = tokio::spawn(async move { limiter().check(&mut conn, [held]).await });
        soon(proxy.until_held()).await;
        consume_in(&world.pool, [ask()]).await;
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

#[tokio::test]
async fn a_stream_is_settled_at_what_was_counted_also_where_it_was_dropped() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    let limit = Limit::token_bucket("streamed", 100, EVER);
    let is_left = async |left_over: i64| {
        soon(async { while left(&world.pool, limit.global()).await != left_over {} }).await;
    };
    for keeps in [false, true] {
        let asked = || if keeps { limit.global().cost(40).lapses_after(HOUR) } else { limit.global().cost(40) };
        let stream = gate.stream([asked()]).await.unwrap().granted().unwrap();
        stream.add(30_u32);
        drop(stream);
        is_left(70).await;
        let stream = gate.stream([asked()]).await.unwrap().granted().unwrap();
        stream.add(50_u32);
        assert_eq!(stream.used(), tokens(50));
        stream.settle().await.unwrap();
        is_left(20).await;
        gate.reset(limit.global()).await.unwrap();
    }
}

/// The task that looks for lapses ends with the pool that it would ask.
#[tokio::test]
async fn nobody_looks_for_lapses_where_the_pool_is_closed() {
    let world = World::new().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let others = tasks();
    let pool = pool(&world.url(), 1).await;
    let gate = patient(&pool).build();
    let [limit, _] = ten();
    gate.consume(limit.global().lapses_after(HOUR)).await.unwrap().granted().unwrap();
    pool.close().await;
    soon(async {
        while tasks() > others {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn rows_that_cannot_be_read_are_an_error_with_a_name() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    for limit in ten() {
        gate.consume(limit.key("torn")).await.unwrap().granted().unwrap();
        for list in ["{}", "{1,5}", "{1,9,1,5,1}", "{1,null,1}", "{7}", "{2,1,1,1}"] {
            let update = |table| format!("update tollgate.{table} set list = '{list}'");
            world.sql(&["ephemeral", "durable"].map(update).join(";")).await;
            let mut tx = world.begin().await;
            let error = limiter().consume(&mut tx, limit.key("torn")).await.unwrap_err();
            assert!(matches!(error, Error::CorruptRow { .. }), "{list}: {error:?}");
            tx.rollback().await.unwrap();
            let error = gate.consume(limit.key("torn")).await.unwrap_err();
            assert!(matches!(error, Error::CorruptRow { .. }), "{list}: {error:?}");
        }
    }
    let [limit, _] = ten();
    gate.consume(limit.key("call").once("job")).await.unwrap().granted().unwrap();
    for (column, torn) in [("charges", "[{}]"), ("charges", "3"), ("answer", "3")] {
        world.sql(&format!("update tollgate.calls set {column} = '{torn}'")).await;
        let error = gate.consume(limit.key("call").once("job")).await.unwrap_err();
        assert!(matches!(&error, Error::CorruptRow { limit, .. } if limit == "ten"), "{torn}: {error:?}");
        gate.consume(limit.key("other").once("job")).await.unwrap().granted().unwrap();
        world.sql("delete from tollgate.calls").await;
        gate.consume(limit.key("call").once("job")).await.unwrap().granted().unwrap();
    }
}

#[tokio::test]
async fn bad_ids_and_spans_are_errors_before_any_sql() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    world.sql("drop schema tollgate cascade").await;
    let [limit, _] = ten();
    let lease = Limit::concurrency("leases", 2, MINUTE);
    let bad = [
        vec![limit.global().once("")],
        vec![limit.global().once("x".repeat(256))],
        vec![limit.global().once("nul\0")],
        vec![limit.global().once("one"), ORG.global().once("two")],
        vec![limit.global().lapses_after(Duration::ZERO)],
        vec![limit.global().tracked_for(Duration::from_nanos(1_500))],
        vec![limit.global().once_for("one", Limit::MAX_PERIOD + SECOND)],
        vec![limit.global().lapses_after(HOUR), ORG.global().lapses_after(MINUTE)],
        vec![lease.global().lapses_after(HOUR)],
    ];
    for requests in bad {
        let error = gate.consume(requests.clone()).await.unwrap_err();
        assert!(matches!(error, Error::Call { .. }) && error.is_bad_input(), "{requests:?}: {error:?}");
    }
}
