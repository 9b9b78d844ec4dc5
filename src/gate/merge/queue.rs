use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::gate::reply::QueuedCall;

/// Calls that wait for a lane, in the order in which they came.
///
/// The weight of a call is the number of its keys. A hundred calls of 6 000 keys each are only a hundred calls, but
/// kept the callers behind them waiting for up to 47 seconds. Shards do not count, because calls of one key share them.
#[derive(Default)]
pub(super) struct Queue {
    calls: VecDeque<QueuedCall>,
    /// The number of keys that they ask for.
    keys: usize,
    /// The number of calls that were in the queue at an instant, and have not left it.
    there: Option<(Instant, usize)>,
    pub(super) has_worker: bool,
}

impl Queue {
    /// Whether there is room for a call: alone, or beside others for so many keys in all.
    pub(super) fn has_room(&self, call: &QueuedCall, keys: usize) -> bool {
        self.calls.is_empty() || self.keys + call.call.keys() <= keys
    }

    pub(super) fn push(&mut self, call: QueuedCall) {
        self.keys += call.call.keys();
        self.calls.push_back(call);
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// The first call whose caller still waits.
    pub(super) fn first(&mut self) -> Option<&QueuedCall> {
        while self.calls.front().is_some_and(|first| first.reply.is_abandoned()) {
            self.pop();
        }
        self.calls.front()
    }

    /// Takes calls of the first call's part for a batch: at most so many calls and so many rows, but at least one call.
    /// The others keep their places.
    pub(super) fn take_batch(&mut self, calls: usize, rows: usize) -> Vec<QueuedCall> {
        let (mut batch, mut others, mut taken) = (Vec::new(), Vec::new(), 0);
        let part = self.calls.front().and_then(|first| first.call.part());
        while let Some(next) = self.calls.front().filter(|_| batch.len() < calls) {
            if next.call.part() != part {
                others.extend(self.calls.pop_front());
                continue;
            }
            taken += next.call.count_rows();
            if taken > rows && !batch.is_empty() {
                break;
            }
            batch.extend(self.pop().filter(|next| !next.reply.is_abandoned()));
        }
        others.into_iter().rev().for_each(|other| self.calls.push_front(other));
        batch
    }

    /// Takes the calls that have waited for so long, or for up to twice as long. The queue does not note when each call
    /// came, because that would cost each call a look at the clock.
    pub(super) fn take_late(&mut self, now: Instant, patience: Duration) -> Vec<QueuedCall> {
        if self.there.is_some_and(|(at, _)| now.saturating_duration_since(at) < patience) {
            return Vec::new();
        }
        let count = self.there.map_or(0, |(_, count)| count);
        let late = (0..count).filter_map(|_| self.pop()).collect();
        self.there = Some((now, self.calls.len()));
        late
    }

    pub(super) fn take_all(&mut self) -> VecDeque<QueuedCall> {
        (self.keys, self.there) = (0, None);
        std::mem::take(&mut self.calls)
    }

    fn pop(&mut self) -> Option<QueuedCall> {
        let first = self.calls.pop_front()?;
        self.keys -= first.call.keys();
        if let Some((_, count)) = &mut self.there {
            *count = count.saturating_sub(1);
        }
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::reply::Reply;
    use crate::plan::{Operation, Under, Verb};
    use crate::{Limit, MINUTE, SECOND};

    const LIMIT: Limit = Limit::token_bucket("one", 1, MINUTE);

    #[expect(clippy::disallowed_methods, reason = "an instant to count from")]
    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn who_is_passed_over_for_too_long_is_told_so_and_nobody_before() {
        let (mut queue, mut answers, start) = (Queue::default(), Vec::new(), now());
        let mut come = |queue: &mut Queue| {
            let (reply, answer) = Reply::new("one".to_owned().into());
            answers.push(answer);
            queue.push(QueuedCall {
                call: Operation::of(Verb::consume(LIMIT.global()), &Under::NOTHING).unwrap(),
                reply,
                blocked_since: None,
            });
        };
        // Takes a batch of one, and then the calls that are late at this second.
        let late_at = |queue: &mut Queue, second| {
            assert_eq!(queue.take_batch(1, 1).len(), 1);
            queue.take_late(start + second * SECOND, 5 * SECOND).len()
        };
        (0..5).for_each(|_| come(&mut queue));
        assert_eq!(late_at(&mut queue, 0), 0, "four have come by now");
        assert_eq!(late_at(&mut queue, 4), 0);
        (0..3).for_each(|_| come(&mut queue));
        assert_eq!(late_at(&mut queue, 5), 2, "of the four two had their turn");
        assert_eq!(late_at(&mut queue, 9), 0, "the three have come within five seconds");
        assert_eq!(late_at(&mut queue, 10), 1, "of the three two had theirs");
        assert!(queue.first().is_none());
    }
}
