use serde::Serialize;
use tollgate::algebra::Timestamp;
use tollgate::plan::Answer;
use tollgate::{Error, Key};
use tollgate_simulation::{Arrival, Asking, Rule, Simulation, Trial};

use super::caller_name;
use super::tally::{Figures, Series, Tally};
use crate::limits_file::describe;
use crate::row::until;

/// The result of a trial.
#[derive(Debug, Serialize)]
pub(super) struct TrialReport {
    pub(super) label: String,
    /// The limits in words.
    pub(super) limits: Vec<String>,
    /// The key whose balances are drawn.
    pub(super) drawn: Key,
    #[serde(flatten)]
    pub(super) figures: Figures,
    pub(super) series: Series,
}

/// A trial under way, and the notes that are taken of it.
pub(super) struct Run<'t> {
    trial: &'t Trial,
    simulation: Simulation,
    tally: Tally,
    drawn: Key,
    series: Series,
}

impl TrialReport {
    /// The limits whose balances are drawn, and for whom, where there are several callers.
    pub(super) fn captions(&self) -> impl Iterator<Item = String> {
        let whom =
            if self.figures.callers.len() > 1 { format!(", for {}", caller_name(&self.drawn)) } else { String::new() };
        self.limits.iter().map(move |limit| limit.clone() + if limit.ends_with(ALL) { "" } else { &whom })
    }
}

impl<'t> Run<'t> {
    /// Draws the balances of the first caller.
    pub(super) fn new(trial: &'t Trial, first: &Arrival) -> Result<Self, Error> {
        let looks = trial.rules.iter().map(|rule| rule.look(&first.key));
        let series = Series::new(first.at, looks.collect::<Result<_, _>>()?);
        let simulation = Simulation::new(trial.clone());
        Ok(Self { trial, simulation, tally: Tally::default(), drawn: first.key.clone(), series })
    }

    pub(super) fn call(&mut self, call: &Arrival) -> Result<(), Error> {
        self.tally.called(&call.key);
        let answer = self.simulation.call(call, |rows, at, _| self.series.observe(rows, at))?;
        match answer {
            None => self.tally.figures.impossible += 1,
            Some(Answer::Granted { ready_at, .. }) => {
                self.series.count(true);
                self.tally.granted(&call.key, until(ready_at, call.at));
            }
            Some(Answer::Denied(denied)) => {
                self.series.count(false);
                self.tally.denied(denied.retry_after());
            }
            Some(Answer::Done(_) | Answer::Settled(_)) => unreachable!("a call that takes is granted or denied"),
        }
        Ok(())
    }

    /// Sums up. The traffic may have a known end after the last call.
    pub(super) fn finish(mut self, end: Option<Timestamp>) -> Result<TrialReport, Error> {
        if let Some(end) = end {
            // The end itself begins no bin.
            let last = Timestamp::from_micros(end.micros() - 1);
            self.simulation.pass(last, |rows, at, _| self.series.observe(rows, at))?;
            self.series.observe(self.simulation.rows(), last);
        }
        let Trial { rules, asking, .. } = self.trial;
        let names: Vec<_> = rules.iter().map(|rule| rule.limit.name()).collect();
        let label = match asking {
            Asking::All => names.join(" and "),
            Asking::Lending(kept) => format!("{}, lent above {kept}", names.join(" and ")),
            Asking::InTurn => names.join(", else "),
        };
        let limits = rules.iter().map(definition).collect();
        Ok(TrialReport { label, limits, drawn: self.drawn, figures: self.tally.finish(), series: self.series })
    }
}

fn definition(rule: &Rule) -> String {
    describe(&rule.limit) + if rule.is_global { ALL } else { "" }
}

const ALL: &str = ", for all callers together";
