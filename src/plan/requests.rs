//! Adds the requests of a call up to items: each limit and key occurs once in an alternative.

use std::collections::HashMap;

use super::alternatives::exceeded;
use super::checked_call::{Action, CheckedCall};
use super::item::{Item, Target};
use super::own_row::OwnRow;
use super::row::Row;
use crate::algebra::{Ask, Position};
use crate::call::{Asked, Call, CallError, Once, Request, Wanted, checked_span};
use crate::error::Error;
use crate::tokens::Tokens;

/// The items of a call; `ask` makes the ask of each request.
pub(super) fn asks(
    call: Call,
    ask: fn(Tokens) -> Ask,
    action: fn(Vec<Item<Ask>>) -> Action,
) -> Result<CheckedCall, Error> {
    let name = call.requests().next().map(|request| request.limit().name.clone());
    let fault = |source| Error::Call { limit: name.clone().map(Into::into), source };
    let Call { asked, once, keeping, fault: of_making } = call;
    of_making.map_or(Ok(()), Err).map_err(fault)?;
    let mut items = Items::new(ask);
    match asked {
        Asked::Request(request) => items.ask(request, Position::default())?,
        Asked::Requests(wanted) => items.ask_all(None, wanted)?,
        Asked::FirstOf(alternatives) => {
            for (number, wanted) in alternatives.into_iter().enumerate() {
                items.ask_all(Some(number), wanted)?;
            }
        }
    }
    let once = once.map(Once::checked).transpose().map_err(fault)?;
    let items = items.all();
    if let Some(keeping) = keeping {
        checked_span(keeping.span()).map_err(fault)?;
        if !items.is_empty() && items.iter().all(|item| item.target.limit.lease().is_some()) {
            return Err(fault(CallError::Leased));
        }
    }
    let is_stored = keeping.is_some() || once.is_some();
    let own = if is_stored { OwnRow::of_items(&items, keeping, once).map(Box::new) } else { None };
    Ok(CheckedCall { action: action(items), own })
}

/// The items of a call while its requests are added up.
struct Items {
    ask: fn(Tokens) -> Ask,
    /// The items of the alternatives before the last.
    before: Vec<Item<Ask>>,
    /// The items of the last alternative.
    asked: Vec<Item<Ask>>,
    /// The places of the items in a long alternative. To search the items each time would take time in the square of
    /// their number.
    places: HashMap<Row, usize>,
    /// The most and the least tokens of a request with a part in the last alternative.
    part: Option<[Tokens; 2]>,
}

impl Items {
    fn new(ask: fn(Tokens) -> Ask) -> Self {
        let asked = Vec::with_capacity(1);
        Self { ask, before: Vec::new(), asked, places: HashMap::new(), part: None }
    }

    /// Adds the requests of an alternative, or of a call that has none.
    fn ask_all(&mut self, alternative: Option<usize>, wanted: Vec<Wanted>) -> Result<(), Error> {
        let nothing = || Error::Call { limit: None, source: CallError::NothingAsked };
        self.end_alternative();
        if wanted.is_empty() {
            return Err(nothing());
        }
        for wanted in wanted {
            match wanted {
                Wanted::Request(request) => self.ask(request, Position { alternative, split: None })?,
                Wanted::Split { of, .. } if of.is_empty() => return Err(nothing()),
                Wanted::Split { cost, of } => {
                    for (place, mut request) in of.into_iter().enumerate() {
                        request.cost = cost;
                        self.ask(request, Position { alternative, split: Some(place) })?;
                    }
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self, request: Request, place: Position) -> Result<(), Error> {
        request.check()?;
        self.expect_fitting(&request, place).map_err(|source| Error::of_call(&request.limit.name, source))?;
        let Request { limit, key, cost, least, leaving, flat, period, .. } = request;
        let mut action = (self.ask)(cost).up_to(least).with_floor(leaving);
        (action.flat, action.place) = (flat, place);
        self.add(Item { target: Target::new(limit, key, period), action })
    }

    /// Fails if a request does not go with the verb, with its place in the call, or with those before it.
    fn expect_fitting(&mut self, request: &Request, place: Position) -> Result<(), CallError> {
        let is_leased = request.limit.lease().is_some();
        if place.split.is_some() {
            match request.least {
                Some(_) => return Err(CallError::SplitPart),
                None if is_leased => return Err(CallError::SplitLease),
                None => {}
            }
        }
        if (self.ask)(request.cost).is_reserving()
            && let Some(option) = request.of_consume().or(place.option())
        {
            return Err(CallError::WrongVerb { option });
        }
        if let Some(least) = request.least {
            let part = [request.cost, least];
            if *self.part.get_or_insert(part) != part {
                return Err(CallError::PartsDiffer);
            }
        }
        Ok(())
    }

    fn all(mut self) -> Vec<Item<Ask>> {
        if self.before.is_empty() {
            return self.asked;
        }
        self.end_alternative();
        self.before
    }

    fn end_alternative(&mut self) {
        self.part = None;
        self.places.clear();
        self.before.append(&mut self.asked);
    }

    /// Adds an item, or adds its cost to the item that asks the same limit and key already.
    fn add(&mut self, item: Item<Ask>) -> Result<(), Error> {
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
