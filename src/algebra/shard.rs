use std::mem;

use super::ask::Ask;
use super::list::{Entry, List};
use super::state::{State, saturate, wide};
use super::terms::Terms;
use crate::tokens::Tokens;
use crate::values::timestamp::Timestamp;

/// The change of one row of an account.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Portion {
    /// The number of the row, from 0.
    pub shard: usize,
    /// The row after the change.
    pub next: State,
    /// The tokens that the row gives; negative for tokens that it gets.
    pub taken: Tokens,
}

/// One of an account's rows.
pub(super) struct Shard {
    pub(super) index: usize,
    pub(super) terms: Terms,
    /// The row as it was read; a full one if it was missing, or counts as missing.
    pub(super) read: State,
    /// The row at the account's instant.
    pub(super) refilled: State,
}

impl Shard {
    /// The row after a charge that it can bear alone.
    pub(super) fn charged(&self, ask: Ask, cost: i128) -> Portion {
        let mut next = self.less(cost);
        if let List::Grants(entries) | List::Leases(entries) = &mut next.list {
            let ends_at = self.terms.leaves_at(next.ts);
            entries.push(Entry { ends_at, amount: saturate(cost), lease: ask.lease });
            next = self.terms.counted(mem::take(entries), next.ts);
        }
        self.becoming(next)
    }

    pub(super) fn portion(&self, taken: i128) -> Portion {
        self.becoming(self.less(taken))
    }

    fn less(&self, taken: i128) -> State {
        State { value: saturate(wide(self.refilled.value) - taken), ..self.refilled.clone() }
    }

    pub(super) fn becoming(&self, mut next: State) -> Portion {
        let taken = wide(self.refilled.value) - wide(next.value);
        next.list = self.terms.mark(&next);
        next.full_at = self.terms.full_at_after(&self.read, &next, taken);
        Portion { shard: self.index, next, taken: saturate(taken) }
    }

    /// Its balance.
    fn left(&self) -> i128 {
        i128::from(self.terms.top()) + wide(self.refilled.value)
    }

    /// The most tokens that it can be charged so that it is out of debt at an instant, within its share of
    /// `max_reserved`. A debt that is repaid after the end of time counts as ready at the end of time.
    pub(super) fn room(&self, ask: Ask, at: Timestamp) -> i128 {
        let left = self.left();
        let most = (left + i128::from(ask.max_debt(&self.terms))).max(0);
        if at == Timestamp::MAX {
            return most;
        }
        let (gained, _) = self.terms.gained(&self.refilled, at.max(self.refilled.ts));
        (left + gained).clamp(0, most)
    }
}
