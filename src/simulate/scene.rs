use serde::Serialize;

use super::outcome::Outcome;
use super::run::Run;
use super::simulation::Simulation;
use super::trace::TraceError;
use super::traffic::{Arrival, START, Traffic, TrafficError, arrivals, span};
use crate::error::Error;

/// A simulation with a label, to stand beside others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Scene {
    /// What the plots and tables call it.
    pub label: String,
    /// What is tried.
    pub simulation: Simulation,
}

impl Scene {
    /// A simulation under a label.
    pub fn new(label: impl Into<String>, simulation: Simulation) -> Self {
        Self { label: label.into(), simulation }
    }
}

/// What came of one scene.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Which scene.
    pub label: String,
    /// What came of it in words: [`Outcome::sentence`].
    pub sentence: String,
    /// What came of it in figures.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The same calls in each scene, read once: a recorded trace is not held in memory.
///
/// # Errors
///
/// The first call that cannot be read, and what the limiter reports, but for costs that can never be granted, which are
/// counted.
pub fn side_by_side(
    scenes: &[Scene],
    calls: impl IntoIterator<Item = Result<Arrival, TraceError>>,
) -> Result<Vec<Finding>, SimulateError> {
    let mut runs: Vec<Run> = scenes.iter().map(|scene| scene.simulation.start()).collect();
    for call in calls {
        let call = call?;
        runs.iter_mut().try_for_each(|run| run.count(&call))?;
    }
    let finding = |(scene, run): (&Scene, Run)| {
        let outcome = run.finish()?;
        Ok(Finding { label: scene.label.clone(), sentence: outcome.sentence(), outcome })
    };
    scenes.iter().zip(runs).map(finding).collect()
}

/// The same synthetic traffic in each scene, plotted from its beginning to its end.
///
/// # Errors
///
/// As [`side_by_side`], and for traffic that there cannot be.
pub fn on_traffic(scenes: &[Scene], traffic: &[Traffic], seed: u64) -> Result<Vec<Finding>, SimulateError> {
    let calls = arrivals(traffic, seed)?;
    let spanning = |scene: &Scene| {
        let simulation = scene.simulation.clone().spanning(START, span(traffic));
        Scene::new(&scene.label, simulation)
    };
    let scenes: Vec<_> = scenes.iter().map(spanning).collect();
    side_by_side(&scenes, calls.map(Ok))
}

/// Why nothing was simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// What the limiter would report.
    #[error("{0}")]
    Limiter(#[from] Error),
    /// A recorded call that could not be read.
    #[error("{0}")]
    Trace(#[from] TraceError),
    /// Traffic that there cannot be.
    #[error("{0}")]
    Traffic(#[from] TrafficError),
}
