//! Recorded calls in the forms in which people have them: CSV, JSON lines, and access logs.

mod access;
mod json;

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read, stdin};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;
use tollgate_simulation::{Arrival, TraceFault, recorded_in_any_order};

use crate::error::CommandError;
use crate::output::{counted, printable};

/// Which trace, and how it is read.
#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// Recorded calls, in any order: a file, or `-` for standard input.
    ///
    /// CSV: the first line names the columns. `time` is RFC 3339 or seconds since 1970. Without `key`, all calls are of
    /// one caller. Without `cost`, a call costs one token. JSON lines: each line is an object with these members.
    /// Access logs: that of nginx in the format `combined`, and that of Caddy in JSON. Their key is the client's
    /// address, and all IPv6 addresses of one /64 are one key.
    // `suggest` requires it by a group of its own: `simulate` has other calls, too.
    #[arg(long, value_name = "FILE", required = false)]
    trace: PathBuf,

    /// The format of the trace. Without this option, the command recognizes it by the first line.
    #[arg(long, value_name = "FORMAT", requires = "trace")]
    format: Option<Format>,

    /// The field that holds the key, if it is not the usual one.
    ///
    /// In CSV, name a column. In JSON, name a member, or give a path such as `/request/headers/User-Agent/0`. In an
    /// access log of nginx, choose `remote_addr`, `remote_user`, `http_referer` or `http_user_agent`.
    #[arg(long, value_name = "FIELD", requires = "trace")]
    key: Option<String>,

    /// Skip lines that the command cannot read, and print how many there are. Without this option, the first one ends
    /// the command.
    #[arg(long, requires = "trace")]
    skip_faulty: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    /// A line of column names, then a line for each call.
    Csv,
    /// An object in each line.
    Jsonl,
    /// The access log of nginx in its format `combined`; Apache has the same.
    Nginx,
    /// The access log of Caddy, in JSON.
    Caddy,
}

/// A trace as it was read.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) format: Format,
    pub(crate) calls: Vec<Arrival>,
    /// How many lines were not understood.
    pub(crate) skipped: usize,
}

/// How many lines were skipped; nothing where all were understood.
pub(crate) fn without(skipped: usize) -> String {
    if skipped == 0 { String::new() } else { format!(", {} skipped", counted(skipped, "line")) }
}

impl TraceArgs {
    /// Where it comes from, as people call it.
    pub(crate) fn name(&self) -> String {
        if self.is_input() { "standard input".to_owned() } else { printable(&self.trace.display().to_string()) }
    }

    /// Reads all calls.
    pub(crate) fn read(&self) -> Result<Trace, CommandError> {
        let input = BufReader::new(if self.is_input() { Box::new(stdin().lock()) } else { open(&self.trace)? });
        let (first, input) = first_line(input)?;
        let format = self.format.unwrap_or_else(|| Format::of(&first));
        let mut trace = Trace { format, calls: Vec::new(), skipped: 0 };
        for call in self.calls(format, input)? {
            match call {
                Ok(call) => trace.calls.push(call),
                Err(TraceFault { line: Some(_), .. }) if self.skip_faulty => trace.skipped += 1,
                Err(fault) => return Err(self.fault(&fault)),
            }
        }
        Ok(trace)
    }

    fn is_input(&self) -> bool {
        self.trace == Path::new("-")
    }

    fn calls(
        &self,
        format: Format,
        input: impl BufRead + 'static,
    ) -> Result<Box<dyn Iterator<Item = Result<Arrival, TraceFault>>>, CommandError> {
        let key = self.key.clone();
        Ok(match format {
            Format::Csv => {
                Box::new(recorded_in_any_order(input, key.as_deref()).map(|call| call.map(|(_, call)| call)))
            }
            Format::Jsonl => Box::new(lines(input, move |line| json::call(line, key.as_deref()))),
            Format::Caddy => Box::new(lines(input, move |line| json::caddy(line, key.as_deref()))),
            Format::Nginx => {
                let field = access::Field::of(key.as_deref())?;
                Box::new(lines(input, move |line| access::call(line, field)))
            }
        })
    }

    fn fault(&self, fault: &TraceFault) -> CommandError {
        let what = format!("{}: {}", self.name(), printable(&fault.to_string()));
        match (fault.line, self.format) {
            (None, None) => CommandError::new(what, FORMATS),
            (None, Some(_)) => CommandError::bare(what),
            (Some(_), _) => CommandError::new(what, "to skip such lines: --skip-faulty"),
        }
    }
}

impl Format {
    /// The format of a trace with this first line.
    fn of(line: &str) -> Self {
        let is_log = |entry: &Value| entry.get("request").is_some_and(Value::is_object) && entry.get("ts").is_some();
        match line.trim() {
            object if object.starts_with('{') => {
                if serde_json::from_str(object).is_ok_and(|entry| is_log(&entry)) {
                    Self::Caddy
                } else {
                    Self::Jsonl
                }
            }
            line if access::is_line(line) => Self::Nginx,
            _ => Self::Csv,
        }
    }
}

fn open(path: &Path) -> Result<Box<dyn Read>, CommandError> {
    let file = File::open(path);
    let file = file.map_err(|error| CommandError::bare(format!("could not open {}: {error}", path.display())))?;
    Ok(Box::new(file))
}

/// The first line that is not empty, and all of the input.
fn first_line(mut input: impl BufRead) -> Result<(String, impl BufRead), CommandError> {
    let (mut head, mut start) = (Vec::new(), 0);
    while head[start..].trim_ascii().is_empty() {
        start = head.len();
        if input.read_until(b'\n', &mut head)? == 0 {
            break;
        }
    }
    Ok((String::from_utf8_lossy(&head[start..]).into_owned(), Cursor::new(head).chain(input)))
}

/// The calls of lines that are read one by one; empty ones are none.
fn lines(
    input: impl BufRead,
    read: impl Fn(&str) -> Result<Arrival, String>,
) -> impl Iterator<Item = Result<Arrival, TraceFault>> {
    let lines = (1..).zip(input.split(b'\n'));
    lines.filter_map(move |(number, line)| {
        let fault = |line, what: String| Some(Err(TraceFault { line, what }));
        let line = match line {
            Ok(line) => line,
            Err(error) => return fault(None, error.to_string()),
        };
        let Ok(line) = std::str::from_utf8(line.trim_ascii()) else {
            return fault(Some(number), "it is not UTF-8".to_owned());
        };
        match read(line) {
            _ if line.is_empty() => None,
            Ok(call) => Some(Ok(call)),
            Err(what) => fault(Some(number), what),
        }
    })
}

const FORMATS: &str = "a trace is CSV with a column `time`, JSON lines, or an access log of nginx or Caddy";
