use serde::Deserialize;

use super::CallId;
use crate::answer::receipt::Charge;
use crate::tokens::Tokens;
use crate::values::lean::lean;
use crate::values::timestamp::Timestamp;

/// A stored call. It is stored so that it is charged once, is settled once, or lapses.
///
/// A call has one row of its own, however many limits it asks, written in the transaction of its charges. Named holds
/// in the rows of limits were tried before, and failed: a row held a thousand at most, and a limit whose kind had
/// changed read the holds of the other kind. With an id on one of several limits, each retry charged the others again.
///
/// Such holds could undo a charge of a bucket as if it had never been made. The bucket then lost the refill that it
/// would have lost by being full in the meantime. An addition to the balance cannot do that. So calls in a burst may
/// keep more than the bound, by the tokens that came back during the burst from calls made before it. A key gains
/// nothing over its life, and windows stay exact. Exact buckets would need a chain of sums in each row: one for each
/// call in flight that the next reader must still tell apart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredCall {
    /// Its name.
    pub name: CallId,
    /// A fingerprint of the requests: a repeat must ask the same.
    pub asked: i64,
    /// The charges.
    pub charges: Vec<Charge>,
    /// The instant of the decision.
    pub charged_at: Timestamp,
    /// The tokens that were reported as used. They do not come back in a lapse.
    pub reported: Tokens,
    /// When its charges come back; `None` if they stay, or if the receipt was used.
    pub lapses_at: Option<Timestamp>,
    /// The row is kept at least until this instant.
    pub kept_until: Timestamp,
    /// Whether its receipt was used.
    pub used: bool,
    /// The rest of the answer to a repeat; `None` if the call cannot be repeated.
    pub answer: Option<Box<Given>>,
}

/// The answer to a stored call, without its charges.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct Given {
    /// When all of it may be spent, if not at once.
    pub(crate) ready_at: Option<Timestamp>,
    /// The tokens that each request with a part got; `None` without such a request.
    pub(crate) part: Option<Tokens>,
    /// The alternative that was charged, of a call that has any.
    pub(crate) alternative: Option<usize>,
}

lean!(Given {} and { ready_at, part, alternative });
