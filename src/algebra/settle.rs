use super::list::{Entry, List};
use super::state::{FullAt, State, cut, wide};
use super::terms::div_ceil;
use crate::call_name::Drawn;
use crate::receipt::{Charge, ChargeKind};
use crate::timestamp::Timestamp;
use crate::tokens::Tokens;

/// A row that was brought to what a charge has come to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Settled {
    /// `None` where the row stays as it is.
    pub(crate) next: Option<(State, FullAt)>,
    /// What the charge counts from now on.
    pub(crate) kept: Tokens,
}

/// Why a charge cannot be settled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unsettled {
    /// The row is money to one of the two, itself and the charge, and not to the other.
    MixedMoney,
    TooDeep,
    TooLarge,
}

impl Charge {
    /// Brings the charge to its actual cost, on the row as it was read and under no definition: whoever reads the row
    /// next refills and cuts it.
    ///
    /// A missing row gets nothing: it is full. But that of a wallet is empty. What was used beyond the charge counts
    /// from the row's last write on. It is lost on a missing row, since nobody knows its capacity.
    pub(crate) fn settle(&self, row: Option<&State>, clock: Timestamp, actual: Tokens) -> Result<Settled, Unsettled> {
        let is_money = self.kind == ChargeKind::Wallet;
        if row.is_some_and(|row| row.mixes_money(is_money)) {
            return Err(Unsettled::MixedMoney);
        }
        let back = wide(self.cost) - wide(actual);
        let next = match row {
            _ if back == 0 => None,
            None if is_money => {
                let row = State { value: Tokens::ZERO, ts: clock, list: List::Wallet };
                Some(moved(&row, back)?)
            }
            Some(row) if is_money => Some(moved(row, back)?),
            Some(row) if back < 0 => Some(self.overdrawn(row, clock, -back)?),
            Some(row) => return Ok(self.given_back(row, clock, back)),
            None => None,
        };
        let kept = if next.is_some() { actual } else { self.cost };
        Ok(Settled { next, kept })
    }

    fn given_back(&self, row: &State, clock: Timestamp, back: i128) -> Settled {
        let until = self.until.unwrap_or(self.ready_at);
        let mut next = row.clone();
        let (back, full_at) = match (self.kind, &mut next.list) {
            (ChargeKind::Bucket, List::None) => (back, FullAt::Keep),
            // The row stands at the start of its step. So nothing was refilled since the charge.
            (ChargeKind::Window, List::None) if row.ts <= until => (back, FullAt::Keep),
            (ChargeKind::Sliding, List::Grants(entries)) if until > clock.max(row.ts) => {
                // Its own entry, or the one that it has become a part of when instants were rounded up; what was listed
                // since may lie before that. Of what leaves no sooner than the charge any may go, the soonest first.
                let latest = until.after(List::merge_step(self.period));
                let mut left = back;
                for entry in entries.iter_mut().filter(|entry| (until..=latest).contains(&entry.ends_at)) {
                    let taken = left.min(wide(entry.amount));
                    entry.amount = cut(wide(entry.amount) - taken);
                    left -= taken;
                }
                entries.retain(|entry| entry.amount > Tokens::ZERO);
                (back - left, next.list.full_at(row.ts))
            }
            _ => (0, FullAt::Keep),
        };
        if back == 0 {
            return Settled { next: None, kept: self.cost };
        }
        next.value = cut(wide(next.value) + back);
        Settled { next: Some((next, full_at)), kept: cut(wide(self.cost) - back) }
    }

    fn overdrawn(&self, row: &State, clock: Timestamp, more: i128) -> Result<(State, FullAt), Unsettled> {
        let value = wide(row.value) - more;
        if value < i128::from(i64::MIN) {
            return Err(Unsettled::TooDeep);
        }
        let mut next = State { value: cut(value), ..row.clone() };
        if let (ChargeKind::Sliding, List::Grants(mut entries)) = (self.kind, std::mem::take(&mut next.list)) {
            next.ts = clock.max(row.ts);
            entries.push(Entry::of(next.ts.after(self.period), cut(more)));
            next.list = List::grants(entries, self.period);
            let full_at = next.list.full_at(next.ts);
            return Ok((next, full_at));
        }
        let (span, next_ts) = (div_ceil(more, wide(self.refill).max(1)) * i128::from(self.period), next.ts);
        Ok((next, FullAt::Keep.later(next_ts, cut(span).micros())))
    }

    /// Ends its lease; `None` where the row does not list it, or where it has ended.
    pub(crate) fn release(&self, row: Option<&State>, clock: Timestamp) -> Option<Settled> {
        let (mut next, place) = self.listed(row?, clock)?;
        let List::Leases(leases) = &mut next.list else { return None };
        next.value = cut(wide(next.value) + wide(leases.remove(place).amount));
        let full_at = next.list.full_at(next.ts);
        Some(Settled { next: Some((next, full_at)), kept: Tokens::ZERO })
    }

    /// Lets its lease last until an instant, or for its period from now on; `None` as for a release.
    pub(crate) fn renew(&self, row: Option<&State>, clock: Timestamp) -> Option<(State, FullAt, Timestamp)> {
        let row = row?;
        let (mut next, place) = self.listed(row, clock)?;
        let List::Leases(leases) = &mut next.list else { return None };
        let ends_at = clock.max(row.ts).after(self.period);
        leases[place].ends_at = ends_at;
        leases.sort_by_key(|lease| lease.ends_at);
        let full_at = next.list.full_at(next.ts);
        Some((next, full_at, ends_at))
    }

    /// When its lease ends by its row; `None` as for a release.
    pub(crate) fn held_until(&self, row: Option<&State>, clock: Timestamp) -> Option<Timestamp> {
        let (row, place) = self.listed(row?, clock)?;
        Some(row.list.entries()[place].ends_at)
    }

    fn listed(&self, row: &State, clock: Timestamp) -> Option<(State, usize)> {
        let name: Option<Drawn> = Some(self.lease?);
        let now = clock.max(row.ts);
        let List::Leases(leases) = &row.list else { return None };
        let place = leases.iter().position(|lease| lease.lease == name && lease.is_live(now))?;
        Some((State { ts: now, ..row.clone() }, place))
    }
}

/// A wallet's row, after a change.
fn moved(row: &State, back: i128) -> Result<(State, FullAt), Unsettled> {
    let value = wide(row.value) + back;
    if wide(cut(value)) != value {
        return Err(if back < 0 { Unsettled::TooDeep } else { Unsettled::TooLarge });
    }
    let full_at = if value == 0 { row.ts } else { Timestamp::MAX };
    Ok((State { value: cut(value), ts: row.ts, list: List::Wallet }, FullAt::At(full_at)))
}

impl List {
    /// Lets a lease that was just granted last until an instant.
    pub(crate) fn last_until(&mut self, lease: Option<Drawn>, ends_at: Timestamp) {
        if let Self::Leases(leases) = self {
            leases.iter_mut().filter(|other| other.lease == lease).for_each(|lease| lease.ends_at = ends_at);
            leases.sort_by_key(|lease| lease.ends_at);
        }
    }

    /// When a row is full that has this list, if its definition does not count less.
    fn full_at(&self, ts: Timestamp) -> FullAt {
        FullAt::At(self.end().unwrap_or(ts))
    }
}
