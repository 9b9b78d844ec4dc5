use super::terms::{Flow, Terms};
use crate::call_name::Drawn;
use crate::tokens::Tokens;

/// What a call asks of a limit for one key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ask {
    cost: Tokens,
    reserving: bool,
    /// Whether one actual cost for all requests of the call is not that of this one.
    pub(crate) flat: bool,
    /// The name of its lease, if the limit grants any.
    pub(crate) lease: Option<Drawn>,
}

impl Ask {
    /// Tokens to spend now.
    #[must_use]
    pub const fn consume(cost: Tokens) -> Self {
        Self { cost, reserving: false, flat: false, lease: None }
    }

    /// Tokens to spend as soon as they are there, which may be later.
    #[must_use]
    pub const fn reserve(cost: Tokens) -> Self {
        Self { reserving: true, ..Self::consume(cost) }
    }

    /// The same, flat or not.
    pub(crate) fn flat(self, flat: bool) -> Self {
        Self { flat, ..self }
    }

    /// The same, with a name for its lease.
    pub(crate) fn named(self, lease: Drawn) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// The balance that grants this: the cost, less the debt that it may make.
    pub(crate) fn needs(self, terms: &Terms) -> Tokens {
        // Neither is negative: the difference fits.
        Tokens::from_micros(self.cost.micros() - self.max_debt(terms))
    }

    /// How deep a debt it may make. A wallet's overdraft is for every call.
    pub(super) fn max_debt(self, terms: &Terms) -> i64 {
        if self.reserving || terms.flow == Flow::Wallet { terms.max_reserved } else { 0 }
    }

    /// The largest cost that can ever be granted at once.
    pub(crate) fn max_cost(self, terms: &Terms) -> Tokens {
        Tokens::from_micros(terms.capacity.saturating_add(self.max_debt(terms)))
    }

    /// Whether the tokens may be spent later.
    pub(crate) fn is_reserving(self) -> bool {
        self.reserving
    }

    /// How much is asked.
    pub(crate) fn cost(self) -> Tokens {
        self.cost
    }

    /// The sum of two asks of one kind; `None` where the sum does not fit.
    pub(crate) fn checked_add(self, other: Self) -> Option<Self> {
        let cost = self.cost.checked_add(other.cost)?;
        Some(Self { cost, ..self })
    }
}
