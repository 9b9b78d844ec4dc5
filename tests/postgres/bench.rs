//! The load program: its figures are sane, whatever the machine. How fast anything is, no test says.

use std::process::Command;
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

/// The whole of it, small: measured on a server of its own, modelled, and written into a document.
#[test]
fn scaling_writes_its_figures_into_a_document_and_its_points_beside_it() {
    let home = std::env::temp_dir().join(format!("tollgate-scaling-{}", std::process::id()));
    std::fs::create_dir_all(&home).unwrap();
    let document = home.join("scaling.md");
    std::fs::write(&document, "before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n").unwrap();
    let tollgate = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["bench", "scaling"]).args(args).output().unwrap()
    };
    let path = document.to_str().unwrap();
    let measured = tollgate(&["--quick", "--write", path]);
    assert!(measured.status.success(), "{}", String::from_utf8_lossy(&measured.stderr));
    let written = std::fs::read_to_string(&document).unwrap();
    assert!(written.starts_with("before\n<!-- figures -->\n## What to use"), "{written}");
    assert!(written.ends_with("<!-- end of figures -->\nafter\n") && !written.contains("old\n"), "{written}");
    for section in [
        "## What one server gives",
        "### Prices",
        "### A gate",
        "### Transactions",
        "### Tables",
        "## To 10^6 decisions/s",
    ] {
        assert!(written.contains(section), "{section}: {written}");
    }
    // The points are all that the figures are made of.
    let points = home.join("scaling.json");
    let again = tollgate(&["--from", points.to_str().unwrap()]);
    assert!(again.status.success() && written.contains(str::from_utf8(&again.stdout).unwrap()));
    // And a document without a place for them is left alone.
    std::fs::write(&document, "no markers").unwrap();
    let failed = tollgate(&["--from", points.to_str().unwrap(), "--write", path]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("it lacks the markers"), "{failed:?}");
    assert_eq!(std::fs::read_to_string(&document).unwrap(), "no markers");
    std::fs::remove_dir_all(&home).unwrap();
}
