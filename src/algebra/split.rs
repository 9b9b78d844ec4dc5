use super::account::{Account, first_true};
use super::state::{saturate, wide};
use super::{Ask, Terms, Timestamp};
use crate::answer::decision::Reason;
use crate::tokens::Tokens;

/// The piece of a split cost that one limit gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) cost: Tokens,
    /// The tokens that remain in all of the limits together.
    pub(crate) remaining: Tokens,
}

/// The refusal of limits that together lack the cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lacking {
    pub(crate) reason: Reason,
    /// The tokens that they have together.
    pub(crate) remaining: Tokens,
    /// The first instant at which they have the cost.
    pub(crate) retry_at: Timestamp,
}

/// The most that some limits can ever give of one cost.
pub(crate) fn most<'t>(asks: impl Iterator<Item = (Ask, &'t Terms)>) -> Tokens {
    saturate(asks.map(|(ask, terms)| ask.whole_of((i128::from(terms.capacity) - ask.floor(terms)).max(0))).sum())
}

/// The pieces of one cost that several limits give: each gives all its tokens, until the cost is complete. The sum only
/// grows with time, so the instant at which it reaches the cost is found by halving.
pub(crate) fn split(accounts: &[(Account<'_>, Ask)]) -> Result<Vec<Piece>, Lacking> {
    let cost = accounts.first().map_or(0, |(_, ask)| wide(ask.cost()));
    let has = |at| accounts.iter().map(|(account, ask)| account.spare(*ask, at)).sum::<i128>();
    let now = accounts.iter().map(|(account, _)| account.clock).max().unwrap_or(Timestamp::MIN);
    let remaining = saturate(has(now) - cost);
    if remaining.is_negative() {
        let with_all = accounts.iter().map(|(account, ask)| account.spare(ask.with_floor(None), now)).sum::<i128>();
        return Err(Lacking {
            reason: if with_all >= cost { Reason::HeldBack } else { Reason::Short },
            remaining: saturate(has(now)),
            retry_at: first_true(now, Timestamp::MAX, |at| has(at) >= cost),
        });
    }
    let mut left = cost;
    let given = accounts.iter().map(|(account, ask)| {
        let given = account.spare(*ask, now).min(left);
        left -= given;
        Piece { cost: saturate(given), remaining }
    });
    Ok(given.collect())
}
