use serde::Deserialize;

use crate::call_name::CallName;
use crate::decision::DeniedBy;
use crate::lean::lean;
use crate::receipt::Charge;
use crate::standing::Each;
use crate::timestamp::Timestamp;
use crate::tokens::Tokens;

/// A call as it is stored, so that it is charged once, settled once, or lapses.
///
/// It has one row of its own, however many limits it asks, written in the transaction of its charges. Holds with names
/// in the rows of limits were the wrong place. From a hundred in flight on a call cost three times as much, a thousand
/// were the most, limits with shards had none, and a changed kind read them. An id on one of several limits charged the
/// others again at each retry.
///
/// Such holds undid a charge of a bucket as if it had never been made, so the bucket lost what it would have lost by
/// being full meanwhile. An addition cannot: a burst may keep more than the bound, by what came back in it from calls
/// made before. A key gains nothing over its life, and windows stay exact. Exact buckets would need a chain of sums in
/// each row, one for each call in flight that the next reader must still tell apart. A prototype was exact with up to
/// 16 of them, and lost refunds of a bucket that is nearly full.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CallRow {
    /// Its name.
    pub name: CallName,
    /// A fingerprint of the requests: a repeat must ask the same.
    pub asked: i64,
    /// The charges.
    pub charges: Vec<Charge>,
    /// The instant of the decision.
    pub charged_at: Timestamp,
    /// The tokens that are known to be used, and do not come back in a lapse.
    pub reported: Tokens,
    /// When its charges come back; `None` where they stay, or where the receipt was used.
    pub lapses_at: Option<Timestamp>,
    /// Until when the row is there at least.
    pub kept_until: Timestamp,
    /// Whether its receipt was used.
    pub used: bool,
    /// The rest of the answer to a repeat; `None` where nobody can repeat the call.
    pub answer: Option<Box<Given>>,
}

/// The answer to a stored call, besides its charges.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct Given {
    /// When all of it may be spent, where that was not at once.
    pub(crate) ready_at: Option<Timestamp>,
    /// How many tokens each request got that took a part, if one did.
    pub(crate) part: Option<Tokens>,
    /// The alternative that was charged, of a call that has any.
    pub(crate) alternative: Option<usize>,
    /// The shadows that would have refused.
    pub(crate) would_deny: Each<DeniedBy>,
}

lean!(Given {} and { ready_at, part, alternative, would_deny });
