//! The judges of storms: nobody was granted too much, and the books balance. Both in whole micro-tokens, without a
//! tolerance.

use std::sync::atomic::{AtomicI64, Ordering};

use tollgate::Limit;

use crate::world::{World, limiter};

/// A grant: its recorded instant in microseconds, and its cost in micro-tokens.
pub(crate) type Spent = (i64, i64);

/// Fails where a span between two of the grants took more than `most` and the tokens that came back in it.
pub(crate) fn never_over(grants: &[Spent], most: i64, came_back: impl Fn(i64) -> i64, what: &str) {
    let taken = most_at_once(grants, came_back);
    assert!(taken <= i128::from(most), "{taken} micro-tokens at once, the bound is {most}: {what}");
}

/// The micro-tokens that the worst span of grants took beyond those that came back in it, where so many have come back
/// up to an instant. The grants are in the order of their commits, in which the recorded clock never goes back.
pub(crate) fn most_at_once(grants: &[Spent], came_back: impl Fn(i64) -> i64) -> i128 {
    assert!(grants.is_sorted_by_key(|(instant, _)| instant), "the recorded clock went back");
    let first = grants.first().map_or(0, |(instant, _)| came_back(*instant));
    let (mut worst, mut most, mut before) = (0, 0_i128, first);
    for (instant, cost) in grants {
        let now = came_back(*instant);
        // The worst of all spans that end here: a span that begins earlier has more time.
        most = (most - i128::from(now - before)).max(0) + i128::from(*cost);
        (worst, before) = (worst.max(most), now);
    }
    worst
}

/// Fails where a key does not lack the tokens that were taken from it and kept. The rows are those of each limit by
/// turns, and a full one has so many tokens.
pub(crate) async fn balances(world: &World, limits: &[Limit], taken: &[AtomicI64], full: i64) {
    let mut tx = world.begin().await;
    for (row, taken) in taken.iter().enumerate() {
        let (limit, taken) = (&limits[row % limits.len()], taken.load(Ordering::SeqCst));
        let left = limiter().balance(&mut tx, limit.key(row / limits.len())).await.unwrap().remaining;
        assert_eq!(left.micros(), (full - taken) * 1_000_000, "row {row}: {taken} taken and kept");
    }
}
