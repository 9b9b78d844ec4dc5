//! Known figures of the literature and of other limiters, each told call by call.

use std::time::Duration;

use tollgate::algebra::Timestamp;
use tollgate::plan::Answer;
use tollgate::simulate::{Arrival, Outcome, Rule, START, Simulation, Traffic, arrivals};
use tollgate::{Key, Limit, MINUTE, SECOND, Tokens};

#[test]
fn twenty_tokens_and_five_each_ten_seconds_keep_their_grid() {
    let mut run = Simulation::new([Rule::each(uploads())]).start();
    let mut left = |at, cost| match run.call(&call(at, cost)).unwrap() {
        Answer::Granted { remaining, .. } => remaining,
        other => panic!("{other:?}"),
    };
    assert_eq!(left(0.0, 5), Tokens::new(15));
    assert_eq!(left(10.0, 18), Tokens::new(2));
    assert_eq!(left(20.0, 0), Tokens::new(7));
}

#[test]
fn ten_of_ten_a_minute_spent_the_next_is_there_after_six_seconds() {
    let mut run = Simulation::new([Rule::each(Limit::token_bucket("ten", 10, MINUTE))]).start();
    assert!(matches!(run.call(&call(0.0, 10)).unwrap(), Answer::Granted { .. }));
    let Answer::Denied(denied) = run.call(&call(0.0, 1)).unwrap() else { panic!("granted") };
    assert_eq!(denied.retry_after(), 6 * SECOND);
    assert!(matches!(run.call(&call(5.999_999, 1)).unwrap(), Answer::Denied(_)));
    assert!(matches!(run.call(&call(6.0, 1)).unwrap(), Answer::Granted { .. }));
}

#[test]
fn f16_and_f18_only_whole_periods_count_and_none_is_lost() {
    let mut run = Simulation::new([Rule::each(uploads())]).start();
    let mut left = |at, cost| match run.call(&call(at, cost)).unwrap() {
        Answer::Granted { remaining, .. } => Ok(remaining),
        Answer::Denied(denied) => Err(denied.retry_after()),
        other @ Answer::Done(_) => panic!("{other:?}"),
    };
    assert_eq!(left(0.0, 15), Ok(Tokens::new(5)));
    assert_eq!(left(15.0, 1), Ok(Tokens::new(9)));
    assert_eq!(left(20.0, 1), Ok(Tokens::new(13)));
    assert_eq!(left(20.0, 13), Ok(Tokens::ZERO));
    assert_eq!(left(29.0, 1), Err(SECOND));
    assert_eq!(left(30.0, 1), Ok(Tokens::new(4)));
}

#[test]
fn f19_to_f21_traffic_within_the_rate_is_never_refused() {
    let buckets = |rate, period, capacity| {
        let stepped = Limit::stepped_bucket("stepped", rate, period).capacity(capacity);
        [stepped, Limit::token_bucket("bucket", rate, period).capacity(capacity)]
    };
    let spaced = |seconds, calls| Traffic::constant(1, seconds * SECOND).lasting(seconds * calls * SECOND);
    for limit in buckets(5, 10 * SECOND, 20) {
        assert_eq!(granted(&limit, &spaced(9, 400)), 400, "F19");
    }
    for limit in buckets(10, MINUTE, 10) {
        assert_eq!(granted(&limit, &spaced(7, 515)), 515, "F20");
        assert_eq!(granted(&limit, &spaced(6, 600)), 600, "F20");
    }
    for limit in buckets(100, SECOND, 100) {
        assert_eq!(granted(&limit, &Traffic::constant(50, SECOND).lasting(MINUTE)), 3_000, "F21");
    }
}

#[test]
fn f23_a_capacity_of_one_loses_half_of_what_is_a_little_early() {
    let early = Traffic::constant(1, 59 * SECOND).lasting(62 * 59 * SECOND);
    let bucket = |capacity| Limit::token_bucket("bucket", 1, MINUTE).capacity(capacity);
    assert_eq!(granted(&bucket(1), &early), 31);
    assert_eq!(granted(&bucket(2), &early), 61);
}

#[test]
fn b7_a_reservation_is_ready_when_its_debt_is_paid() {
    let bucket = Limit::token_bucket("ten", 10, MINUTE).unbounded_reservations();
    let mut run = Simulation::new([Rule::each(bucket)]).reserving().start();
    let mut booked = |at, cost| match run.call(&call(at, cost)).unwrap() {
        Answer::Granted { remaining, ready_at, .. } => (remaining, ready_at.micros() - start(at).micros()),
        other => panic!("{other:?}"),
    };
    assert_eq!(booked(0.0, 5), (Tokens::new(5), 0));
    assert_eq!(booked(6.0, 16), (Tokens::from_micros(-10_000_000), 60_000_000));
    assert_eq!(booked(36.0, 5), (Tokens::from_micros(-10_000_000), 60_000_000));
    let outcome = run.finish().unwrap();
    assert_eq!((outcome.waits.waited, outcome.waits.worst), (2, MINUTE));
}

#[test]
fn several_limits_are_taken_all_or_none() {
    let each = Rule::each(Limit::token_bucket("each", 2, MINUTE));
    let total = Rule::global(Limit::token_bucket("total", 3, MINUTE));
    let mut run = Simulation::new([each, total]).start();
    let mut granted = |key: &str| {
        let call = Arrival { key: Key::new(key).unwrap(), ..call(0.0, 1) };
        matches!(run.call(&call).unwrap(), Answer::Granted { .. })
    };
    // Ada's third call takes nothing from the total, so that two of Bob's fit beside two of hers less one.
    assert_eq!(["ada", "ada", "ada", "bob", "bob"].map(&mut granted), [true, true, false, true, false]);
    let refusals: Vec<_> = run.finish().unwrap().rules.iter().map(|rule| rule.refusals).collect();
    assert_eq!(refusals, [1, 1]);
}

fn uploads() -> Limit {
    Limit::stepped_bucket("uploads", 5, 10 * SECOND).capacity(20)
}

fn granted(limit: &Limit, traffic: &Traffic) -> u64 {
    let simulation = Simulation::new([Rule::each(limit.clone())]);
    let outcome: Outcome = simulation.run(arrivals(std::slice::from_ref(traffic), 1).unwrap()).unwrap();
    outcome.granted
}

fn start(seconds: f64) -> Timestamp {
    let micros = i64::try_from(Duration::from_secs_f64(seconds).as_micros()).unwrap();
    Timestamp::from_micros(START.micros() + micros)
}

fn call(seconds: f64, cost: u32) -> Arrival {
    Arrival { at: start(seconds), key: Key::new("ada").unwrap(), cost: Tokens::new(cost) }
}
