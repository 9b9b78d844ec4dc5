use super::ask::Ask;
use super::state::{saturate, wide};
use super::terms::{Flow, Terms};
use crate::tokens::Tokens;

/// How deep into debt a call may go: a reservation to `max_reserved`, each call of a wallet to its overdraft, any other
/// not at all.
impl Ask {
    /// The least balance that grants this: the cost less the debt that it may make, or plus the tokens that must stay
    /// behind.
    pub(crate) fn needs(self, terms: &Terms) -> Tokens {
        saturate(wide(self.cost()) + self.floor(terms))
    }

    /// The least balance that it may leave.
    pub(super) fn floor(self, terms: &Terms) -> i128 {
        self.leaving.map_or_else(|| -i128::from(self.max_debt(terms)), wide)
    }

    /// The deepest debt that it may make; without a bound, the deepest that a row can hold.
    pub(super) fn max_debt(self, terms: &Terms) -> i64 {
        if self.owes(terms) { terms.max_reserved.min(i64::MAX - terms.top()) } else { 0 }
    }

    /// Whether its debt is bounded only by what a row can hold.
    pub(super) fn is_unbounded(self, terms: &Terms) -> bool {
        self.leaving.is_none() && self.owes(terms) && terms.max_reserved == i64::MAX
    }

    /// Whether it may make a debt. A wallet's overdraft is for every call.
    fn owes(self, terms: &Terms) -> bool {
        self.is_reserving() || terms.flow == Flow::Wallet
    }

    /// The largest cost that can ever be granted at once.
    pub(crate) fn max_cost(self, terms: &Terms) -> Tokens {
        saturate(i128::from(terms.capacity) - self.floor(terms))
    }
}
