use super::list::List;
use crate::call::Drawn;
use crate::tokens::Tokens;
use crate::values::timestamp::Timestamp;

/// A row: how many tokens of a full row are used, since which instant and until when, and for some kinds of limits a
/// list.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct State {
    /// The tokens, counted from a full row: 0 is a full row, and -3 a row of which three tokens are used. For a wallet,
    /// its money. If more came back than was missing, the value is above 0 until the next write, and reads as 0.
    pub value: Tokens,
    /// The instant of the value: the last write for a continuous refill, the last grid step for a stepped one.
    pub ts: Timestamp,
    /// The instant from which on the row counts as a missing one, for every reader. An instant before [`ts`](Self::ts)
    /// has no meaning.
    pub full_at: Timestamp,
    /// The tokens that come back by themselves, or the mark of money.
    pub list: List,
}

impl State {
    /// A row without a list and without an instant at which it is full: only its reader's terms refill it.
    #[must_use]
    pub const fn new(value: Tokens, ts: Timestamp) -> Self {
        Self { value, ts, full_at: Timestamp::MIN, list: List::None }
    }

    /// Sets the instant at which it is full.
    #[must_use]
    pub fn full_at(self, full_at: Timestamp) -> Self {
        Self { full_at, ..self }
    }

    /// Whether it counts as a missing row, under every definition. A row that is full at the end of time never does.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.says_full_at().is_some_and(|full_at| full_at <= now.max(self.ts) && full_at < Timestamp::MAX)
    }

    /// The instant from which on it counts as a missing row, if it has one.
    pub(super) fn says_full_at(&self) -> Option<Timestamp> {
        Some(self.full_at).filter(|full_at| *full_at >= self.ts)
    }

    /// Whether it is money and a wallet was not expected, or the reverse.
    pub(super) fn mixes_money(&self, is_wallet: bool) -> bool {
        self.list.is_wallet() != is_wallet
    }

    /// When its list ends.
    pub(super) fn ended_at(&self) -> Timestamp {
        self.list.end().map_or(self.ts, |end| end.max(self.ts))
    }

    /// When a wallet counts as a missing one: when it holds nothing.
    pub(super) fn emptied_at(&self) -> Timestamp {
        if self.value == Tokens::ZERO { self.ts } else { Timestamp::MAX }
    }

    /// Sets the instant at which it is full to the end of its list.
    pub(super) fn ending_with_list(self) -> Self {
        Self { full_at: self.ended_at(), ..self }
    }

    /// Lets a lease that was just granted last until an instant.
    pub(crate) fn lease_until(&mut self, lease: Option<Drawn>, ends_at: Timestamp) {
        if let List::Leases(leases) = &mut self.list {
            leases.iter_mut().filter(|other| other.lease == lease).for_each(|lease| lease.ends_at = ends_at);
            leases.sort_by_key(|lease| lease.ends_at);
            self.full_at = self.list.end().unwrap_or(self.ts);
        }
    }
}

pub(super) fn wide(tokens: Tokens) -> i128 {
    i128::from(tokens.micros())
}

/// The nearest amount.
pub(super) fn saturate(micros: i128) -> Tokens {
    let nearest = micros.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Tokens::from_micros(i64::try_from(nearest).expect("the line above keeps it within the range of i64"))
}

#[cfg(test)]
mod tests {
    use super::{Drawn, List, State, Timestamp};
    use crate::algebra::Entry;
    use crate::tokens::Tokens;

    #[test]
    fn a_lease_that_begins_later_lies_behind_those_that_end_before_it() {
        let second = |n: i64| Timestamp::from_micros(n * 1_000_000);
        let entry = |ends_at, lease| Entry { ends_at: second(ends_at), amount: Tokens::ONE, lease: Some(Drawn(lease)) };
        let leases = |entries: [Entry; 2]| List::Leases(entries.into());
        let state = |list| State { list, ..State::new(Tokens::from_micros(-2_000_000), second(0)) };
        let mut row = state(leases([entry(10, 1), entry(20, 2)]));
        row.lease_until(Some(Drawn(1)), second(30));
        assert_eq!(row, state(leases([entry(20, 2), entry(30, 1)])).full_at(second(30)));
    }
}
