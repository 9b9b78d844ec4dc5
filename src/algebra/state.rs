use std::ops::{Range, RangeInclusive};

use super::months;
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

/// Tokens that come back to a row by themselves.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Entry {
    /// When they come back.
    pub ends_at: Timestamp,
    /// The number of tokens.
    pub amount: Tokens,
    /// The name of a lease; `None` for a grant of a window, which is not given back by name.
    pub(crate) lease: Option<Drawn>,
}

/// The part of a row besides its two numbers. It says which kind of limit wrote it, and another kind ignores it. If
/// every kind trusted it, a bucket and a window that take turns on one row would grant far too much.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub enum List {
    /// Nothing: a bucket or a fixed window.
    #[default]
    None,
    /// The grants that a sliding window counts, in the order in which they leave.
    Grants(Vec<Entry>),
    /// The leases that a concurrency limit has granted, in the order of their ends.
    Leases(Vec<Entry>),
    /// Nothing; but the value of the row is money, which no other kind may read.
    Wallet,
    /// Nothing; but the row stands in a month.
    Month {
        /// When the month ends.
        end: Timestamp,
        /// Where each month begins, in microseconds after midnight at the start of its 1st.
        offset: i64,
    },
    /// Nothing; but the row stands in a period that a caller has named.
    Period {
        /// When the period ends.
        end: Timestamp,
        /// The length of the period that was named last, in microseconds.
        length: i64,
    },
}

impl List {
    /// The most leases of a row. It bounds the row's length even if leases hold fractions of a token.
    pub(super) const MAX_LEASES: usize = 1_000;

    /// The most grants of a row. If there are more, neighbours are merged.
    pub(super) const MAX_GRANTS: usize = 64;

    /// The grants that a sliding window counts, in its order. Grants that leave together become one. If there are too
    /// many, the instants are rounded up to a 63rd of the period; a later instant never grants too much.
    pub(super) fn grants(mut entries: Vec<Entry>, period: i64) -> Self {
        join_equals(&mut entries);
        if entries.len() > Self::MAX_GRANTS {
            for entry in &mut entries {
                entry.ends_at = entry.ends_at.round_up(Self::merge_step(period));
            }
            join_equals(&mut entries);
        }
        Self::Grants(entries)
    }

    /// The step to which instants are rounded up.
    pub(super) fn merge_step(period: i64) -> i64 {
        let step = period.unsigned_abs().div_ceil(Self::MAX_GRANTS as u64 - 1);
        i64::try_from(step).expect("it is shorter than the period")
    }

    /// Whether it is the list of a wallet.
    #[must_use]
    pub fn is_wallet(&self) -> bool {
        *self == Self::Wallet
    }

    /// When the period of its row ends, if it stands in one.
    #[must_use]
    pub fn period_end(&self) -> Option<Timestamp> {
        match self {
            Self::Month { end, .. } | Self::Period { end, .. } => Some(*end),
            _ => None,
        }
    }

