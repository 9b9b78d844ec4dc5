use std::cmp::Reverse;

use super::decide::{Ask, TooDeep};
use super::terms::{State, Terms};
use super::timestamp::Timestamp;
use crate::tokens::Tokens;

/// The rows that share a limit for one key, asked as one.
///
/// Each row holds its share of rate, capacity and `max_reserved` ([`Terms::shard`]), and the balance is the sum of
/// theirs. Time does not go back for any of them: the latest of their instants counts for all. What is taken is taken
/// so that every row keeps within its own share, which is what keeps the whole within the limit, whoever else asks
/// single rows.
///
/// # Example
///
/// ```
/// use tollgate::algebra::{Ask, Pool, Pooled, State, Terms, Timestamp};
/// use tollgate::{Key, Limit, SECOND, Tokens};
///
/// // One a second, at most ten, over two rows that hold half a token each.
/// let terms = Terms::of(&Limit::token_bucket("pooled", 1, SECOND).capacity(10).shards(2), &Key::GLOBAL);
/// let now = Timestamp::from_micros(0);
/// let half = Some(State { value: Tokens::from_micros(500_000), ts: now });
/// let pool = Pool::of(&terms, &[half, half], now);
///
/// let Ok(Pooled::Granted { parts, .. }) = pool.decide(Ask::consume(Tokens::ONE)) else { panic!("together they have one") };
/// assert_eq!(parts.len(), 2);
/// let Ok(Pooled::Denied { retry_at, .. }) = pool.decide(Ask::consume(Tokens::new(3))) else { panic!("but not three") };
/// assert_eq!(retry_at.micros(), 2_000_000);
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    terms: Terms,
    shards: Vec<Shard>,
    now: Timestamp,
}

/// One of the rows.
#[derive(Clone, Copy, Debug)]
struct Shard {
    terms: Terms,
    read: State,
    refilled: State,
}

/// The answer of a pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Pooled {
    /// The cost is taken, to be spent from `ready_at` on.
    Granted {
        /// What to write; none where nothing changes, for a cost of zero.
        parts: Vec<Part>,
        /// The balance after the call.
        remaining: Tokens,
        /// When the tokens may be spent: the first instant at which no row that was charged is in debt.
        ready_at: Timestamp,
    },
    /// Nothing is taken.
    Denied {
        /// The balance.
        remaining: Tokens,
        /// The first instant at which the same call, alone, would be let through.
        retry_at: Timestamp,
    },
}

/// What becomes of one row of a pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Part {
    /// Which of the rows, from 0.
    pub shard: usize,
    /// What it holds from now on.
    pub next: State,
    /// What was taken from it; negative for what was given.
    pub cost: Tokens,
}

impl Pool {
    /// The pool of all rows of a limit with these terms, in their order, `None` for absent ones, at `now`.
    #[must_use]
    pub fn of(terms: &Terms, rows: &[Option<State>], now: Timestamp) -> Self {
        let shards = rows.iter().enumerate().map(|(index, row)| (terms.shard(index, rows.len()), *row));
        Self::of_shards(terms, shards, now)
    }

    /// The pool of some rows, each with its own terms.
    pub(crate) fn of_shards(
        terms: &Terms,
        rows: impl Iterator<Item = (Terms, Option<State>)> + Clone,
        now: Timestamp,
    ) -> Self {
        let now = rows.clone().filter_map(|(_, row)| row).fold(now, |now, row| now.max(row.ts));
        let shards = rows.map(|(terms, row)| Shard::of(terms, row, now)).collect();
        Self { terms: *terms, shards, now }
    }

    /// The instant that counts: the latest of `now` and all rows' own.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The sum of the rows, cut to what an amount can be.
    #[must_use]
    pub fn balance(&self) -> Tokens {
        cut(self.sum())
    }

    /// When all rows will be full, if nobody spends.
    #[must_use]
    pub fn full_at(&self) -> Timestamp {
        self.shards.iter().fold(Timestamp::MIN, |latest, shard| latest.max(shard.terms.full_at(shard.read)))
    }

