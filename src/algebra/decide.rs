use super::terms::{State, Terms};
use super::timestamp::Timestamp;
use crate::tokens::Tokens;

/// What a call asks of one row.
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

    /// The balance that lets this through: the cost, less the debt that it may make.
    pub(crate) fn needs(self, terms: &Terms) -> Tokens {
        // Neither is negative: the difference fits.
        Tokens::from_micros(self.cost.micros() - self.bound(terms))
    }

    /// How deep a debt it may make.
    pub(super) fn bound(self, terms: &Terms) -> i64 {
        if self.reserving { terms.max_reserved } else { 0 }
    }

    /// The most that can ever be let through at once.
    pub(crate) fn most(self, terms: &Terms) -> Tokens {
        Tokens::from_micros(terms.capacity.saturating_add(self.bound(terms)))
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

    /// This and another ask of the same row, in one; `None` where the sum is no amount.
    pub(crate) fn and(self, other: Self) -> Option<Self> {
        let cost = self.cost.checked_add(other.cost)?;
        Some(Self { cost, reserving: self.reserving })
    }
}

/// The answer of one row.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The cost is taken, to be spent from `ready_at` on.
    Granted {
        /// What to write; `None` where nothing changes, for a cost of zero.
        next: Option<State>,
        /// The balance after the call; negative for a reservation that is not ready.
        remaining: Tokens,
        /// When the tokens may be spent: the first instant at which the new balance is not negative; the decision's own
        /// instant if that is so already.
        ready_at: Timestamp,
    },
    /// Nothing is taken, and the row stays as it was.
    Denied {
        /// The balance.
        remaining: Tokens,
        /// The first instant at which the same call, alone, would be let through.
        retry_at: Timestamp,
    },
}

/// Asks a row, or `None` for an absent one, at `now`.
///
/// The instant that counts is the later one of `now` and the row's own. A cost of zero is granted where the balance is not
/// negative, and writes nothing. The cost must not be negative.
///
/// # Errors
///
/// [`TooDeep`] for an unbounded reservation whose debt no row can hold.
pub fn decide(terms: &Terms, row: Option<State>, now: Timestamp, ask: Ask) -> Result<Verdict, TooDeep> {
    let row = row.unwrap_or_else(|| terms.full(now));
    let now = now.max(row.ts);
    let refilled = terms.refill(row, now);
    let left = i128::from(refilled.value.micros()) - i128::from(ask.cost.micros());
    if left < -i128::from(ask.bound(terms)) {
        if ask.bound(terms) == i64::MAX {
            return Err(TooDeep);
        }
        let retry_at = terms.first_instant(row, ask.needs(terms));
        return Ok(Verdict::Denied { remaining: refilled.value, retry_at });
    }
    let remaining = Tokens::from_micros(i64::try_from(left).map_err(|_| TooDeep)?);
    let next = (ask.cost > Tokens::ZERO).then_some(State { value: remaining, ts: refilled.ts });
    let ready_at = terms.first_instant(next.unwrap_or(row), Tokens::ZERO).max(now);
    Ok(Verdict::Granted { next, remaining, ready_at })
}

/// Gives tokens back to a row at `now`, up to the capacity. `None` where nothing changes.
#[must_use]
pub fn credit(terms: &Terms, row: Option<State>, now: Timestamp, amount: Tokens) -> Option<State> {
    let refilled = terms.refill(row?, now);
    let value = i128::from(refilled.value.micros()) + i128::from(amount.micros());
    let value = i64::try_from(value).unwrap_or(i64::MAX).min(terms.capacity);
    // A row that holds more than the capacity of an older definition is left to the newer one.
    (value > refilled.value.micros()).then_some(State { value: Tokens::from_micros(value), ts: refilled.ts })
}

/// Takes tokens from a row at `now`, whatever it holds. `None` where nothing changes.
///
/// # Errors
///
/// [`TooDeep`] where the debt would not fit.
pub fn debit(terms: &Terms, row: Option<State>, now: Timestamp, amount: Tokens) -> Result<Option<State>, TooDeep> {
    if amount == Tokens::ZERO {
        return Ok(None);
    }
    let refilled = terms.refill(row.unwrap_or_else(|| terms.full(now)), now);
    let value = refilled.value.checked_sub(amount).ok_or(TooDeep)?;
    Ok(Some(State { value, ts: refilled.ts }))
}

/// A debt that no balance holds, of about nine million million tokens: storing less would forgive the rest.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a debt this deep does not fit")]
pub struct TooDeep;
