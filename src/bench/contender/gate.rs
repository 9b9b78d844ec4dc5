use super::plain::{Plain, PlainSession};
use super::{Contender, Fault, GATE, GATE_REMEMBERING, Session};
use crate::bench::{Scene, Workload};

/// The gate: callers of one process share transactions.
// Stands in until the gate is there: the plain limiter under its name. Only this file knows.
#[derive(Clone, Debug)]
pub(crate) struct Gated {
    plain: Plain,
    remembers: bool,
}

impl Gated {
    /// Over the database at `url`, with so many lanes, or as many as a gate has by default.
    pub(crate) fn new(url: impl Into<String>, _lanes: Option<usize>) -> Self {
        Self { plain: Plain::new(url), remembers: false }
    }

    /// Answers from memory what it knows to be refused, for up to a second.
    pub(crate) fn remembering(mut self) -> Self {
        self.remembers = true;
        self
    }
}

impl Contender for Gated {
    type Session = GatedSession;

    fn name(&self) -> &'static str {
        if self.remembers { GATE_REMEMBERING } else { GATE }
    }

    /// What is granted is not remembered.
    fn enters(&self, scene: &Scene) -> bool {
        !self.remembers || scene.workload == Workload::Refused
    }

    async fn open(&self, scene: Scene) -> Result<GatedSession, Fault> {
        Ok(GatedSession { plain: self.plain.open(scene).await? })
    }
}

/// [`Gated`] during a turn.
#[derive(Debug)]
pub(crate) struct GatedSession {
    plain: PlainSession,
}

impl Session for GatedSession {
    async fn decide(&self, user: u32) -> Result<bool, Fault> {
        self.plain.decide(user).await
    }

    async fn close(&self) {
        self.plain.close().await;
    }
}
