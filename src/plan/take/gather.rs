//! Adds the requests of a call up to items: each limit and key occurs once in an alternative.
//!
//! A call without alternatives and splits has one alternative. `Ledger::take` charges the first that its rows grant.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::iter;

use crate::algebra::{Ask, Position, Timestamp, most};
use crate::answer::decision::{Denied, Source};
use crate::call::{Asked, Call, CallError, Drawn, Keeping, Request, Wanted};
use crate::error::Error;
use crate::limit::LimitKind;
use crate::plan::stored_call::{CallKind, CallSlot};
use crate::plan::target::{Item, RowId, Target};
use crate::tokens::Tokens;

/// The items of a call, and its slot among the stored calls, if it has one.
type Gathered = (Vec<Item<Ask>>, Option<Box<CallSlot>>);

/// Adds up a call of this kind. Its leases, and its row where its caller gives no id, are named by one id that is
/// drawn.
pub(in crate::plan) fn gather(call: Call, kind: CallKind, draw: &dyn Fn() -> u128) -> Result<Gathered, Error> {
    let name = call.requests().next().map(|request| request.limit.name.clone());
    let fault = |source| Error::Call { limit: name.clone().map(Into::into), source };
    let of_verb = || not_taken(kind, &call).map(|option| CallError::WrongVerb { option });
    if let Some(source) = call.fault().or_else(of_verb) {
        return Err(fault(source));
    }
    let Call { asked, once, keeping, .. } = call;
    let mut sum = Sum::new(kind);
    match asked {
        Asked::Request(request) => sum.ask(request, Position::default())?,
        Asked::Requests(wanted) => sum.ask_all(None, wanted)?,
        Asked::FirstOf(alternatives) => {
            for (number, wanted) in alternatives.into_iter().enumerate() {
                sum.ask_all(Some(number), wanted)?;
            }
        }
    }
    let mut items = sum.asked;
    let is_leased = |item: &Item<Ask>| item.target.limit.lease().is_some();
    if items.iter().any(is_leased) && kind.changes_balance() {
        return Err(fault(CallError::Counted));
    }
    if keeping.is_some() && !items.is_empty() && items.iter().all(is_leased) {
        return Err(fault(CallError::Leased));
    }
    let drawn = LazyCell::new(|| Drawn(draw()));
    for item in items.iter_mut().filter(|item| is_leased(item)) {
        item.action.lease = Some(*drawn);
    }
    let asked = items.iter().map(|item| (&item.target.rows.first, item.action));
    let is_stored = once.is_some() || keeping.is_some();
    let slot = is_stored.then(|| CallSlot::of(kind, asked, keeping, once, || *drawn)).flatten();
    Ok((items, slot.map(Box::new)))
}

/// An option of a call that its verb does not take, if there is one.
fn not_taken(kind: CallKind, call: &Call) -> Option<&'static str> {
    let of_consume = || call.choice().or_else(|| call.requests().find_map(Request::of_consume));
    let of_taking = || call.requests().nth(1).map(|_| "several requests").or(call.keeping.map(Keeping::option));
    match kind {
        CallKind::Ahead | CallKind::Consume => None,
        CallKind::Reserve => of_consume(),
        CallKind::Credit | CallKind::Debit => of_consume().or_else(of_taking),
    }
}

/// The items of a call while its requests are added up.
struct Sum {
    kind: CallKind,
    asked: Vec<Item<Ask>>,
    /// Where those of the last alternative begin.
    start: usize,
    /// The places of the items in a long alternative. To search the items each time would take time in the square of
    /// their number.
    places: HashMap<RowId, usize>,
    /// The most and the least tokens of a request with a part in the last alternative.
    partial: Option<[Tokens; 2]>,
}

impl Sum {
    fn new(kind: CallKind) -> Self {
        Self { kind, asked: Vec::with_capacity(1), start: 0, places: HashMap::new(), partial: None }
    }

