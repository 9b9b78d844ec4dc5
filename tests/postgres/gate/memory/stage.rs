//! A gate that remembers refusals, for the tests of its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use tollgate::{Call, Denied, Gate, HOUR, Limit, MINUTE, SECOND, Source};

use crate::gate::stage::{one_connection, patient};
use crate::proxy::Proxy;
use crate::teller::both;
use crate::world::{World, second};

/// A gate that remembers, by a clock that the test turns, over a wire that counts statements.
pub(super) struct Stage {
    pub(super) gate: Gate,
    pub(super) now: Arc<AtomicI64>,
    pub(super) proxy: Proxy,
    pub(super) pool: PgPool,
    pub(super) world: World,
}

impl Stage {
    pub(super) async fn new(keys: usize) -> Self {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let pool = one_connection(proxy.options()).await;
        let now = Arc::new(AtomicI64::new(second(0.0).timestamp_micros()));
        let gate = patient(&pool).remember_refusals(HOUR).remembered_keys(keys).clock(clock(&now)).build();
        Self { gate, now, proxy, pool, world }
    }

    /// Another gate by the same clock.
    pub(super) fn other(&self) -> Gate {
        patient(&self.pool).clock(clock(&self.now)).build()
    }

    pub(super) fn pass(&self, span: Duration) {
        self.now.fetch_add(i64::try_from(span.as_micros()).unwrap(), Ordering::SeqCst);
    }

    pub(super) async fn ok(&self, call: impl Into<Call>) {
        let grant = self.gate.consume(call).await.unwrap().granted().unwrap();
        assert_eq!(grant.source, Source::Database);
    }

    /// Refused by the database.
    pub(super) async fn asked(&self, call: impl Into<Call>) -> Denied {
        let before = self.proxy.statements();
        let denied = self.gate.consume(call).await.unwrap().denied().unwrap();
        assert_eq!(denied.source, Source::Database);
        assert!(self.proxy.statements() > before);
        denied
    }

    /// Refused from memory.
    pub(super) async fn remembered(&self, call: impl Into<Call>) -> Denied {
        let before = self.proxy.statements();
        let denied = self.gate.consume(call).await.unwrap().denied().unwrap();
        assert_eq!(denied.source, Source::Memory);
        assert_eq!(self.proxy.statements(), before);
        denied
    }
}

pub(super) fn clock(now: &Arc<AtomicI64>) -> impl Fn() -> DateTime<Utc> + Send + Sync + 'static {
    let now = now.clone();
    move || DateTime::from_timestamp_micros(now.load(Ordering::SeqCst)).unwrap()
}

/// One token a minute, of every kind and in both tables.
pub(super) fn ones() -> Vec<Limit> {
    let ones = [
        Limit::fixed_window("window", 1, MINUTE),
        Limit::fixed_window("aligned", 1, MINUTE).start(7 * SECOND),
        Limit::token_bucket("drip", 1, MINUTE),
        Limit::stepped_bucket("steps", 1, MINUTE),
    ];
    ones.iter().flat_map(both).collect()
}
