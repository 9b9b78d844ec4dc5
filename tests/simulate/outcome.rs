//! What is counted, kept for a plot, and said.

use std::time::Duration;

use serde_json::json;
use tollgate::algebra::Timestamp;
use tollgate::plan::Answer;
use tollgate::simulate::{Arrival, Level, Outcome, Rule, START, Series, Simulation, Traffic, arrivals};
use tollgate::{Error, HOUR, Key, Limit, MINUTE, SECOND, Tokens};

#[test]
fn the_series_shows_a_balance_fall_and_rise() {
    let simulation = Simulation::new([Rule::each(Limit::token_bucket("ten", 5, SECOND).capacity(10))]);
    let outcome = on(&simulation.spanning(START, 4 * SECOND), &[Traffic::burst(10, 2 * SECOND).lasting(4 * SECOND)]);
    let series = outcome.series.unwrap();
    assert_eq!((series.bins.len(), series.width), (320, Duration::from_micros(12_500)));
    let level = |bin: usize| (series.bins[bin].levels[0].low.micros(), series.bins[bin].levels[0].high.micros());
    assert_eq!(level(0), (0, 10_000_000), "full, then ten taken at once");
    assert_eq!(level(1), (62_500, 125_000), "five a second: a sixteenth of a token in each bin");
    assert_eq!(level(159), (9_937_500, 10_000_000));
    assert_eq!(level(160), (0, 10_000_000));
    assert_eq!(level(319), (9_937_500, 10_000_000), "up to the end, where there is no call");
    let granted: Vec<_> = series.bins.iter().enumerate().filter(|(_, bin)| bin.granted > 0).collect();
    assert_eq!(granted.iter().map(|(place, bin)| (*place, bin.granted)).collect::<Vec<_>>(), [(0, 10), (160, 10)]);
}

#[test]
fn a_limit_with_shards_is_counted_and_kept_as_one() {
    // Shares that divide to the microsecond.
    let limit = Limit::token_bucket("ten", 8, SECOND).capacity(16);
    let traffic =
        [Traffic::burst(20, 2 * SECOND).lasting(6 * SECOND), Traffic::constant(4, SECOND).lasting(6 * SECOND)];
    let told = |limit: Limit| {
        let outcome = on(&Simulation::new([Rule::global(limit)]).spanning(START, 6 * SECOND), &traffic);
        (outcome.granted, outcome.refused, outcome.sentence(), outcome.series.unwrap())
    };
    let (granted, refused, sentence, series) = told(limit.clone());
    assert!(granted > 40 && refused > 10, "{sentence}");
    let spread = told(limit.shards(4));
    assert_eq!((spread.0, spread.1, spread.2.as_str()), (granted, refused, sentence.as_str()));
    let levels = |series: &Series| series.bins.iter().map(|bin| bin.levels[0]).collect::<Vec<_>>();
    assert_eq!(levels(&spread.3), levels(&series));
    assert_eq!(levels(&series)[0].high, Tokens::new(16), "of all shards");
}

#[test]
fn a_series_whose_end_is_unknown_stays_short_and_loses_nothing() {
    let simulation = Simulation::new([Rule::each(Limit::token_bucket("one", 1, SECOND).capacity(10))]);
    for traffic in [Traffic::constant(7, SECOND).lasting(HOUR), Traffic::burst(40, 100 * HOUR).lasting(10_000 * HOUR)] {
        let outcome = on(&simulation, &[traffic]);
        let series = outcome.series.unwrap();
        assert!((Series::MAX_BINS / 2..=Series::MAX_BINS).contains(&series.bins.len()), "{}", series.bins.len());
        assert_eq!(series.bins.iter().map(|bin| bin.granted).sum::<u64>(), outcome.granted);
        assert_eq!(series.bins.iter().map(|bin| bin.refused).sum::<u64>(), outcome.refused);
        let levels = series.bins.iter().map(|bin| bin.levels[0]);
        let all = levels.reduce(|one, other| Level { low: one.low.min(other.low), high: one.high.max(other.high) });
        assert_eq!(all.map(|level| level.high), Some(Tokens::new(10)));
    }
}

