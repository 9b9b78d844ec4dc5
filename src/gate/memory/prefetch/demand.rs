use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::slice::{Ages, spent_within};
use crate::gate::memory::Touch;
use crate::key::Key;
use crate::limit::Limit;
use crate::plan::Operation;
use crate::tokens::Tokens;

/// The tokens that calls ask of a key, from which the number to take ahead follows.
#[derive(Debug)]
pub(super) struct Demand {
    /// The micro-tokens of calls since the last charge, and the number of these calls.
    asked: i64,
    calls: u32,
    /// The instant of the last charge, or of the last try.
    pub(super) since: Instant,
    /// The micro-tokens that calls ask for in a `max_age`, as a mean of the last span and those before it.
    mean: i64,
    /// The size of the last slices. It falls by halves.
    size: i64,
    /// The slice that was charged last is idle after this span without a call.
    pub(super) quiet: Duration,
}

impl Demand {
    pub(super) fn new(now: Instant) -> Self {
        Self { asked: 0, calls: 0, since: now, mean: 0, size: 0, quiet: Duration::ZERO }
    }

    pub(super) fn add(&mut self, asked: Tokens, calls: u32) {
        self.asked = self.asked.saturating_add(asked.micros());
        self.calls = self.calls.saturating_add(calls);
    }

    /// The number of tokens to take, at most `most`, for calls of such a cost that come within `max_age`. Restarts the
    /// count.
    ///
    /// It is 0.7 of the expected tokens, because a slice that is used up just before its time forfeits nothing. With
    /// all of the expected tokens, each early renewal would forfeit tokens that time has brought back. For a key with
    /// one call within `max_age` no tokens are expected. The expectation grows from slice to slice, because the first
    /// calls of a key come within a moment, and say little.
    pub(super) fn next(&mut self, cost: Tokens, most: Tokens, max_age: Duration, now: Instant) -> Tokens {
        let elapsed = now.saturating_duration_since(self.since);
        let (elapsed_micros, max_age_micros) = (elapsed.as_micros().max(1), max_age.as_micros());
        let asked = u128::try_from(self.asked).unwrap_or(0);
        let sample = if self.calls < 2 && elapsed > max_age { 0 } else { asked * max_age_micros / elapsed_micros };
        let grown = 4 * (i128::from(self.size) + i128::from(cost.micros()));
        let before = if self.mean == 0 { sample } else { u128::try_from(self.mean).unwrap_or(0) };
        let mean = i128::try_from(before.midpoint(sample)).map_or(grown, |mean| mean.min(grown));
        self.mean = i64::try_from(mean).unwrap_or(i64::MAX);
        self.quiet = quiet(self.mean, cost, max_age);
        (self.asked, self.calls, self.since) = (0, 0, now);
        let wanted = i64::try_from(i128::from(self.mean) * 7 / 10).unwrap_or(i64::MAX).min(most.micros());
        let one = Tokens::ONE.micros();
        let fraction = if cost.micros() % one == 0 { wanted % one } else { 0 };
        Tokens::from_micros(wanted - fraction)
    }

    /// Notes the size of the slice that was charged.
    pub(super) fn sliced(&mut self, size: Tokens) {
        let size = size.micros();
        self.size = if size >= self.size { size } else { size.midpoint(self.size) };
    }
}

/// The demand of a batch for a key.
pub(super) struct BatchDemand<'c> {
    pub(super) limit: &'c Limit,
    pub(super) key: &'c Key,
    /// The tokens of the calls that memory can serve, and the cost of the last of them.
    pub(super) tokens: Tokens,
    pub(super) calls: u32,
    pub(super) cost: Tokens,
    /// Whether one of them raises the row.
    pub(super) replenishes: bool,
    /// Whether two calls define the limit differently.
    pub(super) differs: bool,
}

impl<'c> BatchDemand<'c> {
    /// The demand of calls for each key, by its hash.
    pub(super) fn by(
        calls: impl Iterator<Item = &'c Operation>,
        ages: &Ages,
        hash: impl Fn(&Limit, &Key) -> u64,
    ) -> BTreeMap<u64, Self> {
        let mut all = BTreeMap::new();
        for call in calls {
            let is_servable = Touch::of(call).all(|touch| touch.pays.is_some() && ages.serve(touch.limit));
            for touch in Touch::of(call) {
                let asked = all.entry(hash(touch.limit, touch.key)).or_insert_with(|| Self::nothing(&touch));
                asked.add(&touch, is_servable);
            }
        }
        all
    }

