use std::cmp::Reverse;
use std::slice;

use super::ask::Ask;
use super::list::List;
use super::shard::{Portion, Shard};
use super::state::{State, saturate, wide};
use super::terms::{Flow, Terms};
use crate::reason::Reason;
use crate::timestamp::Timestamp;
use crate::tokens::Tokens;

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
    terms: Terms,
    rows: &'r [Option<State>],
    /// The reading of the clock.
    clock: Timestamp,
    /// The latest of the clock and the rows' own instants.
    now: Timestamp,
    /// The balance of the rows together.
    sum: i128,
}

/// The answer of an account.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The cost is taken, to be spent from `ready_at` on.
    Granted {
        /// The changes to write; empty where nothing changes, for a cost of zero.
        portions: Vec<Portion>,
        /// The balance after the call; negative for a reservation that is not ready.
        remaining: Tokens,
        /// The first instant at which no charged row is in debt; the account's own instant if that is so already.
        ready_at: Timestamp,
    },
    /// Nothing is taken, and the rows stay as they are.
    Denied {
        /// The reason of the refusal.
        reason: Reason,
        /// The balance.
        remaining: Tokens,
        /// The first instant at which the same call, alone, would be granted.
        retry_at: Timestamp,
    },
}

/// A debt that no balance can hold, of about nine million million tokens. To store a smaller debt would forgive the
/// rest.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a debt this deep does not fit")]
pub struct TooDeep;

impl<'r> Account<'r> {
    /// The rows of a limit with these terms, in their order, `None` for a missing one, at `now`.
    #[must_use]
    pub fn new(terms: &Terms, rows: &'r [Option<State>], now: Timestamp) -> Self {
        let latest = rows.iter().flatten().fold(now, |latest, row| latest.max(row.ts));
        Self { terms: *terms, rows, clock: now, now: latest, sum: 0 }.summed()
    }

