//! Rows as the columns of statements, and the encoding of their values.
//!
//! An instant is the `int8` that PostgreSQL itself sends for a `timestamptz`, microseconds since the year 2000. No
//! instant goes through chrono or SQL arithmetic; `to_timestamp(µs / 1e6)` is wrong in 3 % of cases. So every instant
//! stays exact and needs no conversion, and an infinite one is an error and no panic. This also keeps the inferred
//! types of our statements independent of the features that other crates switch on in sqlx.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

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

impl Type<Postgres> for Timestamp {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }
}

impl PgHasArrayType for Timestamp {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ_ARRAY)
    }
}

impl Encode<'_, Postgres> for Timestamp {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<Postgres>>::encode(self.micros() - EPOCH_2000, buffer)
    }
}

impl Decode<'_, Postgres> for Timestamp {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        ReadInstant::decode(value)?.instant().map_err(|fault| Corrupt { fault, place: 0 }.into())
    }
}

/// An instant in a row, which may be infinite. It is checked later, so that the error can name the corrupt row among
/// many.
#[derive(Clone, Copy)]
pub(super) struct ReadInstant(i64);

impl ReadInstant {
    pub(super) fn instant(self) -> Result<Timestamp, &'static str> {
        if matches!(self.0, i64::MIN | i64::MAX) { Err("its instant is infinite") } else { Ok(self.nearest()) }
    }

    /// An instant that only PostgreSQL can hold (after the year 262142, or infinity) is cut to the last instant.
    pub(super) fn nearest(self) -> Timestamp {
        Timestamp::from_micros(self.0.saturating_add(EPOCH_2000))
    }
}

impl Type<Postgres> for ReadInstant {
    fn type_info() -> PgTypeInfo {
        Timestamp::type_info()
    }
}

impl PgHasArrayType for ReadInstant {
    fn array_type_info() -> PgTypeInfo {
        Timestamp::array_type_info()
    }
}

impl Decode<'_, Postgres> for ReadInstant {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        if value.format() == PgValueFormat::Text {
            return Err("an instant was sent as text".into());
        }
        <i64 as Decode<Postgres>>::decode(value).map(Self)
    }
}

/// A value that the limiter never writes, and the place of its row among those that a statement asked for.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub(super) struct Corrupt {
    pub(super) fault: &'static str,
    pub(super) place: usize,
}

/// Microseconds from the Unix epoch to PostgreSQL's, the start of 2000.
const EPOCH_2000: i64 = 946_684_800_000_000;

/// From PostgreSQL's catalogue, where they never change.
const TIMESTAMPTZ: Oid = Oid(1184);
const TIMESTAMPTZ_ARRAY: Oid = Oid(1185);
