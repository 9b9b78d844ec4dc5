use serde::Deserialize;

use crate::call_name::CallName;
use crate::decision::DeniedBy;
use crate::lean::lean;
use crate::receipt::Charge;
use crate::standing::Each;
use crate::timestamp::Timestamp;
use crate::tokens::Tokens;

/// A call as it is stored, so that it is charged once, settled once, or lapses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CallRow {
    /// Its name.
    pub name: CallName,
    /// A fingerprint of what was asked: a repeat must ask the same.
    pub asked: i64,
    /// What was charged.
    pub charges: Vec<Charge>,
    /// The instant of the decision.
    pub charged_at: Timestamp,
    /// What is known to be used, and does not come back in a lapse.
    pub reported: Tokens,
    /// When its charges come back; `None` where they stay, or where the receipt was used.
    pub lapses_at: Option<Timestamp>,
    /// Until when the row is there at least.
    pub kept_until: Timestamp,
    /// Whether its receipt was used.
    pub used: bool,
    /// What a repeat must answer besides; `None` where nobody can repeat the call.
    pub answer: Option<Box<Given>>,
}

/// What a stored call was answered, besides its charges.
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
