//! The primary falls, its standby is promoted, and the gate goes on over the same pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Gate, MINUTE, SECOND};

use super::crash::Told;
use super::stage::soon;
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
    proxy.lead_to(pair.standby.url()).await;
    told.until_failed(100).await;
    pair.promote().await;
    told.until_answered(300).await;
    told.done.store(true, Ordering::SeqCst);
    soon(callers.join_all()).await;
    told.agrees_with(&mut PgConnection::connect(pair.standby.url()).await.unwrap()).await;
}
