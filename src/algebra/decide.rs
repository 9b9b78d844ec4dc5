use std::cmp::Reverse;
use std::slice;

use super::account::{Account, Portion, Shard, first_true};
use super::ask::Ask;
use super::state::{List, saturate, wide};
use super::terms::Flow;
use crate::answer::decision::Reason;
use crate::tokens::Tokens;
use crate::values::timestamp::Timestamp;

/// The answer of an account.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The cost is taken, to be spent from `ready_at` on.
    Granted {
        /// The changes to write; empty where nothing changes, for a cost of zero.
        portions: Vec<Portion>,
        /// The balance after the call; negative for a reservation that is not ready.
        remaining: Tokens,
        /// The first instant at which no charged row is in debt; the account's own instant if that is so already.
        ready_at: Timestamp,
    },
    /// Nothing is taken, and the rows stay as they are.
    Denied {
        /// The reason of the refusal.
        reason: Reason,
        /// The balance.
        remaining: Tokens,
        /// The first instant at which the same call, alone, would be granted.
        retry_at: Timestamp,
    },
}

/// A debt that no balance can hold, of about nine million million tokens. To store a smaller debt would forgive the
/// rest.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a debt this deep does not fit")]
pub struct TooDeep;

impl Account<'_> {
    /// Asks the rows together.
    ///
    /// A cost of zero is granted where the balance is not negative, and changes nothing. The fullest rows give first,
    /// so that few rows change. A reservation's debt goes to the rows that repay it soonest. The cost must not be
    /// negative. A lease is refused while the row lists a thousand leases.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] for an unbounded reservation whose debt no row can hold.
    pub fn decide(&self, ask: Ask) -> Result<Verdict, TooDeep> {
        let (needs, ask) = (ask.needs(&self.terms), ask.of_balance(self.sum, &self.terms));
        let (cost, floor) = (wide(ask.cost()), ask.floor(&self.terms));
        let (left, room_at) = (self.sum - cost, self.room_for_lease_at(ask));
        if left < floor && ask.is_unbounded(&self.terms) {
            return Err(TooDeep);
        }
        if left < floor || room_at > self.now {
            let retry_at = self.first_instant(needs).max(room_at);
            let reason = ask.refused_for(self.sum, &self.terms);
            return Ok(Verdict::Denied { reason, remaining: self.balance(), retry_at });
        }
        let portions = if cost > 0 { self.take(ask, cost) } else { Vec::new() };
        let ready_at = if portions.is_empty() { self.repaid_at() } else { self.ready_at(&portions) };
        Ok(Verdict::Granted { portions, remaining: saturate(left), ready_at: ready_at.max(self.now) })
    }

    /// The tokens that each request with a part gets, if there is one.
    pub(crate) fn partial(&self, ask: Ask) -> Option<Tokens> {
        ask.partial_of(self.sum, &self.terms)
    }

    /// The most that an ask of a split cost may take at an instant: no debt, and whole tokens if the cost is whole.
    pub(super) fn spare(&self, ask: Ask, at: Timestamp) -> i128 {
        let sum = if at <= self.now { self.sum } else { self.sum_at(at) };
        ask.whole_of((sum - ask.floor(&self.terms)).max(0))
    }

    /// Asks only one of the rows, whatever the others hold. The balance in the answer is that of all rows.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] for an unbounded reservation whose debt the row cannot hold.
    pub fn decide_in(&self, shard: usize, ask: Ask) -> Result<Verdict, TooDeep> {
        let terms = self.terms.shard(shard, self.rows.len());
        let alone = Account { terms, rows: slice::from_ref(&self.rows[shard]), ..*self }.summed();
        let mut verdict = alone.decide(ask)?;
        if let Verdict::Granted { portions, remaining, .. } = &mut verdict {
            for portion in portions {
                portion.shard = shard;
            }
            *remaining = saturate(self.sum - wide(ask.cost()));
        }
        Ok(verdict)
    }

    /// When the row has room for the lease, if the call asks for one.
    fn room_for_lease_at(&self, ask: Ask) -> Timestamp {
        if self.terms.flow != Flow::Leased || ask.cost() == Tokens::ZERO {
            return self.now;
        }
        let leases = self.shards().next().map(|shard| shard.refilled.list);
        let full = leases.filter(|leases| leases.entries().len() >= List::MAX_LEASES);
        full.map_or(self.now, |leases| leases.entries()[0].ends_at)
    }

    /// When the balance is no longer negative.
    fn repaid_at(&self) -> Timestamp {
        let is_paid = self.sum >= 0 || self.terms.flow == Flow::Wallet;
        if is_paid { self.now } else { self.first_instant(Tokens::ZERO) }
    }

    /// Charges the rows so that the cost is ready as soon as possible. The rows must hold the cost, or be allowed to
    /// owe it.
    fn take(&self, ask: Ask, cost: i128) -> Vec<Portion> {
        let shards: Vec<_> = match self.rows {
            [_] => return self.shards().map(|shard| shard.charged(ask, cost)).collect(),
            _ => self.shards().collect(),
        };
        let room = |at: Timestamp| shards.iter().map(|shard| shard.room(ask, at)).sum::<i128>();
        let ready_at = if room(self.now) >= cost {
            self.now
        } else {
            // If a row bears as much of the cost as it can, it is ready at some instant. The latest of these instants
            // bounds the search.
            let alone = |shard: &Shard| shard.portion(cost.min(shard.room(ask, Timestamp::MAX))).next;
            let latest = shards.iter().map(|shard| shard.terms.repaid_at(&alone(shard))).fold(self.now, Timestamp::max);
            first_true(self.now, latest, |at| room(at) >= cost)
        };
        // Each row gives all tokens that are ready before that instant. Of the tokens that become ready at that very
        // instant, the rows give only as many as are still missing.
        let before = Timestamp::from_micros(ready_at.micros() - 1);
        let floor = |shard: &Shard| if ready_at == self.now { 0 } else { shard.room(ask, before) };
        let mut charges: Vec<_> =
            shards.iter().map(|shard| (shard, floor(shard), shard.room(ask, ready_at) - floor(shard))).collect();
        charges.sort_by_key(|(.., more)| Reverse(*more));
        let mut left = cost - charges.iter().map(|(_, charge, _)| charge).sum::<i128>();
        for (_, charge, more) in &mut charges {
            let taken = left.min(*more);
            *charge += taken;
            left -= taken;
        }
        let positive = charges.into_iter().filter(|(_, charge, _)| *charge > 0);
        positive.map(|(shard, charge, _)| shard.portion(charge)).collect()
    }

    fn ready_at(&self, portions: &[Portion]) -> Timestamp {
        let terms = |portion: &Portion| self.terms.shard(portion.shard, self.rows.len());
        portions.iter().map(|portion| terms(portion).repaid_at(&portion.next)).fold(self.now, Timestamp::max)
    }
}
