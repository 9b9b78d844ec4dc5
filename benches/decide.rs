//! How long does a decision take without the database, beside governor's in the same run?
//!
//! `cargo bench -p tollgate-benches --bench decide`
//!
//! tollgate gets the time as an argument, and governor reads a clock. So governor is measured with its own clock, as it
//! is used, and with one that stands still and costs nothing. A refusal names the instant to come back at, so the bench
//! gets that from governor as well. `plan` is what the gate does for a batch: it sorts the rows, finds each call's, and
//! decides. The bench does not measure making requests, the database, or threads that ask at once.

#![expect(clippy::expect_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::num::NonZero;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use governor::clock::{Clock, DefaultClock, FakeRelativeClock, Reference};
use governor::{NotUntil, Quota, RateLimiter};
use tollgate::algebra::{Account, Ask, State, Terms, Timestamp, TooDeep, Verdict};
use tollgate::plan::{Plan, Verb};
use tollgate::{Key, Limit, SECOND, Tokens};

/// Never exhausted.
const PLENTY: u64 = 1_000_000_000;
const KEYS: u64 = 10_000;
const NOW: i64 = 1_700_000_000_000_000;

criterion_main!(benches);
criterion_group!(benches, ours, plans, theirs);

fn ours(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    for (name, limit) in [
        ("continuous", Limit::token_bucket("drip", PLENTY, SECOND)),
        ("stepped", Limit::fixed_window("window", PLENTY, SECOND)),
    ] {
        let terms = Terms::of(&limit, &Key::GLOBAL);
        group.bench_function(format!("{name}, granted"), |b| {
            let (mut row, mut now) = ([None], NOW);
            b.iter(|| {
                now += 1;
                row = granted(decide(&terms, black_box(&row), now));
            });
        });
    }
    for (name, limit) in [
        ("continuous", Limit::token_bucket("drip", 1, Limit::MAX_PERIOD)),
        ("stepped", Limit::fixed_window("window", 1, Limit::MAX_PERIOD)),
    ] {
        let terms = Terms::of(&limit, &Key::GLOBAL);
        group.bench_function(format!("{name}, refused"), |b| {
            let ts = Timestamp::from_micros(NOW);
            let (row, mut now) = ([Some(State::new(Tokens::from_micros(-1_000_000_000), ts))], NOW);
            b.iter(|| {
                now += 1;
                let verdict = decide(&terms, black_box(&row), now);
                assert!(matches!(verdict, Ok(Verdict::Denied { .. })));
                verdict
            });
        });
    }
}

fn decide(terms: &Terms, row: &[Option<State>], now: i64) -> Result<Verdict, TooDeep> {
    Account::new(terms, row, Timestamp::from_micros(now)).decide(Ask::consume(Tokens::ONE))
}

/// The state of a row after a token was taken from it.
fn granted(verdict: Result<Verdict, TooDeep>) -> [Option<State>; 1] {
    match verdict {
        Ok(Verdict::Granted { portions, .. }) => [portions.into_iter().next().map(|portion| portion.next)],
        other => panic!("{other:?}"),
    }
}

fn plans(c: &mut Criterion) {
    const PER_USER: Limit = Limit::token_bucket("per_user", PLENTY, SECOND);
    let now = Timestamp::from_micros(NOW);
    let row = Some(State::new(Tokens::ZERO, now));
    let mut group = c.benchmark_group("plan");
    for calls in [1, 64] {
        group.throughput(Throughput::Elements(calls));
        let mut user = 0;
        let mut batch = || {
            let batch: Vec<_> =
                (user..user + calls).map(|user| Verb::consume(PER_USER.key(user * 7919 % KEYS))).collect();
            user += calls;
            batch
        };
        group.bench_function(format!("calls: {calls}"), |b| {
            b.iter_batched(
                &mut batch,
                |calls| {
                    let plan = Plan::new(calls).expect("the calls are right");
                    let rows = vec![row.clone(); plan.rows().len()];
                    plan.decide(&rows, &[], now)
                },
                BatchSize::SmallInput,
            );
        });
    }
}

fn theirs(c: &mut Criterion) {
    check(c, "governor, clock stands still", &FakeRelativeClock::default());
    check(c, "governor, its own clock", &DefaultClock::default());
}

fn check<K: Clock + Clone>(c: &mut Criterion, name: &str, clock: &K) {
    let mut group = c.benchmark_group(name);
    // As many as it can count, so that a clock that stands still does not exhaust it before the run ends.
    let plenty = Quota::per_second(whole(1_000_000_000)).allow_burst(whole(u32::MAX));
    let exhausted = Quota::per_hour(whole(1));
    let direct = RateLimiter::direct_with_clock(plenty, clock.clone());
    group.bench_function("direct, granted", |b| b.iter(|| assert!(direct.check().is_ok())));
    let direct = RateLimiter::direct_with_clock(exhausted, clock.clone());
    assert!(direct.check().is_ok());
    group.bench_function("direct, refused", |b| b.iter(|| refused(direct.check())));
    let keyed = RateLimiter::dashmap_with_clock(plenty, clock.clone());
    group.bench_function("keyed, granted", |b| {
        let mut user = 0;
        b.iter(|| {
            user += 7919;
            assert!(keyed.check_key(&(user % KEYS)).is_ok());
        });
    });
    let keyed = RateLimiter::dashmap_with_clock(exhausted, clock.clone());
    (0..KEYS).for_each(|user| assert!(keyed.check_key(&user).is_ok()));
    group.bench_function("keyed, refused", |b| {
        let mut user = 0;
        b.iter(|| {
            user += 7919;
            refused(keyed.check_key(&(user % KEYS)))
        });
    });
}

fn refused<I: Reference>(answer: Result<(), NotUntil<I>>) -> I {
    answer.expect_err("it is exhausted").earliest_possible()
}

const fn whole(count: u32) -> NonZero<u32> {
    NonZero::new(count).expect("more than none")
}
