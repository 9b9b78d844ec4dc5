use std::time::Duration;

use super::outcome::Outcome;
use super::rule::Rule;
use super::run::Run;
use super::traffic::Arrival;
use crate::algebra::Timestamp;
use crate::error::Error;
use crate::key::Key;

/// What is tried: the limits that each call asks together, and how clients behave.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tollgate::simulate::{Rule, Simulation, Traffic, arrivals};
/// use tollgate::{Limit, SECOND};
///
/// // A leaky bucket as a queue: nothing at once, one a second, and everybody is told when.
/// let queue = Limit::token_bucket("queue", 1, SECOND).capacity(0).unbounded_reservations();
/// let outcome = Simulation::new([Rule::each(queue)]).reserving().run(arrivals(&[Traffic::burst(30, 60 * SECOND)], 1)?)?;
/// assert_eq!(outcome.granted, 30);
/// assert_eq!(outcome.waits.worst, Duration::from_secs(30));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Simulation {
    pub(super) rules: Vec<Rule>,
    pub(super) reserving: bool,
    pub(super) retry: Retry,
    pub(super) patience: Duration,
    pub(super) watched: Option<Key>,
    pub(super) span: Option<(Timestamp, Duration)>,
}

impl Simulation {
    /// Each call asks all of these limits, and takes from all or none.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self {
            rules: rules.into_iter().collect(),
            reserving: false,
            retry: Retry::Never,
            patience: Duration::from_mins(1),
            watched: None,
            span: None,
        }
    }

    /// Each call reserves: where the limits let it, it is granted for later.
    #[must_use]
    pub fn reserving(self) -> Self {
        Self { reserving: true, ..self }
    }

    /// What a client does that is refused; nothing unless set.
    #[must_use]
    pub fn retrying(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// For how long after its first try a client comes back; a minute unless set.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Whose balance is kept over time; that of the first caller unless set.
    #[must_use]
    pub fn watching(self, key: Key) -> Self {
        Self { watched: Some(key), ..self }
    }

    /// The stretch of time to plot, where it is known before; from the first call to the last one unless set.
    #[must_use]
    pub fn spanning(self, start: Timestamp, span: Duration) -> Self {
        Self { span: Some((start, span)), ..self }
    }

    /// The limits that are asked.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Before the first call: every row is absent, hence full.
    #[must_use]
    pub fn start(&self) -> Run {
        Run::new(self.clone())
    }

    /// All calls, to the end.
    ///
    /// A call whose cost no limit could ever grant is an error to the limiter; here it is counted, and the run goes on.
    ///
    /// # Errors
    ///
    /// As [`Run::call`], but for [`Error::CostExceedsCapacity`].
    pub fn run(&self, calls: impl IntoIterator<Item = Arrival>) -> Result<Outcome, Error> {
        let mut run = self.start();
        for call in calls {
            run.count(&call)?;
        }
        run.finish()
    }
}

/// What a client does that is refused.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Retry {
    /// Its call is lost.
    #[default]
    Never,
    /// It comes back at the instant that the refusal named. Where many are told the same instant, one of them is first.
    WhenTold,
    /// It comes back after this span, whatever it was told; a millisecond at least.
    Every(Duration),
}
