//! How the command prints: as text for people, with colours where they look at a terminal, or as JSON.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use tollgate::{Key, Tokens};

use crate::error::CommandError;

/// For every command that prints an answer.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Print one JSON document instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl OutputArgs {
    /// Prints the document, or the text that says the same.
    pub(crate) fn print(self, document: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), CommandError> {
        if self.json { print(&json(document)?) } else { print(&text()) }
    }
}

/// Prints lines on standard output, without colours where it is no terminal (and `NO_COLOR` is heeded). A reader who
/// left early has all they want: that is no error.
pub(crate) fn print(text: &str) -> Result<(), CommandError> {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let mut out = anstream::stdout().lock();
    match write!(out, "{text}{end}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(io::Error::new(error.kind(), format!("could not write the output: {error}")).into())
        }
        _ => Ok(()),
    }
}

/// Prints a message on standard error. Nobody has to read it: the exit status counts.
pub(crate) fn tell(text: impl fmt::Display) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// A text in a style.
pub(crate) fn styled(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// A key as people can read it, and type it in a shell.
pub(crate) fn shown(key: &Key) -> String {
    if key.is_global() { "(all callers)".to_owned() } else { word(key.as_str()) }
}

/// A text that a stranger chose, with everything escaped that could steer the terminal or mislead the reader.
pub(crate) fn printable(text: &str) -> String {
    let escaped = |c: char| if is_hidden(c) { c.escape_unicode().to_string() } else { c.into() };
    text.chars().map(escaped).collect()
}

/// A text that a stranger chose, as one word of a command in a shell.
pub(crate) fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_./:@%+,=-".contains(c);
    if text.chars().any(is_hidden) {
        let escaped = |c: char| match c {
            '\'' | '\\' => format!("\\{c}"),
            c if is_hidden(c) => format!("\\U{:08x}", u32::from(c)),
            c => c.into(),
        };
        format!("$'{}'", text.chars().map(escaped).collect::<String>())
    } else if text.starts_with(char::is_alphanumeric) && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// A document, in whose strings everything is escaped that [`printable`] escapes.
fn json(document: &impl Serialize) -> Result<String, serde_json::Error> {
    let escaped = |c: char| match c {
        '\n' => c.to_string(),
        c if is_hidden(c) => {
            c.encode_utf16(&mut [0; 2]).iter().fold(String::new(), |units, unit| format!("{units}\\u{unit:04x}"))
        }
        c => c.into(),
    };
    Ok(serde_json::to_string_pretty(document)?.chars().map(escaped).collect())
}

/// Whether a character has no glyph of its own: control and format characters (bidirectional overrides are among
/// these), unassigned ones, and spaces other than the usual one. The standard library's table for `Debug` knows them.
fn is_hidden(c: char) -> bool {
    // `Debug` also escapes quotes, and an accent that has no letter before it.
    !matches!(c, '"' | '\'' | '\\') && format!("a{c}").escape_debug().count() > 2
}

/// A number of things, as "1 row" and "2 rows".
pub(crate) fn counted(number: impl fmt::Display, thing: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Lines of cells as lines of columns. The first column is aligned to the left, the others to the right.
pub(crate) fn columns(lines: &[Vec<String>]) -> Vec<String> {
    let mut widths = Vec::new();
    for line in lines {
        widths.resize(widths.len().max(line.len()), 0);
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let aligned = |(column, (cell, &width)): (usize, (&String, &usize))| match column {
        0 => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    };
    let line = |line: &Vec<String>| line.iter().zip(&widths).enumerate().map(aligned).collect::<Vec<_>>().join("  ");
    lines.iter().map(line).collect()
}

/// A span in its two largest units, rounded up: a caller that waits so long has waited long enough.
pub(crate) fn span(span: Duration) -> String {
    let unit = match span.as_secs() {
        ..60 => Duration::from_millis(1),
        60..3_600 => Duration::from_secs(1),
        3_600..86_400 => Duration::from_mins(1),
        _ => Duration::from_hours(1),
    };
    let units = span.as_nanos().div_ceil(unit.as_nanos());
    let millis = u64::try_from(units * unit.as_millis()).unwrap_or(u64::MAX);
    let words = humantime::format_duration(Duration::from_millis(millis)).to_string();
    words.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// About how many tokens: for shares, orders and pictures, which are not read to the millionth.
#[expect(clippy::cast_precision_loss, reason = "it is only about as many")]
pub(crate) fn about(tokens: Tokens) -> f64 {
    tokens.micros() as f64 / 1e6
}

/// An instant, exactly.
pub(crate) fn instant(instant: impl Into<DateTime<Utc>>) -> String {
    instant.into().to_rfc3339_opts(SecondsFormat::Micros, true)
}

pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const CAUTION: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const FAINT: Style = Style::new().dimmed();
pub(crate) const HEADING: Style = Style::new().bold().underline();
