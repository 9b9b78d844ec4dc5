//! The model behind `docs/scaling.md`, on the points that are committed beside it: no server, no clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use tollgate::Storage;
use tollgate::bench::scaling::{Conditions, Figures, Keys, Measurements, Model, Quantity, ScalingReport, Subject};
use tollgate::bench::{USERS, Workload};

/// What the model is known to get wrong by more than a fifth, of the points as they are committed: `docs/scaling.md` lists
/// them, and says why.
const KNOWN: [(&str, Quantity); 5] = [
    ("gate, three, ephemeral, 64 callers", Quantity::PerSecond),
    ("gate, uniform, durable, 256 callers, 1000000 keys", Quantity::WalBytes),
    ("joined, hot, 1 shard, durable, 64 clients, 2 ms of work", Quantity::ServerMicros),
    ("joined, hot, 4 shards, ephemeral, 16 clients, 2 ms of work", Quantity::ServerMicros),
    ("joined, hot, 16 shards, ephemeral, 64 clients, 2 ms of work", Quantity::PerSecond),
];

const QUIET: Conditions = Conditions { speed: 1.0, flush_us: 300.0 };

fn points() -> Measurements {
    serde_json::from_str(include_str!("../docs/scaling.json")).unwrap()
}

fn model() -> Model {
    Model::of(&points())
}

#[test]
fn each_figure_that_was_held_out_is_predicted_within_a_fifth() {
    let report = ScalingReport::new(points());
    let held_out: Vec<_> = report.judged().filter(|judged| !judged.subject.calibrates()).collect();
    assert!(held_out.len() > 60, "{} figures are not many", held_out.len());
    let off = held_out.iter().filter(|judged| judged.is_off());
    let off: Vec<_> = off.map(|judged| (judged.subject.to_string(), judged.quantity)).collect();
    assert_eq!(off, KNOWN.map(|(subject, quantity)| (subject.to_owned(), quantity)));
}

#[test]
fn bytes_of_tables_that_were_loaded_are_counted_and_not_guessed() {
    let loaded = |subject| match subject {
        Subject::Rows { keys, .. } => keys != Keys::Called,
        Subject::Sweep { .. } | Subject::Vacuum { .. } | Subject::Freeze { .. } => true,
        _ => false,
    };
    let report = ScalingReport::new(points());
    for judged in report.judged().filter(|judged| loaded(judged.subject)) {
        assert!(judged.error().abs() < 0.08, "{}, {}: {:+.3}", judged.subject, judged.quantity, judged.error());
    }
}

#[test]
fn the_document_shows_the_figures_of_the_points() {
    let document = include_str!("../docs/scaling.md");
    let figures = ScalingReport::new(points()).to_string();
    assert!(
        document.contains(&figures),
        "run `tollgate bench scaling --from docs/scaling.json --write docs/scaling.md`"
    );
}

#[test]
fn points_that_were_held_out_move_no_price() {
    let (honest, mut forged) = (points(), points());
    for point in forged.points.iter_mut().filter(|point| !point.subject.calibrates()) {
        point.measured.values_mut().for_each(|figure| *figure *= 3.0);
    }
    let [honest, forged] = [honest, forged].map(|points| Model::of(&points));
    for point in points().points {
        assert_eq!(honest.predict(point.subject, QUIET), forged.predict(point.subject, QUIET), "{}", point.subject);
    }
}

#[test]
fn a_lone_caller_is_a_batch_of_one() {
    let alone = model().predict(gate(Workload::Uniform, 1), QUIET);
    assert!((alone[&Quantity::Batch] - 1.0).abs() < 0.01, "{alone:?}");
}

#[test]
fn more_callers_make_larger_batches_which_cost_less_each() {
    let model = model();
    for workload in [Workload::Hot, Workload::Three] {
        let of: Vec<_> = [1, 4, 16, 64, 256].map(|callers| model.predict(gate(workload, callers), QUIET)).into();
        for pair in of.windows(2) {
            let both = |quantity| (pair[0][&quantity], pair[1][&quantity]);
            let grows = |(before, after): (f64, f64)| assert!(before < after, "{before} {after}");
            grows(both(Quantity::Batch));
            grows(both(Quantity::PerSecond));
            let (before, after) = both(Quantity::ServerMicros);
            grows((after, before));
        }
    }
}

#[test]
fn more_rows_let_more_transactions_pass_until_each_client_has_one() {
    let model = model();
    let rate = |clients, shards| {
        let joined = Subject::Joined { storage: Storage::Durable, clients, shards: Some(shards), work_us: 20_000 };
        model.predict(joined, QUIET)[&Quantity::PerSecond]
    };
    assert!(rate(16, 4) > 3.0 * rate(16, 1), "{} {}", rate(16, 4), rate(16, 1));
    let (as_many, more) = (rate(4, 4), rate(4, 16));
    assert!((more / as_many - 1.0).abs() < 0.1, "{as_many} {more}");
    // Twenty milliseconds of work and the rest: a row passes on fewer than fifty times a second.
    assert!(rate(64, 1) < 50.0, "{}", rate(64, 1));
}

#[test]
fn others_on_the_machine_and_a_slower_disk_make_it_slower() {
    let model = model();
    let durable =
        Subject::Gate { workload: Workload::Uniform, storage: Storage::Durable, callers: 64, keys: USERS, gates: 1 };
    let rate = |conditions| model.predict(durable, conditions)[&Quantity::PerSecond];
    assert!(rate(Conditions { speed: 0.5, ..QUIET }) < rate(QUIET));
    assert!(rate(Conditions { flush_us: 3_000.0, ..QUIET }) < rate(QUIET));
}

#[test]
fn points_survive_their_file() {
    let points = points();
    let again: Measurements = serde_json::from_str(&serde_json::to_string(&points).unwrap()).unwrap();
    let figures =
        |points: &Measurements| points.points.iter().map(|point| point.measured.clone()).collect::<Vec<Figures>>();
    assert_eq!(figures(&points), figures(&again));
}

fn gate(workload: Workload, callers: u32) -> Subject {
    Subject::Gate { workload, storage: Storage::Ephemeral, callers, keys: USERS, gates: 1 }
}