    /// Its entries, in their order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        match self {
            Self::Grants(entries) | Self::Leases(entries) => entries,
            Self::None | Self::Wallet | Self::Month { .. } | Self::Period { .. } => &[],
        }
    }

    /// When the last of them ends.
    pub(super) fn end(&self) -> Option<Timestamp> {
        self.entries().last().map(|entry| entry.ends_at)
    }

    /// The value of the column `list`, `None` for null. It holds the mark of the kind and then the entries. For each
    /// entry it has the instant of its end in microseconds since the Unix epoch, its micro-tokens, and for a lease the
    /// two halves of its name.
    #[must_use]
    pub fn to_column(&self) -> Option<Vec<i64>> {
        let (mark, is_named) = match self {
            Self::None => return None,
            Self::Grants(_) => (GRANTS, false),
            Self::Leases(_) => (LEASES, true),
            Self::Wallet => (WALLET, false),
            Self::Period { end, length } => return Some(vec![PERIOD, end.micros(), *length]),
            Self::Month { end, offset } => return Some(vec![MONTH, end.micros(), *offset]),
        };
        let mut column = vec![mark];
        for entry in self.entries() {
            column.extend([entry.ends_at.micros(), entry.amount.micros()]);
            if is_named {
                let Drawn(name) = entry.lease.unwrap_or_default();
                let halves = name.to_be_bytes();
                column.extend(halves.as_chunks().0.iter().map(|half| i64::from_be_bytes(*half)));
            }
        }
        Some(column)
    }

    /// Reads what [`to_column`](Self::to_column) wrote; `None` for anything else.
    #[must_use]
    pub fn from_column(column: &[i64]) -> Option<Self> {
        let [mark, rest @ ..] = column else { return None };
        match *mark {
            GRANTS => sorted(rest.as_chunks::<2>(), |&[ends_at, amount]| entry(ends_at, amount, 0)).map(Self::Grants),
            LEASES => sorted(rest.as_chunks::<4>(), |&[ends_at, amount, high, low]| {
                entry(ends_at, amount, u128::from(high.cast_unsigned()) << 64 | u128::from(low.cast_unsigned()))
            })
            .map(Self::Leases),
            WALLET if rest.is_empty() => Some(Self::Wallet),
            PERIOD | MONTH => match *rest {
                [end, length] if *mark == PERIOD && LENGTHS.contains(&length) => {
                    Some(Self::Period { end: end.into(), length })
                }
                [end, offset] if *mark == MONTH && OFFSETS.contains(&offset) => {
                    Some(Self::Month { end: end.into(), offset })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The same in PostgreSQL's text form, `{1,2,3}`.
    #[must_use]
    pub(crate) fn to_text(&self) -> Option<String> {
        let numbers: Vec<_> = self.to_column()?.iter().map(i64::to_string).collect();
        Some(format!("{{{}}}", numbers.join(",")))
    }

    /// Reads the same from its text form.
    #[must_use]
    pub fn from_text(column: &str) -> Option<Self> {
        let numbers = column.strip_prefix('{')?.strip_suffix('}')?.split_terminator(',');
        Self::from_column(&numbers.map(str::parse).collect::<Result<Vec<_>, _>>().ok()?)
    }
}

impl Entry {
    pub(super) fn of(ends_at: Timestamp, amount: Tokens) -> Self {
        Self { ends_at, amount, lease: None }
    }

    /// Whether it has not ended yet. An end after the end of time never comes.
    pub(super) fn is_live(&self, now: Timestamp) -> bool {
        self.ends_at > now || self.ends_at == Timestamp::MAX
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

/// The quotient, rounded up. Both numbers are positive, and so small that nothing overflows: at most 2^64 micro-tokens
/// times 3.2·10^16 microseconds.
pub(super) fn div_ceil(amount: i128, by: i128) -> i128 {
    (amount + by - 1) / by
}

fn join_equals(entries: &mut Vec<Entry>) {
    entries.sort_by_key(|entry| entry.ends_at);
    entries.dedup_by(|next, entry| {
        let is_one = next.ends_at == entry.ends_at;
        if is_one {
            entry.amount = entry.amount.checked_add(next.amount).unwrap_or(Tokens::MAX);
        }
        is_one
    });
}

fn entry(ends_at: i64, amount: i64, lease: u128) -> Entry {
    let lease = (lease != 0).then_some(Drawn(lease));
    Entry { ends_at: Timestamp::from_micros(ends_at), amount: Tokens::from_micros(amount), lease }
}

/// The entries, if they are in order, no amount is negative, and no numbers follow them.
fn sorted<const N: usize>(
    (entries, rest): (&[[i64; N]], &[i64]),
    read: impl Fn(&[i64; N]) -> Entry,
) -> Option<Vec<Entry>> {
    let entries: Vec<_> = entries.iter().map(read).collect();
    let is_right = rest.is_empty()
        && entries.is_sorted_by_key(|entry| entry.ends_at)
        && entries.iter().all(|entry| !entry.amount.is_negative());
    is_right.then_some(entries)
}

const GRANTS: i64 = 1;
const LEASES: i64 = 2;
const WALLET: i64 = 3;
const PERIOD: i64 = 4;
const MONTH: i64 = 5;
/// In microseconds, up to a thousand years.
const LENGTHS: RangeInclusive<i64> = 1..=31_536_000_000_000_000;
const OFFSETS: Range<i64> = 0..months::LONGEST;

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
