//! The share of a rate that a report of trouble leaves: it grows evenly, at whole seconds. `changed::slowed` takes its
//! word for the share, and would not notice one that grows too fast.

use proptest::prelude::*;
use tollgate::SlowDown;
use tollgate::plan::SlowedRate;

use crate::world::at;

const SECOND: i64 = 1_000_000;

/// The rate would grow from nothing to the whole in a minute. The report takes three tenths of it, which are back after
/// 18 seconds.
#[test]
fn each_second_brings_back_a_sixtieth_of_the_rate() {
    let slowed = SlowedRate::reported(None, &SlowDown::new(), at(0));
    let share = |micros| slowed.share_at(at(micros));
    assert_eq!([share(-1), share(18 * SECOND)], [None, None]);
    for (micros, percent) in [(0, 70), (SECOND - 1, 70), (3 * SECOND, 75), (6 * SECOND, 80), (12 * SECOND, 90)] {
        assert_eq!(share(micros), Some(percent * 10_000), "after {micros} us");
    }
    // A sixtieth is 16 666 millionths and two thirds of one, which do not count.
    assert_eq!([SECOND, 2 * SECOND, 18 * SECOND - 1].map(share), [Some(716_666), Some(733_333), Some(983_333)]);
}

proptest! {
    /// As large a part of the lost share has come back as whole seconds of the span have passed, and less than a
    /// millionth is missing.
    #[test]
    fn a_share_lies_on_the_line_from_the_report_to_the_whole(
        share in 1..SlowedRate::WHOLE,
        starts_at in -1_000 * SECOND..1_000 * SECOND,
        (span, passed) in (1..90_000 * SECOND).prop_flat_map(|span| (Just(span), 0..span)),
    ) {
        let slowed = SlowedRate { share, starts_at: at(starts_at), ends_at: at(starts_at + span) };
        let present = slowed.share_at(at(starts_at + passed)).unwrap();
        let [lost, back] = [SlowedRate::WHOLE - share, present - share].map(i64::from);
        let on_line = i128::from(lost) * i128::from(passed / SECOND * SECOND);
        let whole = i128::from(span);
        prop_assert!((i128::from(back) * whole..i128::from(back + 1) * whole).contains(&on_line), "{back} of {lost}");
    }
}
