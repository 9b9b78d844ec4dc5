use std::time::Duration;

use crate::algebra::{Ask, Flow, Terms};
use crate::key::Key;
use crate::plan::{Item, Operation, RowId};
use crate::tokens::Tokens;

/// The place of a caller in one line.
pub(super) struct Place {
    pub(super) item: Item<Ask>,
    /// The other rows over which its cost is split.
    pub(super) others: Vec<RowId>,
}

impl Place {
    /// The place of an item of a call.
    pub(super) fn of(item: &Item<Ask>, call: &Operation) -> Self {
        let others = call.split_with(item).map(|other| other.target.rows.first.clone()).collect();
        Self { item: item.clone(), others }
    }

    pub(super) fn row(&self) -> &RowId {
        &self.item.target.rows.first
    }

    /// Whether it waits for a lease, which may be released at any time.
    pub(super) fn is_leased(&self) -> bool {
        self.item.target.terms.flow == Flow::Leased
    }

    /// The least balance that grants it.
    pub(super) fn needs(&self) -> Tokens {
        self.item.action.needs(&self.item.target.terms)
    }

    /// The tokens that it takes of a balance.
    pub(super) fn takes(&self, balance: Tokens) -> Tokens {
        self.item.action.of_balance(balance.micros().into(), &self.item.target.terms).cost()
    }

    /// A balance after a span in which nobody takes, with the whole tokens that come evenly.
    pub(super) fn grown(&self, balance: Tokens, span: Duration) -> Tokens {
        let Terms { flow: Flow::Continuous, rate, period, capacity, .. } = self.item.target.terms else {
            return balance;
        };
        let span = i128::try_from(span.as_micros()).unwrap_or(i128::MAX);
        let whole = i128::from(rate).saturating_mul(span) / i128::from(period) / i128::from(Tokens::ONE.micros());
        let came = Tokens::new(u32::try_from(whole).unwrap_or(u32::MAX));
        balance.checked_add(came).unwrap_or(balance).min(Tokens::from_micros(capacity))
    }

    pub(super) fn is_of(&self, limit: &str, key: &Key) -> bool {
        self.item.is_of(limit) && self.item.target.key() == key
    }
}
