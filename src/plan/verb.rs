use std::time::Duration;

use crate::DAY;
use crate::algebra::Rest;
use crate::answer::receipt::Receipt;
use crate::call::{Call, Request, StoredCall};
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

/// The kinds of calls, each with the letter that begins its fingerprint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum CallKind {
    /// It is never stored.
    Ahead = b'a',
    Consume = b't',
    Reserve = b'r',
    Credit = b'c',
    Debit = b'd',
}

impl CallKind {
    /// Whether it changes one balance, whatever that is.
    pub(super) fn changes_balance(self) -> bool {
        matches!(self, Self::Credit | Self::Debit)
    }

    /// The span for which an id is kept, if its caller says none. Payment services repeat their webhooks for three days
    /// and more.
    pub(super) fn remembered_for(self) -> Duration {
        if self.changes_balance() { 31 * DAY } else { DAY }
    }
}
