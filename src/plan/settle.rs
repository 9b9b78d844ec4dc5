//! Settlement: which charges end, at which cost, and what their rows and their stored call say then.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::ledger::{Ledger, unfit};
use super::stored_call::{CallSlot, Role};
use super::target::{RowId, RowRange};
use crate::algebra::{Settled, State, Terms, Timestamp};
use crate::answer::receipt::{Charge, ChargeKind, Receipt, by_request};
use crate::answer::standing::{CrossedError, fell_below};
use crate::call::{CallError, StoredCall};
use crate::error::Error;
use crate::limit::Limit;
use crate::tokens::{Tokens, TokensError};
use crate::values::text::Text;

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

impl Ledger<'_> {
    /// Settles the charges of a receipt, or of a stored call.
    pub(super) fn settle(&mut self, settling: &Settling, slot: Option<&CallSlot>) -> Result<Settlement, Error> {
        let Settling { charges, rows, end } = settling;
        let known = slot.and_then(|slot| self.calls[slot.place].row.as_ref());
        let known = known.filter(|row| !row.used && is_of(charges, row));
        match (slot, known) {
            (Some(CallSlot { name, role: Role::Use { lapses_at }, .. }), None) => {
                return Err(gone(&name.name, *lapses_at, self.now));
            }
            (Some(CallSlot { role: Role::Lapse, .. }), row) if !row.is_some_and(|row| row.is_due(self.now)) => {
                return Ok(Settlement { charges: Vec::new(), observed_at: self.now.into(), overdrawn: Vec::new() });
            }
            _ => {}
        }
        let (mut settled, mut overdrawn) = (Vec::with_capacity(charges.len()), Vec::new());
        for ((charge, rows), cost) in charges.iter().zip(rows).zip(costs(charges, end, known)) {
            let (after, next) = self.settle_one(charge, self.states[rows.place].as_ref(), cost, settling, known)?;
            settled.push(after);
            let Some(next) = next else { continue };
            let before = self.states[rows.place].replace(next);
            if cost > charge.cost {
                overdrawn.push((charge.clone(), [before, self.states[rows.place].clone()]));
            }
        }
        if let Some(slot) = slot {
            let spent = known.cloned().and_then(StoredCall::spent);
            self.write_call(slot, spent);
        }
        Ok(Settlement { charges: settled, observed_at: self.now.into(), overdrawn })
    }

    /// Brings a charge to its cost, or ends or renews a lease. Returns the charge, and its row if that changes.
    fn settle_one(
        &self,
        charge: &Charge,
        row: Option<&State>,
        cost: Tokens,
        Settling { charges, end, .. }: &Settling,
        known: Option<&StoredCall>,
    ) -> Result<(Charge, Option<State>), Error> {
        let limit = &charge.limit;
        let unsettled = |fault| unfit(limit, fault);
        let as_it_is = || Ok((charge.clone(), None));
        let Settled { next, kept } = match (charge.kind, end) {
            (ChargeKind::Free, _) | (ChargeKind::Lease, End::Reported) => return as_it_is(),
            (ChargeKind::Lease, _) if charge.lease.is_none() => return as_it_is(),
            (ChargeKind::Lease, End::Renewed) => {
                let renewed = charge.renew(row, self.now);
                let (next, ends_at) = renewed.ok_or_else(|| gone(limit, charge.until, self.now))?;
                return Ok((Charge { until: Some(ends_at), ..charge.clone() }, Some(next)));
            }
            (ChargeKind::Lease, _) => match charge.release(row, self.now) {
                Some(released) => released,
                // The stored call shows that the receipt was not used.
                None if known.is_some() => return as_it_is(),
                None => return Err(gone(limit, charge.until, self.now)),
            },
            (_, End::Cancelled) if row.map_or(self.now, |row| row.ts.max(self.now)) > charge.ready_at => {
                let stands = charge.settle(row, self.now, charge.cost).map_err(unsettled)?;
                // A lease beside it ends, and with it what can still be given back.
                if charges.iter().all(|charge| charge.kind != ChargeKind::Lease) {
                    return Err(Error::TooLateToCancel { limit: limit.clone().into() });
                }
                stands
            }
            _ => charge.settle(row, self.now, cost).map_err(unsettled)?,
        };
        Ok((Charge { cost: kept, ..charge.clone() }, next))
    }
}

/// The cost of each charge.
fn costs(charges: &[Charge], end: &End, known: Option<&StoredCall>) -> Vec<Tokens> {
    match (end, known) {
        (End::Costs(costs), _) => costs.clone(),
        (End::Reported, Some(row)) => {
            let reported = by_request(charges).map(|charges| charges[0].is_counted().then_some(row.reported));
            by_charge(charges, reported)
        }
        _ => vec![Tokens::ZERO; charges.len()],
    }
}

/// Whether charges are those of a stored call, and not of one that had its id before. Leases may have been renewed.
fn is_of(charges: &[Charge], row: &StoredCall) -> bool {
    let facts = |charge: &Charge| (charge.cost, charge.before, charge.ready_at, charge.lease);
    charges.iter().map(facts).eq(row.charges.iter().map(facts))
}

/// The error for a row that does not list a lease, or for a call that is not stored.
fn gone(limit: &Text, until: Option<Timestamp>, now: Timestamp) -> Error {
    let limit = limit.clone().into();
    if until.is_some_and(|until| until <= now) { Error::Lapsed { limit } } else { Error::ReceiptUsed { limit } }
}

/// The charges of a receipt after it was settled, cancelled, released or renewed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Settlement {
    /// The charges with their settled costs. A cost is reduced only by tokens that came back to the row.
    pub charges: Vec<Charge>,
    /// The instant of the settlement, by the database's clock.
    pub observed_at: DateTime<Utc>,
    /// The rows that paid for use beyond a charge, before and after.
    #[serde(skip)]
    pub(crate) overdrawn: Vec<(Charge, [Option<State>; 2])>,
}

impl Settlement {
    /// Whether use beyond a charge took a balance of the limit below a share of the capacity, from at or above it; see
    /// [`Standing::crossed`](crate::Standing::crossed). Always false for a settlement that was stored and read again.
    ///
    /// # Errors
    ///
    /// Those of [`Standing::crossed`](crate::Standing::crossed).
    pub fn crossed(&self, limit: &Limit, share: f64) -> Result<bool, CrossedError> {
        fell_below(limit, share, None)?;
        let of_limit = self.overdrawn.iter().filter(|(charge, _)| charge.limit == limit.name);
        let falls = of_limit.map(|(charge, rows)| {
            let terms = Terms::of(limit, &charge.key);
            let now = self.observed_at.into();
            let left = |row: &Option<State>| terms.balance(row.as_ref().unwrap_or(&terms.full(now)), now);
            let [before, after] = rows.each_ref().map(left);
            fell_below(limit, share, Some((before, after)))
        });
        falls.into_iter().try_fold(false, |crossed, falls| Ok(crossed | falls?))
    }
}
