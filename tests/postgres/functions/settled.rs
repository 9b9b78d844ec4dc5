//! Settlements of charges whose key was made unlimited, before or after.

use chrono::{DateTime, Utc};
use tollgate::{Limit, NewOverride, Overrides, Tokens};

use super::asked::one;
use super::{define, owner};
use crate::gate::stage::EVER;
use crate::teller::run;
use crate::world::{World, limiter};

const TEN: Limit = Limit::token_bucket("ten", 10, EVER);

/// Whichever way it is written down, the charge was made before.
#[tokio::test]
async fn a_charge_comes_back_where_an_unlimited_override_was_set_later_with_a_start_in_the_past() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    define(&mut conn, &TEN).await;
    for whom in ["'k'", "every_key => true"] {
        for start in ["", "starts_at => clock_timestamp() - interval '1 hour',"] {
            run(&mut conn, "delete from tollgate.overrides; select tollgate.reset('ten', 'k')").await;
            let mut tx = world.begin().await;
            let grant = limiter().consume(&mut tx, TEN.key("k").cost(4)).await.unwrap().granted().unwrap();
            tx.commit().await.unwrap();
            let charged = "select decided_at from tollgate.consume('ten', 'k', 4) where granted";
            let charged: DateTime<Utc> = one(&mut conn, charged).await;
            let unlimited =
                format!("select tollgate.set_override('ten', {whom}, effect => 'unlimited', {start} reason => 'x')");
            run(&mut conn, &unlimited).await;

            let settle = format!("select tollgate.settle('ten', 'k', 4, 1, '{charged}')::int");
            assert_eq!(one::<i32>(&mut conn, &settle).await, 1, "{whom} {start}");
            assert_eq!(one::<i32>(&mut conn, "select tollgate.balance('ten', 'k')::int").await, 5, "{whom} {start}");
            let overrides = Overrides::read(&mut conn).await.unwrap();
            let mut tx = world.begin().await;
            let settled = limiter().overrides(&overrides).settle(&mut tx, grant, 1).await.unwrap();
            assert_eq!(settled.charges[0].cost, Tokens::new(1), "{whom} {start}");
            tx.commit().await.unwrap();
        }
    }
}

/// Nor where it is denied by now, or the clock stepped back meanwhile.
#[tokio::test]
async fn what_was_granted_without_a_charge_gives_nothing_back() {
    let world = World::with_clock().await;
    let mut conn = owner(&world).await;
    define(&mut conn, &TEN).await;
    run(&mut conn, "select tollgate.consume('ten', 'k', 8)").await;
    world.set_ahead("1 hour").await;
    NewOverride::unlimited(&TEN).key("k").reason("x").set(&mut conn).await.unwrap();
    for ahead in ["2 hours", "0"] {
        world.set_ahead(ahead).await;
        let free = "select decided_at from tollgate.consume('ten', 'k', 4) where remaining is null";
        let free: DateTime<Utc> = one(&mut conn, free).await;
        let settle = format!("select tollgate.settle('ten', 'k', 4, 0, '{free}')::int");
        assert_eq!(one::<i32>(&mut conn, &settle).await, 4, "{ahead} ahead");
        let deny = "select tollgate.set_override('ten', 'k', 'deny', starts_at => '2020-01-01', label => 'ban',
                                                 reason => 'x')";
        run(&mut conn, deny).await;
        assert_eq!(one::<i32>(&mut conn, &settle).await, 4, "{ahead} ahead, and denied");
        run(&mut conn, "select tollgate.remove_override('ten', 'k', label => 'ban')").await;
    }
    assert_eq!(one::<i32>(&mut conn, "select tollgate.balance('ten', 'k')::int").await, 2);
}
