use std::mem;

use super::ask::Ask;
use super::state::{Entry, List, State, saturate, wide};
use super::terms::Terms;
use crate::tokens::Tokens;
use crate::values::timestamp::Timestamp;

/// All rows of a limit for one key, asked together at an instant. Most limits have one row; a limit with shards has
/// several.
///
/// Each of n rows has an equal share of rate, capacity and `max_reserved` ([`Terms::shard`]), and the balance is the
/// sum of the rows. Time does not go back for any of them: the latest of their instants counts for all. An account
/// never takes more from a row than the row's own share allows. This keeps the whole within the limit, even while
/// others ask single rows.
///
/// # Example
///
/// ```
/// use tollgate::algebra::{Ask, Account, State, Terms, Timestamp, Verdict};
/// use tollgate::{Key, Limit, SECOND, Tokens};
///
/// // One a second, at most ten, over two rows that hold half a token each.
/// let terms = Terms::of(&Limit::token_bucket("pooled", 1, SECOND).capacity(10).shards(2), &Key::GLOBAL);
/// let now = Timestamp::from_micros(0);
/// let half = Some(State::new(Tokens::from_micros(-4_500_000), now));
/// let rows = [half.clone(), half];
/// let account = Account::new(&terms, &rows, now);
///
/// let together = account.decide(Ask::consume(Tokens::ONE));
/// let Ok(Verdict::Granted { portions, .. }) = together else { panic!("together they hold one") };
/// assert_eq!(portions.len(), 2);
/// let three = account.decide(Ask::consume(Tokens::new(3)));
/// let Ok(Verdict::Denied { retry_at, .. }) = three else { panic!("but not three") };
/// assert_eq!(retry_at.micros(), 2_000_000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Account<'r> {
    /// The terms of all rows together.
    pub(super) terms: Terms,
    pub(super) rows: &'r [Option<State>],
    /// The reading of the clock.
    pub(super) clock: Timestamp,
    /// The latest of the clock and the rows' own instants.
    pub(super) now: Timestamp,
    /// The balance of the rows together.
    pub(super) sum: i128,
}

impl<'r> Account<'r> {
    /// The rows of a limit with these terms, in their order, `None` for a missing one, at `now`.
    #[must_use]
    pub fn new(terms: &Terms, rows: &'r [Option<State>], now: Timestamp) -> Self {
        let latest = rows.iter().flatten().fold(now, |latest, row| latest.max(row.ts));
        Self { terms: *terms, rows, clock: now, now: latest, sum: 0 }.summed()
    }

    pub(super) fn summed(self) -> Self {
        Self { sum: self.sum_at(self.now), ..self }
    }

    /// The instant that counts: the latest of the clock and the rows' own instants.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The balance of the rows together, cut to the range of an amount.
    #[must_use]
    pub fn balance(&self) -> Tokens {
        saturate(self.sum)
    }

    /// The tokens that are used and have not come back; the debt of a wallet.
    #[must_use]
    pub fn used(&self) -> Tokens {
        saturate((i128::from(self.terms.top()) - self.sum).max(0))
    }

    /// When all rows will be full, if nobody spends; [`now`](Self::now) if they are.
    #[must_use]
    pub fn full_at(&self) -> Timestamp {
        self.shards().fold(self.now, |latest, shard| latest.max(shard.terms.full_at(&shard.read)))
    }

    /// When the next whole token will be there, if nobody spends; `None` if the limit cannot hold one more.
    #[must_use]
    pub fn more_at(&self) -> Option<Timestamp> {
        let (balance, more) = (self.balance(), next_whole(self.balance()));
        // The largest amount has no next one.
        (more > balance && more.micros() <= self.terms.capacity).then(|| self.first_instant(more))
    }

    /// The first instant at which the balance is `target`, computed from the rows as they were read. The target is
    /// taken to be within the capacity.
    #[must_use]
    pub fn first_instant(&self, target: Tokens) -> Timestamp {
        if let [_] = self.rows {
            return self.shards().next().map_or(self.now, |shard| shard.terms.first_instant(&shard.read, target));
        }
        first_true(self.now, self.full_at(), |at| self.sum_at(at) >= wide(target))
    }

