use super::call_slot::{CallSlot, Role};
use super::rows::{RowId, RowRange};
use crate::algebra::Timestamp;
use crate::call::{CallError, StoredCall};
use crate::error::Error;
use crate::receipt::{Charge, ChargeKind, Receipt, by_request};
use crate::tokens::{Tokens, TokensError};

/// Charges to be settled, all or none, each in its own row.
#[derive(Clone, Debug)]
pub(crate) struct Settling {
    pub(super) charges: Vec<Charge>,
    /// The row of each charge.
    pub(super) rows: Vec<RowRange>,
    pub(super) end: End,
}

/// How charges end.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// Each charge ends at its cost here. A lease ends.
    Costs(Vec<Tokens>),
    /// Each charge that is not ready ends at a cost of zero. A lease ends.
    Cancelled,
    /// Each charge ends at the use that its stored call reports. A lease stays.
    Reported,
    /// Leases end.
    Released,
    /// Leases last for their period from now on.
    Renewed,
}

impl Settling {
    pub(super) fn of(charges: Vec<Charge>, end: End) -> Result<Self, Error> {
        if let Some(charge) = charges.iter().find(|charge| !charge.is_right()) {
            return Err(Error::of_call(&charge.limit, CallError::CorruptReceipt));
        }
        let rows = charges.iter().map(RowRange::of_charge).collect();
        Ok(Self { charges, rows, end })
    }

    /// The cost of each charge of a receipt, from an actual cost for each request. A request without one stays as it
    /// is.
    pub(super) fn costs(
        receipt: &Receipt,
        cost: impl Fn(usize, &[Charge]) -> Result<Option<Tokens>, CallError>,
    ) -> Result<Vec<Tokens>, Error> {
        let of_request = |(place, charges): (usize, &[Charge])| {
            let cost = match cost(place, charges) {
                Ok(Some(cost)) if cost.is_negative() => Err(CallError::Cost(TokensError::Negative)),
                cost => cost,
            };
            cost.map_err(|source| Error::of_call(&charges[0].limit, source))
        };
        let costs = receipt.by_request().enumerate().map(of_request).collect::<Result<Vec<_>, Error>>()?;
        Ok(by_charge(&receipt.charges, costs.into_iter()))
    }

    /// The rows that this may raise, and for each whether a lease ends there.
    pub(super) fn raises(&self) -> impl Iterator<Item = (&RowId, bool)> {
        let charged = self.charges.iter().zip(&self.rows).enumerate();
        charged
            .filter(|(place, (charge, _))| self.gives_back(*place, charge))
            .map(|(_, (charge, rows))| (&rows.first, charge.kind == ChargeKind::Lease))
    }

    fn gives_back(&self, place: usize, charge: &Charge) -> bool {
        match (&self.end, charge.kind) {
            (_, ChargeKind::Free) | (End::Renewed, _) | (End::Reported, ChargeKind::Lease) => false,
            (End::Costs(costs), kind) => kind == ChargeKind::Lease || costs[place] < charge.cost,
            (End::Cancelled | End::Reported | End::Released, _) => true,
        }
    }

    /// Whether it may insert a row: the reported use of a call may be more than its charges.
    pub(super) fn inserts(&self) -> bool {
        let takes_more = match &self.end {
            End::Costs(costs) => self.charges.iter().zip(costs).any(|(charge, cost)| charge.cost < *cost),
            End::Reported => true,
            End::Cancelled | End::Released | End::Renewed => false,
        };
        takes_more || self.charges.iter().any(|charge| charge.kind == ChargeKind::Wallet)
    }

    /// The stored call of this name, as far as its receipt describes it. That is enough for a settlement at costs,
    /// which depends neither on the lapse of the call nor on its reported use.
    pub(super) fn assumed(&self, CallSlot { name, role, .. }: &CallSlot) -> Option<StoredCall> {
        let (End::Costs(_), Role::Use { .. }) = (&self.end, role) else { return None };
        Some(StoredCall {
            name: name.clone(),
            asked: 0,
            charges: self.charges.clone(),
            charged_at: Timestamp::MIN,
            reported: Tokens::ZERO,
            lapses_at: None,
            kept_until: Timestamp::MIN,
            used: false,
            answer: None,
        })
    }
}

/// The cost of each charge, from the cost of each request. No charge costs more than it was charged, except that the
/// last one of a request takes the excess. A request without a cost stays as it is.
pub(super) fn by_charge(charges: &[Charge], costs: impl Iterator<Item = Option<Tokens>>) -> Vec<Tokens> {
    let of_request = |(charges, cost): (&[Charge], Option<Tokens>)| {
        let last = charges.len() - 1;
        let of_charge = move |(place, charge): (usize, &Charge)| {
            let Some(cost) = cost else { return charge.cost };
            // Any number may have been written by hand: the receipt is not checked yet, and a row may report any use.
            let left = Tokens::from_micros(cost.micros().saturating_sub(charge.before.micros()).max(0));
            if place == last { left } else { left.min(charge.cost) }
        };
        charges.iter().enumerate().map(of_charge).collect::<Vec<_>>()
    };
    by_request(charges).zip(costs).flat_map(of_request).collect()
}
