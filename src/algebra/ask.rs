use std::iter;

use super::state::{saturate, wide};
use super::terms::{Flow, Terms};
use crate::answer::decision::Reason;
use crate::call::Drawn;
use crate::tokens::Tokens;

/// The question of a call to a limit for one key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ask {
    /// Tokens that are taken in full.
    cost: Tokens,
    partial: Option<Partial>,
    /// Tokens that must stay behind, if some must.
    pub(super) leaving: Option<Tokens>,
    reserving: bool,
    /// Whether a settlement at one cost leaves this ask as it was charged.
    pub(crate) flat: bool,
    /// The name of its lease, if the limit grants any.
    pub(crate) lease: Option<Drawn>,
    /// Its place in the call.
    pub(crate) place: Position,
}

/// Where a request stands in its call.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Position {
    /// The alternative that it belongs to, from 0; `None` for a call that has none.
    pub(crate) alternative: Option<usize>,
    /// The place of the request in its split, from 0, if it is in one.
    pub(crate) split: Option<usize>,
}

/// Requests that take a part: as many tokens as there are.
///
/// Each limit could give its balance, less the tokens that must stay behind and those of plain requests. All requests
/// get the least of these numbers, so no limit is charged for tokens that another limit refused. If some limit has less
/// than the least part, all are decided at the least part: so a refusal and its instant are those of a plain call of
/// that cost. The passing of time alone never makes the part smaller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Partial {
    requests: i64,
    most: Tokens,
    least: Tokens,
    /// The largest share of the balance that it takes: one in so many.
    one_in: i64,
}

impl Ask {
    /// Tokens to spend now.
    #[must_use]
    pub const fn consume(cost: Tokens) -> Self {
        let place = Position { alternative: None, split: None };
        Self { cost, partial: None, leaving: None, reserving: false, flat: false, lease: None, place }
    }

    /// Tokens to spend as soon as they are there, perhaps later.
    #[must_use]
    pub const fn reserve(cost: Tokens) -> Self {
        Self { reserving: true, ..Self::consume(cost) }
    }

    /// Asks for as many tokens as there are, at least so many.
    pub(crate) fn at_least(self, least: Option<Tokens>) -> Self {
        let Some(least) = least else { return self };
        Self { cost: Tokens::ZERO, partial: Some(Partial { requests: 1, most: self.cost, least, one_in: 1 }), ..self }
    }

    /// Asks for calls to come: at most a sixteenth of the balance.
    ///
    /// So the key is not emptied for callers that may never come, and accidents can add only a little to the bound of a
    /// span.
    pub(crate) fn for_prefetch(self) -> Self {
        let Some(partial) = self.partial else { return self };
        let leaving = wide(partial.least) * i128::from(AHEAD - 1);
        Self { partial: Some(Partial { one_in: AHEAD, ..partial }), leaving: Some(saturate(leaving)), ..self }
    }

    /// Whether it asks for calls to come.
    pub(crate) fn is_ahead(self) -> bool {
        self.partial.is_some_and(|partial| partial.one_in > 1)
    }

    /// Whether it is a cost to pay at once, and nothing else.
    pub(crate) fn is_plain(self) -> bool {
        let Position { alternative, split } = self.place;
        let is_whole = self.partial.is_none() && alternative.is_none() && split.is_none();
        is_whole && self.leaving.is_none() && !self.reserving
    }

    /// Asks that so much stays behind. This is the least balance that the ask may leave, just as a reservation may
    /// leave a debt. So it costs no extra tokens, and its waits are exact. For a wallet it replaces the overdraft.
    pub(crate) fn with_floor(self, leaving: Option<Tokens>) -> Self {
        Self { leaving, ..self }
    }

    /// The ask for the piece that a limit gives of a split cost.
    pub(crate) fn with_cost(self, cost: Tokens) -> Self {
        Self { cost, ..self }
    }

    /// Whether its cost is split: its limit gives as much as it has, and others give the rest.
    pub(crate) fn is_split(self) -> bool {
        self.place.split.is_some()
    }

    /// Whether its limit gives what the one before it in the split could not give.
    pub(crate) fn continues_split(self) -> bool {
        self.place.split.is_some_and(|place| place > 0)
    }

    /// The reason for which a balance refuses it.
    pub(super) fn refused_for(self, balance: i128, terms: &Terms) -> Reason {
        let left = balance - wide(self.cost());
        if (-i128::from(self.max_debt(terms))..self.floor(terms)).contains(&left) {
            Reason::HeldBack
        } else if terms.flow == Flow::Leased {
            Reason::Leased
        } else {
            Reason::Short
        }
    }

    /// The tokens that each request with a part gets, if there is one: as many as there are, or the least part if there
    /// are fewer. If the cost and the least part are whole, so is the result.
    pub(super) fn partial_of(self, balance: i128, terms: &Terms) -> Option<Tokens> {
        let Partial { requests, most, least, one_in } = self.partial?;
        let kept = if one_in == 1 { self.floor(terms) + wide(self.cost) } else { 0 };
        let each = (balance - kept) / i128::from(requests) / i128::from(one_in);
        let (each, one) = (saturate(each).min(most).micros(), Tokens::ONE.micros());
        let fraction = if [most, least].iter().all(|amount| amount.micros() % one == 0) { each % one } else { 0 };
        Some(Tokens::from_micros(each - fraction).max(least))
    }

    /// The ask if each request with a part gets so many tokens.
    pub(crate) fn with_partial(self, each: Tokens) -> Self {
        let Some(Partial { requests, .. }) = self.partial else { return self };
        Self { cost: saturate(wide(self.cost) + i128::from(requests) * wide(each)), partial: None, ..self }
    }

