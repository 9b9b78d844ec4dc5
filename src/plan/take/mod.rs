//! Takes tokens from every limit of an alternative, or from none: it adds up the requests of a call, each limit decides,
//! and a grant charges them.

mod alternatives;
mod amounts;
mod charge;
mod choose;
mod decide;
mod gather;
mod repeat;
mod shard;

pub(super) use alternatives::{alternatives, decided_together, denied, keep_right, possible};
pub(crate) use choose::Chosen;
pub(super) use gather::gather;
pub(crate) use shard::draw;
