//! Who is measured: one file each.

mod gate;
mod plain;
pub(super) mod pool;
mod round_trip;
mod update;

use std::error::Error;

pub(super) use gate::{Gated, GatedSession};
pub(super) use plain::Plain;
pub(super) use round_trip::RoundTrip;
pub(super) use update::Update;

use super::Scene;

/// One that answers calls, and is measured at it.
///
/// A turn opens it, calls it for a while from many tasks at once, and closes it. What it does to the tables must leave every
/// limit as it was found: full, or exhausted.
pub trait Contender: Send + Sync + 'static {
    /// What answers the calls of one turn.
    type Session: Session;

    /// What the tables call it.
    fn name(&self) -> &'static str;

    /// Whether there is something to learn from it in that scene.
    fn enters(&self, _scene: &Scene) -> bool {
        true
    }

    /// Connects, ready to be called.
    fn open(&self, scene: Scene) -> impl Future<Output = Result<Self::Session, Fault>> + Send;
}

/// A contender during a turn.
pub trait Session: Send + Sync + 'static {
    /// Answers one call of a user, below [`USERS`](super::USERS): whether it is granted. This is what is timed.
    ///
    /// One that decides nothing says what the workload [expects](super::Workload::is_granted).
    fn decide(&self, user: u32) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// Disconnects. PostgreSQL's statistics are complete when all sessions have ended.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Why a contender could not answer.
pub type Fault = Box<dyn Error + Send + Sync>;

/// The gate: callers of one process share transactions.
pub const GATE: &str = "gate";
/// The gate, told to remember refusals: what it knows to be refused it refuses from memory.
pub const GATE_REMEMBERING: &str = "gate, remembering";
/// Baseline (a): a transaction for each call, with [`Limiter`](crate::Limiter) in it and nothing else.
pub const PLAIN: &str = "plain";
/// Baseline (b): one `update` of the row by its primary key for each call, in autocommit. It decides nothing: the floor of
/// any writer that does not merge its calls.
pub const UPDATE: &str = "update";
/// Baseline (c): `select 1` for each call, hence what driver, connection and the server's loop cost by themselves.
pub const ROUND_TRIP: &str = "select 1";
