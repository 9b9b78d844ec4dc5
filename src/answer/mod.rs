//! The answers to a caller: decisions, receipts, balances, and reasons.

pub(crate) mod balance;
pub(crate) mod decision;
pub(crate) mod receipt;
pub(crate) mod standing;