    fn nothing(&Touch { limit, key, .. }: &Touch<'c>) -> Self {
        let (tokens, calls, cost) = (Tokens::ZERO, 0, Tokens::ZERO);
        Self { limit, key, tokens, calls, cost, replenishes: false, differs: false }
    }

    fn add(&mut self, &Touch { limit, key, pays, replenishes }: &Touch<'c>, is_servable: bool) {
        self.replenishes |= replenishes;
        self.differs |= self.limit != limit;
        if let Some(cost) = pays.filter(|_| is_servable) {
            (self.limit, self.key, self.cost) = (limit, key, cost);
            self.tokens = self.tokens.checked_add(cost).unwrap_or(Tokens::MAX);
            self.calls += 1;
        }
    }
}

/// A quarter of `max_age`, or the time in which two calls of such a cost are expected, if that is longer, but no longer
/// than a slice is spent.
fn quiet(mean: i64, cost: Tokens, max_age: Duration) -> Duration {
    let mean = u128::try_from(mean).unwrap_or(0).max(1);
    let two = max_age.as_micros() * 2 * u128::try_from(cost.micros()).unwrap_or(0) / mean;
    Duration::from_micros(u64::try_from(two).unwrap_or(u64::MAX)).clamp(max_age / 4, spent_within(max_age))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    /// The sizes of slices for a key with so many calls a second. Each slice gets all tokens that it asks for.
    fn slices(per_second: u32, max_age: Duration, rounds: usize) -> Vec<(Instant, Tokens)> {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from")]
        let mut now = Instant::now();
        let (mut demand, mut sizes) = (Demand::new(now), Vec::new());
        for _ in 0..rounds {
            // A slice is used up, or its time is over.
            let used = sizes
                .last()
                .map_or(0, |(_, size): &(Instant, Tokens)| u32::try_from(size.micros() / 1_000_000).unwrap());
            let calls = (used + 1).min((per_second * 3 / 4).max(1));
            now += SECOND * calls / per_second;
            demand.add(Tokens::new(calls), calls);
            let size = demand.next(Tokens::ONE, Tokens::MAX, max_age, now);
            demand.sliced(size);
            sizes.push((now, size));
        }
        sizes
    }

    #[test]
    fn it_comes_to_seven_tenths_of_what_is_asked() {
        let sizes: Vec<_> = slices(1_000, SECOND, 30).into_iter().map(|(_, size)| size).collect();
        assert_eq!(sizes[0], Tokens::new(2), "one call says little");
        assert!(sizes.windows(2).all(|pair| pair[1].micros() <= 3 * pair[0].micros() + 3_000_000), "{sizes:?}");
        // The mean comes ever nearer to a thousand.
        assert!([699, 700].map(Tokens::new).contains(&sizes[29]), "{sizes:?}");
    }

    /// The rest of the earlier slice is given back together with each charge, so there are no other writes.
    #[test]
    fn a_key_is_charged_fewer_than_one_and_a_half_times_in_a_max_age() {
        for per_second in [100, 1_000, 40_000] {
            let charges = slices(per_second, SECOND, 60);
            let spans = charges[40..].windows(2).map(|pair| pair[1].0 - pair[0].0);
            assert!(spans.sum::<Duration>() * 3 > SECOND * 19 * 2, "{per_second}: {charges:?}");
        }
    }

    #[test]
    fn a_slice_is_idle_after_a_quarter_of_its_time_or_two_calls_that_did_not_come() {
        let quiet = |(per_second, cost)| quiet(Tokens::new(per_second).micros(), Tokens::new(cost), SECOND).as_millis();
        let spans = [(1_000, 1), (8, 1), (4, 1), (3, 1), (2, 1), (1, 1), (40, 10)].map(quiet);
        assert_eq!(spans, [250, 250, 500, 666, 850, 850, 500]);
    }

    #[test]
    fn who_is_asked_once_in_a_while_takes_nothing() {
        assert!(slices(1, SECOND / 2, 5).iter().all(|(_, size)| *size == Tokens::ZERO));
    }
}
