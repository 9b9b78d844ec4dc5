use std::time::Duration;

use super::target::RowId;
use crate::DAY;
use crate::algebra::{Ask, Timestamp};
use crate::answer::receipt::{Charge, Receipt};
use crate::call::{CallError, CallId, Drawn, Given, Keeping, Once, StoredCall};
use crate::error::Error;
use crate::tokens::Tokens;
use crate::values::hash::stable_hash;

/// The slot of a call among the stored calls.
#[derive(Clone, Debug)]
pub(crate) struct CallSlot {
    pub(super) name: CallId,
    /// The place of the name in its plan; 0 until it is planned.
    pub(super) place: usize,
    pub(super) role: Role,
}

/// How a call treats its slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// Writes the row, unless it is there.
    Write {
        /// The fingerprint of the call.
        asked: i64,
        keeping: Option<Keeping>,
        /// The span for which the caller's id is kept, if there is one.
        once: Option<Duration>,
    },
    /// Uses it up.
    Use { lapses_at: Option<Timestamp> },
    /// Uses it up if it is due.
    Lapse,
}

impl CallSlot {
    pub(super) fn new(name: CallId, role: Role) -> Self {
        Self { name, place: 0, role }
    }

    /// The row of a call with an id, or with a span for which it is kept. An id belongs to the first request. If the
    /// caller gives none, one is drawn, and the row is named by the least of the requests.
    pub(super) fn of<'r>(
        kind: CallKind,
        asked: impl Iterator<Item = (&'r RowId, Ask)> + Clone,
        keeping: Option<Keeping>,
        once: Option<Once>,
        drawn: impl Fn() -> Drawn,
    ) -> Option<Self> {
        let mut rows = asked.clone().map(|(row, _)| row);
        let (row, id, once) = match once {
            Some(Once { id, span }) => (rows.next()?, id.into_string(), Some(span.unwrap_or(kind.remembered_for()))),
            None => (keeping.and(rows.min())?, drawn().to_string(), None),
        };
        let name = CallId { part: row.part, name: row.name.clone(), key: row.key.clone(), id: id.into() };
        Some(Self::new(name, Role::Write { asked: print(kind, keeping, asked), keeping, once }))
    }

    /// The stored call of a receipt, which settling uses up.
    pub(super) fn of_receipt(receipt: &Receipt) -> Result<Option<Self>, Error> {
        let Some(name) = receipt.call.clone() else { return Ok(None) };
        if !name.is_right() {
            return Err(Error::of_call(&name.name, CallError::CorruptReceipt));
        }
        Ok(Some(Self::new(name, Role::Use { lapses_at: receipt.lapses_at })))
    }

    /// Whether it has no id from its caller, so that it cannot be stored yet.
    pub(super) fn is_fresh(&self) -> bool {
        matches!(self.role, Role::Write { once: None, .. })
    }

    /// Whether it has an id from its caller, so that the call may have been carried out before.
    pub(super) fn is_once(&self) -> bool {
        matches!(self.role, Role::Write { once: Some(_), .. })
    }

    /// The span after which the call's tokens come back by themselves, if they do.
    pub(super) fn lapses(&self) -> Option<Duration> {
        let Role::Write { keeping: Some(keeping), .. } = self.role else { return None };
        keeping.lapses().then(|| keeping.span())
    }

    /// The row of a call that is carried out now.
    pub(super) fn written(&self, charges: Vec<Charge>, charged_at: Timestamp, given: Given) -> StoredCall {
        let Role::Write { asked, keeping, once } = self.role else {
            unreachable!("only a call that is carried out writes its row")
        };
        let kept = keeping.map(|keeping| given.ready_at.unwrap_or(charged_at).plus(keeping.span()));
        StoredCall {
            name: self.name.clone(),
            asked,
            charges,
            charged_at,
            reported: Tokens::ZERO,
            lapses_at: kept.filter(|_| keeping.is_some_and(Keeping::lapses)),
            kept_until: once.map_or(charged_at, |span| charged_at.plus(span)).max(kept.unwrap_or(charged_at)),
            used: false,
            answer: once.map(|_| Box::new(given)),
        }
    }
}

/// # In a plan
impl StoredCall {
    /// The receipt that its caller got.
    pub(super) fn receipt(&self) -> Receipt {
        let lapses_at = Some(self.lapses_at.unwrap_or(self.kept_until));
        Receipt { charges: self.charges.clone(), call: Some(self.name.clone()), lapses_at }
    }

    /// Uses its receipt. The id stays stored if the call may be repeated.
    pub(super) fn spent(self) -> Option<Self> {
        self.answer.is_some().then_some(Self { used: true, lapses_at: None, ..self })
    }

    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.lapses_at.is_some_and(|lapses_at| lapses_at <= now)
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

/// The fingerprint of a call; the order of its requests does not matter. Rows keep it, so every release and platform
/// must compute the same one.
fn print<'r>(kind: CallKind, keeping: Option<Keeping>, requests: impl Iterator<Item = (&'r RowId, Ask)>) -> i64 {
    let kept = keeping.map_or((0, 0), |keeping| (keeping.span().as_micros(), u8::from(keeping.lapses()) + 1));
    let of_call = stable_hash([kind as u8, kept.1].into_iter().chain(kept.0.to_le_bytes()));
    let of_request = |(row, ask): (&RowId, Ask)| {
        let names = row.name().bytes().chain([0xFF]).chain(row.key.as_str().bytes()).chain([0xFF]);
        stable_hash(names.chain(ask.print()))
    };
    requests.map(of_request).fold(of_call, u64::wrapping_add).cast_signed()
}
