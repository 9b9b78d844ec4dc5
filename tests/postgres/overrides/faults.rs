//! Overrides that are none: each is an error, in code and in SQL.

use std::time::Duration;

use sqlx::PgConnection;
use tollgate::{DAY, Limit, MINUTE, NewOverride, OverrideError, Overrides};

use super::{TEN, on_call};
use crate::teller::run;
use crate::world::{SERVICE, World, second};

#[tokio::test]
async fn an_override_that_is_none_is_an_error_with_a_name() {
    let world = World::new().await;
    let mut owner = world.connect_as(crate::world::OWNER).await;
    run(&mut owner, "select tollgate.define('ten', 'token_bucket', 10, '1 minute')").await;
    let mut conn = on_call(&world).await;
    let now = second(0.0);
    let window = Limit::fixed_window("ten", 5, MINUTE);
    let fault = async |said: NewOverride, conn: &mut PgConnection| said.set(conn).await.unwrap_err();
    let said = || NewOverride::deny(&TEN).reason("x");
    for said in [NewOverride::deny, NewOverride::unlimited, NewOverride::numbers] {
        let told = fault(said(&Limit::meter("usage")).reason("x"), &mut conn).await;
        assert!(matches!(told, OverrideError::Meter { .. }), "{told}");
    }
    assert!(matches!(fault(said().reason(""), &mut conn).await, OverrideError::Reason { .. }));
    assert!(matches!(fault(said().reason("x".repeat(501)), &mut conn).await, OverrideError::Reason { .. }));
    assert!(matches!(fault(said().by(""), &mut conn).await, OverrideError::Who { .. }));
    assert!(matches!(fault(said().label("x".repeat(256)), &mut conn).await, OverrideError::Label { .. }));
    assert!(matches!(fault(said().label("\0"), &mut conn).await, OverrideError::Label { .. }));
    assert!(matches!(fault(said().key(""), &mut conn).await, OverrideError::Key { .. }));
    assert!(matches!(fault(said().lasting(Duration::ZERO), &mut conn).await, OverrideError::Span { .. }));
    assert!(matches!(fault(said().from(now).until(now), &mut conn).await, OverrideError::Span { .. }));
    assert!(matches!(fault(said().lasting(DAY).until(now), &mut conn).await, OverrideError::Span { .. }));
    let over = fault(said().until(now), &mut conn).await;
    assert!(matches!(&over, OverrideError::Rejected { message, .. } if message.contains("is over")), "{over}");
    let kind = fault(NewOverride::numbers(&window).reason("x"), &mut conn).await;
    assert!(kind.to_string().contains("it is a token_bucket, and these are numbers of a fixed_window"), "{kind}");
    assert!(Overrides::read(&mut conn).await.unwrap().all().is_empty());
    // The service may look, and say nothing.
    let mut service = world.connect().await;
    let refused = fault(said(), &mut service).await;
    assert!(refused.to_string().contains("this role lacks a right"), "{refused}");
    assert!(Overrides::read(&mut service).await.is_ok());
}

