use std::mem;

use super::ask::Ask;
use super::list::{Entry, List};
use super::state::{State, saturate, wide};
use super::terms::Terms;
use crate::timestamp::Timestamp;
use crate::tokens::Tokens;

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
        next.full_at = self.terms.full_at_after(&self.read, &next, taken);
        Portion { shard: self.index, next, taken: saturate(taken) }
    }

    /// Its balance.
    fn left(&self) -> i128 {
        i128::from(self.terms.top()) + wide(self.refilled.value)
    }

    /// The row after a debit.
    pub(super) fn debited(&self, taken: i128) -> Portion {
        match self.changed_as_it_is(-taken) {
            Some(portion) => portion,
            None => self.charged(Ask::consume(saturate(taken)), taken),
        }
    }

    /// The row after a credit for which it has room.
    pub(super) fn credited(&self, given: i128) -> Portion {
        if let Some(portion) = self.changed_as_it_is(given) {
            return portion;
        }
        let mut next = self.refilled.clone();
        if let List::Grants(entries) = &mut next.list {
            // The entries that leave soonest shrink first: then no more tokens are free at any later instant than if
            // the given tokens had never been used.
            let mut left = given;
            for entry in &mut *entries {
                let free = left.min(wide(entry.amount));
                entry.amount = saturate(wide(entry.amount) - free);
                left -= free;
            }
            entries.retain(|entry| entry.amount > Tokens::ZERO);
        }
        next.value = saturate(wide(next.value) + given);
        self.becoming(next)
    }

    /// The row with more or fewer tokens, if another kind has used it and these terms count by a list. A list of these
    /// terms would end the use of the other kind after a period of its own, so the row has none.
    fn changed_as_it_is(&self, by: i128) -> Option<Portion> {
        let full_at = self.read.says_full_at()?;
        let is_own = mem::discriminant(&self.read.list) == mem::discriminant(&self.refilled.list);
        if !self.terms.flow.keeps_list() || is_own || self.refilled.value == Tokens::ZERO {
            return None;
        }
        let full_at = if by < 0 { full_at.max(self.terms.leaves_at(self.refilled.ts)) } else { full_at };
        let next = State { value: saturate(wide(self.read.value) + by), full_at, list: List::None, ..self.read };
        Some(Portion { shard: self.index, next, taken: saturate(-by) })
    }

    /// The most tokens that it can be charged so that it is out of debt at an instant, within its share of
    /// `max_reserved`. A debt that is repaid after the end of time counts as ready at the end of time.
    pub(super) fn room(&self, ask: Ask, at: Timestamp) -> i128 {
        let left = self.left();
        let most = (left + i128::from(ask.max_debt(&self.terms))).max(0);
        if at == Timestamp::MAX {
            return most;
        }
        let (gained, _) = self.terms.gained(self.refilled.ts, at.max(self.refilled.ts));
        (left + gained).clamp(0, most)
    }
}
