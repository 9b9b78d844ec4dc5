//! Rows as the columns of statements: how they are bound, found and encoded.
//!
//! An instant is the `int8` that PostgreSQL itself sends for a `timestamptz`, microseconds since the year 2000. No
//! instant goes through chrono or SQL arithmetic; `to_timestamp(µs / 1e6)` is wrong in 3 % of cases. So every instant
//! stays exact and needs no conversion, and an infinite one is an error and no panic. This also keeps the inferred
//! types of our statements independent of the features that other crates switch on in sqlx.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, FromRow, Postgres, Row as _, Type};

use crate::algebra::{List, State, Timestamp};
use crate::plan::{Need, RowId, RowWrite};
use crate::tokens::Tokens;

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
        let steps = terms.flow.steps();
        Self {
            value: Some(balance.micros().saturating_sub(terms.top())),
            rate: steps.map_or(0.0, |_| float(terms.rate)),
            // A wallet has no period, so any number will do.
            period: seconds(terms.period.max(1)),
            stepped: steps.is_some_and(|(stepped, _)| stepped),
            phase: steps.and_then(|(_, phase)| phase).map(seconds),
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

/// The rows of a plan, as a statement found them.
#[derive(Debug)]
pub(crate) struct Found {
    /// The clock: after the last lock, or after the snapshot of a read without one.
    pub(crate) now: Timestamp,
    /// The transaction that holds the locks; `None` where nothing is locked.
    pub(crate) xid: Option<i64>,
    /// Whether every row that is there is locked.
    pub(crate) locked: bool,
    /// The state of each row, `None` where it is missing.
    pub(crate) states: Vec<Option<State>>,
    /// The places of the rows that were missing and are inserted. Until they are written they count as missing.
    pub(crate) inserted: Vec<usize>,
    /// When the transaction of a reading without a lock began; `None` if it may be one that somebody left open.
    pub(crate) began: Option<Timestamp>,
    /// The version of each row that was read without a lock.
    pub(super) versions: Vec<Option<Version>>,
}

/// The place of a version of a row, and its writer: the transaction that wrote it, and the file in which it lies. As
/// PostgreSQL writes `ctid`, `xmin` and a file's number.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) tid: String,
    pub(super) writer: String,
}

impl Found {
    /// An empty result, to append to.
    pub(super) fn none() -> Self {
        Self {
            now: Timestamp::MIN,
            xid: None,
            locked: true,
            states: Vec::new(),
            inserted: Vec::new(),
            began: None,
            versions: Vec::new(),
        }
    }

    /// Adds the rows that were found in the next table or part. The latest clock counts for all.
    pub(super) fn append(&mut self, later: Self) {
        self.now = self.now.max(later.now);
        self.xid = later.xid.or(self.xid);
        self.began = later.began;
        self.locked &= later.locked;
        let before = self.states.len();
        self.inserted.extend(later.inserted.into_iter().map(|place| before + place));
        self.states.extend(later.states);
        self.versions.extend(later.versions);
    }

    /// Reads the result of a statement that locks one row, or finds none.
    pub(super) fn at_most_one(rows: &[PgRow]) -> Result<Option<Self>, sqlx::Error> {
        let Some(row) = rows.first() else { return Ok(None) };
        let (now, xid, locked, value, ts, full_at, list) = FromRow::from_row(row)?;
        let states = vec![state(value, ts, full_at, list).map_err(corrupt(0))?];
        Ok(Some(Self { now, xid, locked, states, ..Self::none() }))
    }

    /// Reads the result of `lock` for so many rows: arrays that count the rows from 1.
    pub(super) fn locked(rows: &[PgRow], asked: usize) -> Result<Self, sqlx::Error> {
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let mut found = Self { now: row.try_get(0)?, xid: row.try_get(1)?, states: vec![None; asked], ..Self::none() };
        let numbers: Option<Vec<i32>> = row.try_get(2)?;
        let (values, instants): (Option<Vec<i64>>, Option<Vec<ReadInstant>>) = (row.try_get(3)?, row.try_get(4)?);
        let (full_at, lists): (Option<Vec<ReadInstant>>, Option<Vec<Option<String>>>) =
            (row.try_get(5)?, row.try_get(6)?);
        let instants = instants.into_iter().flatten().zip(full_at.into_iter().flatten());
        let states = values.into_iter().flatten().zip(instants).zip(lists.into_iter().flatten());
        for (number, ((value, (ts, full_at)), list)) in numbers.into_iter().flatten().zip(states) {
            let place = index(number)?;
            found.states[place] = state(Some(value), Some(ts), Some(full_at), list).map_err(corrupt(place))?;
        }
        Ok(found)
    }

