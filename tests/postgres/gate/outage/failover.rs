//! The primary falls, its standby is promoted, and the gate goes on over the same pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Error, Gate, Limit, MINUTE, SECOND};

use crate::gate::batch::crash::Told;
use crate::gate::stage::{one_connection, patient, soon};
use crate::proxy::Proxy;
use crate::standby::Pair;

/// First nobody answers, then one who takes no writes, then the same takes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_in_mid_batch_loses_no_grant_and_no_caller() {
    let mut pair = Pair::new().await;
    let proxy = Proxy::new(pair.primary.url());
    let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(MINUTE).connect_with(proxy.options()).await;
    let gate = Gate::builder(pool.unwrap()).acquire_timeout(SECOND).build();
    let told = Arc::new(Told::default());
    let mut callers = JoinSet::new();
    for caller in 0..32 {
        callers.spawn(told.clone().ask(gate.clone(), caller));
    }
    told.until_answered(300).await;
    pair.primary.crash().unwrap();
    told.until_failed(1).await;
    proxy.lead_to(pair.standby.url());
    proxy.cut().await;
    told.until_failed(100).await;
    pair.promote().await;
    told.until_answered(300).await;
    told.done.store(true, Ordering::SeqCst);
    soon(callers.join_all()).await;
    told.agrees_with(&mut PgConnection::connect(pair.standby.url()).await.unwrap()).await;
}

/// The former primary goes on as a standby, and its connections stand: kept, they would never lead to the new primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_server_takes_no_writes_is_given_up_for_another() {
    const LIMIT: Limit = Limit::token_bucket("ten", 10, MINUTE);
    let pair = Pair::new().await;
    let proxy = Proxy::new(pair.standby.url());
    let pool = one_connection(proxy.options()).await;
    let gate = patient(&pool).build();
    for verb in [gate.consume(LIMIT.key("k")).await.map(drop), gate.debit(LIMIT.key("k")).await.map(drop)] {
        assert!(matches!(verb, Err(Error::ReadOnly { .. })), "{verb:?}");
    }
    proxy.lead_to(pair.primary.url());
    // Nobody else uses this pool's one connection.
    soon(gate.balance(LIMIT.key("k"))).await.unwrap();
    soon(gate.consume(LIMIT.key("k"))).await.unwrap().granted().unwrap();
}
