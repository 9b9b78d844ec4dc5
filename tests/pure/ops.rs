//! The parts for operators name metrics that the library describes, as a Prometheus exporter prints them.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Mutex;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

const ALERTS: &str = include_str!("../../ops/alerts.yml");
const BOARD: &str = include_str!("../../ops/dashboard.json");

#[test]
fn board_and_alerts_name_series_that_are_exported() {
    let exported = exported();
    for name in series(ALERTS).chain(series(BOARD)) {
        assert!(exported.contains_key(name), "no metric is exported as {name}");
    }
}

#[test]
fn the_board_shows_each_metric() {
    let exported = exported();
    for metric in exported.values() {
        assert!(series(BOARD).any(|name| exported.get(name) == Some(metric)), "the board does not show {metric}");
    }
}

/// The names of series in a text.
fn series(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    words.filter(|word| word.starts_with("tollgate_"))
}

/// Each series with its metric.
fn exported() -> BTreeMap<String, String> {
    let described = Described::default();
    metrics::with_local_recorder(&described, || tollgate::describe_metrics(iter::empty()));
    described.0.into_inner().unwrap()
}

/// Keeps what is described.
#[derive(Default)]
struct Described(Mutex<BTreeMap<String, String>>);

impl Described {
    fn note(&self, metric: &KeyName, suffixes: &[&str]) {
        let metric = metric.as_str();
        let series = suffixes.iter().map(|suffix| (format!("{metric}{suffix}"), metric.to_owned()));
        self.0.lock().unwrap().extend(series);
    }
}

impl Recorder for Described {
    fn describe_counter(&self, metric: KeyName, _: Option<Unit>, _: SharedString) {
        self.note(&metric, &[""]);
    }

    fn describe_gauge(&self, metric: KeyName, _: Option<Unit>, _: SharedString) {
        self.note(&metric, &[""]);
    }

    /// With buckets, or with quantiles, which have the metric's own name.
    fn describe_histogram(&self, metric: KeyName, _: Option<Unit>, _: SharedString) {
        self.note(&metric, &["", "_bucket", "_count", "_sum"]);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
