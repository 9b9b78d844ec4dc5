//! A refusal by anybody and in any words is a decision and no silence: no policy opens the gate for it. The messages
//! that say that the server is away are a closed list.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tollgate::{Decision, Error, Gate, Limit, MINUTE, OnFailure, SECOND, Source, migrate};
use tollgate_embedded::Server;

use super::refusal_words::{Busy, Is, OTHERS, Outage, PGBOUNCER, Wrong};
use crate::gate::stage::{EVER, patient, soon};
use crate::pgbouncer::{self, PgBouncer};
use crate::world::World;

const LIMIT: Limit = Limit::token_bucket("three", 3, EVER);

/// Somebody who reads the start-up message, and refuses by a code and a message.
async fn refuser() -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, answer) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    tokio::spawn({
        let answer = answer.clone();
        async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let length = client.read_u32().await.unwrap_or(4) as usize;
                let mut rest = vec![0; length.saturating_sub(4)];
                let _ = client.read_exact(&mut rest).await;
                let bytes = answer.lock().unwrap().clone();
                let _ = client.write_all(&bytes).await;
                let _ = client.shutdown().await;
            }
        }
    });
    (address, answer)
}

fn error_response(code: &str, message: &str) -> Vec<u8> {
    let mut fields = Vec::new();
    for (kind, value) in [(b'S', "FATAL"), (b'C', code), (b'M', message)] {
        fields.push(kind);
        fields.extend(value.bytes().chain([0]));
    }
    fields.push(0);
    let length = u32::try_from(fields.len() + 4).unwrap();
    [&[b'E'][..], &length.to_be_bytes(), &fields].concat()
}

