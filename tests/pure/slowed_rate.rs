//! The share of a rate that a report of trouble leaves: it grows evenly, at whole seconds. `changed::slowed` takes its
//! word for the share, and would not notice one that grows too fast.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Plan, SlowedRate, Under, Verb};
use tollgate::{Key, Limit, MINUTE, Reason, SlowDown};

use crate::world::{at, paused};

const SECOND: i64 = 1_000_000;

/// The rate would grow from nothing to the whole in a minute. The report takes three tenths of it, which are back after
/// 18 seconds.
#[test]
fn each_second_brings_back_a_sixtieth_of_the_rate() {
    let slowed = SlowedRate::reported(None, &SlowDown::new().percent(70), Duration::ZERO, at(0));
    let share = |micros| slowed.share_at(at(micros));
    assert_eq!([share(-1), share(18 * SECOND)], [Some(700_000), None]);
    for (micros, percent) in [(0, 70), (SECOND - 1, 70), (3 * SECOND, 75), (6 * SECOND, 80), (12 * SECOND, 90)] {
        assert_eq!(share(micros), Some(percent * 10_000), "after {micros} us");
    }
    // A sixtieth is 16 666 millionths and two thirds of one, which do not count.
    assert_eq!([SECOND, 2 * SECOND, 18 * SECOND - 1].map(share), [Some(716_666), Some(733_333), Some(983_333)]);
}

/// The rate that it had at the start of the pause is the one at its end.
#[test]
fn a_rate_grows_back_from_the_end_of_a_pause() {
    let cut = SlowedRate::reported(None, &SlowDown::new().percent(70), Duration::ZERO, at(0));
    let shares = |slowed: SlowedRate, seconds: [i64; 3]| seconds.map(|second| slowed.share_at(at(second * SECOND)));
    let at_once = paused(cut, at(0), at(30 * SECOND));
    assert_eq!(shares(at_once, [30, 33, 48]), [Some(700_000), Some(750_000), None]);
    // Nine of the eighteen seconds are left, and one for the steps.
    let later = paused(cut, at(9 * SECOND), at(30 * SECOND));
    assert_eq!(shares(later, [9, 30, 35]), [Some(850_000), Some(850_000), Some(925_000)]);
    assert_eq!(shares(later, [39, 40, 41]), [Some(985_000), None, None]);
    assert_eq!(paused(at_once, at(10 * SECOND), at(20 * SECOND)), at_once, "one that ends sooner changes nothing");
}

/// Of four slots two are left for 18 seconds.
#[test]
fn a_call_that_costs_more_than_the_smaller_n_waits_for_the_whole() {
    let cut = SlowedRate::reported(None, &SlowDown::new(), Duration::ZERO, at(0));
    let slowed = |limit: &Limit, _: &Key| cut.applied(limit, at(0));
    let call = Verb::consume(Limit::concurrency("slots", 4, MINUTE).key("k").cost(4));
    let plan = Plan::under([call], &Under { overrides: Some(&slowed), ..Under::NOTHING }).unwrap();
    let answer = plan.decide(&[None], &[], at(0)).answers.pop().unwrap().unwrap();
    let Answer::Denied(denied) = answer else { panic!("{answer:?}") };
    assert_eq!((denied.reason, denied.retry_at.map(Timestamp::from)), (Reason::Leased, Some(cut.ends_at)));
}

/// Reporters with numbers of their own, each some microseconds after the one before; some have it paused.
fn reports() -> impl Strategy<Value = Vec<(SlowDown, u64, i64, Option<i64>)>> {
    let recovers = prop_oneof![SECOND..20 * SECOND, SECOND..86_400 * SECOND];
    let how = (1..100_u8, 1..100_u8, recovers, 0..3 * SECOND).prop_map(|(percent, least, recovers, cool_down)| {
        let [recovers, cool_down] = [recovers, cool_down].map(|span| Duration::from_micros(span.unsigned_abs()));
        SlowDown::new().percent(percent).least_percent(least).recovers(recovers).cool_down(cool_down)
    });
    vec((how, prop_oneof![Just(0), 0..2_000_000_u64], 0..30 * SECOND, option::of(0..30 * SECOND)), 2..8)
}

proptest! {
    /// Reporters differ in how fast their rates grow back.
    #[test]
    fn a_report_makes_the_share_larger_at_no_later_instant(reports in reports(), later in vec(0.0..1.1, 32)) {
        let (mut last, mut now) = (None::<SlowedRate>, 0);
        for (how, forgets, after, pause) in reports {
            now += after;
            let next = SlowedRate::reported(last, &how, Duration::from_micros(forgets), at(now));
            let next = pause.map_or(next, |span| paused(next, at(now), at(now + span)));
            let waiting = last.zip(pause).map_or(next, |(last, span)| paused(last, at(now), at(now + span)));
            let share = |slowed: SlowedRate, micros| slowed.share_at(at(micros)).unwrap_or(SlowedRate::WHOLE);
            let end = next.ends_at.micros() - now;
            #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "about so much later")]
            let between = later.iter().map(|part| now + (end as f64 * part) as i64);
            let steps = (0..20).flat_map(|step| [now + step * SECOND, now + step * SECOND - 1]);
            for micros in between.chain(steps).filter(|micros| *micros >= now) {
                let before = last.map_or(SlowedRate::WHOLE, |last| share(last, micros));
                for next in [next, waiting] {
                    prop_assert!(share(next, micros) <= before, "{next:?} after {last:?} at {micros}");
                }
            }
            last = Some(next);
        }
    }

    /// As large a part of the lost share has come back as whole seconds of the span have passed, and less than a
    /// millionth is missing.
    #[test]
    fn a_share_lies_on_the_line_from_the_report_to_the_whole(
        share in 1..SlowedRate::WHOLE,
        starts_at in -1_000 * SECOND..1_000 * SECOND,
        (span, passed) in (1..90_000 * SECOND).prop_flat_map(|span| (Just(span), 0..span)),
    ) {
        let [from, now, ends_at] = [starts_at, starts_at + passed, starts_at + span].map(at);
        let slowed = SlowedRate { share, reported_at: at(0), starts_at: from, ends_at, forgotten_at: None };
        let present = slowed.share_at(now).unwrap();
        let [lost, back] = [SlowedRate::WHOLE - share, present - share].map(i64::from);
        let on_line = i128::from(lost) * i128::from(passed / SECOND * SECOND);
        let whole = i128::from(span);
        prop_assert!((i128::from(back) * whole..i128::from(back + 1) * whole).contains(&on_line), "{back} of {lost}");
    }
}
