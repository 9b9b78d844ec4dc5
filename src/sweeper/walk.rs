use crate::store::Ctid;

/// The walk through a table, a few pages at a time, over the pages that it had at the start. Rows that are added later
/// are too new to be full.
#[derive(Debug)]
pub(super) struct Walk {
    pages: u32,
    next: Ctid,
    /// How many pages to look at next.
    stride: u32,
}

impl Walk {
    pub(super) fn new(pages: u32) -> Self {
        Self { pages, next: Ctid { page: 0, item: 0 }, stride: LONGEST_STRIDE }
    }

    /// The next places to look at: from the first up to the second, which is excluded. `None` at the end.
    pub(super) fn next(&self) -> Option<[Ctid; 2]> {
        let to = self.next.page.saturating_add(self.stride).min(self.pages);
        (self.next.page < self.pages).then_some([self.next, Ctid { page: to, item: 0 }])
    }

    /// Advances: to just behind the last place of a full batch, or behind all of [`next`](Self::next).
    ///
    /// If a batch was full, the step has read the pages behind it for nothing. So the next stride has the length that
    /// would have sufficed, plus one page, so that the next batch is full as well. If the batch was not full, the next
    /// stride is twice as long.
    pub(super) fn advance(&mut self, last: Option<Ctid>) {
        match (last, self.next()) {
            (Some(Ctid { page, item }), _) => {
                self.stride = page.saturating_sub(self.next.page).saturating_add(2).min(LONGEST_STRIDE);
                self.next = Ctid { page, item: item.saturating_add(1) };
            }
            (None, Some([_, to])) => {
                self.stride = (2 * self.stride).min(LONGEST_STRIDE);
                self.next = to;
            }
            (None, None) => {}
        }
    }

    pub(super) fn pages(&self) -> u32 {
        self.pages
    }

    /// The number of pages that are done.
    pub(super) fn done(&self) -> u32 {
        self.next.page.min(self.pages)
    }
}

/// How many pages one statement looks at: half a megabyte, some five thousand rows, a millisecond or two.
const LONGEST_STRIDE: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_sees_every_place_once() {
        let mut walk = Walk::new(2 * LONGEST_STRIDE + 1);
        let (mut seen, mut until) = (Vec::new(), Ctid { page: 0, item: 0 });
        while let Some([from, to]) = walk.next() {
            assert_eq!(from, until);
            seen.push((from.page, to.page));
            walk.advance(None);
            until = to;
        }
        let (stride, end) = (LONGEST_STRIDE, 2 * LONGEST_STRIDE + 1);
        assert_eq!(seen, [(0, stride), (stride, 2 * stride), (2 * stride, end)]);
        assert_eq!((walk.done(), walk.pages()), (end, end));
    }

    #[test]
    fn behind_a_batch_that_was_full_it_goes_on_in_strides_that_fit() {
        let mut walk = Walk::new(1000);
        let next = |walk: &Walk| walk.next().map(|places| places.map(|place| (place.page, place.item)));
        walk.advance(Some(Ctid { page: 3, item: 17 }));
        assert_eq!(next(&walk), Some([(3, 18), (8, 0)]));
        // All rows of the batch are on one page.
        walk.advance(Some(Ctid { page: 3, item: 60 }));
        assert_eq!(next(&walk), Some([(3, 61), (5, 0)]));
        for to in [(5, 9), (9, 17), (17, 33)] {
            walk.advance(None);
            assert_eq!(next(&walk), Some([(to.0, 0), (to.1, 0)]));
        }
    }

    #[test]
    fn an_empty_table_is_no_walk() {
        assert_eq!(Walk::new(0).next(), None);
    }

    #[test]
    fn the_last_page_that_postgres_can_count_is_reached() {
        let mut walk = Walk::new(u32::MAX);
        walk.advance(Some(Ctid { page: u32::MAX - 1, item: u16::MAX }));
        assert_eq!(walk.next().map(|[_, to]| to.page), Some(u32::MAX));
        walk.advance(None);
        assert_eq!(walk.next(), None);
    }
}