    /// Asks the rows together: lets through whatever their sum does, as one row with the whole limit would.
    ///
    /// What is there is taken from the fullest rows first, so that few are written. What a reservation lacks is laid on
    /// the rows so that it is repaid as soon as possible. The cost must not be negative.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] for an unbounded reservation whose debt no row can hold.
    pub fn decide(&self, ask: Ask) -> Result<Pooled, TooDeep> {
        let (cost, bound) = (wide(ask.cost()), i128::from(ask.bound(&self.terms)));
        let left = self.sum() - cost;
        if left < -bound {
            if bound == i128::from(i64::MAX) {
                return Err(TooDeep);
            }
            return Ok(Pooled::Denied {
                remaining: self.balance(),
                retry_at: self.first_instant(ask.needs(&self.terms)),
            });
        }
        if cost == 0 {
            return Ok(Pooled::Granted {
                parts: Vec::new(),
                remaining: self.balance(),
                ready_at: self.first_instant(Tokens::ZERO),
            });
        }
        let parts = self.take(ask, cost);
        let ready = |part: &Part| self.shards[part.shard].terms.first_instant(part.next, Tokens::ZERO);
        let ready_at = parts.iter().map(ready).fold(self.now, Timestamp::max);
        Ok(Pooled::Granted { parts, remaining: cut(left), ready_at })
    }

    /// Gives tokens back, to the emptiest row first, each up to its share.
    #[must_use]
    pub fn credit(&self, amount: Tokens) -> Vec<Part> {
        let mut left = wide(amount);
        let mut emptiest: Vec<_> = (0..self.shards.len()).collect();
        emptiest.sort_by_key(|index| self.shards[*index].refilled.value);
        let mut parts = Vec::new();
        for index in emptiest {
            let shard = &self.shards[index];
            let given = left.min(i128::from(shard.terms.capacity) - wide(shard.refilled.value));
            if given > 0 {
                parts.push(self.part(index, -given));
                left -= given;
            }
        }
        parts
    }

    /// Takes tokens, whatever is there: the fullest rows come down to one level, below zero if need be.
    ///
    /// On one level, so that no row is full, and drips in vain, while another is low.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] where the debt would not fit.
    pub fn debit(&self, amount: Tokens) -> Result<Vec<Part>, TooDeep> {
        self.lower(wide(amount))
    }

    /// As [`debit`](Self::debit), of an amount that may be a sum of many.
    pub(crate) fn lower(&self, amount: i128) -> Result<Vec<Part>, TooDeep> {
        if amount == 0 {
            return Ok(Vec::new());
        }
        let mut fullest: Vec<_> = (0..self.shards.len()).collect();
        fullest.sort_by_key(|index| Reverse(self.shards[*index].refilled.value));
        let (mut left, mut lowered) = (-amount, 0);
        for index in &fullest {
            let value = wide(self.shards[*index].refilled.value);
            if lowered > 0 && left.div_euclid(lowered) >= value {
                break;
            }
            left += value;
            lowered += 1;
        }
        // What is left does not always divide: the fullest keep a micro-token more.
        let (level, more) = (left.div_euclid(lowered), left.rem_euclid(lowered));
        if level < i128::from(i64::MIN) {
            return Err(TooDeep);
        }
        let mut places = 0..lowered;
        let lower = |index: usize, place| {
            let value = if place < more { level + 1 } else { level };
            self.part(index, wide(self.shards[index].refilled.value) - value)
        };
        let parts = fullest.into_iter().map_while(|index| places.next().map(|place| lower(index, place)));
        Ok(parts.filter(|part| part.cost != Tokens::ZERO).collect())
    }

