use super::alteration::Alteration;
use super::alternatives::{keep_right, possible};
use super::checked_call::{Action, CheckedCall};
use super::exception::Exception;
use super::item::{Item, Target};
use super::own_row::{OwnRow, Role};
use super::requests::asks;
use super::settling::{End, Settling};
use crate::algebra::{Ask, Rest};
use crate::call::{Asked, Call, CallError, CallRow, Drawn, Keeping, Once, Request, Wanted};
use crate::error::Error;
use crate::key::Key;
use crate::limit::Limit;
use crate::parts::Parts;
use crate::receipt::{Charge, Receipt};
use crate::tokens::Tokens;

/// The call of one caller: to take tokens from every limit or from none, or to make a change that always succeeds.
///
/// [`Plan::new`](super::Plan::new) reports a wrong request.
#[derive(Debug)]
#[must_use = "a call does nothing until it is planned"]
pub struct Verb {
    checked: Result<CheckedCall, Error>,
}

impl Verb {
    /// Takes tokens from every limit, or from none.
    pub fn consume(call: impl Into<Call>) -> Self {
        Self { checked: asks(call.into(), Ask::consume, Action::Take) }
    }

    /// Takes tokens from every limit, now or for later, or from none.
    pub fn reserve(call: impl Into<Call>) -> Self {
        Self { checked: asks(call.into(), Ask::reserve, Action::Take) }
    }

    /// Says whether tokens could be taken from every limit, and takes none.
    pub fn check(call: impl Into<Call>) -> Self {
        Self { checked: asks(call.into(), Ask::consume, Action::Check) }
    }

    /// Takes tokens for calls to come, for good: a sixteenth of the balance, and no more than the cost. Takes nothing
    /// if that is less than the least part of [`Request::up_to`].
    pub fn ahead(request: Request) -> Self {
        let ahead = |items: Vec<Item<Ask>>| {
            Action::Take(items.into_iter().map(|item| Item { action: item.action.for_prefetch(), ..item }).collect())
        };
        Self { checked: asks(request.into(), Ask::consume, ahead) }
    }

    /// Gives back tokens that were taken ahead and not spent, except those that time has brought back. Gives nothing to
    /// a missing row. Make this call at most once.
    pub fn give_back(request: Request, rest: Rest) -> Self {
        Self { checked: request.check().map(|()| alter(request, Alteration::GiveBack(rest))) }
    }

    /// Gives tokens back, up to the capacity.
    pub fn credit(call: impl Into<Call>) -> Self {
        Self { checked: alter_by_cost(call.into(), Alteration::Credit) }
    }

    /// Takes tokens from any balance.
    pub fn debit(call: impl Into<Call>) -> Self {
        Self { checked: alter_by_cost(call.into(), Alteration::Debit) }
    }

    /// Fills a key up, and brings a row from the future back to the present.
    pub fn reset(request: Request) -> Self {
        Self { checked: request.check().map(|()| alter(request, Alteration::Reset)) }
    }

    /// Reads a balance.
    pub fn look(request: Request) -> Self {
        Self { checked: request.check().map(|()| alter(request, Alteration::Look)) }
    }

    /// Brings each request of a receipt to its actual cost: gives the difference back, or takes it whatever the balance
    /// is. A lease ends, and a [flat](Request::flat) request stays as it is.
    ///
    /// One request may have charged several rows. Each row is settled at the part of the cost that earlier rows leave,
    /// up to its own charge; the last row takes the excess.
    pub fn settle(receipt: Receipt, actual: Tokens) -> Self {
        settle(receipt, |_, charges| Ok(charges[0].is_counted().then_some(actual)))
    }

    /// Settles with a cost for each request, in the order of the requests.
    pub fn settle_each(receipt: Receipt, costs: &[Tokens]) -> Self {
        let requests = receipt.by_request().count();
        settle(receipt, |request, charges| {
            let missing = CallError::CostsMissing { costs: costs.len(), requests };
            costs
                .get(request)
                .filter(|_| costs.len() == requests)
                .map(|cost| Some(*cost))
                .ok_or_else(|| Error::of_call(&charges[0].limit, missing))
        })
    }

    /// Gives back each charge of a receipt that is not ready to be spent. A lease ends.
    pub fn cancel(receipt: Receipt) -> Self {
        let own = OwnRow::of_receipt(&receipt);
        Self { checked: end(Settling::of(receipt.charges, End::Cancelled), own) }
    }

    /// Lets each lease of a receipt last for its limit's period from now on. Its other charges stay as they are.
    pub fn renew(receipt: &Receipt) -> Self {
        Self { checked: end(Settling::of(receipt.leases().cloned().collect(), End::Renewed), Ok(None)) }
    }

    /// Ends each lease of a receipt. Its other charges stay as they are.
    pub fn release(receipt: &Receipt) -> Self {
        Self { checked: end(Settling::of(receipt.leases().cloned().collect(), End::Released), Ok(None)) }
    }

    /// Gives back the charges of a stored call, less the use that was reported, if the call is due. Otherwise nothing
    /// changes.
    pub fn lapse(row: CallRow) -> Self {
        let own = OwnRow::new(row.name, Role::Lapse);
        Self { checked: end(Settling::of(row.charges, End::Reported), Ok(Some(own))) }
    }

