//! Which reports are noise and which are trouble, by what all processes report in a short time.

use std::time::Duration;

use tollgate::plan::SlowedRate;
use tollgate::{HOUR, Limit, MINUTE, SECOND, SlowDown, Tokens};

use crate::world::at;

const THEIRS: Limit = Limit::token_bucket("theirs", 1_000, SECOND).capacity(200);

/// The share after reports at some instants, in microseconds.
fn share(reports: impl IntoIterator<Item = i64>, limit: &Limit) -> u32 {
    let how = SlowDown::new();
    let forgets = SlowedRate::forgets(&how, limit, Tokens::ONE);
    let (mut last, mut now) = (None, 0);
    for report in reports {
        now = report;
        last = Some(SlowedRate::reported(last, &how, forgets, at(now)));
    }
    last.and_then(|last| last.share_at(at(now))).unwrap_or(SlowedRate::WHOLE)
}

#[test]
fn three_of_a_hundred_calls_may_fail_for_ever() {
    // A thousand calls a second, of which every thirty-fourth fails.
    assert_eq!(share((0..100_000).map(|call| call * 34_000), &THEIRS), SlowedRate::WHOLE);
    // Every thirtieth: three hundred more than is forgotten have failed after a while.
    assert!(share((0..300).map(|call| call * 30_000), &THEIRS) < SlowedRate::WHOLE);
}

#[test]
fn three_reports_and_those_of_half_a_second_may_come_at_once() {
    let at_once = |reports| share((0..reports).map(|_| 0), &THEIRS);
    assert_eq!([at_once(18), at_once(19)], [SlowedRate::WHOLE, 650_000]);
    let slow = Limit::token_bucket("slow", 1, MINUTE);
    let at_once = |reports| share((0..reports).map(|_| 0), &slow);
    assert_eq!([at_once(3), at_once(4)], [SlowedRate::WHOLE, 650_000]);
}

#[test]
fn a_slower_rate_forgets_less() {
    let how = SlowDown::new().recovers(24 * HOUR).cool_down(Duration::ZERO);
    let each = SECOND;
    let report = |last, now| Some(SlowedRate::reported(last, &how, each, at(now)));
    let mut last = None;
    for _ in 0..4 {
        last = report(last, 0);
    }
    let cut = last.unwrap();
    assert_eq!((cut.share, cut.forgotten_at), (650_000, None));
    last = report(last, 0);
    let tolerated = last.unwrap();
    assert_eq!(tolerated, SlowedRate { forgotten_at: Some(at(1_538_461)), ..cut });
    // The count begins anew after a cut.
    assert_eq!(report(report(report(last, 0), 0), 0).unwrap().share, 422_500);
}

#[test]
fn a_report_weighs_what_its_call_costs() {
    let how = SlowDown::new();
    let forgets = |limit: Limit, cost| SlowedRate::forgets(&how, &limit, Tokens::new(cost));
    assert_eq!(forgets(THEIRS, 1), Duration::from_micros(33_333));
    assert_eq!(forgets(Limit::token_bucket("llm", 30_000, MINUTE), 500), Duration::from_micros(33_333_333));
    assert_eq!(forgets(Limit::concurrency("runs", 10, HOUR), 1), Duration::from_micros(3_333_333));
    assert_eq!(forgets(Limit::token_bucket("slow", 1, 24 * HOUR), 1), 24 * HOUR);
    assert_eq!(SlowedRate::forgets(&how.forgets(MINUTE), &THEIRS, Tokens::new(9)), MINUTE);
}
