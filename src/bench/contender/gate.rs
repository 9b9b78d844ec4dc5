use sqlx::PgPool;

use super::{Contender, Fault, GATE, GATE_REMEMBERING, Session, pool};
use crate::SECOND;
use crate::bench::scene::{Ask, Scene};
use crate::bench::workload::Workload;
use crate::gate::Gate;

#[derive(Clone, Debug)]
pub(crate) struct Gated {
    url: String,
    lanes: Option<usize>,
    remembers: bool,
}

impl Gated {
    /// Over the database at `url`, with so many lanes, or as many as a gate has by default.
    pub(crate) fn new(url: impl Into<String>, lanes: Option<usize>) -> Self {
        Self { url: url.into(), lanes, remembers: false }
    }

    /// Answers from memory what it knows to be refused, and asks again after a second.
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
        let pool = pool::open(&self.url, pool::CONNECTIONS).await?;
        let mut gate = Gate::builder(pool.clone());
        if let Some(lanes) = self.lanes {
            gate = gate.lanes(lanes);
        }
        if self.remembers {
            gate = gate.remember_refusals(SECOND);
        }
        Ok(GatedSession { scene, gate: gate.build(), pool })
    }
}

#[derive(Debug)]
pub(crate) struct GatedSession {
    scene: Scene,
    gate: Gate,
    pool: PgPool,
}

impl Session for GatedSession {
    async fn decide(&self, user: u32) -> Result<bool, Fault> {
        let decision = match self.scene.ask(user) {
            Ask::One(request) => self.gate.consume(request).await?,
            Ask::All(requests) => self.gate.consume_all(requests).await?,
        };
        Ok(decision.is_granted())
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}