    /// Whether [`with_id`](Self::with_id) must name something: a lease, or a stored call without an id from its caller.
    #[must_use]
    pub fn needs_id(&self) -> bool {
        let has_lease = |item: &Item<Ask>| item.target.limit.lease().is_some();
        let needs_id = |call: &CheckedCall| call.takes() && (call.is_fresh() || call.asked().iter().any(has_lease));
        self.checked.as_ref().is_ok_and(needs_id)
    }

    /// Names the leases of this call, and its row if [`Call::once`] does not. An id is never used again: a `Limiter`
    /// and a `Gate` draw one for each call, from the time and at random.
    pub fn with_id(mut self, id: u128) -> Self {
        if let Ok(CheckedCall { action: Action::Take(items), own }) = &mut self.checked {
            for item in items.iter_mut().filter(|item| item.target.limit.lease().is_some()) {
                item.action.lease = Some(Drawn(id));
            }
            if let Some(own) = own.as_mut().filter(|own| own.is_fresh()) {
                own.name.id = Drawn(id).to_string().into();
            }
        }
        self
    }

    /// Puts it under the override of each limit and key that it asks.
    pub fn under(mut self, mut said: impl FnMut(&Limit, &Key) -> Option<Exception>) -> Self {
        let Ok(call) = &mut self.checked else { return self };
        call.each_target(|target| {
            if let Some(exception) = said(&target.limit, target.key()) {
                target.except(exception);
            }
        });
        // If one limit of a split is unlimited, the others give nothing.
        let items = call.asked_mut().map_or(&mut [][..], Vec::as_mut_slice);
        for together in items.chunk_by_mut(|_, next| next.action.continues_split()) {
            if together.iter().any(|item| item.target.is_unlimited()) {
                for item in together {
                    item.target.lift();
                }
            }
        }
        self
    }

    /// The call, if it is valid.
    pub(crate) fn checked(self) -> Result<CheckedCall, Error> {
        let mut call = self.checked?;
        if call.first_rows().next().is_none() {
            return Err(Error::Call { limit: None, source: CallError::NothingAsked });
        }
        // A call that may be a repeat is answered as before, even under numbers that no longer grant it.
        let is_once = call.is_once();
        if let Some(items) = call.asked_mut().filter(|_| !is_once) {
            keep_right(items, possible)?;
        }
        Ok(call)
    }

    /// The call, if it is valid, over tables with so many parts.
    pub(crate) fn checked_for(self, parts: Parts) -> Result<CheckedCall, Error> {
        let mut call = self.checked()?;
        if parts.is_distributed() {
            call.each_rows(|rows| rows.first.part = parts.of(&rows.first.key));
            if let Some(own) = &mut call.own {
                own.name.part = parts.of(&own.name.key);
            }
        }
        Ok(call)
    }
}

/// A change of one limit and key.
fn alter(Request { limit, key, period, .. }: Request, action: Alteration) -> CheckedCall {
    CheckedCall { action: Action::Alter(Item { target: Target::new(limit, key, period), action }), own: None }
}

/// A credit or a debit. It is an error for a limit that counts its holders.
fn alter_by_cost(call: Call, alteration: fn(Tokens) -> Alteration) -> Result<CheckedCall, Error> {
    let limit = call.requests().next().map(|request| request.limit.name.clone().into());
    let (request, once) = only(call).map_err(|source| Error::Call { limit, source })?;
    request.check()?;
    if request.limit.lease().is_some() {
        return Err(Error::of_call(&request.limit.name, CallError::Counted));
    }
    let cost = request.cost;
    let call = alter(request, alteration(cost));
    let own = once.zip(call.altered()).map(|(once, item)| OwnRow::of_alteration(item, cost, once));
    Ok(CheckedCall { own: own.map(Box::new), ..call })
}

/// The request of a credit or a debit, and its id. They take nothing else of a call.
fn only(Call { asked, once, keeping, .. }: Call) -> Result<(Request, Option<Once>), CallError> {
    let option = match asked {
        Asked::Request(request) => match request.of_consume().or(keeping.map(Keeping::option)) {
            None => return Ok((request, once.map(Once::checked).transpose()?)),
            Some(option) => option,
        },
        Asked::FirstOf(_) => "first_of",
        Asked::Requests(wanted) if wanted.is_empty() => return Err(CallError::NothingAsked),
        Asked::Requests(wanted) if wanted.iter().any(|one| matches!(one, Wanted::Split { .. })) => "split",
        Asked::Requests(_) => "several requests",
    };
    Err(CallError::WrongVerb { option })
}

/// Brings each request of a receipt to a cost.
fn settle(receipt: Receipt, cost: impl Fn(usize, &[Charge]) -> Result<Option<Tokens>, Error>) -> Verb {
    let own = OwnRow::of_receipt(&receipt);
    Verb { checked: end(Settling::at_costs(receipt, cost), own) }
}

/// The call that settles charges, and uses up their stored call, if there is one.
fn end(settling: Result<Settling, Error>, own: Result<Option<OwnRow>, Error>) -> Result<CheckedCall, Error> {
    Ok(CheckedCall { action: Action::Settle(settling?), own: own?.map(Box::new) })
}
