//! Adds up the requests of a call.

use std::collections::HashMap;

use super::alternatives::exceeded;
use super::checked_call::{Action, CheckedCall};
use super::item::{Item, Target};
use super::own_row::OwnRow;
use super::row::Row;
use crate::algebra::Ask;
use crate::call_error::CallError;
use crate::call_name::{Keeping, Once};
use crate::error::Error;
use crate::request::{CheckedRequest, Position, Request};
use crate::tokens::Tokens;

/// The call of some requests; `ask` makes the ask of each. This is compiled only once, whatever the type of the
/// requests.
pub(super) fn asks(
    requests: &mut dyn Iterator<Item = Request>,
    ask: fn(Tokens) -> Ask,
    action: fn(Vec<Item<Ask>>) -> Action,
) -> Result<CheckedCall, Error> {
    let mut items = Items { asked: Vec::with_capacity(requests.size_hint().0.min(FEW)), ..Items::default() };
    let mut said = Said::default();
    for request in requests {
        let request = request.checked()?;
        said.hear(&request, ask).map_err(|source| Error::of_call(&request.limit.name, source))?;
        let CheckedRequest { limit, key, cost, least, leaving, once, flat, period, place, .. } = request;
        let mut action = ask(cost).up_to(least).leaving(leaving);
        (action.flat, action.place) = (flat, place);
        let item = Item { target: Target::new(limit, key, period), action };
        if let Some(once) = once {
            said.once = Some((item.target.rows.first.clone(), once));
        }
        items.add(item)?;
    }
    let (items, Said { keeping, once, .. }) = (items.all(), said);
    let is_stored = keeping.is_some() || once.is_some();
    let own = if is_stored { OwnRow::of_items(&items, keeping, once).map(Box::new) } else { None };
    Ok(CheckedCall { action: action(items), own })
}

/// The options that one request sets for the whole call, or for its alternative.
#[derive(Default)]
struct Said {
    keeping: Option<Keeping>,
    once: Option<(Row, Once)>,
    part: Option<Part>,
    last: Option<Position>,
}

/// The most and the least tokens of the requests with a part in an alternative.
#[derive(Clone, Copy, Eq, PartialEq)]
struct Part {
    alternative: Option<usize>,
    most: Tokens,
    least: Tokens,
}

impl Said {
    /// Notes the options of one more request. Fails if they contradict those before it or the verb.
    fn hear(&mut self, request: &CheckedRequest, ask: fn(Tokens) -> Ask) -> Result<(), CallError> {
        let CheckedRequest { cost, least, keeping, once, place, .. } = request;
        place.expect_behind(self.last.replace(*place))?;
        if let Some(kept) = *keeping
            && *self.keeping.get_or_insert(kept) != kept
        {
            return Err(CallError::SpansDiffer);
        }
        if once.is_some() && self.once.is_some() {
            return Err(CallError::TwoIds);
        }
        if let Some(option) = request.consumed_with().filter(|_| ask(*cost).is_reserving()) {
            return Err(CallError::NotConsumed { option });
        }
        if let Some(least) = *least {
            let part = Part { alternative: place.alternative, most: *cost, least };
            let before = self.part.replace(part);
            if before.is_some_and(|before| before.alternative == part.alternative && before != part) {
                return Err(CallError::PartsDiffer);
            }
        }
        Ok(())
    }
}

/// The items of a call while its requests are added up.
#[derive(Default)]
struct Items {
    /// The items of the alternatives before the last.
    before: Vec<Item<Ask>>,
    /// The items of the last alternative.
    asked: Vec<Item<Ask>>,
    /// The places of the items in a long alternative. To search the items each time would take time in the square of
    /// their number.
    places: HashMap<Row, usize>,
}

impl Items {
    fn add(&mut self, item: Item<Ask>) -> Result<(), Error> {
        if self.asked.first().is_some_and(|last| last.action.place.alternative != item.action.place.alternative) {
            self.end_alternative();
        }
        self.add_up(item)
    }

    fn all(mut self) -> Vec<Item<Ask>> {
        if self.before.is_empty() {
            return self.asked;
        }
        self.end_alternative();
        self.before
    }

    fn end_alternative(&mut self) {
        self.places.clear();
        self.before.append(&mut self.asked);
    }

    /// Adds an item, or adds its cost to the item that asks the same limit and key already.
    fn add_up(&mut self, item: Item<Ask>) -> Result<(), Error> {
        let conflict = |source| Err(Error::of_call(&item.target.limit.name, source));
        let Some(place) = self.place(&item.target.rows.first) else {
            let previous = self.asked.last().map(|previous| previous.action.flat);
            if item.action.continues_split() && previous != Some(item.action.flat) {
                return conflict(CallError::FlatDiffers);
            }
            self.asked.push(item);
            return Ok(());
        };
        let Item { target, action } = &mut self.asked[place];
        if item.action.is_split() || action.is_split() {
            return conflict(CallError::SplitTwice);
        }
        if (&target.limit, target.terms) != (&item.target.limit, item.target.terms) {
            return conflict(CallError::ConflictingDefinitions);
        }
        if action.flat != item.action.flat {
            return conflict(CallError::FlatDiffers);
        }
        // A sum that does not fit exceeds every capacity.
        let beyond = || exceeded(target, Tokens::MAX, action.max_cost(&target.terms));
        *action = action.checked_add(item.action).ok_or_else(beyond)?;
        Ok(())
    }

    /// The place of the item that asks the limit and key of a row.
    fn place(&mut self, row: &Row) -> Option<usize> {
        let Self { asked, places, .. } = self;
        if asked.len() < FEW {
            return asked.iter().position(|other| other.target.rows.first.is_of_same_key(row));
        }
        for (place, item) in asked.iter().enumerate().skip(places.len()) {
            places.insert(item.target.rows.first.in_one_table(), place);
        }
        places.get(&row.in_one_table()).copied()
    }
}

/// Up to this number, items are searched faster than they are looked up.
const FEW: usize = 16;