    /// Reads the result of `claim`: that of `lock`, and the numbers of the rows that it inserted.
    pub(super) fn claimed(rows: &[PgRow], asked: usize) -> Result<Self, sqlx::Error> {
        let found = Self::locked(rows, asked)?;
        let inserted: Option<Vec<i32>> = rows[0].try_get(7)?;
        Ok(Self { inserted: inserted.into_iter().flatten().map(index).collect::<Result<_, _>>()?, ..found })
    }

    /// Reads the result of `claim_free`: that of `claim`, and the number of the rows that are there. `None` if some of
    /// these are not locked: then another transaction holds them.
    pub(super) fn claimed_free(rows: &[PgRow], asked: usize) -> Result<Option<Self>, sqlx::Error> {
        let found = Self::claimed(rows, asked)?;
        let there: i64 = rows[0].try_get(8)?;
        Ok((i64::try_from(found.states.iter().flatten().count()) == Ok(there)).then_some(found))
    }

    /// Whether each row is locked or inserted.
    pub(super) fn is_whole(&self) -> bool {
        self.states.iter().flatten().count() + self.inserted.len() == self.states.len()
    }

    /// The same rows, of which an earlier statement of this transaction inserted some. Those stay `None`.
    pub(super) fn beside(mut self, inserted: Vec<usize>) -> Self {
        for place in &inserted {
            self.states[*place] = None;
        }
        self.inserted.extend(inserted);
        self
    }

    /// Reads the result of `peek`: arrays in the order of the given rows.
    pub(super) fn peeked(rows: &[PgRow]) -> Result<Self, sqlx::Error> {
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let (values, instants): (Vec<Option<i64>>, Vec<Option<ReadInstant>>) = (row.try_get(1)?, row.try_get(2)?);
        let full_at: Vec<Option<ReadInstant>> = row.try_get(3)?;
        let (tids, writers): (Vec<Option<String>>, Vec<Option<String>>) = (row.try_get(4)?, row.try_get(5)?);
        let lists: Vec<Option<String>> = row.try_get(6)?;
        let states = values.into_iter().zip(instants.into_iter().zip(full_at)).zip(lists).enumerate();
        let state = |(place, ((value, (ts, full_at)), list))| state(value, ts, full_at, list).map_err(corrupt(place));
        let version = |(tid, writer): (Option<String>, Option<String>)| Some(Version { tid: tid?, writer: writer? });
        Ok(Self {
            now: row.try_get(0)?,
            began: row.try_get(7)?,
            locked: false,
            states: states.map(state).collect::<Result<_, _>>()?,
            versions: tids.into_iter().zip(writers).map(version).collect(),
            ..Self::none()
        })
    }
}

/// The index for a number that a statement counts from 1.
pub(super) fn index(number: i32) -> Result<usize, sqlx::Error> {
    usize::try_from(number - 1).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// The state of a row, or its fault; `None` if it is missing. Lists come as text, because PostgreSQL cannot gather
/// arrays of different lengths.
fn state(
    value: Option<i64>,
    ts: Option<ReadInstant>,
    full_at: Option<ReadInstant>,
    list: Option<String>,
) -> Result<Option<State>, &'static str> {
    let (Some(value), Some(ts), Some(full_at)) = (value, ts, full_at) else { return Ok(None) };
    let list = match list {
        Some(text) => List::from_text(&text).ok_or("its list cannot be read")?,
        None => List::None,
    };
    Ok(Some(State { value: Tokens::from_micros(value), ts: ts.instant()?, full_at: full_at.nearest(), list }))
}

fn corrupt(place: usize) -> impl Fn(&'static str) -> sqlx::Error {
    move |fault| sqlx::Error::Decode(Box::new(Corrupt { fault, place }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_over_all_pieces() {
        let piece = || Found { states: vec![None, None], inserted: vec![1], ..Found::none() };
        let mut found = piece();
        found.append(piece());
        assert_eq!((found.states.len(), found.inserted), (4, vec![1, 3]));
    }
}
