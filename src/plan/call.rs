use std::collections::HashMap;

use super::item::{Alteration, Item, Target};
#[cfg(feature = "postgres")]
use super::row::Row;
use crate::algebra::Ask;
use crate::error::Error;
use crate::hold::{Held, HoldError, HoldId, Holding};
use crate::key::Key;
use crate::limit::Limit;
#[cfg(feature = "postgres")]
use crate::parts::Parts;
use crate::receipt::{Charge, Receipt};
use crate::request::{CheckedRequest, Request};
use crate::text::Text;
use crate::tokens::{Tokens, TokensError};

/// What one caller asks: tokens from every limit or from none, or a change that always succeeds.
///
/// A wrong request is reported by [`Plan::new`](super::Plan::new).
#[derive(Debug)]
#[must_use = "a call does nothing until it is planned"]
pub struct Call {
    checked: Result<CheckedCall, Error>,
}

impl Call {
    /// Takes tokens from every limit, or from none.
    pub fn consume(requests: impl IntoIterator<Item = Request>) -> Self {
        Self { checked: asks(requests, Ask::consume).map(CheckedCall::Take) }
    }

    /// Takes tokens from every limit, now or for later, or from none.
    pub fn reserve(requests: impl IntoIterator<Item = Request>) -> Self {
        Self { checked: asks(requests, Ask::reserve).map(CheckedCall::Take) }
    }

    /// Says whether tokens could be taken from every limit, and takes none.
    pub fn check(requests: impl IntoIterator<Item = Request>) -> Self {
        Self { checked: asks(requests, Ask::consume).map(CheckedCall::Check) }
    }

    /// Gives tokens back, up to the capacity.
    pub fn credit(request: Request) -> Self {
        Self::alter(request.checked().and_then(unheld), Alteration::Credit)
    }

    /// Takes tokens, whatever is there.
    pub fn debit(request: Request) -> Self {
        Self::alter(request.checked().and_then(unheld), Alteration::Debit)
    }

    /// Fills a key up, and brings a row from the future back to the present.
    pub fn reset(request: Request) -> Self {
        Self::alter(request.checked(), |_| Alteration::Reset)
    }

    /// Reads a balance.
    pub fn look(request: Request) -> Self {
        Self::alter(request.checked(), |_| Alteration::Look)
    }

    /// Brings each charge of a receipt to its actual cost: the difference is given back or taken, whatever is there. A
    /// lease ends.
    ///
    /// One request may have charged several shards. An excess is given back to each of them, up to what it was charged;
    /// a shortage is taken from the first.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is used up by move")]
    #[expect(clippy::missing_panics_doc, reason = "both differences fit")]
    pub fn settle(receipt: Receipt, actual: Tokens) -> Self {
        Self::amend(&receipt, |charges| {
            if let [Charge { limit, cost, hold: Some(held), ready_at, .. }] = charges {
                let (cost, actual) = (not_negative(limit, *cost)?, not_negative(limit, actual)?);
                let granted_at = (*ready_at).into();
                let settled = Alteration::Settle { held: *held, cost, actual, granted_at };
                return Ok(vec![limit.lease().map_or(settled, |_| Alteration::Release(*held))]);
            }
            let mut excess = -i128::from(not_negative(&charges[0].limit, actual)?.micros());
            for charge in charges {
                excess += i128::from(not_negative(&charge.limit, charge.cost)?.micros());
            }
            if excess < 0 {
                let shortage = i64::try_from(-excess).expect("it is no larger than the actual cost");
                return Ok(vec![Alteration::Debit(Tokens::from_micros(shortage))]);
            }
            let mut give = |charge: &Charge| {
                let given = excess.min(charge.cost.micros().into());
                excess -= given;
                let given = i64::try_from(given).expect("it is no larger than the charge");
                Alteration::Credit(Tokens::from_micros(given))
            };
            Ok(charges.iter().map(&mut give).collect())
        })
    }

