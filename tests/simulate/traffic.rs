//! Calls that are made up.

use std::collections::BTreeMap;

use tollgate::algebra::Timestamp;
use tollgate::simulate::{Arrival, START, Traffic, TrafficError, arrivals, span};
use tollgate::{HOUR, MINUTE, SECOND};

#[test]
fn constant_calls_are_spaced_without_drift() {
    let calls = made(&[Traffic::constant(3, SECOND).lasting(2 * SECOND)]);
    assert_eq!(offsets(&calls), [0, 333_333, 666_666, 1_000_000, 1_333_333, 1_666_666]);
}

#[test]
fn bursts_are_at_one_instant() {
    let calls = made(&[Traffic::burst(2, 5 * SECOND).from(SECOND).lasting(6 * SECOND)]);
    assert_eq!(offsets(&calls), [1_000_000, 1_000_000, 6_000_000, 6_000_000]);
}

#[test]
fn calls_of_all_clients_are_in_order_and_each_client_makes_all_of_them() {
    let traffic = [
        Traffic::constant(2, SECOND).lasting(2 * SECOND).clients(3),
        Traffic::poisson(50, SECOND).lasting(SECOND).from(SECOND).key("other"),
    ];
    let calls = made(&traffic);
    assert!(calls.is_sorted_by_key(|call| call.at));
    let mut by_key = BTreeMap::new();
    for call in &calls {
        *by_key.entry(call.key.as_str()).or_insert(0) += 1;
    }
    assert_eq!([by_key["client-1"], by_key["client-2"], by_key["client-3"]], [4, 4, 4]);
    assert!(by_key["other"] > 25, "{by_key:?}");
    assert_eq!(span(&traffic), 2 * SECOND);
}

#[test]
fn random_calls_come_as_often_as_they_should_and_as_unevenly() {
    let calls = made(&[Traffic::poisson(100, SECOND).lasting(100 * SECOND)]);
    // Ten thousand with a deviation of a hundred: this seed is within two of it.
    assert!((9_800..10_200).contains(&calls.len()), "{}", calls.len());
    let gaps: Vec<_> = offsets(&calls).windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Of the gaps of a Poisson process 1 - 1/e are below the mean, and e^-3 above three times the mean.
    let share = |long: &dyn Fn(i64) -> bool| gaps.iter().filter(|gap| long(**gap)).count() * 1_000 / gaps.len();
    assert!((620..645).contains(&share(&|gap| gap < 10_000)), "{}", share(&|gap| gap < 10_000));
    assert!((42..58).contains(&share(&|gap| gap > 30_000)), "{}", share(&|gap| gap > 30_000));
}

#[test]
fn a_day_has_its_noon_and_its_midnight() {
    let calls = made(&[Traffic::diurnal(60, MINUTE)]);
    assert!((85_500..87_300).contains(&calls.len()), "{} of 86400", calls.len());
    let hour = |hour: i64| {
        let hours = i64::try_from(HOUR.as_micros()).unwrap();
        calls.iter().filter(|call| (call.at.micros() - START.micros()) / hours == hour).count()
    };
    // 3600 on average; 1.8 times that at noon, a fifth at midnight, the average at six.
    assert!((6_200..6_700).contains(&hour(12)), "{}", hour(12));
    assert!((650..850).contains(&hour(0)), "{}", hour(0));
    assert!((3_100..4_300).contains(&hour(6)), "{}", hour(6));
}

#[test]
fn the_same_seed_makes_the_same_calls_and_another_client_changes_none() {
    let traffic = |clients| [Traffic::poisson(5, SECOND).clients(clients)];
    assert_eq!(made(&traffic(2)), made(&traffic(2)));
    let other: Vec<_> = arrivals(&traffic(2), 2).unwrap().collect();
    assert_ne!(made(&traffic(2)), other);
    let mut three = made(&traffic(3));
    three.retain(|call| call.key.as_str() != "client-3");
    assert_eq!(three, made(&traffic(2)));
    let of = |key: &str| three.iter().filter(|call| call.key.as_str() == key).map(|call| call.at).collect::<Vec<_>>();
    assert_ne!(of("client-1"), of("client-2"), "each draws lots of its own");
}

#[test]
fn traffic_that_cannot_be_is_an_error_with_a_name() {
    let error = |traffic: Traffic| arrivals(&[traffic], 1).unwrap_err();
    assert_eq!(error(Traffic::constant(0, SECOND)), TrafficError::Nothing);
    assert_eq!(error(Traffic::burst(1, SECOND).clients(0)), TrafficError::Nothing);
    assert_eq!(error(Traffic::poisson(1, SECOND).lasting(400_000 * 24 * HOUR)), TrafficError::TooLong);
    assert!(matches!(error(Traffic::constant(1, SECOND).key("")), TrafficError::Key(_)));
    assert!(matches!(error(Traffic::constant(1, SECOND).key("a\0b").clients(2)), TrafficError::Key(_)));
}

#[test]
fn traffic_denser_than_the_clock_is_made_at_the_same_instants() {
    let calls = made(&[Traffic::constant(u32::MAX, SECOND)]);
    assert_eq!(offsets(&calls)[99_999], 23, "of 4295 calls in each microsecond");
    assert!(offsets(&made(&[Traffic::poisson(u32::MAX, SECOND)])).is_sorted());
}

/// The calls of traffic, the first hundred thousand.
fn made(traffic: &[Traffic]) -> Vec<Arrival> {
    arrivals(traffic, 1).unwrap().take(100_000).collect()
}

fn offsets(calls: &[Arrival]) -> Vec<i64> {
    calls.iter().map(|Arrival { at, .. }: &Arrival| Timestamp::micros(*at) - START.micros()).collect()
}