    /// Adds the requests of an alternative, or of a call that has none.
    fn ask_all(&mut self, alternative: Option<usize>, wanted: Vec<Wanted>) -> Result<(), Error> {
        let nothing = || Error::Call { limit: None, source: CallError::NothingAsked };
        if wanted.is_empty() {
            return Err(nothing());
        }
        (self.start, self.partial) = (self.asked.len(), None);
        self.places.clear();
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
        let Request { limit, key, cost, least, leaving, flat, period, .. } = request;
        let fault = |source| Err(Error::of_call(&limit.name, source));
        if place.split.is_some() && least.is_some() {
            return fault(CallError::SplitPart);
        }
        if place.split.is_some() && limit.lease().is_some() {
            return fault(CallError::SplitLease);
        }
        if let Some(partial) = least.map(|least| [cost, least])
            && *self.partial.get_or_insert(partial) != partial
        {
            return fault(CallError::PartsDiffer);
        }
        let ask = if self.kind == CallKind::Reserve { Ask::reserve } else { Ask::consume };
        let mut action = ask(cost).at_least(least).with_floor(leaving.filter(|_| limit.kind != LimitKind::Meter));
        if self.kind == CallKind::Ahead {
            action = action.for_prefetch();
        }
        (action.flat, action.place) = (flat && !self.kind.changes_balance(), place);
        self.add(Item { target: Target::new(limit, key, period), action })
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
    fn place(&mut self, row: &RowId) -> Option<usize> {
        let Self { asked: items, start, places, .. } = self;
        let mut asked = items.iter().enumerate().skip(*start);
        if items.len() - *start < FEW {
            return asked.find(|(_, other)| other.target.rows.first.is_of_same_key(row)).map(|(place, _)| place);
        }
        for (place, item) in asked.skip(places.len()) {
            places.insert(item.target.rows.first.in_one_table(), place);
        }
        places.get(&row.in_one_table()).copied()
    }
}

/// The alternatives of a call, in their order.
pub(in crate::plan) fn alternatives(items: &[Item<Ask>]) -> impl Iterator<Item = &[Item<Ask>]> {
    items.chunk_by(|one, next| one.action.place.alternative == next.action.place.alternative)
}

/// The groups of an alternative that are decided together: a single item, or the items that share a cost.
pub(in crate::plan) fn decided_together(alternative: &[Item<Ask>]) -> impl Iterator<Item = &[Item<Ask>]> {
    alternative.chunk_by(|_, next| next.action.continues_split())
}

/// Leaves out the alternatives that have a fault. If each has one, returns the fault of the first.
pub(in crate::plan) fn keep_right<E>(
    items: &mut Vec<Item<Ask>>,
    check: impl Fn(&[Item<Ask>]) -> Result<(), E>,
) -> Result<(), E> {
    let number = |items: &[Item<Ask>]| items[0].action.place.alternative;
    let mut wrong = alternatives(items).filter_map(|items| check(items).err().map(|fault| (number(items), fault)));
    let Some((first, fault)) = wrong.next() else { return Ok(()) };
    let numbers: Vec<_> = iter::once(first).chain(wrong.map(|(number, _)| number)).collect();
    items.retain(|item| numbers.binary_search(&item.action.place.alternative).is_err());
    if items.is_empty() { Err(fault) } else { Ok(()) }
}

/// Whether an alternative can ever be granted. If not, it is left out before SQL, because the algebra would name an
/// instant for it, which is wrong for the whole call.
pub(in crate::plan) fn possible(alternative: &[Item<Ask>]) -> Result<(), Error> {
    for items in decided_together(alternative) {
        let item = &items[0];
        let asked = item.action.cost();
        let max = if item.action.is_split() {
            most(items.iter().map(|item| (item.action, &item.target.terms)))
        } else {
            item.action.max_cost(&item.target.terms)
        };
        if asked > max && !item.target.is_unlimited() {
            return Err(exceeded(&item.target, asked, max));
        }
    }
    Ok(())
}

fn exceeded(target: &Target, asked: Tokens, max: Tokens) -> Error {
    Error::CostExceedsCapacity { limit: target.limit.name.clone().into(), asked, max: max.max(Tokens::ZERO) }
}

/// The refusal of an alternative, if an override denies one of its limits.
pub(in crate::plan) fn denied(items: &[Item<Ask>], now: Timestamp) -> Option<Denied> {
    let denied = || items.iter().filter_map(|item| Some((item, item.target.denied_until(now)?)));
    let refusals =
        denied().map(|(item, until)| item.target.refusal(item.target.denial(), Tokens::ZERO, until)).collect();
    let standing = |(item, until): (&Item<Ask>, _)| item.target.standing(item.action.cost(), Tokens::ZERO, [until; 2]);
    Denied::among(refusals, || denied().map(standing).collect(), now.into(), now.into(), Source::Override)
}

/// Up to this number, items are searched faster than they are looked up.
const FEW: usize = 16;
