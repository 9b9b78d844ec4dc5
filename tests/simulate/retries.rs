//! Clients that come back.

use std::time::Duration;

use tollgate::simulate::{Outcome, Retry, Rule, Simulation, Traffic, arrivals};
use tollgate::{Limit, SECOND};

#[test]
fn whoever_comes_back_when_told_is_let_in_one_after_another() {
    let outcome = five_at_once(Retry::WhenTold, 10 * SECOND);
    assert_eq!((outcome.granted, outcome.refused), (5, 0));
    // One is let in at once and one each second; all who still wait ask again each time: 5 + 4 + 3 + 2 + 1.
    assert_eq!(outcome.tries, 15);
    assert_eq!((outcome.waits.waited, outcome.waits.worst), (4, 4 * SECOND));
}

#[test]
fn whoever_has_no_patience_left_is_refused() {
    let outcome = five_at_once(Retry::WhenTold, 2 * SECOND);
    assert_eq!((outcome.granted, outcome.refused), (3, 2));
    assert_eq!(outcome.waits.worst, 2 * SECOND, "patience ends after its last microsecond");
    assert_eq!(five_at_once(Retry::WhenTold, Duration::ZERO).granted, 1);
}

#[test]
fn whoever_hammers_asks_more_often_for_the_same() {
    let outcome = five_at_once(Retry::Every(Duration::from_millis(100)), 10 * SECOND);
    assert_eq!((outcome.granted, outcome.refused), (5, 0));
    // Ten rounds to each second: 5 + 10 · (4 + 3 + 2 + 1) tries.
    assert_eq!(outcome.tries, 105);
    assert_eq!(outcome.waits.worst, 4 * SECOND);
}

#[test]
fn hammering_without_a_pause_has_one_of_a_millisecond() {
    let outcome = five_at_once(Retry::Every(Duration::ZERO), 4 * SECOND);
    assert_eq!((outcome.granted, outcome.tries), (5, 5 + 1_000 * (4 + 3 + 2 + 1)));
}

#[test]
fn the_plot_goes_on_until_the_last_one_is_let_in() {
    let outcome = five_at_once(Retry::WhenTold, 10 * SECOND);
    let series = outcome.series.unwrap();
    assert_eq!(series.bins.iter().map(|bin| bin.granted).sum::<u64>(), 5);
    assert_eq!(series.bins.iter().map(|bin| bin.refused).sum::<u64>(), 10);
    let shown = series.width * u32::try_from(series.bins.len()).unwrap();
    assert!((4 * SECOND..5 * SECOND).contains(&shown), "{shown:?}");
}

fn five_at_once(retry: Retry, patience: Duration) -> Outcome {
    let limit = Rule::each(Limit::token_bucket("one", 1, SECOND));
    let crowd = [Traffic::burst(5, SECOND).lasting(SECOND)];
    let simulation = Simulation::new([limit]).retrying(retry).patience(patience);
    simulation.run(arrivals(&crowd, 1).unwrap()).unwrap()
}
