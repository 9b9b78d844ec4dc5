//! How the command prints: for people, with colours where they look at a terminal, or as JSON.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use tollgate::Key;

use crate::error::CommandError;
use crate::exit::Exit;

/// For every command that prints an answer.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Print one JSON document instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Standard output, which drops colours where it is no terminal (and heeds `NO_COLOR`).
pub(crate) fn out() -> AutoStream<std::io::StdoutLock<'static>> {
    anstream::stdout().lock()
}

/// Prints one document.
pub(crate) fn json(document: &impl Serialize) -> Result<(), CommandError> {
    let mut out = out();
    serde_json::to_writer_pretty(&mut out, document).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

/// The exit of a command whose answer was printed. That nobody read it does not change the answer.
pub(crate) fn answered(printed: Result<(), CommandError>, exit: Exit) -> Result<Exit, CommandError> {
    match printed {
        Ok(()) | Err(CommandError::OutputClosed) => Ok(exit),
        Err(error) => Err(error),
    }
}

/// A text in a style.
pub(crate) fn styled(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// A key as people can read it: whoever chose it must not steer the terminal.
pub(crate) fn shown(key: &Key) -> String {
    if key.is_global() { "(all callers)".to_owned() } else { printable(key.as_str()) }
}

/// The same for any text from a table.
pub(crate) fn printable(text: &str) -> String {
    let plain = |character: char| {
        if character.is_control() { character.escape_unicode().to_string() } else { character.into() }
    };
    text.chars().map(plain).collect()
}

/// A number of things, as "1 row" and "2 rows".
pub(crate) fn counted(number: impl TryInto<u64>, thing: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// A span as people read it: to the millisecond below a minute, else to the second, rounded up.
pub(crate) fn span(span: Duration) -> String {
    let unit = if span < Duration::from_mins(1) { Duration::from_millis(1) } else { Duration::from_secs(1) };
    let units = u64::try_from(span.as_nanos().div_ceil(unit.as_nanos())).unwrap_or(u64::MAX);
    let rounded = u32::try_from(unit.as_millis())
        .map_or(span, |millis| Duration::from_millis(units.saturating_mul(millis.into())));
    humantime::format_duration(rounded).to_string()
}

/// An instant, exactly.
pub(crate) fn instant(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(SecondsFormat::Micros, true)
}

pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const CAUTION: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const FAINT: Style = Style::new().dimmed();
pub(crate) const HEADING: Style = Style::new().bold().underline();
