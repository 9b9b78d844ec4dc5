use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of lanes over which calls are spread: few while batches are small, because calls that share a batch share
/// its cost, and more as batches grow.
///
/// When the width changes, calls of one row may be under way in two lanes at once: one of them loses the race, and is
/// decided again. So the width changes by one, and only if batches are far from their size at the last change.
pub(crate) struct Width {
    lanes: AtomicUsize,
    /// The most lanes that there may be.
    pub(super) most: usize,
    /// Batches of so many calls call for one lane more.
    many: usize,
    /// Batches of so few calls call for one lane less.
    few: usize,
    /// The average number of calls in the last batches at this width, in sixteenths. It is an average because large and
    /// small batches take turns.
    mean: AtomicUsize,
}

impl Width {
    /// Starts with one lane, and grows up to `most` as batches of at most `max_batch` calls demand.
    pub(crate) fn growing(most: usize, max_batch: usize) -> Self {
        let many = max_batch.min(MANY);
        Self { lanes: AtomicUsize::new(1), most, many, few: (many / 6).max(1), mean: AtomicUsize::new(0) }
    }

    /// A fixed number of lanes.
    pub(crate) fn fixed(lanes: usize) -> Self {
        Self { lanes: AtomicUsize::new(lanes), most: lanes, many: 0, few: 0, mean: AtomicUsize::new(0) }
    }

    /// Another with the same bounds, which has seen nothing.
    pub(crate) fn afresh(&self) -> Self {
        let Self { most, many, few, .. } = *self;
        let lanes = if many == 0 { most } else { 1 };
        Self { lanes: AtomicUsize::new(lanes), most, many, few, mean: AtomicUsize::new(0) }
    }

    pub(super) fn lanes(&self) -> usize {
        self.lanes.load(Ordering::Relaxed)
    }

    /// A lane has decided so many calls at once.
    pub(super) fn saw(&self, calls: usize) {
        let lanes = self.lanes();
        // It is rounded up, so that for a constant batch size it comes to within seven sixteenths of that size.
        let mean = (self.mean.load(Ordering::Relaxed) * 7 + calls * 16).div_ceil(8);
        let wanted = if mean >= self.many * 16 {
            (lanes + 1).min(self.most)
        } else if mean <= self.few * 16 + 7 && mean * lanes < self.many * 16 * (lanes - 1) {
            lanes - 1
        } else {
            lanes
        };
        // The same calls make smaller batches in more lanes.
        self.mean.store(mean * lanes / wanted, Ordering::Relaxed);
        if wanted != lanes {
            // If another lane was quicker, it has seen the same.
            let _ = self.lanes.compare_exchange(lanes, wanted, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// A batch of so many calls makes each of them cheap. Beyond that, another lane, which works while the first waits,
/// helps more than a larger batch, up to one lane for each core and one to spare. That also holds for durable limits.
/// If a flush takes 0.5 or 1.6 ms, 64 callers get as many grants in two lanes as in three; if it takes 0.1 ms, they get
/// a fifth more in two. And in two lanes each grant costs less processor time.
const MANY: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_with_the_batches_and_does_not_sway() {
        let width = Width::growing(4, 256);
        for (callers, lanes) in [(1, 1), (16, 1), (64, 2), (256, 4), (40, 4), (20, 2), (9, 1), (1, 1)] {
            for _ in 0..100 {
                width.saw(callers / width.lanes());
            }
            assert_eq!(width.lanes(), lanes, "{callers}");
        }
    }

    #[test]
    fn small_batches_that_are_full_ask_for_lanes() {
        let width = Width::growing(2, 4);
        (0..100).for_each(|_| width.saw(4));
        assert_eq!(width.lanes(), 2);
        (0..100).for_each(|_| width.saw(1));
        assert_eq!(width.lanes(), 1);
    }

    #[test]
    fn batches_of_one_by_order_keep_all_lanes_open() {
        let width = Width::growing(3, 1);
        for calls in 1..200 {
            width.saw(1);
            assert!(calls < 100 || width.lanes() == 3, "{calls}");
        }
    }
}