    /// Gives back each charge of a receipt that is not ready to be spent. A lease ends.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is used up by move")]
    pub fn cancel(receipt: Receipt) -> Self {
        let give = |charge: &Charge| {
            let (cost, until) = (not_negative(&charge.limit, charge.cost)?, charge.ready_at.into());
            Ok(match charge.hold {
                Some(held) if charge.limit.lease().is_some() => Alteration::Release(held),
                Some(held) => Alteration::SettleUntil { held, cost, until },
                None => Alteration::CreditUntil(cost, until),
            })
        };
        Self::amend(&receipt, |charges| charges.iter().map(give).collect())
    }

    /// Lets each lease of a receipt last for its limit's period from now on. Its other charges stay as they are.
    pub fn renew(receipt: &Receipt) -> Self {
        Self::of_leases(receipt, Alteration::Renew)
    }

    /// Ends each lease of a receipt. Its other charges stay as they are.
    pub fn release(receipt: &Receipt) -> Self {
        Self::of_leases(receipt, Alteration::Release)
    }

    /// Names the holds of this call, but for those that [`Request::once`] names. Ids must differ as long as receipts
    /// live, so they are random: a `Limiter` and a `Gate` draw one for each call. Where a row has a hold of that name,
    /// the next free one is used.
    pub fn with_id(mut self, id: HoldId) -> Self {
        if let Ok(CheckedCall::Take(items) | CheckedCall::Check(items)) = &mut self.checked {
            for item in items {
                item.action = item.action.named(id);
            }
        }
        self
    }

    fn alter(request: Result<CheckedRequest, Error>, alteration: impl Fn(Tokens) -> Alteration) -> Self {
        let altered = |CheckedRequest { limit, key, cost, .. }| {
            CheckedCall::Alter(vec![Item { target: Target::new(limit, key), action: alteration(cost) }])
        };
        Self { checked: request.map(altered) }
    }

    /// Changes the rows of a receipt's leases.
    fn of_leases(receipt: &Receipt, alteration: fn(Held) -> Alteration) -> Self {
        let item = |(charge, held)| Item { target: Target::of_charge(charge), action: alteration(held) };
        Self { checked: Ok(CheckedCall::Alter(receipt.leases().map(item).collect())) }
    }

    /// Changes the rows of a receipt's charges: `alterations` says how, for the charges of one request.
    fn amend(receipt: &Receipt, alterations: impl Fn(&[Charge]) -> Result<Vec<Alteration>, Error>) -> Self {
        let items = || {
            let mut items = Vec::with_capacity(receipt.charges.len());
            for charges in receipt.by_request() {
                let alterations = alterations(charges)?;
                let of_charge = |(charge, action)| Item { target: Target::of_charge(charge), action };
                items.extend(charges.iter().zip(alterations).map(of_charge));
            }
            Ok(CheckedCall::Alter(items))
        };
        Self { checked: items() }
    }

    /// The call, if it is right.
    pub(crate) fn checked(self) -> Result<CheckedCall, Error> {
        let call = self.checked?;
        if call.targets().next().is_none() {
            return Err(Error::NothingAsked);
        }
        if let CheckedCall::Take(items) | CheckedCall::Check(items) = &call {
            items.iter().try_for_each(possible)?;
        }
        Ok(call)
    }

    /// The call, if it is right, over tables with so many parts.
    #[cfg(feature = "postgres")]
    pub(crate) fn checked_for(self, parts: Parts) -> Result<CheckedCall, Error> {
        let mut call = self.checked()?;
        if parts.is_distributed() {
            call.targets_mut().for_each(|target| target.first.part = parts.of(&target.first.key));
        }
        Ok(call)
    }
}

/// A call that can be decided: nothing is wrong with what it asks.
#[derive(Clone, Debug)]
pub(crate) enum CheckedCall {
    /// All or nothing; each limit and key once.
    Take(Vec<Item<Ask>>),
    /// What a `Take` would come to.
    Check(Vec<Item<Ask>>),
    /// One after another.
    Alter(Vec<Item<Alteration>>),
}

impl CheckedCall {
    pub(super) fn targets(&self) -> impl Iterator<Item = &Target> {
        let (asks, alterations) = match self {
            Self::Take(items) | Self::Check(items) => (items.as_slice(), [].as_slice()),
            Self::Alter(items) => ([].as_slice(), items.as_slice()),
        };
        asks.iter().map(|item| &item.target).chain(alterations.iter().map(|item| &item.target))
    }

