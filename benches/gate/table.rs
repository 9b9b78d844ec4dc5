//! Tables in Markdown, aligned so that they read well in a terminal too.

use std::{fmt, iter};

/// Columns of which nothing is known are left out.
pub(crate) struct Table {
    /// The first line holds the headings.
    lines: Vec<Vec<String>>,
    /// How many columns hold words, which stand to the left. Numbers stand to the right.
    words: usize,
}

impl Table {
    pub(crate) fn new(headings: &[&str], words: usize, lines: impl Iterator<Item = Vec<String>>) -> Self {
        let headings: Vec<_> = headings.iter().map(|heading| (*heading).to_owned()).collect();
        let lines: Vec<_> = lines.collect();
        let is_known: Vec<_> = (0..headings.len()).map(|at| lines.iter().any(|line| line[at] != UNKNOWN)).collect();
        let known = |line: Vec<String>| line.into_iter().zip(&is_known).filter_map(|(text, is)| is.then_some(text));
        Self { lines: iter::once(headings).chain(lines).map(|line| known(line).collect()).collect(), words }
    }

    fn width(&self, column: usize) -> usize {
        // The dashes below a heading need three places at least.
        self.lines.iter().map(|line| line[column].chars().count()).fold(3, usize::max)
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

/// Three digits at least, and thousands apart. A dash for what is not known.
pub(crate) fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return UNKNOWN.to_owned() };
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

const UNKNOWN: &str = "–";
