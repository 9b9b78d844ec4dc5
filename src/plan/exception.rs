use crate::algebra::Timestamp;
use crate::limit::Limit;

/// What an override changes of a limit for a key.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Exception {
    /// Other numbers of the same limit: its name, its kind and its rows.
    pub numbers: Option<Limit>,
    /// What is answered whatever the rows hold.
    pub ruling: Option<Ruling>,
    /// The label of the override that gives the ruling, or else the numbers.
    pub label: String,
}

/// What is answered whatever the rows hold. Of several the greatest counts.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Ruling {
    /// All is granted, and nothing is charged.
    Unlimited,
    /// Nothing is granted before this instant.
    Deny {
        /// The end of time for a deny without one.
        until: Timestamp,
    },
}
