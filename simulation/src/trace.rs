use std::io::Read;

use chrono::DateTime;
use csv::{Error, ErrorKind, Position, ReaderBuilder, StringRecord, Trim};
use tollgate::algebra::Timestamp;
use tollgate::{Key, Tokens};

use super::traffic::{Arrival, cost_of};

/// Recorded calls, as CSV. They are read as a stream: a call is forgotten when the next one is read.
///
/// The first line names the columns: `time`, which is RFC 3339 or seconds since 1970, and perhaps `key` and `cost`. An
/// item that is an error says what is wrong, and where.
pub fn recorded(input: impl Read) -> impl Iterator<Item = Result<Arrival, String>> {
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(input);
    let columns = reader.headers().map_err(|error| unreadable(&error)).and_then(Columns::of);
    let mut last = Timestamp::MIN;
    reader.into_records().map(move |record| {
        let (columns, record) = (columns.clone()?, record.map_err(|error| unreadable(&error))?);
        let line = record.position().map_or(0, Position::line);
        let call = columns.call(&record, last).map_err(|what| format!("line {line}: {what}"))?;
        last = call.at;
        Ok(call)
    })
}

/// Where the fields of a call stand; other columns are ignored.
#[derive(Clone, Copy)]
struct Columns {
    /// RFC 3339, or seconds since the Unix epoch, with at most six decimals.
    time: usize,
    /// Without a key all calls are those of one caller.
    key: Option<usize>,
    /// One token unless given.
    cost: Option<usize>,
}

impl Columns {
    // Field by field: a reader of records by their types is as large as the rest of the code that a browser loads for
    // CSV.
    fn of(names: &StringRecord) -> Result<Self, String> {
        let place = |name| names.iter().position(|other| other == name);
        let time = place("time").ok_or("the first line names no column `time`")?;
        Ok(Self { time, key: place("key"), cost: place("cost") })
    }

    fn call(self, record: &StringRecord, last: Timestamp) -> Result<Arrival, String> {
        let field = |place: Option<usize>| record.get(place?).filter(|text| !text.is_empty());
        let time = field(Some(self.time)).unwrap_or_default();
        let at = instant(time).ok_or_else(|| {
            let time: String = time.chars().take(40).collect();
            format!("{time:?} is no time (use RFC 3339, as in 2025-01-01T00:00:00Z, or seconds since 1970)")
        })?;
        if at < last {
            return Err("its time is before that of the call before it (sort the file by time)".to_owned());
        }
        let key = field(self.key).map_or(Ok(Key::GLOBAL), Key::new).map_err(|error| format!("the key: {error}"))?;
        let cost = field(self.cost).map_or(Ok(Tokens::ONE), cost_of);
        Ok(Arrival { at, key, cost: cost.map_err(|error| format!("the cost: {error}"))? })
    }
}

/// The fault of a line, in words of our own: otherwise a browser would load those of `csv` and of all that it reads.
fn unreadable(error: &Error) -> String {
    let what = match error.kind() {
        ErrorKind::Io(error) => return error.to_string(),
        ErrorKind::UnequalLengths { .. } => "it has not as many fields as the first line",
        ErrorKind::Utf8 { .. } => "it is not UTF-8",
        _ => "it cannot be read",
    };
    format!("line {}: {what}", error.position().map_or(0, Position::line))
}

fn instant(text: &str) -> Option<Timestamp> {
    if let Ok(instant) = DateTime::parse_from_rfc3339(text) {
        return Some(instant.to_utc().into());
    }
    // Seconds are as exact as tokens are.
    let since: Tokens = text.parse().ok()?;
    (0..LAST_SECOND * 1_000_000).contains(&since.micros()).then(|| Timestamp::from_micros(since.micros()))
}

/// The first second of the year 10000, where RFC 3339 ends as well.
const LAST_SECOND: i64 = 253_402_300_800;
