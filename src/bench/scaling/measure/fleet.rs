use crate::bench::contender::{Contender, Fault, Gated, GatedSession, Session};
use crate::bench::scene::Scene;

/// Several gates, each with a pool of its own, as several processes have them. A user's calls go to one.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    pub(super) url: String,
    pub(super) gates: u32,
}

impl Contender for Fleet {
    type Session = FleetSession;

    fn name(&self) -> &'static str {
        "gates"
    }

    async fn open(&self, scene: Scene) -> Result<FleetSession, Fault> {
        let mut gates = Vec::new();
        for _ in 0..self.gates {
            gates.push(Gated::new(&self.url, None).open(scene).await?);
        }
        Ok(FleetSession { gates })
    }
}

/// [`Fleet`] during a turn.
#[derive(Debug)]
pub(super) struct FleetSession {
    gates: Vec<GatedSession>,
}

impl Session for FleetSession {
    async fn decide(&self, user: u32) -> Result<bool, Fault> {
        let gate = usize::try_from(user)? % self.gates.len();
        self.gates[gate].decide(user).await
    }

    async fn close(&self) {
        for gate in &self.gates {
            gate.close().await;
        }
    }
}
