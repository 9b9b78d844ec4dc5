use std::cmp::Reverse;
use std::mem;

use super::account::{Account, Portion, Shard};
use super::ask::Ask;
use super::decide::TooDeep;
use super::state::{List, State, saturate, wide};
use super::terms::Terms;
use crate::tokens::Tokens;
use crate::values::timestamp::Timestamp;

impl Account<'_> {
    /// Gives tokens back, to the emptiest row first, each up to its share of the capacity.
    #[must_use]
    pub fn credit(&self, amount: Tokens) -> Vec<Portion> {
        let mut left = wide(amount);
        let mut emptiest: Vec<_> = self.shards().collect();
        emptiest.sort_by_key(|shard| shard.refilled.value);
        let mut portions = Vec::new();
        for shard in emptiest {
            let given = left.min(shard.terms.room_above(shard.refilled.value));
            if given > 0 {
                portions.push(shard.credited(given));
                left -= given;
            }
        }
        portions
    }

    /// Takes tokens, whatever the balance is: the fullest rows are lowered to one level, below zero if necessary. On
    /// one level no row stays full, and wastes its refill, while another is low.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] if the debt would not fit.
    pub fn debit(&self, amount: Tokens) -> Result<Vec<Portion>, TooDeep> {
        if amount == Tokens::ZERO {
            return Ok(Vec::new());
        }
        let mut fullest: Vec<_> = self.shards().collect();
        fullest.sort_by_key(|shard| Reverse(shard.refilled.value));
        let (mut left, mut lowered) = (-wide(amount), 0);
        for shard in &fullest {
            let value = wide(shard.refilled.value);
            if lowered > 0 && left.div_euclid(lowered) >= value {
                break;
            }
            left += value;
            lowered += 1;
        }
        // The rest does not always divide evenly: then the fullest rows keep a micro-token more.
        let (level, more) = (left.div_euclid(lowered), left.rem_euclid(lowered));
        if level < i128::from(i64::MIN) {
            return Err(TooDeep);
        }
        let portions = fullest.iter().zip(0..lowered).map(|(shard, place)| {
            let value = level + i128::from(place < more);
            shard.debited(wide(shard.refilled.value) - value)
        });
        Ok(portions.filter(|portion| portion.taken != Tokens::ZERO).collect())
    }

    /// Fills up each row that is there, and sets it to the time of the clock: a row from the future comes back to the
    /// present. Its leases stay listed, for the holders of their receipts, but give no tokens back. A wallet is
    /// emptied.
    #[must_use]
    pub fn reset(&self) -> Vec<Portion> {
        let there = self.shards().filter(|shard| self.rows[shard.index].is_some());
        there
            .map(|shard| {
                if shard.terms.stands_still(&shard.read) {
                    let full = State::new(Tokens::ZERO, self.clock);
                    return shard.becoming(State { list: shard.read.list.clone(), ..full });
                }
                let mut next = shard.terms.full(self.clock);
                if let List::Leases(mut leases) = shard.refilled.list.clone() {
                    leases.retain(|lease| lease.lease.is_some());
                    for lease in &mut leases {
                        lease.amount = Tokens::ZERO;
                    }
                    next.list = List::Leases(leases);
                }
                shard.becoming(next)
            })
            .collect()
    }
}

impl Shard {
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
}

/// Tokens that were charged for calls to come, and were not spent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rest {
    /// The number of tokens.
    pub tokens: Tokens,
    /// The row's own instant after the charge. For a row with steps it lies before the instant of the charge.
    pub stood_at: Timestamp,
    /// The instant from which on no tokens are given back.
    pub until: Timestamp,
}

impl Rest {
    /// The rest less the tokens that time has brought back: the row has gained these in place of the rest.
    ///
    /// To give back all of it would bank that gain. Say the rate is one a second. A token is taken ahead at 0 and given
    /// back in full at 1, when the row has gained another: two can be spent at once.
    pub(crate) fn owed(&self, terms: &Terms, now: Timestamp) -> Tokens {
        if now >= self.until {
            return Tokens::ZERO;
        }
        let row = State::new(Tokens::ZERO, self.stood_at);
        let row = terms.stood_still(&row, now).unwrap_or(row);
        let (gained, _) = terms.gained(&row, now.max(row.ts));
        saturate((wide(self.tokens) - gained).max(0))
    }
}
