use super::ask::Ask;
use super::list::{Entry, List};
use super::state::{State, cut, wide};
use super::terms::Terms;
use crate::timestamp::Timestamp;
use crate::tokens::Tokens;

/// What one row of a pool gives or gets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Portion {
    /// Which of the rows, from 0.
    pub shard: usize,
    /// What the row holds from now on.
    pub next: State,
    /// What is taken from it; negative for what is given.
    pub taken: Tokens,
}

/// One of a pool's rows.
pub(super) struct Shard {
    pub(super) index: usize,
    pub(super) terms: Terms,
    /// As it was read.
    pub(super) read: State,
    /// At the pool's instant.
    pub(super) refilled: State,
}

impl Shard {
    /// What it is after a charge that it can bear alone.
    pub(super) fn charged(&self, ask: Ask, cost: i128) -> Portion {
        let mut portion = self.portion(cost);
        if let List::Grants(entries) | List::Leases(entries) = &mut portion.next.list {
            let ends_at = self.terms.leaves_at(portion.next.ts);
            entries.push(Entry { ends_at, amount: cut(cost), lease: ask.lease });
            portion.next = self.terms.counted(std::mem::take(entries), portion.next.ts);
        }
        portion
    }

    pub(super) fn portion(&self, taken: i128) -> Portion {
        let next = State { value: cut(wide(self.refilled.value) - taken), ..self.refilled.clone() };
        Portion { shard: self.index, next, taken: cut(taken) }
    }

    pub(super) fn becoming(&self, next: State) -> Portion {
        let taken = cut(wide(self.refilled.value) - wide(next.value));
        Portion { shard: self.index, next, taken }
    }

    /// What it is after a credit for which it has room.
    pub(super) fn credited(&self, given: i128) -> State {
        let mut next = self.refilled.clone();
        if let List::Grants(entries) = &mut next.list {
            // Of what leaves soonest: of whatever was not used, no more than this is free at any later instant.
            let mut left = given;
            for entry in &mut *entries {
                let free = left.min(wide(entry.amount));
                entry.amount = cut(wide(entry.amount) - free);
                left -= free;
            }
            entries.retain(|entry| entry.amount > Tokens::ZERO);
        }
        next.value = cut(wide(next.value) + given);
        next
    }

    /// The most that it can be charged and be out of debt at an instant, within its share of `max_reserved`. What is
    /// repaid after the end of time counts as ready then.
    pub(super) fn room(&self, ask: Ask, at: Timestamp) -> i128 {
        let value = wide(self.refilled.value);
        let most = (value + i128::from(ask.max_debt(&self.terms))).max(0);
        if at == Timestamp::MAX {
            return most;
        }
        let (gained, _) = self.terms.gained(self.refilled.ts, at.max(self.refilled.ts));
        (value + gained).clamp(0, most)
    }
}