    pub(super) fn sum_at(&self, at: Timestamp) -> i128 {
        let value = |shard: Shard| {
            let refilled = if at == self.now { shard.refilled } else { shard.terms.refill(&shard.read, at) };
            wide(refilled.value)
        };
        i128::from(self.terms.top()) + self.shards().map(value).sum::<i128>()
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = Shard> {
        self.rows.iter().enumerate().map(|(index, row)| {
            let terms = self.terms.shard(index, self.rows.len());
            let still = row.as_ref().and_then(|row| terms.stood_still(row, self.now));
            let read = terms.or_full(still.as_ref().or(row.as_ref()), self.now);
            let refilled = terms.refill(&read, self.now);
            Shard { index, terms, read, refilled }
        })
    }
}

/// The change of one row of an account.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Portion {
    /// The number of the row, from 0.
    pub shard: usize,
    /// The row after the change.
    pub next: State,
    /// The tokens that the row gives; negative for tokens that it gets.
    pub taken: Tokens,
}

/// One of an account's rows.
pub(super) struct Shard {
    pub(super) index: usize,
    pub(super) terms: Terms,
    /// The row as it was read; a full one if it was missing, or counts as missing.
    pub(super) read: State,
    /// The row at the account's instant.
    pub(super) refilled: State,
}

impl Shard {
    /// The row after a charge that it can bear alone.
    pub(super) fn charged(&self, ask: Ask, cost: i128) -> Portion {
        let mut next = self.less(cost);
        if let List::Grants(entries) | List::Leases(entries) = &mut next.list {
            let ends_at = self.terms.leaves_at(next.ts);
            entries.push(Entry { ends_at, amount: saturate(cost), lease: ask.lease });
            next = self.terms.counted(mem::take(entries), next.ts);
        }
        self.becoming(next)
    }

    pub(super) fn portion(&self, taken: i128) -> Portion {
        self.becoming(self.less(taken))
    }

    fn less(&self, taken: i128) -> State {
        State { value: saturate(wide(self.refilled.value) - taken), ..self.refilled.clone() }
    }

    pub(super) fn becoming(&self, mut next: State) -> Portion {
        let taken = wide(self.refilled.value) - wide(next.value);
        next.list = self.terms.mark(&next);
        next.full_at = self.terms.full_at_after(&self.read, &next, taken);
        Portion { shard: self.index, next, taken: saturate(taken) }
    }

    /// Its balance.
    fn left(&self) -> i128 {
        i128::from(self.terms.top()) + wide(self.refilled.value)
    }

    /// The most tokens that it can be charged so that it is out of debt at an instant, within its share of
    /// `max_reserved`. A debt that is repaid after the end of time counts as ready at the end of time.
    pub(super) fn room(&self, ask: Ask, at: Timestamp) -> i128 {
        let left = self.left();
        let most = (left + i128::from(ask.max_debt(&self.terms))).max(0);
        if at == Timestamp::MAX {
            return most;
        }
        let (gained, _) = self.terms.gained(&self.refilled, at.max(self.refilled.ts));
        (left + gained).clamp(0, most)
    }
}

/// The first instant from `early` on at which `holds` is true, and stays true; `late` if it is not true before.
pub(super) fn first_true(early: Timestamp, late: Timestamp, holds: impl Fn(Timestamp) -> bool) -> Timestamp {
    let (mut early, mut late) = (early.micros(), late.micros());
    while early < late {
        // The whole range of instants fits.
        let middle = early + (late - early) / 2;
        if holds(Timestamp::from_micros(middle)) {
            late = middle;
        } else {
            early = middle + 1;
        }
    }
    Timestamp::from_micros(early)
}

/// The least whole number of tokens above this amount.
fn next_whole(tokens: Tokens) -> Tokens {
    let floor = tokens.max(Tokens::ZERO).micros() / Tokens::ONE.micros() * Tokens::ONE.micros();
    Tokens::from_micros(floor).checked_add(Tokens::ONE).unwrap_or(Tokens::MAX)
}
