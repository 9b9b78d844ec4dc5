mod prefetch;
mod refusals;

pub(super) use prefetch::{Ages, Prefetch};
pub(super) use refusals::{Reading, Refusals, hash};