    fn summed(self) -> Self {
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

    /// When all rows will be full, if nobody spends.
    #[must_use]
    pub fn full_at(&self) -> Timestamp {
        self.shards().fold(Timestamp::MIN, |latest, shard| latest.max(shard.terms.full_at(&shard.read)))
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

    /// Asks the rows together.
    ///
    /// A cost of zero is granted where the balance is not negative, and changes nothing. The fullest rows give first,
    /// so that few rows change. A reservation's debt goes to the rows that repay it soonest. The cost must not be
    /// negative. A lease is refused while the row lists a thousand leases.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] for an unbounded reservation whose debt no row can hold.
    pub fn decide(&self, ask: Ask) -> Result<Verdict, TooDeep> {
        let (needs, ask) = (ask.needs(&self.terms), ask.of_balance(self.sum, &self.terms));
        let (cost, floor) = (wide(ask.cost()), ask.floor(&self.terms));
        let (left, room_at) = (self.sum - cost, self.room_for_lease_at(ask));
        if left < floor && ask.is_unbounded(&self.terms) {
            return Err(TooDeep);
        }
        if left < floor || room_at > self.now {
            let retry_at = self.first_instant(needs).max(room_at);
            let reason = ask.refused_for(self.sum, &self.terms);
            return Ok(Verdict::Denied { reason, remaining: self.balance(), retry_at });
        }
        let portions = if cost > 0 { self.take(ask, cost) } else { Vec::new() };
        let ready_at = if portions.is_empty() { self.repaid_at() } else { self.ready_at(&portions) };
        Ok(Verdict::Granted { portions, remaining: saturate(left), ready_at: ready_at.max(self.now) })
    }

    /// The tokens that each request with a part gets, if there is one.
    pub(crate) fn part(&self, ask: Ask) -> Option<Tokens> {
        ask.part_of(self.sum, &self.terms)
    }

    /// The most that an ask of a split cost may take at an instant: no debt, and whole tokens if the cost is whole.
    pub(super) fn spare(&self, ask: Ask, at: Timestamp) -> i128 {
        let sum = if at <= self.now { self.sum } else { self.sum_at(at) };
        ask.whole_of((sum - ask.floor(&self.terms)).max(0))
    }

    /// The reading of the clock.
    pub(super) fn clock(&self) -> Timestamp {
        self.clock
    }

    fn sum_at(&self, at: Timestamp) -> i128 {
        let value = |shard: Shard| {
            let refilled = if at == self.now { shard.refilled } else { shard.terms.refill(&shard.read, at) };
            wide(refilled.value)
        };
        i128::from(self.terms.top()) + self.shards().map(value).sum::<i128>()
    }

    /// When the row has room for the lease, if the call asks for one.
    fn room_for_lease_at(&self, ask: Ask) -> Timestamp {
        if self.terms.flow != Flow::Leased || ask.cost() == Tokens::ZERO {
            return self.now;
        }
        let leases = self.shards().next().map(|shard| shard.refilled.list);
        let full = leases.filter(|leases| leases.entries().len() >= List::MAX_LEASES);
        full.map_or(self.now, |leases| leases.entries()[0].ends_at)
    }

    /// When the balance is no longer negative.
    fn repaid_at(&self) -> Timestamp {
        let is_paid = self.sum >= 0 || self.terms.flow == Flow::Wallet;
        if is_paid { self.now } else { self.first_instant(Tokens::ZERO) }
    }

    /// Asks only one of the rows, whatever the others hold. The balance in the answer is that of all rows.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] for an unbounded reservation whose debt the row cannot hold.
    pub fn decide_in(&self, shard: usize, ask: Ask) -> Result<Verdict, TooDeep> {
        let terms = self.terms.shard(shard, self.rows.len());
        let alone = Account { terms, rows: slice::from_ref(&self.rows[shard]), ..*self }.summed();
        let mut verdict = alone.decide(ask)?;
        if let Verdict::Granted { portions, remaining, .. } = &mut verdict {
            for portion in portions {
                portion.shard = shard;
            }
            *remaining = saturate(self.sum - wide(ask.cost()));
        }
        Ok(verdict)
    }

    /// Gives tokens back, to the emptiest row first, each up to its share of the capacity.
    #[must_use]
    pub fn credit(&self, amount: Tokens) -> Vec<Portion> {
        let mut left = wide(amount);
        let mut emptiest: Vec<_> = self.shards().collect();
        emptiest.sort_by_key(|shard| shard.refilled.value);
        let mut portions = Vec::new();
        for shard in emptiest {
            let given = left.min(shard.terms.room_above(shard.refilled.value));
            if given > 0 {
                portions.push(shard.credited(given));
                left -= given;
            }
        }
        portions
    }

    /// Takes tokens, whatever the balance is: the fullest rows are lowered to one level, below zero if necessary. On
    /// one level no row stays full, and wastes its refill, while another is low.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] if the debt would not fit.
    pub fn debit(&self, amount: Tokens) -> Result<Vec<Portion>, TooDeep> {
        if amount == Tokens::ZERO {
            return Ok(Vec::new());
        }
        let mut fullest: Vec<_> = self.shards().collect();
        fullest.sort_by_key(|shard| Reverse(shard.refilled.value));
        let (mut left, mut lowered) = (-wide(amount), 0);
        for shard in &fullest {
            let value = wide(shard.refilled.value);
            if lowered > 0 && left.div_euclid(lowered) >= value {
                break;
            }
            left += value;
            lowered += 1;
        }
        // The rest does not always divide evenly: then the fullest rows keep a micro-token more.
        let (level, more) = (left.div_euclid(lowered), left.rem_euclid(lowered));
        if level < i128::from(i64::MIN) {
            return Err(TooDeep);
        }
        let portions = fullest.iter().zip(0..lowered).map(|(shard, place)| {
            let value = level + i128::from(place < more);
            shard.debited(wide(shard.refilled.value) - value)
        });
        Ok(portions.filter(|portion| portion.taken != Tokens::ZERO).collect())
    }

    /// Fills up each row that is there, and sets it to the time of the clock: a row from the future comes back to the
    /// present. Its leases stay listed, for the holders of their receipts, but give no tokens back. A wallet is
    /// emptied.
    #[must_use]
    pub fn reset(&self) -> Vec<Portion> {
        let there = self.shards().filter(|shard| self.rows[shard.index].is_some());
        there
            .map(|shard| {
                let mut next = shard.terms.full(self.clock);
                if let List::Leases(mut leases) = shard.refilled.list.clone() {
                    leases.retain(|lease| lease.lease.is_some());
                    for lease in &mut leases {
                        lease.amount = Tokens::ZERO;
                    }
                    next.list = List::Leases(leases);
                }
                shard.becoming(next)
            })
            .collect()
    }

    /// Charges the rows so that the cost is ready as soon as possible. The rows must hold the cost, or be allowed to
    /// owe it.
    fn take(&self, ask: Ask, cost: i128) -> Vec<Portion> {
        let shards: Vec<_> = match self.rows {
            [_] => return self.shards().map(|shard| shard.charged(ask, cost)).collect(),
            _ => self.shards().collect(),
        };
        let room = |at: Timestamp| shards.iter().map(|shard| shard.room(ask, at)).sum::<i128>();
        let ready_at = if room(self.now) >= cost {
            self.now
        } else {
            // If a row bears as much of the cost as it can, it is ready at some instant. The latest of these instants
            // bounds the search.
            let alone = |shard: &Shard| shard.portion(cost.min(shard.room(ask, Timestamp::MAX))).next;
            let latest = shards.iter().map(|shard| shard.terms.repaid_at(&alone(shard))).fold(self.now, Timestamp::max);
            first_true(self.now, latest, |at| room(at) >= cost)
        };
        // Each row gives all tokens that are ready before that instant. Of the tokens that become ready at that very
        // instant, the rows give only as many as are still missing.
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
        positive.map(|(shard, charge, _)| shard.portion(charge)).collect()
    }

    fn ready_at(&self, portions: &[Portion]) -> Timestamp {
        let terms = |portion: &Portion| self.terms.shard(portion.shard, self.rows.len());
        portions.iter().map(|portion| terms(portion).repaid_at(&portion.next)).fold(self.now, Timestamp::max)
    }

    fn shards(&self) -> impl Iterator<Item = Shard> {
        self.rows.iter().enumerate().map(|(index, row)| {
            let terms = self.terms.shard(index, self.rows.len());
            let read = terms.or_full(row.as_ref(), self.now);
            let refilled = terms.refill(&read, self.now);
            Shard { index, terms, read, refilled }
        })
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
