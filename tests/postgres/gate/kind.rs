//! The kinds of gates.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use tollgate::{Gate, GateBuilder, HOUR, OnFailure, Overrides};

/// What a builder may say besides; the last one says all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Plain,
    Prefetching,
    Remembering,
    Overridden,
    Open,
    All,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Plain, Self::Prefetching, Self::Remembering, Self::Overridden, Self::Open, Self::All];

    pub(crate) fn of(self, gate: GateBuilder, overrides: &Overrides, max_age: Duration) -> GateBuilder {
        let is = |kind| self == kind || self == Self::All;
        let gate = if is(Self::Prefetching) { gate.prefetch(max_age) } else { gate };
        let gate = if is(Self::Remembering) { gate.remember_refusals(HOUR).count_refusals(100) } else { gate };
        let gate = if is(Self::Overridden) { gate.overrides(overrides) } else { gate };
        if is(Self::Open) { gate.on_failure(OnFailure::Open) } else { gate }
    }
}

/// A gate of a kind that changes from process to process, for a process of a storm: its number is in the environment.
pub(crate) async fn any_kind(pool: &PgPool, max_age: Duration) -> GateBuilder {
    let number: usize = std::env::var(KIND).unwrap().parse().unwrap();
    let overrides = loop {
        // The server may be down.
        if let Ok(overrides) = Overrides::watch(pool.clone()).await {
            break overrides;
        }
    };
    Kind::ALL[number % Kind::ALL.len()].of(Gate::builder(pool.clone()), &overrides, max_age)
}

/// Names the number of the kind that a process of a storm has.
pub(crate) const KIND: &str = "TOLLGATE_TEST_KIND";

/// The number of the next one.
pub(crate) fn next_kind() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}