    /// Whether it may insert a row: whether it takes more than nothing, or keeps a hold.
    pub(super) fn inserts(&self) -> bool {
        let takes = |alteration: &Alteration| matches!(alteration, Alteration::Debit(cost) if *cost > Tokens::ZERO);
        match self {
            Self::Take(items) => items.iter().any(|item| item.action.writes(&item.target.terms)),
            Self::Check(_) => false,
            Self::Alter(items) => items.iter().any(|item| takes(&item.action)),
        }
    }
}

#[cfg(feature = "postgres")]
impl CheckedCall {
    fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let (asks, alterations) = match self {
            Self::Take(items) | Self::Check(items) => (items.as_mut_slice(), [].as_mut_slice()),
            Self::Alter(items) => ([].as_mut_slice(), items.as_mut_slice()),
        };
        asks.iter_mut().map(|item| &mut item.target).chain(alterations.iter_mut().map(|item| &mut item.target))
    }

    /// The first row of each limit and key that it asks.
    pub(crate) fn first_rows(&self) -> impl Iterator<Item = &Row> {
        self.targets().map(|target| &target.first)
    }

    /// The part that all its rows lie in; `None` for a call over several parts.
    pub(crate) fn part(&self) -> Option<u16> {
        let mut parts = self.first_rows().map(|row| row.part);
        let first = parts.next();
        first.filter(|first| parts.all(|part| part == *first))
    }

    /// What a call of one request takes.
    pub(crate) fn only(&self) -> &Item<Ask> {
        match self {
            Self::Take(items) if items.len() == 1 => &items[0],
            _ => unreachable!("only a call that takes from one limit has one"),
        }
    }

    /// The rows of concurrency limits in which it may free something.
    pub(crate) fn releases(&self) -> impl Iterator<Item = &Row> {
        let items = if let Self::Alter(items) = self { items.as_slice() } else { [].as_slice() };
        let frees =
            |item: &&Item<Alteration>| item.target.limit.lease().is_some() && !matches!(item.action, Alteration::Look);
        items.iter().filter(frees).map(|item| &item.target.first)
    }

    /// How many rows it asks for.
    pub(crate) fn rows(&self) -> usize {
        self.targets().map(|target| target.rows).sum()
    }

    /// How many keys of limits it asks for.
    pub(crate) fn keys(&self) -> usize {
        self.targets().count()
    }

    /// The limit that stands for the call in traces and errors: the first that was asked.
    pub(crate) fn limit(&self) -> &Limit {
        &self.targets().next().expect("a checked call asks something").limit
    }

    /// The first stale shard of each limit and key that it resets.
    pub(super) fn stale(&self) -> impl Iterator<Item = Row> {
        let items = if let Self::Alter(items) = self { items.as_slice() } else { [].as_slice() };
        let resets = items.iter().filter(|item| matches!(item.action, Alteration::Reset));
        resets.map(|item| item.target.first.after(item.target.rows))
    }

    /// Whether it may raise a balance.
    pub(crate) fn raises_balance(&self) -> bool {
        let raises = |alteration: &Alteration| {
            !matches!(alteration, Alteration::Debit(_) | Alteration::Look | Alteration::Renew(_))
        };
        matches!(self, Self::Alter(items) if items.iter().any(|item| raises(&item.action)))
    }

    /// The same call on a fraction of each limit, from 0 to 1, in one row each: nobody waits for a lock in memory.
    /// `None` where the fraction could never grant it.
    pub(crate) fn fraction(mut self, fraction: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number up to a million; NaN is 0")]
        let millionths = (fraction.clamp(0.0, 1.0) * 1e6).floor() as i64;
        let (Self::Take(items) | Self::Check(items)) = &mut self else { return None };
        // Nobody could release what memory has granted.
        if items.iter().any(|item| item.target.limit.lease().is_some()) {
            return None;
        }
        for item in items.iter_mut() {
            item.target.terms = item.target.terms.fraction(millionths);
            (item.target.rows, item.target.limit) = (1, item.target.limit.clone().shards(1));
        }
        items.iter().all(|item| possible(item).is_ok()).then_some(self)
    }

    /// What it asks, where one row's balance can refuse it: it takes or checks without reserving, has not been granted
    /// before, and the limit has one row, from which nothing is released.
    pub(crate) fn refusable(&self) -> Option<impl Iterator<Item = &Item<Ask>>> {
        let (Self::Take(items) | Self::Check(items)) = self else { return None };
        let escapes = items.iter().any(|item| item.action.is_reserving() || item.action.is_once());
        let is_certain = |item: &&Item<Ask>| item.target.rows == 1 && item.target.limit.lease().is_none();
        (!escapes).then(|| items.iter().filter(is_certain))
    }
}

