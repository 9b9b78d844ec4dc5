use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a limit refuses.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It has too few tokens.
    Short,
    /// It has the tokens, but they have to [stay behind](crate::Request::leaving).
    HeldBack,
    /// A concurrency limit has granted all that it grants at once, or a thousand leases, and too little has come back.
    Leased,
    /// The tokens are there for callers of the same gate who have waited longer.
    OutOfTurn,
    /// An operator [denies](crate::plan::Ruling::Deny) it for now, whatever it holds.
    Override,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "exhausted",
            Self::HeldBack => "held back",
            Self::Leased => "in use",
            Self::OutOfTurn => "due to others first",
            Self::Override => "denied by an operator",
        })
    }
}
