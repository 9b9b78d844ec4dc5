//! Limits tried on traffic, without a database: words, figures and plots.

mod args;
mod error;
mod figure;
mod page;
mod picture;
mod plot;
mod tried;

use std::fs::File;
use std::io::{self, Read, Write, stdin, stdout};
use std::path::Path;

use serde::Serialize;
use tollgate::simulate::{Finding, Preset, Scene, Simulation, Trace, Traffic, on_traffic, side_by_side};

use args::Format;
pub(crate) use args::SimulateArgs;
pub(crate) use error::SimulateFault;

use crate::error::CommandError;

pub(crate) fn run(args: &SimulateArgs) -> Result<(), CommandError> {
    if args.list_presets {
        return list();
    }
    let scenes = scenes(args)?;
    let (calls, findings) = match &args.trace {
        Some(file) => (Calls::Trace(file.display().to_string()), recorded(args, file, &scenes)?),
        None => made_up(args, &scenes)?,
    };
    let report = Report { calls, scenes: findings };
    if let Some(file) = &args.svg {
        let drawn = picture::draw(&report.scenes).map_err(io::Error::other);
        let written = drawn.and_then(|picture| std::fs::write(file, picture));
        written.map_err(|source| SimulateFault::Picture { file: file.clone(), source })?;
    }
    if args.json {
        let mut out = stdout().lock();
        serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
        return Ok(writeln!(out)?);
    }
    Ok(page::print(&report, args.no_plot)?)
}

/// All that was found, and on which calls.
#[derive(Debug, Serialize)]
struct Report {
    calls: Calls,
    scenes: Vec<Finding>,
}

/// Where the calls came from.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Calls {
    Trace(String),
    Traffic { patterns: Vec<String>, seed: u64 },
}

fn list() -> Result<(), CommandError> {
    let mut out = stdout().lock();
    for preset in Preset::ALL {
        writeln!(out, "{preset:<16} {}", preset.summary())?;
    }
    Ok(())
}

/// What is tried: the limits that are given, or else those of the preset.
fn scenes(args: &SimulateArgs) -> Result<Vec<Scene>, SimulateFault> {
    let preset = args.preset.map(Preset::scenes);
    let limits = args.tried.iter().map(|tried| tried.rule(&args.file)).collect::<Result<Vec<_>, _>>()?;
    let scenes = match (&limits[..], preset) {
        ([], None) => return Err(SimulateFault::NoLimit),
        ([], Some(scenes)) => scenes,
        (limits, _) if args.compare => {
            limits.iter().map(|rule| Scene::new(rule.to_string(), Simulation::new([rule.clone()]))).collect()
        }
        (limits, _) => {
            let label = limits.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
            vec![Scene::new(label, Simulation::new(limits.iter().cloned()))]
        }
    };
    let behaving = |Scene { label, simulation, .. }| Scene::new(label, behaviour(args, simulation));
    Ok(scenes.into_iter().map(behaving).collect())
}

/// What is said of the clients, whatever the limits.
fn behaviour(args: &SimulateArgs, mut simulation: Simulation) -> Simulation {
    if args.reserve {
        simulation = simulation.reserving();
    }
    if let Some(retry) = args.retry {
        simulation = simulation.retrying(retry);
    }
    if let Some(patience) = args.patience {
        simulation = simulation.patience(patience);
    }
    match &args.watch {
        Some(key) => simulation.watching(key.clone()),
        None => simulation,
    }
}

fn made_up(args: &SimulateArgs, scenes: &[Scene]) -> Result<(Calls, Vec<Finding>), SimulateFault> {
    let traffic: Vec<Traffic> = match (&args.traffic[..], args.preset) {
        ([], None) => return Err(SimulateFault::NoTraffic),
        ([], Some(preset)) => preset.traffic(),
        (traffic, _) => traffic.to_vec(),
    };
    let findings = on_traffic(scenes, &traffic, args.seed)?;
    let patterns = traffic.iter().map(ToString::to_string).collect();
    Ok((Calls::Traffic { patterns, seed: args.seed }, findings))
}

fn recorded(args: &SimulateArgs, file: &Path, scenes: &[Scene]) -> Result<Vec<Finding>, SimulateFault> {
    let reader: Box<dyn Read> = if file == Path::new("-") {
        Box::new(stdin().lock())
    } else {
        let opened = File::open(file);
        Box::new(opened.map_err(|source| SimulateFault::TraceFile { file: file.to_owned(), source })?)
    };
    let is_json = |file: &Path| {
        let extension = file.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| matches!(extension, "ndjson" | "jsonl" | "json"))
    };
    let found = match args.format.unwrap_or(if is_json(file) { Format::Ndjson } else { Format::Csv }) {
        Format::Csv => side_by_side(scenes, Trace::csv(reader)),
        Format::Ndjson => side_by_side(scenes, Trace::ndjson(reader)),
    };
    found.map_err(|source| SimulateFault::Trace { file: file.to_owned(), source })
}
