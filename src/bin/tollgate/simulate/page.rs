use std::io::{self, Write};
use std::time::Duration;

use anstream::stdout;
use tollgate::Key;
use tollgate::simulate::{Caller, Finding, Outcome, short};

use super::figure::{Figure, plain};
use super::{Calls, Report, plot};

/// What was found, for people: plots, what they say in words, and the figures.
pub(super) fn print(report: &Report, no_plot: bool) -> io::Result<()> {
    let mut out = stdout().lock();
    heading(&mut out, &report.calls)?;
    let figure = Figure::of(&report.scenes, plot::COLUMNS.into());
    for (finding, panel) in report.scenes.iter().zip(&figure.panels) {
        writeln!(out, "\n\u{1b}[1m{}\u{1b}[0m", panel.label)?;
        if !no_plot {
            write!(out, "{}", plot::plot(&figure, panel))?;
        }
        wrapped(&mut out, &finding.sentence)?;
        callers(&mut out, &finding.outcome)?;
    }
    writeln!(out)?;
    table(&mut out, &report.scenes)
}

fn heading(out: &mut impl Write, calls: &Calls) -> io::Result<()> {
    match calls {
        Calls::Trace(file) => writeln!(out, "calls of {file}"),
        Calls::Traffic { patterns, seed } => {
            patterns.iter().try_for_each(|pattern| writeln!(out, "{pattern}"))?;
            // Where nothing is drawn by lot there is nothing to repeat it by.
            let is_random = |pattern: &String| pattern.starts_with("poisson") || pattern.starts_with("diurnal");
            if patterns.iter().any(is_random) { writeln!(out, "seed {seed}") } else { Ok(()) }
        }
    }
}

/// Who got how much, where there are several.
fn callers(out: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    let share = |caller: &Caller| {
        let key = if caller.key == Key::GLOBAL { "(no key)".to_owned() } else { plain(caller.key.as_str()) };
        format!("{key} {} of {}", caller.granted, caller.calls)
    };
    match &outcome.callers[..] {
        [] | [_] => Ok(()),
        callers => wrapped(out, &format!("Granted: {}.", callers.iter().map(share).collect::<Vec<_>>().join(", "))),
    }
}

/// One row for each scene, beside each other's figures.
fn table(out: &mut impl Write, findings: &[Finding]) -> io::Result<()> {
    let row = |cells: [String; 9], label: &str| {
        let widths = [7, 7, 7, 6, 7, 9, 7, 9, 9];
        let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$} "));
        format!("{} {label}", cells.collect::<String>())
    };
    let names = ["calls", "granted", "refused", "share", "tries", "told", "waited", "99 % in", "worst"];
    writeln!(out, "{}", row(names.map(str::to_owned), "").trim_end())?;
    for Finding { label, outcome, .. } in findings {
        let wait = |wait: Duration| if outcome.waits.waited == 0 { "-".to_owned() } else { short(wait) };
        let cells = [
            outcome.calls.to_string(),
            outcome.granted.to_string(),
            outcome.refused.to_string(),
            format!("{:.1} %", 100.0 * outcome.share_refused()),
            outcome.tries.to_string(),
            outcome.worst_retry_after.map_or_else(|| "-".to_owned(), short),
            outcome.waits.waited.to_string(),
            wait(outcome.waits.p99),
            wait(outcome.waits.worst),
        ];
        writeln!(out, "{}", row(cells, &plain(label)))?;
    }
    Ok(())
}

/// A sentence in lines that fit beside the plots.
fn wrapped(out: &mut impl Write, text: &str) -> io::Result<()> {
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(out, "{line}")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{line}")
}

const WIDTH: usize = 79;
