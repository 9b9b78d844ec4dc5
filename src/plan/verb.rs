use super::adjust::Adjustment;
use super::operation::{Action, Operation, Under};
use super::settle::{End, Settling};
use super::stored_call::{CallKind, CallSlot, Role};
use super::take::gather;
use super::target::Item;
use crate::algebra::{Ask, Rest};
use crate::answer::receipt::Receipt;
use crate::call::{Call, CallError, Request, StoredCall};
use crate::error::Error;
use crate::limit::LimitKind;
use crate::tokens::Tokens;

/// The words of one caller: take tokens from every limit or from none, or make a change that always succeeds.
///
/// [`Plan::new`](super::Plan::new) reports what is wrong with it.
#[derive(Clone, Debug)]
#[must_use = "a verb does nothing until it is planned"]
pub enum Verb {
    /// Takes tokens from every limit, or from none.
    Consume(Call),
    /// Takes tokens from every limit, now or for later, or from none.
    Reserve(Call),
    /// Says whether tokens could be taken from every limit, and takes none.
    Check(Call),
    /// Takes tokens for calls to come, for good: a sixteenth of the balance, and no more than the cost. Takes nothing
    /// if that is less than the least part of [`Request::up_to`].
    Ahead(Request),
    /// Gives back tokens that were taken ahead and not spent, except those that time has brought back. Gives nothing to
    /// a missing row. Make this call at most once.
    GiveBack(Request, Rest),
    /// Gives tokens back, up to the capacity.
    Credit(Call),
    /// Takes tokens from any balance.
    Debit(Call),
    /// Fills a key up, and brings a row from the future back to the present.
    Reset(Request),
    /// Reads a balance.
    Look(Request),
    /// Brings each request of a receipt to its actual cost: gives the difference back, or takes it whatever the balance
    /// is. A lease ends, and a [flat](Request::flat) request stays as it is.
    ///
    /// One request may have charged several rows. Each row is settled at the part of the cost that earlier rows leave,
    /// up to its own charge; the last row takes the excess.
    Settle(Receipt, Tokens),
    /// Settles with a cost for each request, in the order of the requests.
    SettleEach(Receipt, Vec<Tokens>),
    /// Gives back each charge of a receipt that is not ready to be spent. A lease ends.
    Cancel(Receipt),
    /// Lets each lease of a receipt last for its limit's period from now on. Its other charges stay as they are.
    Renew(Receipt),
    /// Ends each lease of a receipt. Its other charges stay as they are.
    Release(Receipt),
    /// Gives back the charges of a stored call, less the use that was reported, if the call is due. Otherwise nothing
    /// changes.
    Lapse(StoredCall),
}

impl Verb {
    /// [`Consume`](Self::Consume) of anything that is a call.
    pub fn consume(call: impl Into<Call>) -> Self {
        Self::Consume(call.into())
    }

    /// [`Reserve`](Self::Reserve) of anything that is a call.
    pub fn reserve(call: impl Into<Call>) -> Self {
        Self::Reserve(call.into())
    }

    /// [`Check`](Self::Check) of anything that is a call.
    pub fn check(call: impl Into<Call>) -> Self {
        Self::Check(call.into())
    }

    /// [`Credit`](Self::Credit) of anything that is a call.
    pub fn credit(call: impl Into<Call>) -> Self {
        Self::Credit(call.into())
    }

    /// [`Debit`](Self::Debit) of anything that is a call.
    pub fn debit(call: impl Into<Call>) -> Self {
        Self::Debit(call.into())
    }
}

impl Operation {
    /// The operation of a verb, if all of it is right and can ever be granted.
    pub(crate) fn of(verb: Verb, under: &Under<'_>) -> Result<Self, Error> {
        let take = |call, kind, action: fn(Vec<Item<Ask>>) -> Action| {
            gather(by_period(call)?, kind, under.draw).map(|(items, slot)| Self { action: action(items), slot })
        };
        let leases = |receipt: Receipt| Receipt::from(receipt.leases().cloned().collect::<Vec<_>>());
        let plain = match verb {
            Verb::Consume(call) => take(call, CallKind::Consume, Action::Take),
            Verb::Reserve(call) => take(call, CallKind::Reserve, Action::Take),
            Verb::Check(call) => take(call, CallKind::Consume, Action::Check),
            Verb::Ahead(request) => take(request.into(), CallKind::Ahead, Action::Take),
            Verb::Credit(call) => Self::adjust(call, CallKind::Credit, Adjustment::Credit),
            Verb::Debit(call) => Self::adjust(by_period(call)?, CallKind::Debit, Adjustment::Debit),
            Verb::GiveBack(request, rest) => Self::adjust(request, CallKind::Consume, |_| Adjustment::GiveBack(rest)),
            Verb::Reset(request) if request.limit().kind == LimitKind::Meter => {
                Err(Error::of_call(&request.limit().name, CallError::ResetOfMeter))
            }
            Verb::Reset(request) => Self::adjust(request, CallKind::Consume, |_| Adjustment::Reset),
            Verb::Look(request) => Self::adjust(request, CallKind::Consume, |_| Adjustment::Look),
            Verb::Settle(receipt, actual) => {
                let costs = Settling::costs(&receipt, |_, charges| Ok(charges[0].is_counted().then_some(actual)))?;
                Self::settle(receipt, End::Costs(costs))
            }
            Verb::SettleEach(receipt, each) => {
                let (costs, requests) = (each.len(), receipt.by_request().count());
                let missing = CallError::CostsMissing { costs, requests };
                let cost = |request: usize| each.get(request).filter(|_| costs == requests).ok_or(missing);
                let costs = Settling::costs(&receipt, |request, _| cost(request).copied().map(Some))?;
                Self::settle(receipt, End::Costs(costs))
            }
            Verb::Cancel(receipt) => Self::settle(receipt, End::Cancelled),
            Verb::Renew(receipt) => Self::settle(leases(receipt), End::Renewed),
            Verb::Release(receipt) => Self::settle(leases(receipt), End::Released),
            Verb::Lapse(StoredCall { name, charges, .. }) => {
                let slot = Some(Box::new(CallSlot::new(name, Role::Lapse)));
                Ok(Self { action: Action::Settle(Settling::of(charges, End::Reported)?), slot })
            }
        };
        plain?.under(under)
    }

    /// A change of one balance.
    fn adjust(call: impl Into<Call>, kind: CallKind, action: impl FnOnce(Tokens) -> Adjustment) -> Result<Self, Error> {
        let (items, slot) = gather(call.into(), kind, Under::NOTHING.draw)?;
        let Item { target, action: ask } = items.into_iter().next().expect("a change is asked of one key");
        Ok(Self { action: Action::Adjust(Box::new(Item { target, action: action(ask.cost()) })), slot })
    }

    /// Settles charges, and uses up their stored call, if there is one.
    fn settle(receipt: Receipt, end: End) -> Result<Self, Error> {
        let slot = CallSlot::of_receipt(&receipt)?.map(Box::new);
        Ok(Self { action: Action::Settle(Settling::of(receipt.charges, end)?), slot })
    }
}

/// A call that takes tokens, if it names a period of each billing limit.
fn by_period(call: Call) -> Result<Call, Error> {
    call.requests().try_for_each(Request::expect_period)?;
    Ok(call)
}
