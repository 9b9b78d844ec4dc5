use std::io::{self, BufRead, BufReader, Read};

use chrono::DateTime;
use serde::Deserialize;
use serde_json::Value;

use super::fields::Splitter;
use super::traffic::Arrival;
use crate::algebra::Timestamp;
use crate::key::{Key, KeyError};
use crate::tokens::{Tokens, TokensError};

/// Recorded calls, read as a stream: a line is forgotten when the next one is read.
///
/// Each line is one call: its time, and if there are, a key and a cost, else all calls are those of one caller and cost one
/// token. A time is RFC 3339 or a number of seconds since the Unix epoch, whose decimals beyond the sixth are dropped. Lines
/// are in the order of their times.
///
/// - **CSV**: columns time, key and cost in this order, or in any order under a header that names them; other columns of a
///   header are ignored.
/// - **NDJSON**: one object on each line, with the fields `time`, `key` and `cost`; others are ignored.
///
/// # Example
///
/// ```
/// use tollgate::simulate::{Rule, Simulation, Trace};
/// use tollgate::{Limit, MINUTE};
///
/// let recorded = "time,key,cost\n2025-01-01T00:00:00Z,ada,1\n2025-01-01T00:00:00.5Z,ada,0.5\n";
/// let mut run = Simulation::new([Rule::each(Limit::token_bucket("api", 1, MINUTE))]).start();
/// for call in Trace::csv(recorded.as_bytes()) {
///     run.call(&call?)?;
/// }
/// let outcome = run.finish()?;
/// assert_eq!((outcome.granted, outcome.refused), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Trace<R> {
    /// `None` after the end, and after a fault.
    reader: Option<BufReader<R>>,
    format: Format,
    line: Vec<u8>,
    number: u64,
    last: Timestamp,
}

impl<R: Read> Trace<R> {
    /// The longest line, in bytes.
    pub const MAX_LINE_BYTES: usize = 64 << 10;

    /// Calls as comma-separated values.
    pub fn csv(reader: R) -> Self {
        Self::new(reader, Format::Csv(Box::new(Splitter::new()), None))
    }

    /// Calls as JSON objects, one on each line.
    pub fn ndjson(reader: R) -> Self {
        Self::new(reader, Format::Ndjson)
    }

    fn new(reader: R, format: Format) -> Self {
        let reader = Some(BufReader::new(reader));
        Self { reader, format, line: Vec::new(), number: 0, last: Timestamp::MIN }
    }

    /// The next call; `None` at the end.
    fn read(&mut self) -> Result<Option<Arrival>, TraceFault> {
        while self.next_line()? {
            let line = str::from_utf8(&self.line).map_err(|_| TraceFault::NotUtf8)?;
            // Tables that were saved as text begin with a byte order mark.
            let line = if self.number == 1 { line.trim_start_matches('\u{feff}') } else { line }.trim();
            if line.is_empty() {
                continue;
            }
            let Some(call) = self.format.call(line)? else { continue };
            if call.at < self.last {
                return Err(TraceFault::BackInTime);
            }
            self.last = call.at;
            return Ok(Some(call));
        }
        Ok(None)
    }

    /// Whether there is another line.
    fn next_line(&mut self) -> Result<bool, TraceFault> {
        let Some(reader) = &mut self.reader else { return Ok(false) };
        self.line.clear();
        self.number += 1;
        // What has no end must not fill the memory.
        let most = Self::MAX_LINE_BYTES + 1;
        match reader.take(most as u64).read_until(b'\n', &mut self.line)? {
            0 => Ok(false),
            read if read == most => Err(TraceFault::LineTooLong),
            _ => Ok(true),
        }
    }
}

impl<R: Read> Iterator for Trace<R> {
    type Item = Result<Arrival, TraceError>;

    /// The next call. After an error there is none.
    fn next(&mut self) -> Option<Self::Item> {
        let call = self.read().map_err(|fault| TraceError { line: self.number, fault });
        if !matches!(call, Ok(Some(_))) {
            self.reader = None;
        }
        call.transpose()
    }
}

/// What lines are written in.
#[derive(Debug)]
enum Format {
    /// With its columns, as soon as the first line has told them. In a box, for the parser is large.
    Csv(Box<Splitter>, Option<Columns>),
    Ndjson,
}

impl Format {
    /// The call on a line; `None` for a header.
    fn call(&mut self, line: &str) -> Result<Option<Arrival>, TraceFault> {
        let Self::Csv(splitter, columns) = self else { return object(line).map(Some) };
        let fields = splitter.split(line);
        if let Some(columns) = columns {
            return columns.call(&fields).map(Some);
        }
        let (found, is_header) = Columns::of(&fields)?;
        *columns = Some(found);
        if is_header { Ok(None) } else { found.call(&fields).map(Some) }
    }
}

