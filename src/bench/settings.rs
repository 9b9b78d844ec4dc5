use std::time::Duration;

use serde::{Serialize, Serializer};

use super::scene::Scene;
use super::workload::Workload;
use crate::limit::Storage;

/// What to measure, and for how long.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// What the callers ask.
    pub workloads: Vec<Workload>,
    /// In which tables.
    pub storages: Vec<Storage>,
    /// How many of them there are.
    pub callers: Vec<usize>,
    /// How long each turn is timed; as seconds where it is serialized.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub turn: Duration,
    /// How often all contenders take their turns in all scenes. Medians count.
    pub rounds: usize,
    /// How many lanes the gate has, unless as many as by default.
    pub lanes: Option<usize>,
}

impl Settings {
    /// One short round with few callers and with many: to see that it works, not to quote.
    #[must_use]
    pub fn quick() -> Self {
        Self { callers: vec![1, 64], turn: Duration::from_millis(300), rounds: 1, ..Self::default() }
    }

    pub(super) fn scenes(&self) -> impl Iterator<Item = Scene> {
        self.workloads.iter().flat_map(move |&workload| {
            self.storages
                .iter()
                .flat_map(move |&storage| self.callers.iter().map(move |&callers| Scene { workload, storage, callers }))
        })
    }

    /// What makes these settings measure nothing, if anything.
    pub(super) fn fault(&self) -> Option<&'static str> {
        if self.scenes().next().is_none() {
            return Some("nothing is to be measured (name a workload, a storage and a number of callers)");
        }
        if self.callers.contains(&0) {
            return Some("nobody calls (use one caller or more)");
        }
        if self.rounds == 0 || self.turn.is_zero() {
            return Some("there is no time to measure anything (use one round or more, of more than 0 seconds)");
        }
        None
    }
}

impl Default for Settings {
    /// Everything, five rounds of two seconds: about half an hour.
    fn default() -> Self {
        Self {
            workloads: Workload::ALL.to_vec(),
            storages: vec![Storage::Ephemeral, Storage::Durable],
            callers: vec![1, 16, 64, 256],
            turn: Duration::from_secs(2),
            rounds: 5,
            lanes: None,
        }
    }
}

fn seconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}
