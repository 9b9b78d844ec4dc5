//! `tollgate simulate`: tries limits on traffic, made up or recorded, without a database.
//!
//! `tollgate-simulation` makes the calls, and decides them through the plan that the limiter itself follows. [`tally`]
//! counts their outcomes, and [`picture`] draws those.

mod args;
mod picture;
mod run;
mod tally;

use std::iter;
use std::time::Duration;

use serde::Serialize;
use tollgate::Key;
use tollgate::algebra::Timestamp;
use tollgate_simulation::{Arrival, Arrivals, Traffic, Trial};

pub(crate) use args::SimulateArgs;
use run::{Run, TrialReport};

use crate::error::CommandError;
use crate::output::{columns, printable, span};
use crate::trace::without;

/// The results of all trials, and the calls that they are about.
#[derive(Debug, Serialize)]
struct SimulationReport {
    calls: Vec<String>,
    trials: Vec<TrialReport>,
}

pub(crate) fn run(args: SimulateArgs) -> Result<(), CommandError> {
    let args = args.with_preset()?;
    let trials = args.trials()?;
    let report = if let Some(trace) = &args.trace {
        let mut read = trace.read()?;
        read.calls.sort_by_key(|call| call.at);
        let calls = vec![format!("trace {}{}", trace.name(), without(read.skipped))];
        SimulationReport { calls, trials: run_all(&trials, read.calls.into_iter(), None)? }
    } else {
        let calls = args.traffic.iter().map(|traffic| format!("{} seed={}", traffic.text, args.seed)).collect();
        let end = args.traffic.iter().map(Traffic::end).max();
        SimulationReport { calls, trials: run_all(&trials, Arrivals::new(&args.traffic, args.seed), end)? }
    };
    if let Some(file) = &args.svg {
        let drawn = picture::draw(&report.trials, file);
        drawn.map_err(|error| CommandError::bare(format!("could not draw {}: {error}", file.display())))?;
    }
    args.output.print(&report, || report.text())
}

/// Makes each call in all trials.
fn run_all(
    trials: &[Trial],
    mut calls: impl Iterator<Item = Arrival>,
    end: Option<Timestamp>,
) -> Result<Vec<TrialReport>, CommandError> {
    let nobody = || CommandError::new("nobody calls", "the traffic or the trace is empty");
    let first = calls.next().ok_or_else(nobody)?;
    let runs = trials.iter().map(|trial| Run::new(trial, &first));
    let mut runs = runs.collect::<Result<Vec<_>, _>>()?;
    for call in iter::once(first).chain(calls) {
        runs.iter_mut().try_for_each(|run| run.call(&call))?;
    }
    Ok(runs.into_iter().map(|run| run.finish(end)).collect::<Result<_, _>>()?)
}

impl SimulationReport {
    /// The limits, the calls, and a line of figures for each trial and each of its callers.
    fn text(&self) -> String {
        let limits = self.trials.iter().flat_map(|trial| &trial.limits);
        let mut lines: Vec<_> = limits.chain(&self.calls).map(|line| printable(line)).collect();
        lines.push(String::new());
        let heads = HEADS.map(str::to_owned).to_vec();
        lines.extend(columns(&iter::once(heads).chain(self.trials.iter().flat_map(figures)).collect::<Vec<_>>()));
        lines.join("\n")
    }
}

fn figures(TrialReport { label, figures, .. }: &TrialReport) -> Vec<Vec<String>> {
    let wait = |wait: Duration| if wait.is_zero() { "-".to_owned() } else { span(wait) };
    let mut trial = cells(printable(label), figures.calls, figures.granted, figures.refused);
    trial.extend([wait(figures.worst_retry_after), figures.waited.to_string(), wait(figures.worst_wait)]);
    let callers = if figures.callers.len() > 1 { &figures.callers[..] } else { &[] };
    let caller = callers.iter().map(|caller| {
        cells(format!("  {}", caller_name(&caller.key)), caller.calls, caller.granted, caller.calls - caller.granted)
    });
    iter::once(trial).chain(caller).collect()
}

/// A caller of made-up or recorded calls.
fn caller_name(key: &Key) -> String {
    if key.is_global() { "(all callers)".to_owned() } else { printable(key.as_str()) }
}

#[expect(clippy::cast_precision_loss, reason = "a share is for people")]
fn cells(label: String, calls: u64, granted: u64, refused: u64) -> Vec<String> {
    let share = format!("{:.1} %", 100.0 * refused as f64 / calls.max(1) as f64);
    vec![label, calls.to_string(), granted.to_string(), refused.to_string(), share]
}

const HEADS: [&str; 8] = ["", "calls", "granted", "refused", "share", "retry after", "waited", "worst wait"];
