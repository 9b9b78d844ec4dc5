use std::io::Read;

use chrono::DateTime;
use csv::{ReaderBuilder, Trim};
use serde::Deserialize;
use tollgate::algebra::Timestamp;
use tollgate::{Key, Tokens};

use super::traffic::{Arrival, cost_of};

/// Recorded calls, as CSV. They are read as a stream: a call is forgotten when the next one is read.
///
/// The first line names the columns: `time`, which is RFC 3339 or seconds since 1970, and perhaps `key` and `cost`. An
/// item that is an error says what is wrong, and where.
pub fn recorded(input: impl Read) -> impl Iterator<Item = Result<Arrival, String>> {
    let mut records = ReaderBuilder::new().trim(Trim::All).from_reader(input).into_deserialize();
    let mut last = Timestamp::MIN;
    std::iter::from_fn(move || {
        let line = records.reader().position().line();
        Some(records.next()?.map_err(|error| error.to_string()).and_then(|record: Record| {
            let call = record.call(last).map_err(|what| format!("line {line}: {what}"))?;
            last = call.at;
            Ok(call)
        }))
    })
}

/// A line of the file, whose first line names the columns, in any order; other columns are ignored.
#[derive(Deserialize)]
struct Record {
    /// RFC 3339, or seconds since the Unix epoch, with at most six decimals.
    time: String,
    /// Without a key all calls are those of one caller.
    key: Option<String>,
    /// One token unless given.
    cost: Option<String>,
}

impl Record {
    fn call(&self, last: Timestamp) -> Result<Arrival, String> {
        let at = instant(&self.time).ok_or_else(|| {
            let time: String = self.time.chars().take(40).collect();
            format!("{time:?} is no time (use RFC 3339, as in 2025-01-01T00:00:00Z, or seconds since 1970)")
        })?;
        if at < last {
            return Err("its time is before that of the call before it (sort the file by time)".to_owned());
        }
        let key = self.key.as_deref().map_or(Ok(Key::GLOBAL), Key::new).map_err(|error| format!("the key: {error}"))?;
        let cost = self.cost.as_deref().map_or(Ok(Tokens::ONE), cost_of);
        Ok(Arrival { at, key, cost: cost.map_err(|error| format!("the cost: {error}"))? })
    }
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
