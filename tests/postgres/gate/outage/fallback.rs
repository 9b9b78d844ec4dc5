//! The answers of a gate while it cannot ask the database: by policy, in words, in every answer.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::task::JoinSet;
use tollgate::{
    CallError, Decision, Error, Gate, Grant, Limit, MINUTE, OnFailure, Request, SetupFault, Source, Tokens, migrate,
};
use tollgate_embedded::Server;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::gate::stage::{EVER, nowhere, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::World;

const LIMIT: Limit = Limit::stepped_bucket("ten", 10, EVER).max_reserved(10);
const OTHER: Limit = Limit::token_bucket("hundred", 100, EVER).ephemeral();

/// A server that can be stopped, and a pool of it that has a connection.
async fn server() -> (Server, PgPool) {
    let server = Server::start().unwrap();
    migrate::run(&mut PgConnection::connect(server.url()).await.unwrap()).await.unwrap();
    let pool = pool(server.url(), 2).await;
    (server, pool)
}

/// A gate that soon despairs of a server that is away.
fn gate(pool: &PgPool, policy: OnFailure) -> Gate {
    patient(pool).acquire_timeout(Duration::from_millis(200)).on_failure(policy).build()
}

/// One of `LIMIT`'s ten is taken while the server is there.
async fn take_one(pool: &PgPool) {
    patient(pool).build().consume(LIMIT.key("k")).await.unwrap().granted().unwrap();
}

/// The first grant by a database that is back: on a busy machine that takes longer than the gate waits.
async fn first_grant(gate: &Gate, request: Request) -> Grant {
    soon(async {
        loop {
            match gate.consume(request.clone()).await {
                Ok(Decision::Granted(grant)) if grant.source == Source::Database => return grant,
                _ => {}
            }
        }
    })
    .await
}

#[tokio::test]
async fn closed_is_the_error_until_the_database_is_back() {
    let (mut server, pool) = server().await;
    let gate = gate(&pool, OnFailure::Closed);
    take_one(&pool).await;
    server.stop().unwrap();
    for _ in 0..2 {
        let error = soon(gate.consume(LIMIT.key("k"))).await.unwrap_err();
        assert!(matches!(&error, Error::Database { limit: Some(limit), .. } if limit == "ten"), "{error:?}");
        assert!(error.is_retryable(), "{error:?}");
        assert!(!error.to_string().contains("\"k\""), "{error}");
    }
    server.restart().unwrap();
    assert_eq!(first_grant(&gate, LIMIT.key("k")).await.remaining, Tokens::new(8));
}

#[tokio::test]
async fn open_grants_everything_and_charges_nothing() {
    let (mut server, pool) = server().await;
    let gate = gate(&pool, OnFailure::Open);
    take_one(&pool).await;
    server.stop().unwrap();
    let events = Events::default();
    let heard = tracing::subscriber::set_default(events.clone());
    let all = [LIMIT.key("secret"), OTHER.key("secret")];
    for decision in [
        soon(gate.consume(LIMIT.key("secret").cost(10))).await.unwrap(),
        soon(gate.consume(LIMIT.key("secret").cost(10))).await.unwrap(),
        soon(gate.consume(all)).await.unwrap(),
        soon(gate.check(LIMIT.key("secret"))).await.unwrap(),
        soon(gate.wait(LIMIT.key("secret"), MINUTE)).await.unwrap(),
    ] {
        let grant = decision.granted().unwrap();
        assert_eq!((grant.source, grant.receipt.charges.len()), (Source::Degraded, 0));
        // There is nothing to settle.
        let error = gate.settle(grant, 0).await.unwrap_err();
        assert!(matches!(error, Error::Call { source: CallError::NothingAsked, .. }), "{error:?}");
    }
    drop(heard);
    // Each names the limit, and never the key. The outage and its errors have lines of their own.
    let events = events.0.lock().unwrap().clone();
    let is_answer = |(level, said): &&(Level, String)| *level == Level::WARN && said.contains("degraded=true");
    let warnings: Vec<_> = events.iter().filter(is_answer).collect();
    assert_eq!(warnings.len(), 5, "{warnings:#?}");
    for (_, fields) in &warnings {
        assert!(fields.contains("limit=\"ten\""), "{fields}");
    }
    let told = |level: &Level| *level <= Level::INFO;
    assert!(!events.iter().any(|(level, fields)| told(level) && fields.contains("secret")), "{events:#?}");

    // Verbs that decide nothing fail closed, and wrong calls stay errors.
    let key = || LIMIT.key("k");
    let closed = [
        soon(gate.reserve(key())).await.map(drop),
        soon(gate.balance(key())).await.map(drop),
        soon(gate.credit(key())).await.map(drop),
        soon(gate.debit(key())).await.map(drop),
        soon(gate.reset(key())).await.map(drop),
    ];
    for answer in closed {
        assert!(matches!(answer, Err(Error::Database { .. })), "{answer:?}");
    }
    let wrong = gate.consume(key().cost(11)).await;
    assert!(matches!(wrong, Err(Error::CostExceedsCapacity { .. })), "{wrong:?}");
    let wrong = gate.consume(LIMIT.key("")).await;
    assert!(matches!(wrong, Err(Error::Key { .. })), "{wrong:?}");

    server.restart().unwrap();
    assert_eq!(first_grant(&gate, key()).await.remaining, Tokens::new(8));
    let new = first_grant(&gate, LIMIT.key("secret")).await;
    assert_eq!(new.remaining, Tokens::new(9), "what was granted meanwhile is not charged");
}

#[tokio::test]
async fn local_grants_its_share_in_each_process_and_no_more() {
    let (mut server, pool) = server().await;
    let [one, two] = [0.5, 0.5].map(|share| gate(&pool, OnFailure::Local(share)));
    take_one(&pool).await;
    server.stop().unwrap();
    for gate in [&one, &two] {
        let mut callers = JoinSet::new();
        for _ in 0..30 {
            let gate = gate.clone();
            callers.spawn(async move { soon(gate.consume(LIMIT.key("k"))).await.unwrap() });
        }
        let mut granted = 0;
        for decision in callers.join_all().await {
            match decision {
                Decision::Granted(grant) => {
                    granted += 1;
                    assert_eq!((grant.source, grant.receipt.charges.len()), (Source::Degraded, 0));
                    assert_eq!(grant.remaining, Tokens::new(5 - granted));
                }
                Decision::Denied(denied) => {
                    assert_eq!((denied.source, &*denied.limit), (Source::Degraded, "ten"));
                    assert!(denied.retry_after().unwrap() > EVER / 4, "{denied:?}");
                }
            }
        }
        assert_eq!(granted, 5);
        // All or nothing here, too: the other limit is left alone.
        let both = || [OTHER.key("k").cost(50), LIMIT.key("k")];
        assert!(!soon(gate.consume(both())).await.unwrap().is_granted());
        assert!(soon(gate.consume(OTHER.key("k").cost(50))).await.unwrap().is_granted());
        assert!(!soon(gate.check(OTHER.key("k"))).await.unwrap().is_granted());
        // A cost that the share could never grant at once.
        let error = soon(gate.consume(LIMIT.key("new").cost(6))).await.unwrap_err();
        assert!(matches!(error, Error::Database { .. }), "{error:?}");
    }
    server.restart().unwrap();
    assert_eq!(first_grant(&one, LIMIT.key("k")).await.remaining, Tokens::new(8));
}

#[tokio::test]
async fn no_share_is_no_grant() {
    let (mut server, pool) = server().await;
    server.stop().unwrap();
    for share in [0.0, -1.0, f64::NAN] {
        let gate = gate(&pool, OnFailure::Local(share));
        let error = soon(gate.consume(LIMIT.key("k"))).await.unwrap_err();
        assert!(matches!(error, Error::Database { .. }), "{error:?}");
    }
    for share in [1.0, 7.5, f64::INFINITY] {
        let gate = gate(&pool, OnFailure::Local(share));
        assert!(soon(gate.consume(LIMIT.key("k").cost(10))).await.unwrap().is_granted());
        assert!(!soon(gate.consume(LIMIT.key("k"))).await.unwrap().is_granted());
    }
}

/// Somebody invents keys. No bucket is reset by it, and the kept ones go on.
#[tokio::test]
async fn a_local_bucket_is_never_forgotten_before_it_is_full() {
    let gate = gate(&nowhere(), OnFailure::Local(1.0));
    let [slow, fast] = [EVER, Duration::from_millis(1)].map(|period| Limit::fixed_window("one", 1, period));
    let keys = |from: u32, to: u32| (from..to).map(|key| slow.key(key)).collect::<Vec<_>>();
    gate.consume(fast.key("soon full")).await.unwrap().granted().unwrap();
    for from in (0..99_000).step_by(1_000) {
        gate.consume(keys(from, from + 1_000)).await.unwrap().granted().unwrap();
    }
    gate.consume(keys(99_000, 99_999)).await.unwrap().granted().unwrap();
    // A hundred thousand are kept. One of them is full sooner or later, and makes room.
    soon(async { while gate.consume(slow.key(99_999)).await.is_err() {} }).await;
    for key in 100_000..101_000 {
        let error = gate.consume(slow.key(key)).await.unwrap_err();
        assert!(matches!(error, Error::Database { .. }), "{error:?}");
    }
    for key in [0, 50_000, 99_999] {
        assert!(!gate.consume(slow.key(key)).await.unwrap().is_granted(), "{key}");
    }
}

/// The same error of sqlx, told apart by the gate: there is a server, and no connection to it is free.
#[tokio::test]
async fn a_pool_in_full_use_opens_no_gate_and_a_server_that_goes_meanwhile_does() {
    let (mut server, pool) = server().await;
    let gate = gate(&pool, OnFailure::Open);
    let held = [pool.acquire().await.unwrap(), pool.acquire().await.unwrap()];
    for _ in 0..2 {
        let error = soon(gate.consume(LIMIT.key("k"))).await.unwrap_err();
        assert!(matches!(error, Error::PoolExhausted { .. }), "{error:?}");
        assert!(error.is_retryable() && error.limit() == Some("ten"), "{error:?}");
    }
    server.stop().unwrap();
    let grant = soon(gate.consume(LIMIT.key("k"))).await.unwrap().granted().unwrap();
    assert_eq!(grant.source, Source::Degraded);
    drop(held);
}

/// A server that takes no more connections is crowded, and not away.
#[tokio::test]
async fn a_server_without_a_free_connection_opens_no_gate() {
    let server = Server::builder().setting("max_connections", "6").start().unwrap();
    // The first of the crowd migrates. A session that had ended might free its connection only now.
    let mut crowd = vec![PgConnection::connect(server.url()).await.unwrap()];
    migrate::run(&mut crowd[0]).await.unwrap();
    let full = soon(async {
        loop {
            match PgConnection::connect(server.url()).await {
                Ok(conn) => crowd.push(conn),
                Err(error) => break error,
            }
        }
    });
    assert_eq!(full.await.as_database_error().unwrap().code().unwrap(), "53300");
    let pool = PgPoolOptions::new().connect_lazy(server.url()).unwrap();
    let gate = gate(&pool, OnFailure::Open);
    let error = soon(gate.consume(LIMIT.key("k"))).await.unwrap_err();
    let driver = std::error::Error::source(&error).unwrap().downcast_ref::<sqlx::Error>().unwrap();
    assert_eq!(driver.as_database_error().unwrap().code().unwrap(), "53300");
    assert!(error.is_retryable(), "{error:?}");
    crowd.clear();
    assert_eq!(first_grant(&gate, LIMIT.key("k")).await.remaining, Tokens::new(9));
}

/// Neither a crowd nor a fault of ours is an outage: nobody opens the gate by it, and somebody hears of it.
#[tokio::test]
async fn crowds_faults_of_ours_and_unknown_outcomes_stay_errors_whatever_the_policy() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    for policy in [OnFailure::Open, OnFailure::Local(1.0)] {
        let short = Duration::from_millis(20);
        let gate = patient(&pool).lock_timeout(short).on_failure(policy).build();
        gate.consume(LIMIT.key("k")).await.unwrap().granted().unwrap();
        let mut holder = world.connect().await;
        let mut held = holder.begin().await.unwrap();
        sqlx::query("select from tollgate.durable for update").execute(&mut *held).await.unwrap();
        let busy = soon(gate.consume(LIMIT.key("k"))).await;
        assert!(matches!(busy, Err(Error::Locked { .. })), "{busy:?}");
        held.rollback().await.unwrap();

        let full = patient(&pool).queue(1).on_failure(policy).build();
        let only = pool.acquire().await.unwrap();
        let first = tokio::spawn({
            let full = full.clone();
            async move { soon(full.consume(LIMIT.key("k"))).await }
        });
        tokio::task::yield_now().await;
        let busy = soon(full.consume(LIMIT.key("k"))).await;
        assert!(matches!(busy, Err(Error::Overloaded { .. })), "{busy:?}");
        drop(only);
        first.await.unwrap().unwrap().granted().unwrap();

        proxy.cut_after(2);
        let unknown = soon(gate.consume(LIMIT.key("k"))).await;
        assert!(matches!(unknown, Err(Error::OutcomeUnknown { .. })), "{unknown:?}");

        world.sql("alter schema tollgate rename to away").await;
        let missing = soon(gate.consume(LIMIT.key("k"))).await;
        assert!(matches!(missing, Err(Error::Setup { fault: SetupFault::Schema, .. })), "{missing:?}");
        world.sql("alter schema away rename to tollgate").await;

        let stranger = format!("set role {}", world.role().await);
        let hook = PgPoolOptions::new().max_connections(1).after_connect(move |conn, _| {
            let stranger = sqlx::AssertSqlSafe(stranger.clone());
            Box::pin(async move { sqlx::raw_sql(stranger).execute(conn).await.map(drop) })
        });
        let strangers = patient(&hook.connect(&world.url()).await.unwrap()).on_failure(policy).build();
        let denied = soon(strangers.consume(LIMIT.key("k"))).await;
        assert!(denied.unwrap_err().to_string().contains("this role lacks a right"));

        let closed = PgPoolOptions::new().connect(&world.url()).await.unwrap();
        closed.close().await;
        let error = soon(patient(&closed).on_failure(policy).build().consume(LIMIT.key("k"))).await.unwrap_err();
        assert!(matches!(error, Error::Database { .. }) && !error.is_retryable(), "{error:?}");
    }
}

/// Word for word, wherever a user may look for it.
#[test]
fn what_an_outage_is_stands_the_same_in_the_rustdoc_and_in_the_guide() {
    let list = |text: &str| {
        let lines = text.lines().map(|line| line.trim_start_matches("/// "));
        let from = lines.skip_while(|line| !line.contains("utage") || !line.ends_with("is one of these:"));
        from.skip(2).take_while(|line| line.starts_with("- ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let rustdoc = list(include_str!("../../../../src/gate/outage/fallback.rs"));
    assert_eq!(rustdoc.len(), 4);
    assert_eq!(rustdoc, list(include_str!("../../../../docs/operating.md")));
}

/// Events, as one line each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events(pub(crate) Arc<Mutex<Vec<(Level, String)>>>);

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tollgate")
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut line = Line::default();
        span.record(&mut line);
        self.0.lock().unwrap().push((*span.metadata().level(), line.0));
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().unwrap().push((*event.metadata().level(), line.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}