/// A cost that came from outside: from a caller, or in a receipt that was stored.
fn not_negative(limit: &Limit, cost: Tokens) -> Result<Tokens, Error> {
    if cost.is_negative() {
        return Err(Error::Cost { limit: limit.name.clone().into(), source: TokensError::Negative });
    }
    Ok(cost)
}

/// A request that gives or takes, and leaves no hold: of no limit that counts who holds it, and without an id.
fn unheld(request: CheckedRequest) -> Result<CheckedRequest, Error> {
    let source = match &request {
        CheckedRequest { limit, .. } if limit.lease().is_some() => HoldError::Counted,
        CheckedRequest { once: Some(_), .. } => HoldError::IdWithoutHold,
        _ => return Ok(request),
    };
    Err(Error::Hold { limit: request.limit.name.clone().into(), source })
}

fn asks(requests: impl IntoIterator<Item = Request>, ask: fn(Tokens) -> Ask) -> Result<Vec<Item<Ask>>, Error> {
    let requests = requests.into_iter();
    let (mut items, mut places) = (Vec::with_capacity(requests.size_hint().0.min(FEW)), HashMap::new());
    for request in requests {
        let CheckedRequest { limit, key, cost, holding, once } = request.checked()?;
        let action = ask(cost).holding(limit.lease().map(Holding::LapsesAfter).or(holding)).once(once.as_deref());
        add_up(&mut items, &mut places, Item { target: Target::new(limit, key), action })?;
    }
    Ok(items)
}

/// Adds an item, or adds its cost to the item that asks the same limit and key already.
///
/// `places` says where the items of a long call are: to search them each time would take the square of their number.
fn add_up(items: &mut Vec<Item<Ask>>, places: &mut HashMap<(Text, Key), usize>, item: Item<Ask>) -> Result<(), Error> {
    let place = if items.len() < FEW {
        items.iter().position(|other| other.target.first.is_of_same_key(&item.target.first))
    } else {
        let id = |item: &Item<Ask>| (item.target.limit.name.clone(), item.target.key().clone());
        for (place, item) in items.iter().enumerate().skip(places.len()) {
            places.insert(id(item), place);
        }
        places.get(&id(&item)).copied()
    };
    let Some(other) = place.map(|place| &mut items[place]) else {
        items.push(item);
        return Ok(());
    };
    if other.target.limit != item.target.limit {
        return Err(Error::ConflictingDefinitions { limit: item.target.limit.name.clone().into() });
    }
    if !other.action.holds_as(item.action) {
        return Err(Error::Hold { limit: item.target.limit.name.clone().into(), source: HoldError::Conflicting });
    }
    // A sum that does not fit is beyond every capacity.
    other.action = other.action.checked_add(item.action).ok_or_else(|| exceeded(other, Tokens::MAX))?;
    Ok(())
}

fn possible(item: &Item<Ask>) -> Result<(), Error> {
    let asked = item.action.cost();
    if asked > item.action.max_cost(&item.target.terms) { Err(exceeded(item, asked)) } else { Ok(()) }
}

fn exceeded(item: &Item<Ask>, asked: Tokens) -> Error {
    let max = item.action.max_cost(&item.target.terms);
    Error::CostExceedsCapacity { limit: item.target.limit.name.clone().into(), asked, max }
}

/// So many items are searched faster than they are looked up.
const FEW: usize = 16;
