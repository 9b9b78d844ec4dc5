use std::cmp::Reverse;
use std::slice;

use super::terms::{State, Terms};
use super::timestamp::Timestamp;
use crate::tokens::Tokens;

/// What a call asks of a limit for one key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ask {
    cost: Tokens,
    reserving: bool,
}

impl Ask {
    /// Tokens to spend now.
    #[must_use]
    pub const fn consume(cost: Tokens) -> Self {
        Self { cost, reserving: false }
    }

    /// Tokens to spend as soon as they are there, which may be later.
    #[must_use]
    pub const fn reserve(cost: Tokens) -> Self {
        Self { cost, reserving: true }
    }

    /// The balance that grants this: the cost, less the debt that it may make.
    pub(crate) fn needs(self, terms: &Terms) -> Tokens {
        // Neither is negative: the difference fits.
        Tokens::from_micros(self.cost.micros() - self.max_debt(terms))
    }

    /// How deep a debt it may make.
    fn max_debt(self, terms: &Terms) -> i64 {
        if self.reserving { terms.max_reserved } else { 0 }
    }

    /// The largest cost that can ever be granted at once.
    pub(crate) fn max_cost(self, terms: &Terms) -> Tokens {
        Tokens::from_micros(terms.capacity.saturating_add(self.max_debt(terms)))
    }

    /// Whether the tokens may be spent later.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_reserving(self) -> bool {
        self.reserving
    }

    /// How much is asked.
    pub(crate) fn cost(self) -> Tokens {
        self.cost
    }

    /// The sum of two asks of one kind; `None` where the sum does not fit.
    pub(crate) fn checked_add(self, other: Self) -> Option<Self> {
        let cost = self.cost.checked_add(other.cost)?;
        Some(Self { cost, reserving: self.reserving })
    }
}

/// A limit's rows for one key, asked as one at an instant. Most limits have one row; one with shards has several.
///
/// Each of n rows has an equal part of rate, capacity and `max_reserved` ([`Terms::shard`]), and the balance is the sum
/// of the rows. Time does not go back for any of them: the latest of their instants counts for all. A pool never takes
/// more from a row than the row's own part allows. This keeps the whole within the limit, even while others ask single
/// rows.
///
/// # Example
///
/// ```
/// use tollgate::algebra::{Ask, Pool, State, Terms, Timestamp, Verdict};
/// use tollgate::{Key, Limit, SECOND, Tokens};
///
/// // One a second, at most ten, over two rows that hold half a token each.
/// let terms = Terms::of(&Limit::token_bucket("pooled", 1, SECOND).capacity(10).shards(2), &Key::GLOBAL);
/// let now = Timestamp::from_micros(0);
/// let half = Some(State { value: Tokens::from_micros(500_000), ts: now });
/// let rows = [half, half];
/// let pool = Pool::new(&terms, &rows, now);
///
/// let together = pool.decide(Ask::consume(Tokens::ONE));
/// let Ok(Verdict::Granted { portions, .. }) = together else { panic!("together they hold one") };
/// assert_eq!(portions.len(), 2);
/// let three = pool.decide(Ask::consume(Tokens::new(3)));
/// let Ok(Verdict::Denied { retry_at, .. }) = three else { panic!("but not three") };
/// assert_eq!(retry_at.micros(), 2_000_000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pool<'r> {
    /// Of all rows together.
    terms: Terms,
    rows: &'r [Option<State>],
    /// The clock.
    clock: Timestamp,
    /// The latest of the clock and the rows' own instants.
    now: Timestamp,
    /// Whether credits and debits cut a row that holds more than its part of the capacity.
    cuts: bool,
}

/// What a pool answers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The cost is taken, to be spent from `ready_at` on.
    Granted {
        /// What to write; empty where nothing changes, for a cost of zero.
        portions: Vec<Portion>,
        /// The balance after the call; negative for a reservation that is not ready.
        remaining: Tokens,
        /// The first instant at which no charged row is in debt; the pool's own instant if that is so already.
        ready_at: Timestamp,
    },
    /// Nothing is taken, and the rows stay as they are.
    Denied {
        /// The balance.
        remaining: Tokens,
        /// The first instant at which the same call, alone, would be granted.
        retry_at: Timestamp,
    },
}

