use std::fmt;
use std::io::Read;

use csv::{Error, ErrorKind, Position, ReaderBuilder, StringRecord, Trim};
use tollgate::algebra::Timestamp;

use crate::arrival::Arrival;

/// Recorded calls in the order of their times, as CSV. They are read as a stream: a call is forgotten when the next one
/// is read.
///
/// The first line names the columns: `time`, which is RFC 3339 or seconds since 1970, and perhaps `key` and `cost`. An
/// item that is an error says what is wrong, and where.
pub fn recorded(input: impl Read) -> impl Iterator<Item = Result<Arrival, TraceFault>> {
    let mut last = Timestamp::MIN;
    recorded_in_any_order(input, None).map(move |call| {
        let (line, call) = call?;
        if call.at < last {
            let what = "its time is before that of the call before it (sort the file by time)";
            return Err(TraceFault { line: Some(line), what: what.to_owned() });
        }
        last = call.at;
        Ok(call)
    })
}

/// Recorded calls as [`recorded`] reads them, each with its line, in whatever order they are. The column that holds the
/// key may have another name; then it must be there.
pub fn recorded_in_any_order<R: Read>(
    input: R,
    key: Option<&str>,
) -> impl Iterator<Item = Result<(u64, Arrival), TraceFault>> + use<R> {
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(input);
    let columns = reader.headers().map_err(|error| unreadable(&error)).and_then(|names| Columns::of(names, key));
    reader.into_records().map(move |record| {
        let (columns, record) = (columns.clone()?, record.map_err(|error| unreadable(&error))?);
        let line = record.position().map_or(0, Position::line);
        let call = columns.call(&record).map_err(|what| TraceFault { line: Some(line), what })?;
        Ok((line, call))
    })
}

/// A fault of a trace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TraceFault {
    /// The line, from 1; none if nothing of the trace can be read.
    pub line: Option<u64>,
    /// The fault.
    pub what: String,
}

impl fmt::Display for TraceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line.map_or(Ok(()), |line| write!(f, "line {line}: "))?;
        f.write_str(&self.what)
    }
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
    fn of(names: &StringRecord, key: Option<&str>) -> Result<Self, TraceFault> {
        let place = |name| names.iter().position(|other| other == name);
        let must = |name| {
            let what = || format!("the first line names no column `{name}`");
            place(name).ok_or_else(|| TraceFault { line: None, what: what() })
        };
        let time = must("time")?;
        Ok(Self { time, key: key.map_or(Ok(place("key")), |name| must(name).map(Some))?, cost: place("cost") })
    }

    fn call(self, record: &StringRecord) -> Result<Arrival, String> {
        let field = |place: Option<usize>| record.get(place?).filter(|text| !text.is_empty());
        Arrival::read(field(Some(self.time)).unwrap_or_default(), field(self.key), field(self.cost))
    }
}

/// The fault of a line, in words of our own: otherwise a browser would load those of `csv` and of all that it reads.
fn unreadable(error: &Error) -> TraceFault {
    let what = match error.kind() {
        ErrorKind::Io(error) => return TraceFault { line: None, what: error.to_string() },
        ErrorKind::UnequalLengths { .. } => "it has not as many fields as the first line",
        ErrorKind::Utf8 { .. } => "it is not UTF-8",
        _ => "it cannot be read",
    };
    TraceFault { line: Some(error.position().map_or(0, Position::line)), what: what.to_owned() }
}
