//! The load program: its figures are sane, whatever the machine. How fast anything is, no test says.

use std::time::Duration;

use tollgate::Storage;
use tollgate::bench::{
    Bench, Cell, Contender, Fault, Figures, GATE, GATE_REMEMBERING, PLAIN, ROUND_TRIP, Scene, Session, Settings,
    UPDATE, Workload,
};

use crate::world::World;

fn short() -> Settings {
    Settings { callers: vec![2], turn: Duration::from_millis(50), rounds: 1, ..Settings::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_measures_every_contender_in_every_scene() {
    let world = World::unmigrated().await;
    let bench = Bench::new(world.url(), short());
    let mut turns = 0;
    let report = bench.run(|_, _| turns += 1).await.unwrap();
    assert_eq!(turns, bench.turns());
    assert_eq!(turns, report.cells.len());
    for workload in Workload::ALL {
        for storage in [Storage::Ephemeral, Storage::Durable] {
            let scene = Scene { workload, storage, callers: 2 };
            let contenders: Vec<_> =
                report.cells.iter().filter(|cell| cell.scene == scene).map(|cell| cell.contender).collect();
            let expected: &[_] = match workload {
                Workload::Refused => &[GATE, GATE_REMEMBERING, PLAIN, ROUND_TRIP],
                Workload::Three => &[GATE, PLAIN, ROUND_TRIP],
                _ => &[GATE, PLAIN, UPDATE, ROUND_TRIP],
            };
            assert_eq!(contenders, expected, "{scene}");
        }
    }
    report.cells.iter().for_each(check);
    assert_eq!(world.rows().await, 0, "what it made is gone");
}

/// What the server counted for a contender agrees with what its callers counted.
fn check(cell: &Cell) {
    let Figures { per_second, p50_us, p99_us, p999_us, rows_written, hot_share, .. } = cell.figures;
    assert!(per_second.is_finite() && p50_us <= p99_us && p99_us <= p999_us, "{cell:?}");
    let rows = match cell.scene.workload {
        _ if cell.contender == ROUND_TRIP => 0.0,
        Workload::Refused => 0.0,
        Workload::Three => 3.0,
        Workload::Uniform | Workload::Hot | Workload::Zipf => 1.0,
    };
    if cell.contender == GATE {
        // It may write a row once for several calls.
        assert!(rows_written <= rows && (rows_written > 0.0) == (rows > 0.0), "{cell:?}");
    } else {
        assert!((rows_written - rows).abs() < 1e-9, "{cell:?}");
    }
    assert_eq!(hot_share.is_some(), rows > 0.0, "{cell:?}");
}

/// One that answers at once, and wrongly.
struct Yes;

impl Contender for Yes {
    type Session = Self;

    fn name(&self) -> &'static str {
        "yes"
    }

    async fn open(&self, _scene: Scene) -> Result<Self, Fault> {
        Ok(Self)
    }
}

impl Session for Yes {
    async fn decide(&self, _user: u32) -> Result<bool, Fault> {
        Ok(true)
    }

    async fn close(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_answer_ends_the_run() {
    let world = World::unmigrated().await;
    let settings =
        Settings { workloads: vec![Workload::Hot, Workload::Refused], storages: vec![Storage::Ephemeral], ..short() };
    let error = Bench::new(world.url(), settings).enter(Yes).run(|_, _| ()).await.unwrap_err();
    assert_eq!(error.to_string(), "yes failed at refused, ephemeral, 2 callers: granted what is exhausted");
    assert_eq!(world.rows().await, 0, "what it made is gone");
}

#[tokio::test]
async fn nothing_to_measure_is_an_error() {
    for settings in [
        Settings { workloads: Vec::new(), ..short() },
        Settings { callers: vec![0], ..short() },
        Settings { rounds: 0, ..short() },
        Settings { turn: Duration::ZERO, ..short() },
    ] {
        // It says so before it connects.
        let error = Bench::new("postgres://nobody@127.0.0.1:1/none", settings).run(|_, _| ()).await.unwrap_err();
        assert!(error.to_string().ends_with(')'), "{error}");
    }
}