/// What one row of a pool gives or gets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Portion {
    /// Which of the rows, from 0.
    pub shard: usize,
    /// What the row holds from now on.
    pub next: State,
    /// What is taken from it; negative for what is given.
    pub taken: Tokens,
}

/// A debt that no balance can hold, of about nine million million tokens. A smaller one in its place would forgive the
/// rest.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a debt this deep does not fit")]
pub struct TooDeep;

impl<'r> Pool<'r> {
    /// The rows of a limit with these terms, in their order, `None` for a missing one, at `now`.
    #[must_use]
    pub fn new(terms: &Terms, rows: &'r [Option<State>], now: Timestamp) -> Self {
        let latest = rows.iter().flatten().fold(now, |latest, row| latest.max(row.ts));
        Self { terms: *terms, rows, clock: now, now: latest, cuts: true }
    }

    /// The same rows, for a receipt that was charged under these terms. The rows may hold more by now, under other
    /// terms: credits and debits do not cut them.
    pub(crate) fn keeping(self) -> Self {
        Self { cuts: false, ..self }
    }

    /// The instant that counts: the latest of the clock and the rows' own instants.
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
        self.shards().fold(Timestamp::MIN, |latest, shard| latest.max(shard.terms.full_at(shard.read)))
    }

    /// When the next whole token will be there, if nobody spends; `None` where the limit holds no more.
    #[must_use]
    pub fn more_at(&self) -> Option<Timestamp> {
        let (balance, more) = (self.balance(), next_whole(self.balance()));
        // The largest amount has no next one.
        (more > balance && more.micros() <= self.terms.capacity).then(|| self.first_instant(more))
    }

    /// The first instant at which the balance is `target`, computed from the rows as they were read. The target counts
    /// as within capacity.
    #[must_use]
    pub fn first_instant(&self, target: Tokens) -> Timestamp {
        if let [row] = self.rows {
            return self.terms.first_instant(row.unwrap_or_else(|| self.terms.full(self.now)), target);
        }
        let shards: Vec<_> = self.shards().collect();
        let holds_target = |at| shards.iter().map(|shard| shard.value_at(at)).sum::<i128>() >= wide(target);
        first_true(self.now, self.full_at(), holds_target)
    }

    /// Asks the rows together.
    ///
    /// A cost of zero is granted where the balance is not negative, and changes nothing. What is there is taken from
    /// the fullest rows first, so that few rows change. A reservation's debt is laid on the rows that repay it
    /// soonest. The cost must not be negative.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] for an unbounded reservation whose debt no row can hold.
    pub fn decide(&self, ask: Ask) -> Result<Verdict, TooDeep> {
        let (cost, max_debt) = (wide(ask.cost), i128::from(ask.max_debt(&self.terms)));
        let left = self.sum() - cost;
        if left < -max_debt {
            if max_debt == i128::from(i64::MAX) {
                return Err(TooDeep);
            }
            let retry_at = self.first_instant(ask.needs(&self.terms));
            return Ok(Verdict::Denied { remaining: self.balance(), retry_at });
        }
        let portions = if cost == 0 { Vec::new() } else { self.take(ask, cost) };
        let ready_at = if portions.is_empty() { self.first_instant(Tokens::ZERO) } else { self.ready_at(&portions) };
        Ok(Verdict::Granted { portions, remaining: cut(left), ready_at: ready_at.max(self.now) })
    }

    /// Asks one of the rows alone, whatever the others hold. The balance that is left is that of all rows.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] for an unbounded reservation whose debt the row cannot hold.
    pub fn decide_in(&self, shard: usize, ask: Ask) -> Result<Verdict, TooDeep> {
        let terms = self.terms.shard(shard, self.rows.len());
        let alone = Pool { terms, rows: slice::from_ref(&self.rows[shard]), ..*self };
        let mut verdict = alone.decide(ask)?;
        if let Verdict::Granted { portions, remaining, .. } = &mut verdict {
            for portion in portions {
                portion.shard = shard;
            }
            *remaining = cut(self.sum() - wide(ask.cost));
        }
        Ok(verdict)
    }

    /// Gives tokens back, to the emptiest row first, each up to its part of the capacity.
    #[must_use]
    pub fn credit(&self, amount: Tokens) -> Vec<Portion> {
        let mut left = wide(amount);
        let mut emptiest: Vec<_> = self.shards().collect();
        emptiest.sort_by_key(|shard| shard.kept.value);
        let mut portions = Vec::new();
        for shard in emptiest {
            let given = left.min(i128::from(shard.terms.capacity) - wide(shard.kept.value));
            if given > 0 {
                portions.push(shard.portion(shard.kept, -given));
                left -= given;
            }
        }
        portions
    }

    /// Takes tokens, whatever is there: the fullest rows come down to one level, below zero if need be. On one level no
    /// row stays full, and wastes its refill, while another is low.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] where the debt would not fit.
    pub fn debit(&self, amount: Tokens) -> Result<Vec<Portion>, TooDeep> {
        if amount == Tokens::ZERO {
            return Ok(Vec::new());
        }
        let mut fullest: Vec<_> = self.shards().collect();
        fullest.sort_by_key(|shard| Reverse(shard.kept.value));
        let (mut left, mut lowered) = (-wide(amount), 0);
        for shard in &fullest {
            let value = wide(shard.kept.value);
            if lowered > 0 && left.div_euclid(lowered) >= value {
                break;
            }
            left += value;
            lowered += 1;
        }
        // What is left does not always divide: the fullest rows keep a micro-token more.
        let (level, more) = (left.div_euclid(lowered), left.rem_euclid(lowered));
        if level < i128::from(i64::MIN) {
            return Err(TooDeep);
        }
        let portions = fullest.iter().zip(0..lowered).map(|(shard, place)| {
            let value = level + i128::from(place < more);
            shard.portion(shard.kept, wide(shard.kept.value) - value)
        });
        Ok(portions.filter(|portion| portion.taken != Tokens::ZERO).collect())
    }

    /// Fills up each row that is there, by the clock: a row from the future comes back to the present.
    #[must_use]
    pub fn reset(&self) -> Vec<Portion> {
        let there = self.shards().filter(|shard| self.rows[shard.index].is_some());
        there
            .map(|shard| {
                let next = shard.terms.full(self.clock);
                Portion { shard: shard.index, next, taken: cut(wide(shard.refilled.value) - wide(next.value)) }
            })
            .collect()
    }

    /// Charges the rows so that the cost is ready as soon as possible. The rows hold it, or may owe it.
    fn take(&self, ask: Ask, cost: i128) -> Vec<Portion> {
        let shards: Vec<_> = match self.rows {
            [_] => return self.shards().map(|shard| shard.portion(shard.refilled, cost)).collect(),
            _ => self.shards().collect(),
        };
        let room = |at: Timestamp| shards.iter().map(|shard| shard.room(ask, at)).sum::<i128>();
        let ready_at = if room(self.now) >= cost {
            self.now
        } else {
            // A row that bears all that it can of the cost is ready at some instant: the latest of these bounds the
            // search.
            let alone = |shard: &Shard| shard.ready_at(cost.min(shard.room(ask, Timestamp::MAX)));
            let latest = shards.iter().map(alone).fold(self.now, Timestamp::max);
            first_true(self.now, latest, |at| room(at) >= cost)
        };
        // All that is ready before that instant, and of what is ready at that very instant no more than is asked.
        let before = Timestamp::from_micros(ready_at.micros() - 1);
        let floor = |shard: &Shard| if ready_at == self.now { 0 } else { shard.room(ask, before) };
        let mut charges: Vec<_> =
            shards.iter().map(|shard| (shard, floor(shard), shard.room(ask, ready_at) - floor(shard))).collect();
        charges.sort_by_key(|(.., more)| Reverse(*more));
        let mut left = cost - charges.iter().map(|(_, charge, _)| charge).sum::<i128>();
        for (_, charge, more) in &mut charges {
            let taken = left.min(*more);
            *charge += taken;
            left -= taken;
        }
        let positive = charges.into_iter().filter(|(_, charge, _)| *charge > 0);
        positive.map(|(shard, charge, _)| shard.portion(shard.refilled, charge)).collect()
    }

    fn ready_at(&self, portions: &[Portion]) -> Timestamp {
        let terms = |portion: &Portion| self.terms.shard(portion.shard, self.rows.len());
        portions
            .iter()
            .map(|portion| terms(portion).first_instant(portion.next, Tokens::ZERO))
            .fold(self.now, Timestamp::max)
    }

    fn sum(&self) -> i128 {
        self.shards().map(|shard| wide(shard.refilled.value)).sum()
    }

    fn shards(&self) -> impl Iterator<Item = Shard> {
        self.rows.iter().enumerate().map(|(index, row)| {
            let terms = self.terms.shard(index, self.rows.len());
            let read = row.unwrap_or_else(|| terms.full(self.now));
            let refilled = terms.refill(read, self.now);
            let kept = if self.cuts { refilled.value } else { refilled.value.max(read.value) };
            let kept = State { value: kept, ..refilled };
            Shard { index, terms, read, refilled, kept }
        })
    }
}

