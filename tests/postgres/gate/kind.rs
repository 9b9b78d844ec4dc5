//! The kinds of gates.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use tollgate::{DAY, Gate, GateBuilder, HOUR, Limit, NewOverride, OnFailure, Overrides, Tokens};

use super::stage::patient;
use crate::world::{ON_CALL, World};

/// Nothing comes back while a test runs. A gate that takes tokens ahead takes them of the first.
pub(crate) const HOT: Limit = Limit::stepped_bucket("hot", 99_999, DAY).capacity(100_000).unbounded_reservations();
pub(crate) const WARM: Limit = Limit::stepped_bucket("warm", 99_999, DAY).capacity(100_000).ephemeral();

/// How many tokens of each calls take before a test asks, so that such a gate has some in memory.
pub(crate) const SPENT: u32 = 100;

/// An option of the builder; the last kind has all of them.
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
        let gate = if is(Self::Remembering) { gate.remember_refusals(HOUR) } else { gate };
        let gate = if is(Self::Overridden) { gate.overrides(overrides) } else { gate };
        if is(Self::Open) { gate.on_failure(OnFailure::Open) } else { gate }
    }

    /// Overrides that change nothing: the same numbers for everybody; or an override of another key, as no gate takes
    /// ahead for a key with an override.
    pub(crate) async fn overrides(self, world: &World) -> Overrides {
        let mut admin = world.connect_as(ON_CALL).await;
        let about =
            if self == Self::All { NewOverride::deny(&HOT).key("somebody") } else { NewOverride::numbers(&HOT) };
        about.lasting(DAY).reason("a test").set(&mut admin).await.unwrap();
        Overrides::watch(world.pool.clone()).await.unwrap()
    }

    /// A gate whose calls have taken the [`SPENT`] tokens of a key.
    pub(crate) async fn with_spent(self, pool: &PgPool, overrides: &Overrides, key: &str) -> Gate {
        let gate = self.of(patient(pool), overrides, HOUR).build();
        let takes_ahead = matches!(self, Self::Prefetching | Self::All);
        let cost = if takes_ahead { 1 } else { SPENT };
        for _ in 0..SPENT / cost {
            gate.consume([HOT, WARM].map(|hot| hot.key(key).cost(cost))).await.unwrap().granted().unwrap();
        }
        assert_eq!(gate.prefetched(&HOT.key(key)) > Tokens::ZERO, takes_ahead, "{self:?}");
        gate
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
