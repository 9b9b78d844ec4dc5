//! The metrics of a gate: counts by limit, outcome and source, and never a key.

use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use sqlx::postgres::PgPoolOptions;
use tollgate::{Gate, Limit, OnFailure};

use crate::gate::stage::{EVER, patient};
use crate::traced::{on_one_thread, traced};
use crate::world::{World, limiter};

const LIMIT: Limit = Limit::stepped_bucket("watched", 3, EVER);

#[test]
fn decisions_are_counted_by_limit_outcome_and_source() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        on_one_thread(async {
            let world = World::new().await;
            let gate = patient(&world.pool).remember_refusals(EVER).build();
            for _ in 0..6 {
                drop(gate.consume(LIMIT.key("ada")).await.unwrap());
            }
            gate.reset(LIMIT.key("ada")).await.unwrap();
            gate.balance(LIMIT.key("ada")).await.unwrap();
            let mut tx = world.begin().await;
            for _ in 0..4 {
                drop(limiter().consume(&mut tx, LIMIT.key("joined")).await.unwrap());
            }
            limiter().consume(&mut tx, LIMIT.key("joined").cost(4)).await.unwrap_err();
            sqlx::query("select 1 / 0").execute(&mut *tx).await.unwrap_err();
            limiter().consume_each(&mut tx, [[LIMIT.key("joined")], [LIMIT.key("other")]]).await.unwrap_err();
            tollgate::describe_metrics([&LIMIT, &Limit::wallet("money")]);

            let nobody = PgPoolOptions::new().connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap();
            let open =
                Gate::builder(nobody).acquire_timeout(Duration::from_millis(1)).on_failure(OnFailure::Open).build();
            drop(open.consume(LIMIT.key("ada")).await.unwrap());
        });
    });
    let snapshot = snapshotter.snapshot().into_vec();
    let counted = |name: &str, labels: &[(&str, &str)]| {
        let same = |key: &metrics::Key| {
            key.name() == name && key.labels().map(|label| (label.key(), label.value())).eq(labels.iter().copied())
        };
        match snapshot.iter().find(|(key, ..)| same(key.key())) {
            Some((.., DebugValue::Counter(count))) => *count,
            Some((.., DebugValue::Histogram(values))) => values.len() as u64,
            Some((.., DebugValue::Gauge(value))) => value.to_string().parse().unwrap(),
            None => panic!("{name} {labels:?}"),
        }
    };
    let decisions_by = |by, outcome, source| {
        let reason = if outcome == "denied" { "short" } else { "" };
        let labels = [("by", by), ("limit", "watched"), ("outcome", outcome), ("source", source), ("reason", reason)];
        counted("tollgate_decisions_total", &labels)
    };
    let decisions = |outcome, source| decisions_by("gate", outcome, source);
    assert_eq!(decisions("granted", "database"), 3);
    assert_eq!(decisions("denied", "database"), 1);
    assert_eq!(decisions("denied", "memory"), 2);
    let changed = [("by", "gate"), ("limit", "watched"), ("outcome", "changed"), ("source", "database")];
    assert_eq!(counted("tollgate_calls_total", &changed), 2);
    assert_eq!(decisions("granted", "degraded"), 1);
    assert_eq!(["granted", "denied"].map(|outcome| decisions_by("limiter", outcome, "database")), [3, 1]);
    assert_eq!(counted("tollgate_errors_total", &[("by", "gate"), ("limit", "watched")]), 1);
    assert_eq!(
        counted("tollgate_errors_total", &[("by", "limiter"), ("limit", "watched")]),
        2,
        "each call of a failure"
    );
    assert_eq!(counted("tollgate_limit_capacity_tokens", &[("limit", "watched")]), 3);
    let described = |name| snapshot.iter().find(|(key, ..)| key.key().name() == name).unwrap().1;
    assert_eq!(described("tollgate_batch_seconds"), Some(metrics::Unit::Seconds));
    assert_eq!(counted("tollgate_wait_seconds", &[]), 7, "one was not answered");
    for name in ["tollgate_batches_total", "tollgate_batch_calls", "tollgate_batch_seconds", "tollgate_queue_calls"] {
        assert_eq!(counted(name, &[]), 6, "{name}");
    }
    assert_eq!(
        counted("tollgate_locked_calls_total", &[]),
        2,
        "the first call inserts the row, and the reset deletes stale ones"
    );
}

#[test]
fn traces_name_the_limit_and_never_the_key() {
    let log = traced(async {
        let world = World::new().await;
        let gate = patient(&world.pool).remember_refusals(EVER).build();
        for _ in 0..5 {
            drop(gate.consume(LIMIT.key("ada@example.org")).await.unwrap());
        }
        gate.consume(LIMIT.key("ada@example.org").cost(4)).await.unwrap_err();
    });
    for expected in [
        r#"limit="watched" outcome="granted" source="database""#,
        r#"limit="watched" outcome="denied" source="database" reason="short""#,
        r#"limit="watched" outcome="denied" source="memory""#,
        "tollgate_batch{calls=1 rows=1}",
    ] {
        assert!(log.contains(expected), "{expected} in {log}");
    }
    assert!(!log.contains("ada@"), "{log}");
}
