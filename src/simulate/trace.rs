use std::io::{self, BufRead, BufReader, Read};

use chrono::DateTime;
use serde::Deserialize;
use serde_json::Value;

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
    lines: Option<Lines<R>>,
    last: Timestamp,
}

impl<R: Read> Trace<R> {
    /// The longest line, in bytes.
    pub const MAX_LINE_BYTES: usize = MAX_LINE_BYTES;

    /// Calls as comma-separated values.
    pub fn csv(reader: R) -> Self {
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(csv::Trim::All)
            .from_reader(Narrow { inner: reader, line: 0 });
        Self {
            lines: Some(Lines::Csv { reader, record: csv::StringRecord::new(), columns: None }),
            last: Timestamp::MIN,
        }
    }

    /// Calls as JSON objects, one on each line.
    pub fn ndjson(reader: R) -> Self {
        let reader = BufReader::new(Narrow { inner: reader, line: 0 });
        Self { lines: Some(Lines::Ndjson { reader, line: Vec::new(), number: 0 }), last: Timestamp::MIN }
    }

    fn read(&mut self) -> Option<Result<Arrival, TraceError>> {
        let lines = self.lines.as_mut()?;
        let (line, call) = lines.next()?;
        let call = call.and_then(|call| if call.at < self.last { Err(TraceFault::BackInTime) } else { Ok(call) });
        Some(call.inspect(|call| self.last = call.at).map_err(|fault| TraceError { line, fault }))
    }
}

impl<R: Read> Iterator for Trace<R> {
    type Item = Result<Arrival, TraceError>;

    /// The next call. After an error there is none.
    fn next(&mut self) -> Option<Self::Item> {
        let call = self.read();
        if !matches!(call, Some(Ok(_))) {
            self.lines = None;
        }
        call
    }
}

/// Where the lines come from.
#[derive(Debug)]
enum Lines<R> {
    Csv { reader: csv::Reader<Narrow<R>>, record: csv::StringRecord, columns: Option<Columns> },
    Ndjson { reader: BufReader<Narrow<R>>, line: Vec<u8>, number: u64 },
}

impl<R: Read> Lines<R> {
    /// The next call and the line that it is on, if there is one.
    fn next(&mut self) -> Option<(u64, Result<Arrival, TraceFault>)> {
        match self {
            Self::Csv { reader, record, columns } => loop {
                let read = reader.read_record(record);
                let line = record.position().map_or_else(|| reader.position().line(), csv::Position::line);
                match read {
                    Ok(false) => return None,
                    Err(error) => return Some((line, Err(error.into()))),
                    Ok(true) => {}
                }
                match columns {
                    Some(columns) => return Some((line, columns.call(record))),
                    None => match Columns::of(record) {
                        Ok((found, is_header)) => {
                            let columns = columns.insert(found);
                            if !is_header {
                                return Some((line, columns.call(record)));
                            }
                        }
                        Err(fault) => return Some((line, Err(fault))),
                    },
                }
            },
            Self::Ndjson { reader, line, number } => loop {
                line.clear();
                *number += 1;
                match reader.read_until(b'\n', line) {
                    Ok(0) => return None,
                    Err(error) => return Some((*number, Err(TraceFault::Read(error)))),
                    Ok(_) if line.trim_ascii().is_empty() => {}
                    Ok(_) => return Some((*number, object(line))),
                }
            },
        }
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
    fn of(first: &csv::StringRecord) -> Result<(Self, bool), TraceFault> {
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

    fn call(&self, record: &csv::StringRecord) -> Result<Arrival, TraceFault> {
        if record.len() > self.most {
            return Err(TraceFault::TooManyFields { fields: record.len() });
        }
        let field = |place: Option<usize>| place.and_then(|place| record.get(place)).filter(|field| !field.is_empty());
        let time = field(Some(self.time)).ok_or(TraceFault::NoTime)?;
        arrival(time, field(self.key), field(self.cost).map(str::parse).transpose()?)
    }
}

/// A line of NDJSON. Times and keys may be numbers or texts.
fn object(line: &[u8]) -> Result<Arrival, TraceFault> {
    #[derive(Deserialize)]
    struct Line {
        time: Option<Value>,
        key: Option<Value>,
        cost: Option<Tokens>,
    }

    let Line { time, key, cost } = serde_json::from_slice(line)?;
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

/// A reader that fails where a line does not end, before it fills the memory.
#[derive(Debug)]
struct Narrow<R> {
    inner: R,
    /// The length of the line that is being read.
    line: usize,
}

impl<R: Read> Read for Narrow<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        for part in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            self.line += part.len();
            if self.line > MAX_LINE_BYTES {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is longer than 64 KiB"));
            }
            if part.ends_with(b"\n") {
                self.line = 0;
            }
        }
        Ok(read)
    }
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
    /// There is no time.
    #[error("there is no time (columns are time, key, cost, or as a header names them)")]
    NoTime,
    /// The source could not be read, or a line is too long.
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
    /// The line is no comma-separated values.
    #[error("{0}")]
    Values(csv::Error),
}

impl From<csv::Error> for TraceFault {
    fn from(error: csv::Error) -> Self {
        if !error.is_io_error() {
            return Self::Values(error);
        }
        match error.into_kind() {
            csv::ErrorKind::Io(error) => Self::Read(error),
            other => Self::Read(io::Error::other(format!("{other:?}"))),
        }
    }
}

/// What JSON finds fault with, less the number of the line, which to it is always the first.
fn without_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

const EXAMPLE: &str = r#"{"time": "2025-01-01T00:00:00Z", "key": "ada", "cost": 1}"#;
const MAX_LINE_BYTES: usize = 64 << 10;
/// The first second of the year 10000, where RFC 3339 ends as well.
const LAST_SECOND: i64 = 253_402_300_800;
