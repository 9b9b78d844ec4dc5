//! A call that was made before under its id: the same grant again.

use crate::algebra::Ask;
use crate::answer::decision::{Grant, Source};
use crate::answer::receipt::Charge;
use crate::call::StoredCall;
use crate::error::Error;
use crate::limit::LimitKind;
use crate::plan::answer::Answer;
use crate::plan::ledger::Ledger;
use crate::plan::stored_call::{CallSlot, Role};
use crate::plan::target::Item;
use crate::tokens::Tokens;

impl Ledger<'_> {
    /// The stored call that a call repeats, if it does.
    pub(in crate::plan) fn repeated(&self, slot: &CallSlot) -> Result<Option<&StoredCall>, Error> {
        match (&slot.role, &self.calls[slot.place].row) {
            (Role::Write { asked, .. }, Some(row)) if row.asked != *asked => {
                Err(Error::OnceMismatch { limit: slot.name.name.clone().into() })
            }
            (_, row) => Ok(row.as_ref()),
        }
    }

    /// The same grant again, with the present balances.
    pub(super) fn repeat(&self, row: &StoredCall, items: &[Item<Ask>]) -> Result<Answer, Error> {
        let mut receipt = row.receipt();
        for lease in receipt.charges.iter_mut().filter(|charge| charge.lease.is_some()) {
            self.expect_held(lease, items)?;
        }
        let given = row.answer.clone().unwrap_or_default();
        let sized = |item: &Item<Ask>| match given.part {
            _ if item.action.is_split() => item.action.with_cost(charged(row, item)),
            Some(part) => item.action.with_partial(part),
            None => item.action,
        };
        let of_alternative = || items.iter().filter(|item| item.action.place.alternative == given.alternative);
        let told = of_alternative().filter(|item| !item.target.is_unlimited());
        let standings: Vec<_> = told.map(|item| self.standing(item, sized(item))).collect();
        let bounded = standings.iter().filter(|standing| standing.limit.kind != LimitKind::Meter);
        let first = of_alternative().next().map_or(Tokens::ZERO, |item| item.action.cost());
        let grant = Grant {
            amount: given.part.unwrap_or(first),
            alternative: given.alternative.unwrap_or(0),
            remaining: bounded.map(|standing| standing.remaining).min().unwrap_or(Tokens::MAX),
            observed_at: self.now.into(),
            decided_at: row.charged_at.max(self.now).into(),
            source: Source::Repeated,
            receipt,
            standings: standings.into(),
        };
        let ready_at = given.ready_at.map_or(self.now, |ready_at| ready_at.max(self.now));
        Ok(Answer::Granted { stands_at: self.now, full_at: self.now, ready_at, grant })
    }

    /// Fails unless a lease still lasts, and sets its end. If a repeat granted a lease that is over, its caller would
    /// work beside those that hold all of the limit.
    fn expect_held(&self, lease: &mut Charge, items: &[Item<Ask>]) -> Result<(), Error> {
        let item = items.iter().find(|item| is_charged(lease, item));
        let row = item.and_then(|item| self.states[item.target.rows.place].as_ref());
        let ends_at = lease.held_until(row, self.now);
        lease.until = Some(ends_at.ok_or_else(|| Error::ReceiptUsed { limit: lease.limit.clone().into() })?);
        Ok(())
    }
}

/// The tokens that a stored call has charged to an item.
fn charged(row: &StoredCall, item: &Item<Ask>) -> Tokens {
    let costs = row.charges.iter().filter(|charge| is_charged(charge, item)).map(|charge| charge.cost);
    costs.fold(Tokens::ZERO, |sum, cost| sum.checked_add(cost).unwrap_or(Tokens::MAX))
}

fn is_charged(charge: &Charge, item: &Item<Ask>) -> bool {
    item.target.limit.name == charge.limit && *item.target.key() == charge.key
}
