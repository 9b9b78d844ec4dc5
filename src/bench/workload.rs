use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What the callers ask. Every row is there before the first call.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// One limit of [`USERS`](super::USERS) users, each of whom calls as often as any other. All granted.
    Uniform,
    /// One limit for everybody, hence one row. All granted.
    Hot,
    /// One limit for everybody, exhausted for a thousand years. All refused.
    Refused,
    /// As uniform, but few users call often and most rarely: the n-th in proportion to n^-1.1. All granted.
    Zipf,
    /// Three limits at once: the user's, the tenant's (of [`TENANTS`](super::TENANTS)) and one for everybody. All granted.
    Three,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Uniform, Self::Hot, Self::Refused, Self::Zipf, Self::Three];

    /// What the tables and the command call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Hot => "hot",
            Self::Refused => "refused",
            Self::Zipf => "zipf",
            Self::Three => "three",
        }
    }

    /// Whether every call is granted; if not, every call is refused.
    #[must_use]
    pub const fn is_granted(self) -> bool {
        !matches!(self, Self::Refused)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(name: &str) -> Result<Self, UnknownWorkload> {
        Self::ALL.into_iter().find(|workload| workload.name() == name).ok_or(UnknownWorkload)
    }
}

/// A name that no workload has.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("there is no such workload (use uniform, hot, refused, zipf or three)")]
pub struct UnknownWorkload;