#[test]
fn the_balance_of_the_key_that_is_watched_is_kept() {
    let simulation = Simulation::new([Rule::each(Limit::token_bucket("ten", 10, HOUR))]);
    let traffic =
        [Traffic::burst(3, HOUR).key("ada").lasting(SECOND), Traffic::burst(7, HOUR).key("bob").lasting(SECOND)];
    let lowest = |simulation: &Simulation| on(simulation, &traffic).series.unwrap().bins[0].levels[0].low;
    assert_eq!(lowest(&simulation), Tokens::new(7), "the first to call");
    assert_eq!(lowest(&simulation.watching(Key::new("bob").unwrap())), Tokens::new(3));
}

#[test]
fn a_call_that_no_wait_lets_through_is_counted_and_the_run_goes_on() {
    let simulation = Simulation::new([Rule::each(Limit::token_bucket("ten", 10, MINUTE))]);
    let call = |cost| Arrival { at: START, key: Key::GLOBAL, cost: Tokens::new(cost) };
    let outcome = simulation.run([call(11), call(10), call(11)]).unwrap();
    assert_eq!((outcome.calls, outcome.granted, outcome.refused, outcome.impossible), (3, 1, 0, 2));
    assert_eq!(
        outcome.sentence(),
        "Allows a burst of 10 and 10 a minute for each key: none of 3 calls was refused; 2 could never be granted, for they \
         cost more than the capacity."
    );
}

#[test]
fn what_the_limiter_would_report_ends_the_run() {
    let call = Arrival { at: START, key: Key::GLOBAL, cost: Tokens::ONE };
    let conflicting = [1, 2].map(|rate| Rule::each(Limit::token_bucket("same", rate, SECOND)));
    let error = Simulation::new(conflicting).run([call.clone()]).unwrap_err();
    assert!(matches!(error, Error::ConflictingDefinitions { .. }), "{error}");
    assert!(matches!(Simulation::new([]).run([call]).unwrap_err(), Error::NothingAsked));
}

#[test]
fn a_refusal_counts_for_each_limit_that_refused_and_for_no_other() {
    let limit = Limit::token_bucket("same", 2, MINUTE);
    let refusals = |rules: [Rule; 2], key: Key| {
        let call = Arrival { at: START, key, cost: Tokens::ONE };
        let outcome = Simulation::new(rules).run(vec![call; 5]).unwrap();
        outcome.rules.iter().map(|rule| rule.refusals).collect::<Vec<_>>()
    };
    let rules = || [Rule::each(limit.clone()), Rule::global(limit.clone())];
    assert_eq!(refusals(rules(), Key::new("ada").unwrap()), [3, 3]);
    let wide = Limit::token_bucket("wide", 4, MINUTE);
    assert_eq!(refusals([Rule::each(limit.clone()), Rule::global(wide)], Key::new("ada").unwrap()), [3, 0]);
    // Who has no key shares the row of all: the limit is asked for two tokens each time.
    assert_eq!(refusals(rules(), Key::GLOBAL), [4, 4]);
}

#[test]
fn a_clock_that_goes_back_stands_still() {
    let mut run = Simulation::new([Rule::each(Limit::token_bucket("one", 1, SECOND))]).start();
    let call = |seconds: i64| Arrival {
        at: Timestamp::from_micros(START.micros() + seconds * 1_000_000),
        key: Key::GLOBAL,
        cost: Tokens::ONE,
    };
    for second in [5, 3, 6, 0] {
        run.call(&call(second)).unwrap();
    }
    let ada = Arrival { key: Key::new("ada").unwrap(), ..call(1) };
    let answer = run.call(&ada).unwrap();
    assert!(matches!(answer, Answer::Granted { decided_at, .. } if decided_at == call(6).at), "{answer:?}");
    let outcome = run.finish().unwrap();
    assert_eq!((outcome.granted, outcome.refused), (3, 2));
}

