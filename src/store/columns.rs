use crate::algebra::{Flow, Timestamp};
use crate::plan::{Need, RowId, RowWrite};

/// Rows as the arrays that statements bind.
pub(super) struct Columns<'r> {
    pub(super) names: Vec<&'r str>,
    pub(super) keys: Vec<&'r str>,
    pub(super) shards: Vec<i16>,
}

impl<'r> Columns<'r> {
    pub(super) fn of(rows: impl IntoIterator<Item = &'r RowId>) -> Self {
        let columns = rows.into_iter().map(|row| (row.name(), row.key().as_str(), shard(row)));
        let (names, keys, shards) = columns.collect();
        Self { names, keys, shards }
    }
}

/// The new values of rows, as the arrays that statements bind.
pub(super) struct Values {
    pub(super) amounts: Vec<i64>,
    pub(super) instants: Vec<Timestamp>,
    pub(super) full_at: Vec<Timestamp>,
    pub(super) lists: Slices,
}

/// The lists of several rows in one array, because PostgreSQL has no array of arrays of different lengths.
#[derive(Default)]
pub(super) struct Slices {
    pub(super) numbers: Vec<i64>,
    /// Where the numbers of each row begin and end, counted from 1; `None` for null. An empty list ends before it
    /// begins.
    pub(super) firsts: Vec<Option<i32>>,
    pub(super) lasts: Vec<Option<i32>>,
}

impl Values {
    pub(super) fn of<'c>(changes: impl Iterator<Item = &'c RowWrite> + Clone) -> Self {
        Self {
            amounts: changes.clone().map(|change| change.state.value.micros()).collect(),
            instants: changes.clone().map(|change| change.state.ts).collect(),
            full_at: changes.clone().map(|change| change.state.full_at).collect(),
            lists: Slices::of(changes),
        }
    }
}

impl Slices {
    fn of<'c>(changes: impl Iterator<Item = &'c RowWrite>) -> Self {
        let mut slices = Self::default();
        let count = |numbers: &[i64]| i32::try_from(numbers.len()).expect("a statement has room for less");
        for change in changes {
            let list = change.state.list.to_column();
            slices.firsts.push(list.is_some().then(|| count(&slices.numbers) + 1));
            slices.numbers.extend(list.iter().flatten());
            slices.lasts.push(list.is_some().then(|| count(&slices.numbers)));
        }
        slices
    }
}

/// The numbers with which a statement sees, without a lock and in floats, that a row is evidently short of a balance.
///
/// It is only a hint: it decides whether a row is locked, never whether a call is granted.
#[derive(Default)]
pub(super) struct Hint {
    /// The balance in micro-tokens, counted from a full row; `None` for no hint.
    pub(super) value: Option<i64>,
    /// Micro-tokens per period.
    pub(super) rate: f64,
    /// In seconds.
    pub(super) period: f64,
    pub(super) stepped: bool,
    /// In seconds since the Unix epoch; `None` if steps are counted from the row itself.
    pub(super) phase: Option<f64>,
}

impl Hint {
    pub(super) fn of(need: Option<&Need>) -> Self {
        let Some(Need { balance, terms }) = need else {
            // The statement divides by the period, even without a balance to compare with.
            return Self { period: 1.0, ..Self::default() };
        };
        let stepped = matches!(terms.flow, Flow::FirstUse | Flow::Grid { .. });
        let is_even = terms.flow == Flow::Continuous;
        Self {
            value: Some(balance.micros().saturating_sub(terms.top())),
            // Of any other kind nothing comes before the end that its row lists.
            rate: if is_even || stepped { float(terms.rate) } else { 0.0 },
            // A wallet has no period, so any number will do.
            period: seconds(terms.period.max(1)),
            stepped,
            phase: if let Flow::Grid { phase } = terms.flow { Some(seconds(phase)) } else { None },
        }
    }
}

/// A part as its column holds it.
pub(super) fn part(row: &RowId) -> i16 {
    part_number(row.part)
}

pub(super) fn part_number(part: u16) -> i16 {
    i16::try_from(part).expect("parts are numbered up to 32767")
}

/// A shard as its column holds it.
pub(super) fn shard(row: &RowId) -> i16 {
    i16::try_from(row.shard()).expect("a limit has at most 64 shards")
}

fn seconds(micros: i64) -> f64 {
    float(micros) / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "a hint")]
fn float(number: i64) -> f64 {
    number as f64
}
