use super::{Ledger, unfit};
use crate::algebra::{Settled, State, Timestamp, Unsettled};
use crate::call::StoredCall;
use crate::error::{Error, FitError};
use crate::plan::call_slot::{CallSlot, Role};
use crate::plan::settlement::Settlement;
use crate::plan::settling::{End, Settling, by_charge};
use crate::receipt::{Charge, ChargeKind, by_request};
use crate::text::Text;
use crate::tokens::Tokens;

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
        let unsettled = |fault| match fault {
            Unsettled::MixedMoney => unfit(limit, FitError::MixedMoney),
            Unsettled::TooDeep => unfit(limit, FitError::DebtTooDeep),
            Unsettled::TooLarge => unfit(limit, FitError::BalanceTooLarge),
        };
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

impl StoredCall {
    /// Uses its receipt. The id stays stored if the call may be repeated.
    fn spent(self) -> Option<Self> {
        self.answer.is_some().then_some(Self { used: true, lapses_at: None, ..self })
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.lapses_at.is_some_and(|lapses_at| lapses_at <= now)
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