#[test]
fn nobody_called_is_an_outcome_too() {
    let outcome = Simulation::new([Rule::each(Limit::token_bucket("one", 1, SECOND))]).run([]).unwrap();
    assert_eq!((outcome.calls, outcome.share_refused()), (0, 0.0));
    assert!(outcome.series.is_none());
    assert_eq!(outcome.sentence(), "Allows a burst of 1 and 1 a second for each key: none of 0 calls was refused.");
}

#[test]
fn the_sentence_names_the_burst_the_rate_the_share_and_the_worst_wait() {
    let sentence = |rules: &[Rule], reserving: bool| {
        let simulation = Simulation::new(rules.to_vec());
        let simulation = if reserving { simulation.reserving() } else { simulation };
        on(&simulation, &[Traffic::burst(9, MINUTE)]).sentence()
    };
    let window = Rule::global(Limit::fixed_window("window", 5, HOUR).start(Duration::ZERO));
    let steps = Rule::each(Limit::stepped_bucket("steps", 2, 10 * SECOND).capacity(8));
    assert_eq!(
        sentence(&[steps, window], false),
        "Allows a burst of 8 and 2 at once every 10s for each key, and a burst of 5 and 5 at once every hour for all \
         together: 4 of 9 calls (44.4 %) were refused, the first at once, and told to wait 1h at worst."
    );
    let queue = Rule::each(Limit::token_bucket("queue", 1, 90 * SECOND).capacity(2).max_reserved(4));
    assert_eq!(
        sentence(&[queue], true),
        "Allows a burst of 2 and 1 in 1m 30s for each key, 4 of them booked ahead: 3 of 9 calls (33.3 %) were refused, the \
         first at once, and told to wait 1m 30s at worst; 4 of the 6 granted waited, 6m at worst."
    );
}

#[test]
fn an_outcome_is_a_document() {
    let simulation = Simulation::new([Rule::each(Limit::token_bucket("two", 2, SECOND))]).spanning(START, 2 * SECOND);
    let outcome = on(&simulation, &[Traffic::burst(3, MINUTE).lasting(SECOND)]);
    let mut document = serde_json::to_value(&outcome).unwrap();
    let series = document.as_object_mut().unwrap().remove("series").unwrap();
    assert_eq!(
        document,
        json!({
            "rules": [{
                "definition": "token bucket 2 per 1s",
                "limit": {
                    "name": "two", "kind": "token_bucket", "rate": 2, "period": "1s", "capacity": 2, "start": null,
                    "max_reserved": 0, "shards": 1, "storage": "durable",
                },
                "global": false,
                "refusals": 1,
            }],
            "calls": 3, "granted": 2, "refused": 1, "impossible": 0, "tries": 3, "spent": 2,
            "first_refusal_after_us": 0,
            "worst_retry_after_us": 500_000,
            "waits": { "waited": 0, "p50_us": 0, "p90_us": 0, "p99_us": 0, "worst_us": 0 },
            "callers": [{ "key": "client", "calls": 3, "granted": 2 }],
        })
    );
    assert_eq!(series["start"], json!("2025-01-01T00:00:00Z"));
    assert_eq!(series["width_us"], json!(6_250));
    assert_eq!(series["bins"][0], json!({ "granted": 2, "refused": 1, "levels": [{ "low": 0, "high": 2 }] }));
    assert_eq!(series["bins"][1], json!({ "granted": 0, "refused": 0, "levels": [{ "low": 0.0125, "high": 0.025 }] }));
}

fn on(simulation: &Simulation, traffic: &[Traffic]) -> Outcome {
    simulation.run(arrivals(traffic, 1).unwrap()).unwrap()
}
