//! Calls meet here: each joins a lane, and a lane decides the calls that wait in it as one batch.

mod lanes;
mod queue;
mod width;

pub(super) use lanes::Lanes;
pub(super) use width::Width;
