use crate::algebra::{Pause, Timestamp};
use crate::key::Key;
use crate::limit::Limit;

/// The changes that overrides make to a limit for a key.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AppliedOverride {
    /// Other numbers of the same limit: its name, its kind and its rows.
    pub numbers: Option<Limit>,
    /// The share of the rate that a slow-down leaves, in millionths; the numbers include it.
    pub share: Option<u32>,
    /// The numbers without the slow-down, and when they count again, if it leaves a smaller `n`.
    pub whole: Option<(Limit, Timestamp)>,
    /// The last pause of a token bucket, while it lasts, and as long again.
    pub pause: Option<Pause>,
    /// The answer that does not depend on the rows, if there is one.
    pub ruling: Option<Ruling>,
    /// The label of the override that gives the ruling, or else slows the limit down, or else gives the numbers, or
    /// else of the pause.
    pub label: String,
}

impl AppliedOverride {
    /// The label of reports that pause a limit. Nobody else may give it to an override.
    pub(crate) const PAUSE: &str = "pause";
    /// The label of reports that slow a limit down.
    pub(crate) const SLOW_DOWN: &str = "slowdown";
}

/// An answer that does not depend on the rows. Of several, the greatest counts.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Ruling {
    /// All is granted, and nothing is charged.
    Unlimited,
    /// Nothing is granted before this instant.
    Deny {
        /// The end of the deny; the end of time for a deny without an end.
        until: Timestamp,
    },
}

/// The effect of the overrides on a limit for a key.
pub(crate) type OverrideOf<'o> = dyn Fn(&Limit, &Key) -> Option<AppliedOverride> + 'o;