    /// How much every row must be charged for the cost to be ready as soon as possible.
    fn take(&self, ask: Ask, cost: i128) -> Vec<Part> {
        let room = |at: Timestamp| self.shards.iter().map(move |shard| shard.room(ask, at));
        let ready_at = if room(self.now).sum::<i128>() >= cost {
            self.now
        } else {
            // Were a row to bear all that it can of the cost, it would be ready then: so the least of all is no later.
            let alone = |shard: &Shard| shard.ready(cost.min(shard.room(ask, Timestamp::MAX)));
            let latest = self.shards.iter().map(alone).fold(self.now, Timestamp::max);
            least(self.now, latest, |at| room(at).sum::<i128>() >= cost)
        };
        // All that would be ready before, and of what is ready at that very instant no more than is asked.
        let before = Timestamp::from_micros(ready_at.micros() - 1);
        let floor = |shard: &Shard| if ready_at == self.now { 0 } else { shard.room(ask, before) };
        let mut charges: Vec<_> = (self.shards.iter().enumerate())
            .map(|(index, shard)| (index, floor(shard), shard.room(ask, ready_at) - floor(shard)))
            .collect();
        charges.sort_by_key(|(.., more)| Reverse(*more));
        let mut left = cost - charges.iter().map(|(_, charge, _)| charge).sum::<i128>();
        for (_, charge, more) in &mut charges {
            let taken = left.min(*more);
            *charge += taken;
            left -= taken;
        }
        let parts = charges.into_iter().map(|(index, charge, _)| self.part(index, charge));
        parts.filter(|part| part.cost > Tokens::ZERO).collect()
    }

    /// The first instant at which the sum is `target`, from the rows as they were read. The target counts as within capacity.
    #[must_use]
    pub fn first_instant(&self, target: Tokens) -> Timestamp {
        least(self.now, self.full_at(), |at| self.shards.iter().map(|shard| shard.at(at)).sum::<i128>() >= wide(target))
    }

    fn sum(&self) -> i128 {
        self.shards.iter().map(|shard| wide(shard.refilled.value)).sum()
    }

    fn part(&self, shard: usize, cost: i128) -> Part {
        let State { value, ts } = self.shards[shard].refilled;
        Part { shard, next: State { value: cut(wide(value) - cost), ts }, cost: cut(cost) }
    }
}

impl Shard {
    fn of(terms: Terms, row: Option<State>, now: Timestamp) -> Self {
        let read = row.unwrap_or_else(|| terms.full(now));
        Self { terms, read, refilled: terms.refill(read, now) }
    }

    fn at(&self, at: Timestamp) -> i128 {
        wide(self.terms.refill(self.read, at).value)
    }

    /// The most that it can be charged and be out of debt at an instant, within its share of `max_reserved`. What is
    /// repaid after the end of time is ready then.
    fn room(&self, ask: Ask, at: Timestamp) -> i128 {
        let value = wide(self.refilled.value);
        let most = (value + i128::from(ask.bound(&self.terms))).max(0);
        if at == Timestamp::MAX {
            return most;
        }
        // From the deepest value there is no capacity in the way.
        let deepest = State { value: Tokens::MIN, ts: self.refilled.ts };
        let gained = wide(self.terms.refill(deepest, at).value) - wide(Tokens::MIN);
        (value + gained).clamp(0, most)
    }

    /// When a charge would be ready.
    fn ready(&self, charge: i128) -> Timestamp {
        let State { value, ts } = self.refilled;
        self.terms.first_instant(State { value: cut(wide(value) - charge), ts }, Tokens::ZERO)
    }
}

/// The first instant from `early` on at which something is so that stays so; `late` where it is not so before.
fn least(early: Timestamp, late: Timestamp, is_so: impl Fn(Timestamp) -> bool) -> Timestamp {
    let (mut early, mut late) = (early.micros(), late.micros());
    while early < late {
        // The whole range of instants fits.
        let middle = early + (late - early) / 2;
        if is_so(Timestamp::from_micros(middle)) {
            late = middle;
        } else {
            early = middle + 1;
        }
    }
    Timestamp::from_micros(early)
}

fn wide(tokens: Tokens) -> i128 {
    i128::from(tokens.micros())
}

fn cut(micros: i128) -> Tokens {
    let cut = micros.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    // Cut into the range on the line above, so the fallback is never taken.
    Tokens::from_micros(i64::try_from(cut).unwrap_or(i64::MAX))
}
