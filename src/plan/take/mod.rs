//! Takes tokens from every limit of an alternative, or from none: the requests of a call are added up, each limit
//! decides, and what is granted is charged.

mod alternatives;
mod amounts;
mod charge;
mod choose;
mod decide;
mod gather;
mod repeat;

pub(super) use alternatives::{alternatives, decided_together, denied, keep_right, possible};
pub(crate) use choose::{Chosen, draw};
pub(super) use gather::gather;
