//! Few calls that fail slow nothing down.

use std::time::Duration;

use tollgate::{HOUR, Key, Limit, Overrides, SlowDown};

use super::slow_down::{SLOWLY, THEIRS, reporters, share};
use crate::teller::run;
use crate::world::OWNER;

/// Nothing is forgotten while a test runs.
const TOLERANT: SlowDown = SLOWLY.forgets(HOUR).cool_down(Duration::ZERO);

#[tokio::test]
async fn three_failures_are_tolerated_whoever_reports_them_and_a_fourth_is_trouble() {
    let (world, overrides) = reporters().await;
    let other = Overrides::watch(world.pool.clone()).await.unwrap();
    let ask = async |overrides: &Overrides| overrides.slow_down(THEIRS.global(), &TOLERANT).await.unwrap();
    let shares = [share(&ask(&overrides).await), share(&ask(&other).await), share(&ask(&other).await)];
    assert_eq!(shares, [1_000_000; 3]);
    // It is in the table, and changes nothing.
    let known = overrides.all();
    assert_eq!((known.len(), known[0].share(super::now(&world).await)), (1, None));
    assert_eq!(overrides.applied(&THEIRS, &Key::GLOBAL), None);
    let cut = ask(&overrides).await;
    assert_eq!(share(&cut), 700_000);

    // After the cut it begins anew.
    for _ in 0..3 {
        let said = ask(&other).await;
        assert_eq!((said.starts_at, said.ends_at, share(&said)), (cut.starts_at, cut.ends_at, 700_000));
    }
    assert_eq!(share(&ask(&other).await), 490_000);
}

#[tokio::test]
async fn one_failure_of_a_limit_that_is_paused_is_trouble() {
    let (_world, overrides) = reporters().await;
    overrides.pause_for(THEIRS.global(), HOUR).await.unwrap();
    let ask = async |request| share(&overrides.slow_down(request, &TOLERANT).await.unwrap());
    assert_eq!([ask(THEIRS.key("k")).await, ask(THEIRS.global()).await], [700_000, 700_000]);
}

/// The functions know the rate of a limit that is defined.
#[tokio::test]
async fn the_functions_tolerate_as_much_as_the_library() {
    let (world, overrides) = reporters().await;
    let mut conn = world.connect_as(OWNER).await;
    run(
        &mut conn,
        "select tollgate.define('theirs', 'token_bucket', 3, '1 hour'),
                tollgate.define('runs', 'concurrency', 3, '1 hour')",
    )
    .await;
    let limits = [Limit::token_bucket("theirs", 3, HOUR), Limit::concurrency("runs", 3, HOUR)];
    for (limit, seconds) in limits.into_iter().zip([40_000.0, 100.0 / 9.0]) {
        overrides.slow_down(limit.key("library"), &SlowDown::new()).await.unwrap();
        let sql = "select extract(epoch from s.forgotten_at - s.set_at)::float8
                     from (select forgotten_at, set_at from tollgate.slow_down($1, 'sql')
                           union all select forgotten_at, set_at from tollgate.overrides where name = $1) s";
        let spans: Vec<f64> = sqlx::query_scalar(sql).bind(limit.name()).fetch_all(&mut conn).await.unwrap();
        assert!(spans.len() == 2 && spans.iter().all(|span| (span - seconds).abs() < 0.001), "{limit:?}: {spans:?}");
    }
    // A limit of unknown rate tolerates nothing.
    let sql = "select rate from tollgate.slow_down('unknown', 'k')";
    let share: i64 = sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap();
    assert_eq!(share, 650_000);
}
