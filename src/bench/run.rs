use sqlx::{Connection as _, PgConnection};

use super::contender::{Contender, Gated, Plain, RoundTrip, Update};
use super::counters::Counters;
use super::error::BenchError;
use super::figures::Figures;
use super::machine::Machine;
use super::report::{Cell, Report};
use super::rows;
use super::scene::Scene;
use super::settings::Settings;
use super::turn::{Entrant, Turn};
use super::users::Users;
use crate::migrate;

/// Contenders, measured in turns over one database: the gate, the three baselines, and whoever else [enters](Self::enter).
pub struct Bench {
    url: String,
    settings: Settings,
    entrants: Vec<Box<dyn Entrant>>,
}

impl Bench {
    /// Over the database at `url`: migrates it, makes rows of limits named `bench_…`, and removes them at the end.
    ///
    /// Runs without company: counters of the server's own are among what is read.
    pub fn new(url: impl Into<String>, settings: Settings) -> Self {
        let (url, lanes) = (url.into(), settings.lanes);
        Self { url: url.clone(), settings, entrants: Vec::new() }
            .enter(Gated::new(&url, lanes))
            .enter(Gated::new(&url, lanes).remembering())
            .enter(Plain::new(&url))
            .enter(Update::new(&url))
            .enter(RoundTrip::new(&url))
    }

    /// Adds a contender.
    #[must_use]
    pub fn enter(mut self, contender: impl Contender) -> Self {
        self.entrants.push(Box::new(contender));
        self
    }

    /// How many turns a run has.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.settings.rounds * self.settings.scenes().flat_map(|scene| self.entrants_of(scene)).count()
    }

    /// Measures everything, and calls `before_turn` with the contender's name and the scene before each turn.
    ///
    /// A round is one turn of every contender in every scene, so that all of them have the same share of whatever else this
    /// machine does meanwhile. Use a runtime with as many threads as a service would have.
    ///
    /// # Errors
    ///
    /// The first error, and the first wrong answer, end the run.
    pub async fn run(&self, mut before_turn: impl FnMut(&'static str, Scene)) -> Result<Report, BenchError> {
        if let Some(fault) = self.settings.fault() {
            return Err(BenchError::Settings(fault));
        }
        let mut conn = PgConnection::connect(&self.url).await.map_err(BenchError::Connect)?;
        migrate::run(&mut conn).await?;
        rows::clear(&mut conn).await?;
        rows::fill(&self.url).await?;
        let measured = self.measure(&mut conn, &mut before_turn).await;
        let cleared = rows::clear(&mut conn).await;
        // What went wrong first is the reason for the rest.
        let cells = measured?;
        cleared?;
        Ok(Report::new(Machine::read(&mut conn).await?, self.settings.clone(), cells))
    }

    async fn measure(
        &self,
        conn: &mut PgConnection,
        before_turn: &mut impl FnMut(&'static str, Scene),
    ) -> Result<Vec<Cell>, BenchError> {
        let pairs: Vec<_> = self.settings.scenes().flat_map(|scene| self.entrants_of(scene)).collect();
        let mut measured = vec![Vec::new(); pairs.len()];
        for _ in 0..self.settings.rounds {
            for (&(scene, entrant), figures) in pairs.iter().zip(&mut measured) {
                before_turn(entrant.name(), scene);
                figures.push(self.turn(conn, scene, entrant).await?);
            }
        }
        let cell = |((scene, entrant), rounds): ((Scene, &dyn Entrant), Vec<Figures>)| {
            Cell::of(scene, entrant.name(), &rounds)
        };
        Ok(pairs.into_iter().zip(measured).filter_map(cell).collect())
    }

    async fn turn(&self, conn: &mut PgConnection, scene: Scene, entrant: &dyn Entrant) -> Result<Figures, BenchError> {
        rows::tidy(conn).await?;
        let turn = Turn { scene, users: Users::of(scene.workload), timed: self.settings.turn, meter: None };
        let before = Counters::read(conn).await?;
        let tally = entrant.take(&turn).await;
        let tally = tally.map_err(|fault| BenchError::Contender { contender: entrant.name(), scene, fault })?;
        let after = Counters::read(conn).await?;
        Ok(Figures::of(&turn, &tally, after - before))
    }

    fn entrants_of(&self, scene: Scene) -> impl Iterator<Item = (Scene, &dyn Entrant)> {
        self.entrants.iter().filter(move |entrant| entrant.enters(&scene)).map(move |entrant| (scene, &**entrant))
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.entrants.iter().map(|entrant| entrant.name()).collect();
        // Without the URL, which may hold a password.
        f.debug_struct("Bench").field("settings", &self.settings).field("entrants", &names).finish_non_exhaustive()
    }
}
