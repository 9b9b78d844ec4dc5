use serde::Serialize;

use super::figures::Figures;
use super::machine::Machine;
use super::scene::Scene;
use super::settings::Settings;
use super::target::Target;

/// What came out of a run. Serializes to one document.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// What was measured, and for how long.
    pub settings: Settings,
    /// The figures: those of one scene beside each other.
    pub cells: Vec<Cell>,
    /// The targets whose scenes were measured.
    pub targets: Vec<Target>,
}

impl Report {
    pub(super) fn new(machine: Machine, settings: Settings, cells: Vec<Cell>) -> Self {
        let report = Self { machine, settings, cells, targets: Vec::new() };
        let targets = Target::of(&report);
        Self { targets, ..report }
    }

    /// The figures of a contender in a scene, if they were measured.
    #[must_use]
    pub fn figures(&self, scene: Scene, contender: &str) -> Option<&Figures> {
        let cell = self.cells.iter().find(|cell| cell.scene == scene && cell.contender == contender);
        cell.map(|cell| &cell.figures)
    }
}

/// A contender in a scene.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Cell {
    /// What it was measured at.
    #[serde(flatten)]
    pub scene: Scene,
    /// Its name.
    pub contender: &'static str,
    /// What came out.
    #[serde(flatten)]
    pub figures: Figures,
    /// Decisions per second of each round, in their order: how steady the machine was.
    pub rounds: Vec<f64>,
}

impl Cell {
    /// None for no rounds.
    pub(super) fn of(scene: Scene, contender: &'static str, rounds: &[Figures]) -> Option<Self> {
        let figures = Figures::median(rounds)?;
        Some(Self { scene, contender, figures, rounds: rounds.iter().map(|figures| figures.per_second).collect() })
    }
}
