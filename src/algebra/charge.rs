//! Settles a charge on its row.
//!
//! It adds `cost − actual` to the row as it was read, at the row's own instant, without a refill and without a cut. The
//! next reader refills and cuts, with the same result: `min(0, min(0, v + g) + u) = min(0, v + u + g)`. So a settlement
//! needs no definition, and settlements commute. The definition at the time of the charge would refill at its old rate.
//! The rules depend on the kind of the charge:
//!
//! - **A bucket** takes tokens back at any time until `full_at`, which stays as it was: a late settlement never gives
//!   too much.
//! - **A fixed window** takes tokens back only if the row's instant is not after the charge's `until`, the row's own
//!   instant of the decision. A row stands at the start of its step, so nothing was refilled since. This needs no
//!   period, and is right whatever the clock does. For tokens that are booked ahead, `until` is a microsecond before
//!   the debt is repaid: they can be cancelled until then.
//! - **A sliding window** takes tokens back only out of the charge's own entry and entries up to a step of the rounding
//!   later, and only while its own entry has not left. So the rest leaves no sooner than it should. If it took them out
//!   of the soonest or the latest entry, or after its own entry has left, the window would grant tokens twice.
//! - **A lease** ends by its name in its row.
//! - **A wallet** takes tokens back at any time, and a missing row is inserted, because it was empty. To keep the one
//!   lock order, the other missing rows of the call are inserted with it, and deleted again.
//! - **A missing row**, or one past `full_at`, of any other kind gets nothing: it is full. A row with the list of
//!   another kind gets nothing either.
//! - **Use beyond the charge** lowers the row as it was read. `full_at` moves by the time that the charge's rate needs
//!   for the excess, but never beyond the instant at which that rate would have filled the whole row. Otherwise each of
//!   many settlements in a monthly window would add a month, and a lowered plan would wait for all of them. A sliding
//!   window lists the excess from now on, and drops a list of another kind. A row that is missing, or past `full_at`,
//!   is inserted as of now: just before that instant it would have borne as much, because the value is not cut.
//!
//! A value that does not fit into an `int8` is an error of its own, and nothing is written.
//!
//! Four other rules fail. One goes by the present step of the clock, which may go back. One gives a bucket back only if
//! its row was not written since, which every other write defeats. One gives back only the tokens that time has not
//! brought back, and grants too few. One settles by the receipt's own definition.

use super::state::{Entry, List, State, div_ceil, saturate, wide};
use crate::answer::receipt::{Charge, ChargeKind};
use crate::error::FitError;
use crate::tokens::Tokens;
use crate::values::timestamp::Timestamp;

/// A row after the settlement of a charge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Settled {
    /// `None` if the row stays as it is.
    pub(crate) next: Option<State>,
    /// The tokens that the charge counts from now on.
    pub(crate) kept: Tokens,
}

impl Charge {
    /// Brings the charge to its actual cost, on the row as it was read and under no definition. The next reader of the
    /// row refills and cuts it.
    ///
    /// A row that is missing, or counts as missing, gets nothing back, because it is full; but a missing wallet is
    /// empty. Tokens used beyond the charge count from the row's last write on, or from now on if there is no such row.
    pub(crate) fn settle(&self, row: Option<&State>, clock: Timestamp, actual: Tokens) -> Result<Settled, FitError> {
        let is_money = self.kind == ChargeKind::Wallet;
        let now = row.map_or(clock, |row| row.ts.max(clock));
        let row = row.filter(|row| !row.is_over(clock));
        if row.is_some_and(|row| row.mixes_money(is_money)) {
            return Err(FitError::MixedMoney);
        }
        let back = wide(self.cost) - wide(actual);
        let next = match row {
            _ if back == 0 => None,
            None if back > 0 && !is_money => return Ok(Settled { next: None, kept: self.cost }),
            Some(row) if back > 0 && !is_money => return self.given_back(row, clock, back),
            row => {
                let row = row.cloned().unwrap_or_else(|| self.none(now));
                Some(if is_money { moved(row, back)? } else { self.overdrawn(row, clock, -back)? })
            }
        };
        Ok(Settled { next, kept: actual })
    }

    /// The state that a missing row stands for, by the kind of the charge.
    fn none(&self, ts: Timestamp) -> State {
        let list = match self.kind {
            ChargeKind::Wallet => List::Wallet,
            ChargeKind::Sliding => List::Grants(Vec::new()),
            _ => List::None,
        };
        State { list, ..State::new(Tokens::ZERO, ts).full_at(ts) }
    }