/// Where a record of comma-separated values holds what.
#[derive(Clone, Copy, Debug)]
struct Columns {
    time: usize,
    key: Option<usize>,
    cost: Option<usize>,
    /// How many there may be; a header may name columns that are no business of ours.
    most: usize,
}

impl Columns {
    /// From the first record, and whether that is a header.
    fn of(first: &[&str]) -> Result<(Self, bool), TraceFault> {
        let place = |name: &str| first.iter().position(|field| field.eq_ignore_ascii_case(name));
        if let Some(time) = place("time") {
            return Ok((Self { time, key: place("key"), cost: place("cost"), most: usize::MAX }, true));
        }
        // A header without a time would be taken for a call whose time is no time, and nobody would see why.
        if place("key").is_some() || place("cost").is_some() {
            return Err(TraceFault::NoTime);
        }
        Ok((Self { time: 0, key: Some(1), cost: Some(2), most: 3 }, false))
    }

    fn call(&self, fields: &[&str]) -> Result<Arrival, TraceFault> {
        if fields.len() > self.most {
            return Err(TraceFault::TooManyFields { fields: fields.len() });
        }
        let field = |place: Option<usize>| fields.get(place?).copied().filter(|field| !field.is_empty());
        let time = field(Some(self.time)).ok_or(TraceFault::NoTime)?;
        arrival(time, field(self.key), field(self.cost).map(str::parse).transpose()?)
    }
}

/// A line of NDJSON. Times and keys may be numbers or texts.
fn object(line: &str) -> Result<Arrival, TraceFault> {
    #[derive(Deserialize)]
    struct Line {
        time: Option<Value>,
        key: Option<Value>,
        cost: Option<Tokens>,
    }

    let Line { time, key, cost } = serde_json::from_str(line)?;
    let [time, key] = [time, key].map(|value| {
        value.map(|value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        })
    });
    arrival(&time.ok_or(TraceFault::NoTime)?, key.as_deref().filter(|key| !key.is_empty()), cost)
}

fn arrival(time: &str, key: Option<&str>, cost: Option<Tokens>) -> Result<Arrival, TraceFault> {
    let cost = cost.unwrap_or(Tokens::ONE);
    if cost.is_negative() {
        return Err(TokensError::Negative.into());
    }
    let key = key.map_or(Ok(Key::GLOBAL), Key::new)?;
    let at = instant(time).ok_or_else(|| TraceFault::Time { text: time.chars().take(40).collect() })?;
    Ok(Arrival { at, key, cost })
}

/// RFC 3339, or seconds since the Unix epoch.
fn instant(text: &str) -> Option<Timestamp> {
    if let Ok(instant) = DateTime::parse_from_rfc3339(text) {
        return Some(instant.to_utc().into());
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let micros: i64 = format!("{fraction:0<6}")[..6].parse().ok()?;
    let seconds: i64 = whole.parse().ok().filter(|seconds| *seconds < LAST_SECOND)?;
    Some(Timestamp::from_micros(seconds * 1_000_000 + micros))
}

/// A recorded call that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {fault}")]
#[non_exhaustive]
pub struct TraceError {
    /// The line, counted from one.
    pub line: u64,
    /// What is wrong with it.
    pub fault: TraceFault,
}

/// What can be wrong with a recorded call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceFault {
    /// Its time is before that of the line before it.
    #[error("its time is before that of the line before it (sort the lines by time)")]
    BackInTime,
    /// The cost is no amount of tokens.
    #[error("the cost: {0}")]
    Cost(#[from] TokensError),
    /// The line is no JSON object with such fields.
    #[error("{} (a line is an object as in {EXAMPLE})", without_line(.0))]
    Json(#[from] serde_json::Error),
    /// The key cannot name anybody.
    #[error("the key: {0}")]
    Key(#[from] KeyError),
    /// The line is longer than [`Trace::MAX_LINE_BYTES`].
    #[error("it is longer than 64 KiB")]
    LineTooLong,
    /// There is no time.
    #[error("there is no time (columns are time, key, cost, or as a header names them)")]
    NoTime,
    /// The line is no text.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// The source could not be read.
    #[error("could not read it: {0}")]
    Read(#[from] io::Error),
    /// The time is no instant.
    #[error("{text:?} is no time (use RFC 3339, as in 2025-01-01T00:00:00Z, or seconds since 1970)")]
    Time {
        /// What stands there instead, its beginning at least.
        text: String,
    },
    /// More fields than a call has, and no header that says which are meant.
    #[error("it has {fields} fields (without a header there are three: time, key, cost)")]
    TooManyFields {
        /// How many.
        fields: usize,
    },
}

/// What JSON finds fault with, less the number of the line, which to it is always the first.
fn without_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

const EXAMPLE: &str = r#"{"time": "2025-01-01T00:00:00Z", "key": "ada", "cost": 1}"#;
/// The first second of the year 10000, where RFC 3339 ends as well.
const LAST_SECOND: i64 = 253_402_300_800;