/// Six calls of a limit of three, under both policies; fewer where the driver itself tries again as long as it may.
async fn expect(options: PgConnectOptions, is: Is, code: &str, case: &str) {
    let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(5 * MINUTE).connect_lazy_with(options);
    let is_tried_again = matches!(code, "53300" | "57P03");
    let (patience, calls) = if is_tried_again { (SECOND, 1) } else { (MINUTE, 6) };
    for policy in [OnFailure::Open, OnFailure::Local(1.0)] {
        let gate = patient(&pool).acquire_timeout(patience).on_failure(policy).build();
        for _ in 0..calls {
            match soon(gate.consume(LIMIT.key("k"))).await {
                Ok(Decision::Granted(grant)) => assert_eq!((grant.source, is), (Source::Degraded, Outage), "{case}"),
                Ok(Decision::Denied(denied)) => assert_eq!((denied.source, is), (Source::Degraded, Outage), "{case}"),
                Err(error) => {
                    let found = if error.is_retryable() { Busy } else { Wrong };
                    assert_eq!(found, is, "{case}: {error:?}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_says_that_a_server_is_away_is_an_outage() {
    let (address, answer) = refuser().await;
    let options = PgConnectOptions::new().host("127.0.0.1").port(address.port()).ssl_mode(PgSslMode::Disable);
    let pooler =
        PGBOUNCER.iter().flat_map(|(is, messages)| messages.iter().map(move |message| (*is, "08P01", *message)));
    for (is, code, message) in pooler.chain(OTHERS.iter().copied()) {
        // A pooler's buffer ends after 127 bytes.
        let cut: String = message.chars().take(127).collect();
        *answer.lock().unwrap() = error_response(code, &cut);
        expect(options.clone(), is, code, &format!("{code} {message}")).await;
    }
}

/// Where the directory of a socket may not be entered, nobody is away.
#[tokio::test]
async fn a_socket_that_may_not_be_opened_is_no_outage() {
    use std::os::unix::fs::PermissionsExt;
    let directory = std::env::temp_dir().join(format!("tollgate_locked_{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let socket = directory.join(".s.PGSQL.5432");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o000)).unwrap();
    let options = PgConnectOptions::new().socket(&directory);
    // Root may open everything.
    if std::os::unix::net::UnixStream::connect(&socket).is_err() {
        let gate = patient(&PgPoolOptions::new().connect_lazy_with(options)).on_failure(OnFailure::Open).build();
        let error = soon(gate.consume(LIMIT.key("k"))).await.unwrap_err();
        assert!(matches!(error, Error::Database { .. }), "{error:?}");
    }
    drop(listener);
    std::fs::remove_dir_all(directory).unwrap();
}

/// A gate with `Open` over a pool of so many connections.
fn open(url: &str, connections: u32) -> Gate {
    let pool = PgPoolOptions::new().max_connections(connections).acquire_timeout(5 * MINUTE).connect_lazy(url).unwrap();
    open_over(&pool)
}

fn open_over(pool: &PgPool) -> Gate {
    patient(pool).unnamed_statements().on_failure(OnFailure::Open).build()
}

/// Six calls, of which none is granted.
async fn refuses(gate: &Gate, is: Is, case: &str) {
    for _ in 0..6 {
        let error = soon(gate.consume(LIMIT.key("k"))).await.expect_err(case);
        assert!(matches!(error, Error::Database { .. } | Error::OutcomeUnknown { .. }), "{case}: {error:?}");
        assert_eq!(error.is_retryable(), is == Busy, "{case}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_real_pooler_a_wrong_setting_opens_no_gate() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let users = "\"postgres\" \"right\"\n";
    let pooler = PgBouncer::configured(&world.direct_url(), 2, "", Some(users));
    let database = world.name();
    let right = pooler.url_as("postgres", "right", database);
    open(&right, 1).consume(LIMIT.key("k")).await.unwrap().granted().unwrap();
    refuses(&open(&pooler.url_as("postgres", "wrong", database), 1), Wrong, "a wrong password").await;
    refuses(&open(&pooler.url_as("stranger", "right", database), 1), Wrong, "an unknown user").await;
    refuses(&open(&format!("{right}&options=-c%20work_mem%3D1MB"), 1), Wrong, "an unsupported parameter").await;
    let nowhere = pooler.url_as("postgres", "right", "no_such_database");
    // The pooler tries it again and again, and says each time whether it has.
    let error = soon(open(&nowhere, 1).consume(LIMIT.key("k"))).await.unwrap_err();
    assert!(matches!(error, Error::Database { .. }), "{error:?}");
    for _ in 0..20 {
        soon(open(&nowhere, 1).consume(LIMIT.key("k"))).await.unwrap_err();
    }
    let pooler = PgBouncer::start(&world.direct_url(), 2);
    pooler.command(&format!("disable {database}")).await;
    refuses(&open(&pooler.url(database), 1), Wrong, "a database that is disabled").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_a_real_pooler_opens_no_gate() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let few = PgBouncer::configured(&world.direct_url(), 2, "max_client_conn = 2", None);
    let url = few.url(world.name());
    let crowd = [PgConnection::connect(&url).await.unwrap(), PgConnection::connect(&url).await.unwrap()];
    refuses(&open(&url, 1), Busy, "max_client_conn").await;
    drop(crowd);

    for settings in ["query_wait_timeout = 1", "query_wait_timeout = 1\nmax_db_connections = 1"] {
        let pooler = PgBouncer::configured(&world.direct_url(), 1, settings, None);
        let url = pooler.url(world.name());
        let mut holder = PgConnection::connect(&url).await.unwrap();
        let mut held = holder.begin().await.unwrap();
        sqlx::raw_sql("select 1").execute(&mut *held).await.unwrap();
        // The pooler takes it for a client that may wait a second.
        let gate = open(&url, 1);
        let error = soon(gate.consume(LIMIT.key("k"))).await.unwrap_err();
        assert!(error.is_retryable(), "{settings}: {error:?}");
        held.rollback().await.unwrap();
    }
}

/// The crowd waits at the server: its pooler says so in its own code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_the_server_behind_a_real_pooler_opens_no_gate() {
    if pgbouncer::is_missing() {
        return;
    }
    let server = Server::builder().setting("max_connections", "6").start().unwrap();
    migrate::run(&mut PgConnection::connect(server.url()).await.unwrap()).await.unwrap();
    let pooler = PgBouncer::start(server.url(), 2);
    let database = server.url().parse::<PgConnectOptions>().unwrap().get_database().unwrap_or("postgres").to_owned();
    let mut crowd = Vec::new();
    soon(async {
        while let Ok(conn) = PgConnection::connect(server.url()).await {
            crowd.push(conn);
        }
    })
    .await;
    let gate = patient(&PgPoolOptions::new().max_connections(2).connect_lazy(&pooler.url(&database)).unwrap());
    let gate = gate.unnamed_statements().acquire_timeout(SECOND).on_failure(OnFailure::Open).build();
    for _ in 0..20 {
        let error = soon(gate.consume(LIMIT.key("k"))).await.unwrap_err();
        assert!(matches!(error, Error::Database { .. }), "{error:?}");
    }
    crowd.clear();
    soon(async { while gate.consume(LIMIT.key("k")).await.is_err() {} }).await;
}

/// From 1.24 on, a pooler says that its server is away. Before, its words fit a server that refuses, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_is_away_is_an_outage_and_so_is_a_server_of_which_it_says_so() {
    if pgbouncer::is_missing() {
        return;
    }
    let mut server = Server::start().unwrap();
    migrate::run(&mut PgConnection::connect(server.url()).await.unwrap()).await.unwrap();
    let mut pooler = PgBouncer::start(server.url(), 2);
    let database = server.url().parse::<PgConnectOptions>().unwrap().get_database().unwrap_or("postgres").to_owned();
    let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(5 * MINUTE);
    let pool = pool.connect(&pooler.url(&database)).await.unwrap();
    let gate = patient(&pool).unnamed_statements().statement_timeout(2 * SECOND).acquire_timeout(2 * SECOND);
    let gate = gate.on_failure(OnFailure::Open).build();
    let until = async |source: Source| {
        soon(async {
            loop {
                match gate.consume(LIMIT.key("k").cost(0)).await {
                    Ok(Decision::Granted(grant)) if grant.source == source => return,
                    _ => tokio::task::yield_now().await,
                }
            }
        })
        .await;
    };
    until(Source::Database).await;
    server.stop().unwrap();
    if pgbouncer::version() >= 24 {
        until(Source::Degraded).await;
    } else {
        soon(gate.debit(LIMIT.key("k"))).await.unwrap_err();
    }
    server.restart().unwrap();
    until(Source::Database).await;
    pooler.kill();
    until(Source::Degraded).await;
    pooler.restart();
    until(Source::Database).await;
}
