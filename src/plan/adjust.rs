//! Credit, debit, reset and look: one balance is changed whatever it is, or read.

use super::ledger::{Ledger, unfit};
use super::stored_call::CallSlot;
use super::target::{Item, Target};
use crate::algebra::{Flow, Rest, TooDeep};
use crate::answer::balance::Balance;
use crate::answer::decision::Source;
use crate::call::Given;
use crate::error::{Error, FitError};
use crate::tokens::Tokens;

/// A change that takes or gives whatever the balance is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Adjustment {
    Credit(Tokens),
    Debit(Tokens),
    /// Gives back tokens that were taken ahead, except those that time has brought back.
    GiveBack(Rest),
    /// Changes nothing.
    Look,
    Reset,
}

impl Item<Adjustment> {
    /// Whether it may insert a row.
    pub(super) fn inserts(&self) -> bool {
        match self.action {
            Adjustment::Debit(cost) => cost > Tokens::ZERO,
            Adjustment::Credit(_) => self.target.limit.kind.is_money() || self.target.rows.count > 1,
            Adjustment::GiveBack(_) | Adjustment::Reset => self.target.rows.count > 1,
            Adjustment::Look => false,
        }
    }
}

impl Ledger<'_> {
    /// Changes a balance, whatever it is, or looks at it.
    pub(super) fn adjust(&mut self, item: &Item<Adjustment>, slot: Option<&CallSlot>) -> Result<Balance, Error> {
        let Item { target, action } = item;
        let limit = &target.limit.name;
        if let Some(slot) = slot
            && self.repeated(slot)?.is_some()
        {
            return Ok(Balance { source: Source::Repeated, ..self.balance(target) });
        }
        self.expect_one_money(target)?;
        let account = self.account(target);
        let portions = match *action {
            Adjustment::Credit(amount) => {
                if target.terms.flow == Flow::Wallet && account.balance().checked_add(amount).is_none() {
                    return Err(unfit(limit, FitError::BalanceTooLarge));
                }
                account.credit(amount)
            }
            Adjustment::Debit(amount) => {
                account.debit(amount).map_err(|TooDeep| unfit(limit, FitError::DebtTooDeep))?
            }
            Adjustment::Reset => account.reset(),
            // A row that was missing looks like one that was reset.
            Adjustment::GiveBack(rest) => account.credit(rest.owed(&target.terms, account.now())),
            Adjustment::Look => Vec::new(),
        };
        let (decided_at, before) = (account.now(), account.balance());
        self.write(target, portions);
        if let Some(slot) = slot {
            self.write_call(slot, Some(slot.written(Vec::new(), decided_at, Given::default())));
        }
        let before = matches!(action, Adjustment::Debit(_)).then_some(before);
        Ok(Balance { before, ..self.balance(target) })
    }

    fn balance(&self, target: &Target) -> Balance {
        let account = self.account(target);
        Balance {
            limit: target.limit.name.clone().into(),
            key: target.key().clone(),
            remaining: account.balance(),
            used: account.used(),
            capacity: Tokens::from_micros(target.terms.capacity),
            full_at: account.full_at().if_ever(),
            observed_at: self.now.into(),
            as_of: account.now().into(),
            source: Source::Database,
            before: None,
        }
    }
}