/// One of the rows.
struct Shard {
    index: usize,
    terms: Terms,
    /// As it was read.
    read: State,
    /// At the pool's instant.
    refilled: State,
    /// What credits and debits start from.
    kept: State,
}

impl Shard {
    fn portion(&self, from: State, taken: i128) -> Portion {
        Portion {
            shard: self.index,
            next: State { value: cut(wide(from.value) - taken), ts: from.ts },
            taken: cut(taken),
        }
    }

    fn value_at(&self, at: Timestamp) -> i128 {
        wide(self.terms.refill(self.read, at).value)
    }

    /// The most that it can be charged and be out of debt at an instant, within its part of `max_reserved`. What is
    /// repaid after the end of time counts as ready then.
    fn room(&self, ask: Ask, at: Timestamp) -> i128 {
        let value = wide(self.refilled.value);
        let most = (value + i128::from(ask.max_debt(&self.terms))).max(0);
        if at == Timestamp::MAX {
            return most;
        }
        // From the deepest value no capacity is in the way.
        let deepest = State { value: Tokens::MIN, ts: self.refilled.ts };
        let gained = wide(self.terms.refill(deepest, at).value) - wide(Tokens::MIN);
        (value + gained).clamp(0, most)
    }

    /// When a charge would be ready.
    fn ready_at(&self, charge: i128) -> Timestamp {
        let State { value, ts } = self.refilled;
        self.terms.first_instant(State { value: cut(wide(value) - charge), ts }, Tokens::ZERO)
    }
}

/// The first instant from `early` on at which `holds` is true, and stays true; `late` where it is not true before.
fn first_true(early: Timestamp, late: Timestamp, holds: impl Fn(Timestamp) -> bool) -> Timestamp {
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

/// The least whole number of tokens above what is there.
fn next_whole(tokens: Tokens) -> Tokens {
    let floor = tokens.max(Tokens::ZERO).micros() / Tokens::ONE.micros() * Tokens::ONE.micros();
    Tokens::from_micros(floor).checked_add(Tokens::ONE).unwrap_or(Tokens::MAX)
}

fn wide(tokens: Tokens) -> i128 {
    i128::from(tokens.micros())
}

/// The nearest amount.
fn cut(micros: i128) -> Tokens {
    let cut = micros.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Tokens::from_micros(i64::try_from(cut).expect("the line above cuts it to the range of i64"))
}