    /// So many tokens, rounded down to whole ones if the cost is whole.
    pub(super) fn whole_of(self, tokens: i128) -> i128 {
        let one = wide(Tokens::ONE);
        if wide(self.cost) % one == 0 { tokens - tokens % one } else { tokens }
    }

    /// The most that each request with a part gets, if there is one.
    pub(crate) fn most(self) -> Option<Tokens> {
        self.partial.map(|partial| partial.most)
    }

    /// The ask for the tokens that a row with this balance gives.
    pub(crate) fn of_balance(self, balance: i128, terms: &Terms) -> Self {
        self.partial_of(balance, terms).map_or(self, |each| self.with_partial(each))
    }

    /// Whether it goes by the balance of all rows of a limit, and not by that of a single row.
    pub(crate) fn is_of_all_rows(self) -> bool {
        self.partial.is_some() || self.leaving.is_some() || self.is_split()
    }

    /// Everything in which a repeat must agree. Rows keep a hash of it.
    pub(crate) fn print(self) -> impl Iterator<Item = u8> {
        let partial =
            self.partial.map(|Partial { requests, most, least, .. }| [requests, most.micros(), least.micros()]);
        let amounts = [self.cost.micros()].into_iter().chain(partial.into_iter().flatten());
        let amounts = amounts.chain(self.leaving.map(Tokens::micros));
        let Position { alternative, split } = self.place;
        // The second bit stays free, so that the prints of stored calls stay as they are.
        let marks = [self.flat, false, alternative.is_some(), split.is_some()];
        let marks = (0..).zip(marks).map(|(bit, mark)| u8::from(mark) << bit).sum();
        let place = [alternative, split].into_iter().flatten().flat_map(|number| (number as u64).to_le_bytes());
        iter::once(marks).chain(amounts.flat_map(i64::to_le_bytes)).chain(place)
    }

    /// Whether the tokens may be spent later.
    pub(crate) fn is_reserving(self) -> bool {
        self.reserving
    }

    /// The least that it asks for.
    pub(crate) fn cost(self) -> Tokens {
        self.partial.map_or(self.cost, |partial| self.with_partial(partial.least).cost)
    }

    /// Whether another ask of its alternative is charged the same, whatever the balance. Parts have one cost.
    pub(crate) fn is_charged_as(self, other: Self) -> bool {
        let requests = |ask: Self| ask.partial.map(|partial| partial.requests);
        (self.cost, requests(self)) == (other.cost, requests(other))
    }

    /// The sum of two asks of one kind; `None` if the sum does not fit. Parts have one cost.
    pub(crate) fn checked_add(self, other: Self) -> Option<Self> {
        self.cost().checked_add(other.cost())?;
        let requests =
            self.partial.map_or(0, |partial| partial.requests) + other.partial.map_or(0, |partial| partial.requests);
        let partial = self.partial.or(other.partial).map(|partial| Partial { requests, ..partial });
        let cost = self.cost.checked_add(other.cost)?;
        Some(Self { cost, partial, leaving: self.leaving.max(other.leaving), ..self })
    }
}

/// With several processes and demand above the rate, a sixteenth keeps nearly all grants that are made without taking
/// ahead. A half loses many.
const AHEAD: i64 = 16;

#[cfg(test)]
mod tests {
    use super::{Ask, Position};
    use crate::SECOND;
    use crate::algebra::Terms;
    use crate::key::Key;
    use crate::limit::Limit;
    use crate::tokens::Tokens;

    const COST: Tokens = Tokens::new(3);

    fn partial(of: Tokens) -> Ask {
        Ask::consume(of).at_least(Some(Tokens::ONE))
    }

    fn placed(alternative: Option<usize>, split: Option<usize>) -> Ask {
        Ask { place: Position { alternative, split }, ..Ask::consume(COST) }
    }

    #[test]
    fn what_an_ask_is_follows_from_each_of_its_fields() {
        let (held_back, alternative, split) =
            (Ask::consume(COST).with_floor(Some(COST)), placed(Some(0), None), placed(None, Some(0)));
        for (ask, is_plain, is_ahead, is_of_all_rows) in [
            (Ask::consume(COST), true, false, false),
            (Ask::reserve(COST), false, false, false),
            (held_back, false, false, true),
            (alternative, false, false, false),
            (split, false, false, true),
            (partial(COST), false, false, true),
            (partial(COST).for_prefetch(), false, true, true),
        ] {
            assert_eq!(ask.is_plain(), is_plain, "{ask:?}");
            assert_eq!(ask.is_ahead(), is_ahead, "{ask:?}");
            assert_eq!(ask.is_of_all_rows(), is_of_all_rows, "{ask:?}");
        }
    }

    #[test]
    fn asks_are_charged_the_same_by_their_cost_and_their_parts() {
        assert!(Ask::consume(COST).is_charged_as(Ask::reserve(COST)));
        assert!(!Ask::consume(COST).is_charged_as(Ask::consume(Tokens::ONE)));
        assert!(!Ask::consume(Tokens::ZERO).is_charged_as(partial(COST)));
        assert!(partial(COST).is_charged_as(partial(COST)));
    }

    /// Of sixteen calls that are there, one is taken ahead.
    #[test]
    fn an_ask_for_calls_to_come_leaves_fifteen_sixteenths() {
        let terms = Terms::of(&Limit::token_bucket("ask", 100, SECOND), &Key::GLOBAL);
        assert_eq!(partial(COST).for_prefetch().needs(&terms), Tokens::new(16));
    }
}
