//! The metrics by which alerts and boards go.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tollgate::{Call, Decision, HOUR, Limit, Overrides, first_of};

use crate::gate::stage::{EVER, patient};
use crate::sweeper::quick;
use crate::traced::on_one_thread;
use crate::world::{World, limiter, soon, sweeper};

const EACH: Limit = Limit::stepped_bucket("each", 1_000, EVER);
const TOTAL: Limit = Limit::stepped_bucket("total", 15, EVER);

const HOT: Limit = Limit::token_bucket("hot", 100_000, HOUR);

/// A thread's metrics, each under its name and the values of its labels.
fn measured(what: impl Future<Output = ()>) -> BTreeMap<String, u64> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || on_one_thread(what));
    let snapshot = snapshotter.snapshot().into_vec().into_iter();
    let numbers = snapshot.filter_map(|(key, _, _, value)| {
        let labels = key.key().labels().map(metrics::Label::value).filter(|label| !label.is_empty());
        let name = [key.key().name()].into_iter().chain(labels).collect::<Vec<_>>().join(" ");
        match value {
            DebugValue::Counter(count) => Some((name, count)),
            DebugValue::Gauge(value) => Some((name, format!("{value:.0}").parse().unwrap())),
            DebugValue::Histogram(_) => None,
        }
    });
    numbers.collect()
}

/// The counts of a metric, without its name.
fn of<'m>(metrics: &'m BTreeMap<String, u64>, name: &str) -> Vec<(&'m str, u64)> {
    metrics.iter().filter_map(|(key, count)| Some((key.strip_prefix(name)?.trim_start(), *count))).collect()
}

#[test]
fn each_limit_that_a_call_asked_is_counted_and_each_call_once() {
    let metrics = measured(async {
        let world = World::new().await;
        let gate = patient(&world.pool).build();
        let mut tx = world.begin().await;
        for _ in 0..17 {
            let asked = || Call::from(EACH.key(7)).and(TOTAL.global());
            if let Decision::Granted(grant) = gate.consume(asked()).await.unwrap() {
                gate.settle(grant, 1).await.unwrap();
            }
            let asked = [[EACH.key(8)].to_vec(), [TOTAL.global()].to_vec()];
            drop(limiter().consume(&mut tx, first_of(asked)).await.unwrap());
        }
    });
    assert_eq!(
        of(&metrics, "tollgate_decisions_total"),
        [
            ("gate each granted database", 15),
            ("gate each untouched database", 2),
            ("gate total denied database short", 2),
            ("gate total granted database", 15),
            ("limiter each granted database", 17),
        ]
    );
    assert_eq!(
        of(&metrics, "tollgate_calls_total"),
        [
            ("gate each changed database", 15),
            ("gate each denied database", 2),
            ("gate each granted database", 15),
            ("limiter each granted database", 17),
        ]
    );
}

#[test]
fn a_call_that_several_slices_pay_is_counted_once() {
    let metrics = measured(async {
        let world = World::new().await;
        let gate = patient(&world.pool).prefetch(HOUR).build();
        for _ in 0..1_000 {
            let call = Call::from(HOT.key(1)).and(HOT.key(2));
            drop(gate.consume(call).await.unwrap().granted().unwrap());
        }
        gate.close().await;
    });
    let all = |name: &str, source: &str| -> u64 {
        let counts = of(&metrics, name);
        counts.iter().filter(|(labels, _)| labels.ends_with(source)).map(|(_, count)| count).sum()
    };
    assert!(all("tollgate_calls_total", "prefetched") > 0, "{metrics:?}");
    assert_eq!(all("tollgate_decisions_total", "prefetched"), 2 * all("tollgate_calls_total", "prefetched"));
}

#[test]
fn the_age_of_overrides_a_sweeper_at_work_and_calls_that_nobody_gives_back_are_told() {
    let metrics = |charges: &'static str, sweeps: bool| {
        measured(async move {
            let world = World::new().await;
            Overrides::watch(world.pool.clone()).await.unwrap();
            let gate = patient(&world.pool).build();
            drop(gate.consume(EACH.key(1).lapses_after(HOUR)).await.unwrap().granted().unwrap());
            world.sql(&format!("update tollgate.calls set lapses_at = 'epoch', charges = {charges}")).await;
            sweeper().reap(&world.pool).await.unwrap();
            let sweeping = quick().spawn(world.pool.clone(), if sweeps { Duration::ZERO } else { EVER });
            // The second row is swept by another pass.
            for row in (0..2).filter(|_| sweeps) {
                world
                    .sql(&format!("insert into tollgate.ephemeral values (0, 'c', '{row}', 0, 0, now(), now())"))
                    .await;
                soon(async { while world.rows().await > 1 {} }).await;
            }
            soon(sweeping.stop()).await;
        })
    };
    let (good, bad) = (metrics("charges", true), metrics("'[7]'", false));
    assert!(good["tollgate_overrides_read_timestamp_seconds"] > 1_700_000_000, "{good:?}");
    assert_eq!((good["tollgate_lapsed_left"], bad["tollgate_lapsed_left"]), (0, 1));
    assert!(good["tollgate_sweeps_total"] > 0 && bad["tollgate_sweeps_total"] == 0, "{good:?} {bad:?}");
}