/// The same by SQL, with the class of the functions.
#[tokio::test]
async fn an_override_that_is_none_is_an_error_of_our_class_in_sql() {
    let world = World::new().await;
    let mut conn = world.connect_as(crate::world::OWNER).await;
    run(
        &mut conn,
        "select tollgate.define('ten', 'token_bucket', 10, '1 minute'), tollgate.define('money', 'wallet'),
                tollgate.define('bill', 'meter'),
                tollgate.define('slide', 'sliding_window', 10, '1 minute'),
                tollgate.define('runs', 'concurrency', 10, '1 minute'),
                tollgate.define('brief', 'token_bucket', 10, '1 minute', storage => 'ephemeral')",
    )
    .await;
    for wrong in [
        "'ten', null, 'deny'",
        "'ten', '', 'deny'",
        "'ten', repeat('x', 513), 'deny'",
        "'ten', 'k', 'deny', every_key => true",
        "null, 'k', 'deny'",
        "'', 'k', 'deny'",
        "repeat('x', 256), 'k', 'deny'",
        "'ten', 'k', 'leaky'",
        "'ten', 'k', null",
        "'ten', 'k', 'deny', 1",
        "'ten', 'k', 'unlimited', capacity => 5",
        "'ten', 'k'",
        "'ten', 'k', rate => 0",
        "'ten', 'k', rate => -1",
        "'ten', 'k', rate => 'NaN'",
        "'ten', 'k', rate => 0.0000001",
        "'ten', 'k', rate => 1, capacity => 0",
        "'ten', 'k', rate => 1, capacity => -1",
        "'ten', 'k', rate => 1, max_reserved => -1",
        "'ten', 'k', rate => 1, period => '0'",
        "'ten', 'k', rate => 1, period => '-1s'",
        "'ten', 'k', rate => 1, period => '1 month'",
        "'ten', 'k', rate => 1, period => '1 year'",
        "'ten', 'k', rate => 1, period => '400000 days'",
        "'ten', 'k', rate => 1, kind => 'fixed_window'",
        "'ten', 'k', rate => 1, kind => 'leaky'",
        "'new', 'k', rate => 1, period => '1s', kind => 'leaky'",
        "'new', 'k', rate => 1, kind => 'token_bucket'",
        "'money', 'k', rate => 1",
        "'bill', 'k', 'deny'",
        "'bill', 'k', 'unlimited'",
        "'bill', every_key => true, effect => 'unlimited'",
        "'bill', 'k', max_reserved => 5",
        "'new', 'k', kind => 'meter'",
        "'slide', 'k', rate => 1, capacity => 2",
        "'runs', 'k', rate => 1001",
        "'brief', 'k', rate => 1, max_reserved => 0.000001",
        "'ten', 'k', 'deny', reason => ''",
        "'ten', 'k', 'deny', reason => null",
        "'ten', 'k', 'deny', reason => repeat('x', 501)",
        "'ten', 'k', 'deny', set_by => ''",
        "'ten', 'k', 'deny', label => null",
        "'ten', 'k', 'deny', label => repeat('x', 256)",
        "'ten', 'k', 'deny', starts_at => '-infinity'",
        "'ten', 'k', 'deny', starts_at => '2100-01-01', ends_at => '2099-01-01'",
        "'ten', 'k', 'deny', ends_at => '2020-01-01'",
        "'ten', 'k', 'deny', starts_at => '2019-01-01', ends_at => '2020-01-01'",
        "'ten', 'k', 'deny', starts_at => '2019-01-01', lasting => '1 year'",
        "'ten', 'k', 'deny', lasting => '0'",
        "'ten', 'k', 'deny', lasting => '1h', ends_at => '2100-01-01'",
    ] {
        let reason = if wrong.contains("reason") { "" } else { ", reason => 'x'" };
        let sql = format!("select tollgate.set_override({wrong}{reason})");
        assert_eq!(crate::functions::fails(&mut conn, &sql).await, "TG002", "{wrong}");
    }
    let unknown = "select tollgate.set_override('new', 'k', rate => 1, reason => 'x')";
    assert_eq!(crate::functions::fails(&mut conn, unknown).await, "TG001");
    for wrong in ["'ten'", "'ten', ''", "null, 'k'", "'ten', 'k', true", "'ten', 'k', label => null"] {
        let sql = format!("select tollgate.remove_override({wrong})");
        assert_eq!(crate::functions::fails(&mut conn, &sql).await, "TG002", "{wrong}");
    }
    for right in [
        "'ten', 'k', rate => 0.5, lasting => '1 month'",
        "'ten', 'k', rate => 1, period => '1 day', capacity => 0, max_reserved => 5",
        "'new', every_key => true, effect => 'deny'",
        "'new', 'k', rate => 1, period => '1s', kind => 'fixed_window'",
        "'money', 'k', max_reserved => 5",
        "'ten', repeat('x', 512), 'deny', label => repeat('x', 255)",
        "'slide', 'k', rate => 5",
        "'runs', 'k', rate => 5, ends_at => 'infinity'",
    ] {
        run(&mut conn, &format!("select tollgate.set_override({right}, reason => 'x')")).await;
    }
    // The definition gives the numbers that an override does not name.
    run(
        &mut conn,
        "select tollgate.define('owing', 'token_bucket', 10, '1 minute', max_reserved => 5);
         select tollgate.set_override('owing', 'k', rate => 2, reason => 'x')",
    )
    .await;
    let numbers = "select concat_ws(' ', kind, rate, period, capacity, max_reserved)
                     from tollgate.overrides where name = 'owing'";
    let numbers: String = sqlx::query_scalar(numbers).fetch_one(&mut conn).await.unwrap();
    assert_eq!(numbers, "token_bucket 2000000 60000000 2000000 5000000");
}

/// Often this is the first call of a service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overrides_that_cannot_be_read_name_the_remedy() {
    let world = World::unmigrated().await;
    let error = Overrides::watch(world.pool.clone()).await.unwrap_err();
    assert!(error.to_string().contains("(run `tollgate migrate up`)"), "{error}");
    let world = World::new().await;
    world.sql(&format!("revoke all on tollgate.overrides from {SERVICE}")).await;
    for told in [
        Overrides::watch(world.pool.clone()).await.map(drop),
        Overrides::read(&mut world.connect().await).await.map(drop),
    ] {
        let error = told.unwrap_err();
        assert!(error.to_string().contains("tollgate migrate up --grant"), "{error}");
    }
}
