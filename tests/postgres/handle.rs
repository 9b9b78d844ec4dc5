//! The handle that a service starts: what it looks at, what it goes by, and how it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tollgate::{
    DAY, Gate, Limit, Limiter, MINUTE, NewOverride, OnFailure, SECOND, SetupFault, Source, StartError, Storage, Tokens,
    Tollgate,
};

mod definitions;

use crate::gate::stage::EVER;
use crate::proxy::Proxy;
use crate::world::{ON_CALL, World, part_of, second, soon};

const TEN: Limit = Limit::token_bucket("ten", 10, EVER);
const THOUSAND: Limit = Limit::token_bucket("thousand", 1_000, SECOND);

fn pool(connections: u32, patience: Duration, options: PgConnectOptions) -> PgPool {
    PgPoolOptions::new().max_connections(connections).acquire_timeout(patience).connect_lazy_with(options)
}

async fn ban(world: &World, key: &str) {
    let said = NewOverride::deny(&TEN).key(key).lasting(DAY).reason("a test");
    said.set(&mut world.connect_as(ON_CALL).await).await.unwrap();
}

/// Returns once the handle has heard of an override.
async fn until_heard(tollgate: &Tollgate) {
    soon(async {
        while tollgate.overrides().all().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_start_without_tables_names_the_command_that_makes_them() {
    let world = World::unmigrated().await;
    let error = Tollgate::start(world.pool.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::Setup { fault: SetupFault::Schema, .. }), "{error:?}");
    assert!(error.to_string().contains("run `tollgate migrate up`"), "{error}");
}

#[tokio::test]
async fn a_start_over_older_tables_names_the_first_column_that_is_missing() {
    let world = World::new().await;
    world.sql("alter table tollgate.limits drop column flow cascade").await;
    let error = Tollgate::builder(world.pool.clone()).start_in_outage().start().await.unwrap_err();
    assert!(error.is_setup() && error.to_string().contains("run `tollgate migrate up`"), "{error:?}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("tollgate.limits.flow"), "{source}");
}

#[tokio::test]
async fn a_role_without_rights_is_told_at_the_start() {
    let world = World::new().await;
    let role = world.role().await;
    world.sql(&format!("alter role {role} login password 'tollgate'")).await;
    let options: PgConnectOptions = world.url_of(&role).parse().unwrap();
    let error = Tollgate::start(pool(2, MINUTE, options)).await.unwrap_err();
    assert!(matches!(error, StartError::Setup { fault: SetupFault::Rights, .. }), "{error:?}");
}

/// Its only connection is in use, by the transaction that asks.
#[tokio::test]
async fn limiter_and_gate_hear_a_ban_while_the_service_is_out_of_connections() {
    let world = World::new().await;
    let busy = pool(1, MINUTE, world.direct_url().parse().unwrap());
    let tollgate = Tollgate::start(busy.clone()).await.unwrap();
    let mut tx = busy.begin().await.unwrap();
    assert!(tollgate.limiter().consume(&mut tx, TEN.key("ada")).await.unwrap().is_granted());
    ban(&world, "ada").await;
    until_heard(&tollgate).await;
    let denied = tollgate.limiter().consume(&mut tx, TEN.key("ada")).await.unwrap().denied().unwrap();
    assert_eq!(denied.source, Source::Override);
    let denied = soon(tollgate.gate().consume(TEN.key("ada"))).await.unwrap().denied().unwrap();
    assert_eq!(denied.source, Source::Override);
    // The gate without a handle knows of no ban, and nor does such a limiter.
    tx.rollback().await.unwrap();
    assert!(
        Limiter::new()
            .parts(crate::world::parts())
            .check(&mut world.pool.acquire().await.unwrap(), TEN.key("ada"))
            .await
            .unwrap()
            .is_granted()
    );
    assert!(Gate::builder(busy).parts(crate::world::parts()).build().check(TEN.key("ada")).await.unwrap().is_granted());
}

#[tokio::test]
async fn the_hooks_of_the_service_run_on_the_connections_of_the_handle_too() {
    let world = World::new().await;
    let hook = PgPoolOptions::new().max_connections(1).after_connect(|conn, _| {
        Box::pin(async move {
            sqlx::raw_sql("set application_name = 'hooked'").execute(conn).await?;
            Ok(())
        })
    });
    let tollgate = Tollgate::start(hook.connect_lazy_with(world.direct_url().parse().unwrap())).await.unwrap();
    assert!(sessions(&world, "hooked").await > 0, "only the handle has connected");
    tollgate.stop().await;
}

#[tokio::test]
async fn the_number_of_parts_is_read_from_the_tables() {
    let world = World::of_parts(8).await;
    let tollgate = Tollgate::start(world.pool.clone()).await.unwrap();
    assert!(tollgate.gate().consume(TEN.key("ada")).await.unwrap().is_granted());
    let mut tx = world.pool.begin().await.unwrap();
    assert!(tollgate.limiter().consume(&mut tx, TEN.key("ada")).await.unwrap().is_granted());
    tx.commit().await.unwrap();
    let parts: Vec<i16> = sqlx::query_scalar("select part from tollgate.durable").fetch_all(&world.pool).await.unwrap();
    assert_eq!(parts, [part_of("ada")]);
    world.sql("alter table tollgate.durable drop constraint durable_part").await;
    world.sql("alter table tollgate.durable add constraint durable_part check (part >= 24)").await;
    let error = Tollgate::start(world.pool.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::Setup { fault: SetupFault::WrongParts, .. }), "three are none: {error:?}");
}

async fn sessions(world: &World, application: &str) -> i64 {
    let sql = "select count(*) from pg_stat_activity where datname = current_database() and application_name = $1";
    sqlx::query_scalar(sql).bind(application).fetch_one(&mut world.admin().await).await.unwrap()
}

/// Returns once no session of the service is left; the server takes a moment to end one.
async fn until_gone(world: &World, application: &str) {
    soon(async { while sessions(world, application).await > 0 {} }).await;
}

#[tokio::test]
async fn a_stop_ends_gate_sweeper_and_overrides_and_leaves_no_session() {
    let world = World::new().await;
    let options: PgConnectOptions = world.direct_url().parse().unwrap();
    let service = pool(4, MINUTE, options.application_name("stopped"));
    let prefetching = Tollgate::builder(service.clone()).gate(|gate| gate.prefetch(10 * SECOND));
    let tollgate = prefetching.sweep_every(Duration::from_millis(10)).start().await.unwrap();
    let other = tollgate.clone();
    let ahead = THOUSAND.key("ada");
    soon(async {
        while tollgate.gate().prefetched(&ahead) == Tokens::ZERO {
            assert!(tollgate.gate().consume(ahead.clone()).await.unwrap().is_granted());
            tokio::task::yield_now().await;
        }
    })
    .await;
    soon(tollgate.stop()).await;
    assert_eq!(tollgate.gate().prefetched(&ahead), Tokens::ZERO);
    soon(other.stop()).await;
    let report = tollgate.overrides().pause_for(TEN.global(), SECOND).await;
    assert!(report.is_err(), "the handle's own pool is closed: {report:?}");
    // The sessions that remain are of the service's pool.
    service.close().await;
    until_gone(&world, "stopped").await;
}

#[tokio::test]
async fn a_handle_that_is_dropped_leaves_no_session_either() {
    let world = World::new().await;
    let options: PgConnectOptions = world.direct_url().parse().unwrap();
    let service = pool(4, MINUTE, options.application_name("dropped"));
    let tollgate = Tollgate::start(service.clone()).await.unwrap();
    let limiter = tollgate.limiter().clone();
    drop(tollgate);
    // A limiter that is still there goes on hearing bans.
    ban(&world, "ada").await;
    let mut conn = world.pool.acquire().await.unwrap();
    soon(async { while limiter.check(&mut conn, TEN.key("ada")).await.unwrap().is_granted() {} }).await;
    drop(limiter);
    service.close().await;
    until_gone(&world, "dropped").await;
}

#[tokio::test]
async fn a_start_in_an_outage_fails_in_time_unless_it_may_be_without_the_database() {
    let world = World::new().await;
    ban(&world, "ada").await;
    let proxy = Proxy::new(&world.direct_url());
    let service = || pool(2, Duration::from_millis(500), proxy.options());
    // The network is gone: connections stand, and nothing passes.
    proxy.swallow();
    let error = soon(Tollgate::start(service())).await.unwrap_err();
    assert!(matches!(error, StartError::Database { .. }) && !error.is_setup(), "{error:?}");
    assert!(error.to_string().contains("start_in_outage()"), "{error}");

    let builder = Tollgate::builder(service()).gate(|gate| gate.on_failure(OnFailure::Open));
    let tollgate = soon(builder.parts(crate::world::parts()).start_in_outage().start()).await.unwrap();
    assert!(tollgate.overrides().all().is_empty());
    let grant = soon(tollgate.gate().consume(TEN.key("bob"))).await.unwrap().granted().unwrap();
    assert_eq!(grant.source, Source::Degraded);

    proxy.pass_on();
    until_heard(&tollgate).await;
    let denied = soon(tollgate.gate().consume(TEN.key("ada"))).await.unwrap().denied().unwrap();
    assert_eq!(denied.source, Source::Override);
    soon(tollgate.stop()).await;
}

#[tokio::test]
async fn one_clock_serves_limiter_gate_and_overrides_and_nothing_is_swept() {
    let world = World::new().await;
    let seconds = Arc::new(AtomicI64::new(0));
    let clock = {
        let seconds = Arc::clone(&seconds);
        #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
        move || second(seconds.load(Ordering::SeqCst) as f64)
    };
    let one = Limit::fixed_window("one", 1, MINUTE);
    let tollgate = Tollgate::builder(world.pool.clone()).clock(clock).sweep_every(SECOND).start().await.unwrap();
    let mut tx = world.pool.begin().await.unwrap();
    let mut ask = async |key| {
        let of_gate = tollgate.gate().consume(one.key(key)).await.unwrap().is_granted();
        let of_limiter = tollgate.limiter().consume(&mut tx, one.key(("limiter", key))).await.unwrap().is_granted();
        (of_gate, of_limiter)
    };
    assert_eq!(ask("ada").await, (true, true));
    assert_eq!(ask("ada").await, (false, false), "the clock stands still");
    seconds.store(60, Ordering::SeqCst);
    assert_eq!(ask("ada").await, (true, true), "and then it has moved");
    let (_, at) = world.row(Storage::Durable, "one", "ada").await.unwrap();
    assert!(at <= second(60.0), "{at}");
    assert!(format!("{tollgate:?}").contains("sweeping: Mutex { data: None"), "{tollgate:?}");
    let swept = Tollgate::start(world.pool.clone()).await.unwrap();
    assert!(format!("{swept:?}").contains("sweeping: Mutex { data: Some"), "{swept:?}");
}
