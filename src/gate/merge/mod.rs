//! Calls meet here: each joins a lane, and a lane decides the calls that wait in it as one batch.

mod lanes;
mod queue;

pub(super) use lanes::{Lanes, Width};
