//! What a caller is told: decisions, receipts, balances, and why.

pub(crate) mod balance;
pub(crate) mod decision;
pub(crate) mod reason;
pub(crate) mod receipt;
pub(crate) mod standing;
