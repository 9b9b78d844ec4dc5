//! The charges of a grant, for its receipt.

use crate::algebra::{Ask, Flow, Portion, Timestamp, longest};
use crate::answer::receipt::{Charge, ChargeKind};
use crate::plan::target::{Item, Target};
use crate::tokens::Tokens;

/// The tokens that an item takes.
pub(super) struct ItemCharges {
    pub(super) portions: Vec<Portion>,
    pub(super) remaining: Tokens,
    pub(super) ready_at: Timestamp,
    /// The instant of its rows: the clock, or the latest that one of them stands at.
    pub(super) at: Timestamp,
}

impl ItemCharges {
    /// Takes nothing, for an item that is unlimited.
    pub(super) fn nothing(at: Timestamp) -> Self {
        Self { portions: Vec::new(), remaining: Tokens::MAX, ready_at: at, at }
    }

    /// The charges of an item: one for each row that it takes from, and a charge of nothing where it asks for nothing.
    /// A lease counts from when all of the call is ready. A split charges only the limits that give something, behind
    /// `before`. Returns the sum of `before` and of these charges.
    pub(super) fn charge(
        &mut self,
        item: &Item<Ask>,
        before: Tokens,
        waits: Option<Timestamp>,
        charges: &mut Vec<Charge>,
    ) -> Tokens {
        let Target { limit, rows, terms, .. } = &item.target;
        // No token is spent before all may be spent, so until then each charge can be cancelled.
        let ready_at = waits.map_or(self.at, |latest| latest.max(self.at));
        let is_unlimited = item.target.is_unlimited();
        let mut charge = Charge {
            version: 0,
            storage: limit.storage,
            limit: limit.name.clone(),
            key: rows.first.key.clone(),
            shard: 0,
            cost: Tokens::ZERO,
            before,
            flat: item.action.flat,
            kind: if is_unlimited { ChargeKind::Free } else { terms.flow.charge_kind() },
            until: None,
            refill: Tokens::ZERO,
            period: match terms.flow {
                Flow::Wallet => 0,
                // Later periods may be longer, and no row may be swept too early.
                Flow::Named { .. } => longest(terms.period),
                _ => terms.period,
            },
            lease: None,
            ready_at,
        };
        let takes_none = is_unlimited || item.action.cost() == Tokens::ZERO;
        let is_first = item.action.place.split.is_none_or(|place| place == 0 && takes_none);
        if self.portions.is_empty() && is_first {
            charges.push(charge.clone());
        }
        for Portion { shard, next, taken } in &mut self.portions {
            let terms = terms.shard(*shard, rows.count);
            (charge.shard, charge.cost, charge.refill) =
                (rows.first.after(*shard).shard, *taken, Tokens::from_micros(terms.rate));
            match charge.kind {
                ChargeKind::Bucket if next.list.period_end().is_none() => {}
                ChargeKind::Bucket | ChargeKind::Window => {
                    let until = terms.same_step_until(next, self.at);
                    charge.until = (until != ready_at).then_some(until);
                }
                ChargeKind::Sliding => charge.until = Some(terms.leaves_at(self.at)),
                ChargeKind::Lease => {
                    charge.lease = item.action.lease;
                    let ends_at = ready_at.after(terms.period);
                    charge.until = Some(ends_at);
                    next.lease_until(charge.lease, ends_at);
                }
                ChargeKind::Wallet | ChargeKind::Free => {}
            }
            charges.push(charge.clone());
            charge.before = charge.before.checked_add(*taken).unwrap_or(Tokens::MAX);
        }
        charge.before
    }
}
