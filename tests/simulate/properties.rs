//! What holds for every limit and every traffic.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate::simulate::{Outcome, Retry, Rule, Series, Simulation, Traffic, arrivals, span};
use tollgate::{Limit, LimitKind, LimitSpec, SECOND, Tokens};

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/simulate/properties.regressions"))),
        ..ProptestConfig::with_cases(200)
    })]

    #[test]
    fn every_call_is_counted_once_and_every_try_is_plotted_once(limit in limit(), traffic in traffic(), retry in retry()) {
        let outcome = run(&limit, &traffic, retry);
        prop_assert_eq!(outcome.calls, arrivals(&[traffic], 1).unwrap().count() as u64);
        prop_assert_eq!(outcome.calls, outcome.granted + outcome.refused + outcome.impossible);
        prop_assert!(outcome.tries >= outcome.calls - outcome.impossible);
        let bins = outcome.series.map(|series| series.bins).unwrap_or_default();
        prop_assert_eq!(bins.iter().map(|bin| bin.granted).sum::<u64>(), outcome.granted);
        prop_assert_eq!(bins.iter().map(|bin| bin.granted + bin.refused).sum::<u64>(), outcome.tries);
        prop_assert!(bins.len() <= Series::MAX_BINS);
    }

    #[test]
    fn no_more_is_spent_than_the_limit_allows(limit in limit(), traffic in traffic(), retry in retry()) {
        let spec = limit.spec();
        let traffic = traffic.clients(1);
        let outcome = run(&limit, &traffic, retry);
        // Clients wait for ten seconds at most after their first try.
        let micros = (span(&[traffic]) + PATIENCE).as_micros();
        let steps = micros.div_ceil(spec.period.as_micros());
        let came_back = match spec.kind {
            LimitKind::TokenBucket => i128::from(spec.rate.micros()) * i128::try_from(micros).unwrap()
                / i128::try_from(spec.period.as_micros()).unwrap(),
            _ => i128::from(spec.rate.micros()) * i128::try_from(steps).unwrap(),
        };
        let most = i128::from(limit.spec().capacity.unwrap().micros()) + i128::from(spec.max_reserved.micros()) + came_back;
        prop_assert!(i128::from(outcome.spent.micros()) <= most, "{} of {most}", outcome.spent.micros());
    }

    #[test]
    fn balances_stay_between_the_deepest_debt_and_the_capacity(limit in limit(), traffic in traffic()) {
        let spec = limit.spec();
        let outcome = run(&limit, &traffic, Retry::Never);
        for level in outcome.series.into_iter().flat_map(|series| series.bins).flat_map(|bin| bin.levels) {
            prop_assert!(-spec.max_reserved.micros() <= level.low.micros() && level.low <= level.high);
            prop_assert!(level.high <= spec.capacity.unwrap());
        }
    }
}

fn run(limit: &Limit, traffic: &Traffic, retry: Retry) -> Outcome {
    let simulation = Simulation::new([Rule::each(limit.clone())]).retrying(retry).patience(PATIENCE);
    let simulation = if limit.spec().max_reserved > Tokens::ZERO { simulation.reserving() } else { simulation };
    simulation.run(arrivals(std::slice::from_ref(traffic), 1).unwrap()).unwrap()
}

fn limit() -> impl Strategy<Value = Limit> {
    let kind = prop_oneof![Just(LimitKind::TokenBucket), Just(LimitKind::FixedWindow), Just(LimitKind::SteppedBucket)];
    let periods = prop_oneof![Just(Duration::from_millis(100)), Just(SECOND), Just(7 * SECOND)];
    (kind, 1..20_u32, periods, 0..30_u32, prop_oneof![Just(0), 1..20_u32]).prop_map(
        |(kind, rate, period, capacity, reserved)| {
            let mut spec = LimitSpec::new("any", kind, Tokens::new(rate), period);
            spec.capacity = Some(Tokens::new(capacity));
            spec.max_reserved = Tokens::new(reserved);
            spec.try_into().unwrap()
        },
    )
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let pattern = prop_oneof![Just("burst size"), Just("constant rate"), Just("poisson rate"), Just("diurnal rate")];
    (pattern, 1..12_u32, 1..3_000_u64, 1..8_u64, 1..4_u32, 0..8_u32).prop_map(
        |(pattern, calls, per, seconds, clients, cost)| {
            let per_name = if pattern.starts_with("burst") { "every" } else { "per" };
            let text = format!("{pattern}={calls} {per_name}={per}ms for={seconds}s clients={clients} cost={cost}");
            text.parse().unwrap()
        },
    )
}

fn retry() -> impl Strategy<Value = Retry> {
    prop_oneof![Just(Retry::Never), Just(Retry::WhenTold), Just(Retry::Every(Duration::from_millis(300)))]
}

const PATIENCE: Duration = Duration::from_secs(10);
