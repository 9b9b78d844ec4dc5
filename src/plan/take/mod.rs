//! Takes tokens from every limit of an alternative, or from none: it adds up the requests of a call, each limit
//! decides, and a grant charges them.

mod all_or_none;
mod choose;
mod gather;
mod repeat;
mod shard;

pub(crate) use choose::Chosen;
pub(super) use gather::{alternatives, decided_together, denied, gather, keep_right, possible};
pub(crate) use shard::draw;
