use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a limit refuses.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The limit has too few tokens.
    Short,
    /// The limit has the tokens, but they must [stay behind](crate::Request::leaving).
    HeldBack,
    /// Too few tokens of a concurrency limit are free, or its row lists a thousand leases.
    Leased,
    /// The tokens are there for callers of the same gate who have waited longer.
    OutOfTurn,
    /// An operator denies the call for now, whatever the balance.
    Override,
    /// Trouble was reported, and calls are paused (`Overrides::pause_until`).
    Paused,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "exhausted",
            Self::HeldBack => "held back",
            Self::Leased => "in use",
            Self::OutOfTurn => "due to others first",
            Self::Override => "denied by an operator",
            Self::Paused => "paused, because trouble was reported",
        })
    }
}
