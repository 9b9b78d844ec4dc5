use std::time::Duration;

use super::holds::Hold;
use super::state::State;
use super::terms::{Flow, Terms};
use super::timestamp::Timestamp;
use crate::hold::{HoldId, Holding};
use crate::tokens::Tokens;

/// What a call asks of a limit for one key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ask {
    cost: Tokens,
    reserving: bool,
    holding: Option<Holding>,
    /// The name of the hold; of one that the caller has named, without a fingerprint.
    pub(super) id: HoldId,
}

impl Ask {
    /// Tokens to spend now.
    #[must_use]
    pub const fn consume(cost: Tokens) -> Self {
        Self { cost, reserving: false, holding: None, id: HoldId::new(0) }
    }

    /// Tokens to spend as soon as they are there, which may be later.
    #[must_use]
    pub const fn reserve(cost: Tokens) -> Self {
        Self { cost, reserving: true, holding: None, id: HoldId::new(0) }
    }

    /// The same, with a hold.
    pub(crate) fn holding(self, holding: Option<Holding>) -> Self {
        Self { holding, ..self }
    }

    /// The balance that grants this: the cost, less the debt that it may make.
    pub(crate) fn needs(self, terms: &Terms) -> Tokens {
        // Neither is negative: the difference fits.
        Tokens::from_micros(self.cost.micros() - self.max_debt(terms))
    }

    /// How deep a debt it may make.
    pub(super) fn max_debt(self, terms: &Terms) -> i64 {
        if self.reserving { terms.max_reserved } else { 0 }
    }

    /// The largest cost that can ever be granted at once.
    pub(crate) fn max_cost(self, terms: &Terms) -> Tokens {
        Tokens::from_micros(terms.capacity.saturating_add(self.max_debt(terms)))
    }

    /// Whether the tokens may be spent later.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_reserving(self) -> bool {
        self.reserving
    }

    /// How much is asked.
    pub(crate) fn cost(self) -> Tokens {
        self.cost
    }

    /// The same, whose hold has this name, unless the caller has named it.
    pub(crate) fn named(self, id: HoldId) -> Self {
        if self.is_once() { self } else { Self { id, ..self } }
    }

    /// The same, whose hold the caller names, if so.
    pub(crate) fn once(self, name: Option<&str>) -> Self {
        Self { id: name.map_or(self.id, HoldId::once), ..self }
    }

    /// Whether the caller has named it.
    pub(crate) fn is_once(self) -> bool {
        self.id.is_once()
    }

    /// The id of its hold. A lease may be of another length in the next release.
    pub(crate) fn hold_id(self, terms: &Terms) -> HoldId {
        let holding = self.holding.filter(|_| terms.flow != Flow::Leased);
        if self.is_once() { self.id.asking(self.cost, holding) } else { self.id }
    }

    /// The hold that it keeps, if it does, from an instant on, in a row that it was taken from.
    pub(crate) fn hold(self, terms: &Terms, row: &State, from: Timestamp) -> Option<Hold> {
        let holding = self.holding?;
        let hold = Hold {
            lapses_at: from.plus(holding.span()),
            amount: self.cost,
            id: Some(row.holds.free_id(self.hold_id(terms))),
            keeps: holding.keeps(),
            used: false,
        };
        let Flow::Sliding { .. } = terms.flow else { return Some(hold) };
        // It counts no longer than other grants do, and a receipt that keeps is good for so long.
        let leaves_at = terms.leaves_at(row.ts);
        let lapses_at = if hold.keeps { leaves_at } else { hold.lapses_at.min(leaves_at) };
        Some(Hold { lapses_at, keeps: false, ..hold })
    }

    /// When the tokens of a hold that it took before were ready. A row of a limit that counts tells it only to the tick,
    /// and of a lease that was renewed since when: never too early, and not after its own instant.
    pub(super) fn ready_at(self, terms: &Terms, row: &State, hold: Hold) -> Timestamp {
        let period = Duration::from_micros(terms.period.unsigned_abs());
        match self.holding {
            Some(Holding::LapsesAfter(span)) if terms.flow.counts() => {
                hold.lapses_at.minus(span.min(period)).min(row.ts)
            }
            _ if terms.flow.counts() => hold.lapses_at.minus(period).min(row.ts),
            holding => hold.lapses_at.minus(holding.map_or(Duration::ZERO, Holding::span)),
        }
    }

    /// Whether it keeps the same hold as another.
    pub(crate) fn holds_as(self, other: Self) -> bool {
        (self.holding, self.id) == (other.holding, other.id)
    }

    /// Whether it takes tokens or keeps a hold.
    pub(crate) fn writes(self, terms: &Terms) -> bool {
        self.cost > Tokens::ZERO || self.keeps_hold(terms)
    }

    /// Whether it keeps a hold. Of a concurrency limit nobody holds nothing.
    pub(super) fn keeps_hold(self, terms: &Terms) -> bool {
        self.holding.is_some() && (self.cost > Tokens::ZERO || terms.flow != Flow::Leased)
    }

    /// The sum of two asks of one kind; `None` where the sum does not fit.
    pub(crate) fn checked_add(self, other: Self) -> Option<Self> {
        let cost = self.cost.checked_add(other.cost)?;
        Some(Self { cost, ..self })
    }
}
