use std::fmt;

use humantime::format_duration;

use super::contender::{PLAIN, ROUND_TRIP, UPDATE};
use super::machine::Machine;
use super::report::{Cell, Report};
use super::scene::{Scene, storage_name};
use super::settings::Settings;
use super::target::Target;

/// A Markdown table whose columns are aligned, so that it reads well in a terminal too.
pub(super) struct Table {
    /// The first line holds the headings.
    lines: Vec<Vec<String>>,
    /// How many columns hold words, which stand to the left; numbers stand to the right.
    words: usize,
}

impl Table {
    fn of_targets(targets: &[Target]) -> Self {
        let line = |target: &Target| {
            let bound = if target.measure.is_upper_bound() { "≤" } else { "≥" };
            let reached = if target.reached { "yes" } else { "no" };
            let wanted = format!("{bound} {}", number(target.wanted));
            vec![
                target.scene.to_string(),
                target.measure.to_string(),
                wanted,
                number(target.measured),
                reached.to_owned(),
            ]
        };
        Self::new(&TARGET_HEADINGS, 2, targets.iter().map(line))
    }

    /// The contenders in scenes that differ by the number of callers.
    fn of_cells(report: &Report, cells: &[&Cell]) -> Self {
        let line = |cell: &&Cell| {
            let figures = &cell.figures;
            let over = |baseline| {
                ratio(figures.per_second, report.figures(cell.scene, baseline).map(|baseline| baseline.per_second))
            };
            vec![
                cell.contender.to_owned(),
                cell.scene.callers.to_string(),
                number(figures.per_second),
                over(PLAIN),
                over(UPDATE),
                over(ROUND_TRIP),
                number(figures.p50_us),
                number(figures.p99_us),
                number(figures.p999_us),
                figures.statements.map_or_else(unknown, number),
                number(figures.rows_written),
                figures.batch.map_or_else(unknown, number),
                figures.hot_share.map_or_else(unknown, |share| number(100.0 * share)),
                number(figures.wal_bytes),
            ]
        };
        Self::new(&CELL_HEADINGS, 1, cells.iter().map(line))
    }

    pub(super) fn new(headings: &[&str], words: usize, lines: impl Iterator<Item = Vec<String>>) -> Self {
        let headings = headings.iter().map(|heading| (*heading).to_owned()).collect();
        Self { lines: std::iter::once(headings).chain(lines).collect(), words }
    }

    fn width(&self, column: usize) -> usize {
        // Dashes below a heading need three places at least.
        self.lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default().max(3)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, line) in self.lines.iter().enumerate() {
            for (column, text) in line.iter().enumerate() {
                let width = self.width(column);
                if column < self.words { write!(f, "| {text:<width$} ")? } else { write!(f, "| {text:>width$} ")? }
            }
            writeln!(f, "|")?;
            if place == 0 {
                for column in 0..line.len() {
                    let dashes = "-".repeat(self.width(column) - 1);
                    if column < self.words { write!(f, "| {dashes}- ")? } else { write!(f, "| {dashes}: ")? }
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    /// Markdown: the machine, the targets, and a table for each workload and storage.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}", self.machine, self.settings)?;
        if !self.targets.is_empty() {
            write!(f, "\n## Targets\n\n{}", Table::of_targets(&self.targets))?;
        }
        writeln!(f, "\n## Figures")?;
        for cells in self.cells.chunk_by(|one, next| kind(one.scene) == kind(next.scene)) {
            let Scene { workload, storage, .. } = cells[0].scene;
            // Contenders in the order in which they entered, each with all its numbers of callers.
            let mut ordered: Vec<_> = cells.iter().collect();
            ordered.sort_by_key(|cell| cells.iter().position(|first| first.contender == cell.contender));
            write!(f, "\n### {workload}, {}\n\n{}", storage_name(storage), Table::of_cells(self, &ordered))?;
        }
        Ok(())
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, cpu, kernel, tollgate, optimised, postgresql, settings } = self;
        let [cpu, kernel] = [cpu, kernel].map(|name| name.as_deref().unwrap_or("unknown"));
        let settings: Vec<_> = settings.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        writeln!(f, "- machine: {cores} cores, {cpu}; kernel {kernel}")?;
        writeln!(f, "- PostgreSQL {postgresql}: {}", settings.join(", "))?;
        write!(f, "- tollgate {tollgate}")?;
        if *optimised { Ok(()) } else { write!(f, ", NOT OPTIMISED: these figures are worthless (use --release)") }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes = self.lanes.map_or_else(|| "as by default".to_owned(), |lanes| lanes.to_string());
        write!(f, "- rounds: {}, of turns of {}; lanes of the gate: {lanes}", self.rounds, format_duration(self.turn))
    }
}

fn kind(scene: Scene) -> impl PartialEq {
    (scene.workload, scene.storage)
}

fn ratio(rate: f64, baseline: Option<f64>) -> String {
    baseline.map_or_else(unknown, |baseline| number(rate / baseline))
}

fn unknown() -> String {
    "–".to_owned()
}

/// Three digits at least, and thousands apart.
pub(super) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0..0.1 => 3,
        0.1..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    let mut text = format!("{value:.decimals$}");
    let mut place = text.find('.').unwrap_or(text.len());
    while place > 3 {
        place -= 3;
        text.insert(place, ' ');
    }
    text
}

const TARGET_HEADINGS: [&str; 5] = ["scene", "measure", "wanted", "measured", "reached"];

const CELL_HEADINGS: [&str; 14] = [
    "contender",
    "callers",
    "decisions/s",
    "× (a)",
    "× (b)",
    "× (c)",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "statements",
    "rows written",
    "batch",
    "HOT %",
    "WAL bytes",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_thousands_apart() {
        let table = [(0.0, "0.000"), (0.25, "0.25"), (1.1, "1.10"), (42.0, "42.0"), (999.4, "999"), (1e6, "1 000 000")];
        for (value, text) in table {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_table_is_aligned() {
        let lines = [vec!["gate".to_owned(), "1".to_owned()], vec!["×".to_owned(), "1000".to_owned()]];
        let table = Table::new(&["who", "n"], 1, lines.into_iter());
        assert_eq!(table.to_string(), "| who  |    n |\n| ---- | ---: |\n| gate |    1 |\n| ×    | 1000 |\n");
    }
}