    fn given_back(&self, row: &State, clock: Timestamp, back: i128) -> Result<Settled, FitError> {
        let until = self.until.unwrap_or(self.ready_at);
        let mut next = row.clone();
        let back = match (self.kind, &mut next.list) {
            (ChargeKind::Bucket, List::None) => back,
            // The row stands at the start of its step, so nothing was refilled since the charge.
            (ChargeKind::Window, List::None) if row.ts <= until => back,
            (ChargeKind::Bucket | ChargeKind::Window, List::Month { .. } | List::Period { .. }) if row.ts <= until => {
                back
            }
            (ChargeKind::Sliding, List::Grants(entries)) if until > clock.max(row.ts) => {
                // This is its own entry, or the one into which it was merged when instants were rounded up; entries
                // that were listed since may lie before it. Tokens may go out of any entry that leaves no sooner than
                // the charge, the soonest first.
                let latest = until.after(List::merge_step(self.period));
                let mut left = back;
                for entry in entries.iter_mut().filter(|entry| (until..=latest).contains(&entry.ends_at)) {
                    let taken = left.min(wide(entry.amount));
                    entry.amount = saturate(wide(entry.amount) - taken);
                    left -= taken;
                }
                entries.retain(|entry| entry.amount > Tokens::ZERO);
                next = next.ending_with_list();
                back - left
            }
            _ => 0,
        };
        if back == 0 {
            return Ok(Settled { next: None, kept: self.cost });
        }
        next.value = moved_by(next.value, back)?;
        Ok(Settled { next: Some(next), kept: saturate(wide(self.cost) - back) })
    }

    fn overdrawn(&self, row: State, clock: Timestamp, more: i128) -> Result<State, FitError> {
        let mut next = State { value: moved_by(row.value, -more)?, ..row };
        match (self.kind, &mut next.list) {
            (ChargeKind::Sliding, List::Grants(entries)) => {
                next.ts = clock.max(next.ts);
                entries.push(Entry::of(next.ts.after(self.period), saturate(more)));
                next.list = List::grants(std::mem::take(entries), self.period);
                next = next.ending_with_list();
            }
            (_, List::Month { .. } | List::Period { .. }) => {
                let by_mark = next.full_by_mark(self.refill.micros()).unwrap_or(next.ts);
                next.full_at = next.full_at.max(by_mark);
            }
            (_, list) => {
                *list = List::None;
                let span = |tokens: i128| {
                    let periods = div_ceil(tokens, wide(self.refill).max(1));
                    saturate(periods * i128::from(self.period)).micros()
                };
                // The excess adds its own time, but no row waits longer than the charge's rate needs to fill it up.
                let (added, whole) = (span(more), next.ts.after(span((-wide(next.value)).max(0))));
                let later = |full_at: Timestamp| full_at.after(added).min(full_at.max(whole));
                next.full_at = next.says_full_at().map_or(next.full_at, later);
            }
        }
        Ok(next)
    }

    /// Ends its lease; `None` if the row does not list the lease, or if the lease has ended.
    pub(crate) fn release(&self, row: Option<&State>, clock: Timestamp) -> Option<Settled> {
        let (mut next, place) = self.listed(row?, clock)?;
        let List::Leases(leases) = &mut next.list else { return None };
        next.value = saturate(wide(next.value) + wide(leases.remove(place).amount));
        Some(Settled { next: Some(next.ending_with_list()), kept: Tokens::ZERO })
    }

    /// Lets its lease last for its period from now on. Returns the row and the new end; `None` as for a release.
    pub(crate) fn renew(&self, row: Option<&State>, clock: Timestamp) -> Option<(State, Timestamp)> {
        let row = row?;
        let (mut next, place) = self.listed(row, clock)?;
        let List::Leases(leases) = &mut next.list else { return None };
        let ends_at = clock.max(row.ts).after(self.period);
        leases[place].ends_at = ends_at;
        leases.sort_by_key(|lease| lease.ends_at);
        Some((next.ending_with_list(), ends_at))
    }

    /// When its lease ends by its row; `None` as for a release.
    pub(crate) fn held_until(&self, row: Option<&State>, clock: Timestamp) -> Option<Timestamp> {
        let (row, place) = self.listed(row?, clock)?;
        Some(row.list.entries()[place].ends_at)
    }

    fn listed(&self, row: &State, clock: Timestamp) -> Option<(State, usize)> {
        let name = Some(self.lease?);
        let now = clock.max(row.ts);
        let List::Leases(leases) = &row.list else { return None };
        let place = leases.iter().position(|lease| lease.lease == name && lease.is_live(now))?;
        Some((State { ts: now, ..row.clone() }, place))
    }
}

/// A wallet's row, after a change.
fn moved(row: State, back: i128) -> Result<State, FitError> {
    let row = State { value: moved_by(row.value, back)?, ..row };
    Ok(State { full_at: row.emptied_at(), ..row })
}

fn moved_by(value: Tokens, by: i128) -> Result<Tokens, FitError> {
    let moved = wide(value) + by;
    if wide(saturate(moved)) == moved {
        Ok(saturate(moved))
    } else {
        Err(if by < 0 { FitError::DebtTooDeep } else { FitError::BalanceTooLarge })
    }
}
