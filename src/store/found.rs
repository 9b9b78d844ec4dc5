use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row as _};

use super::columns::{Corrupt, ReadInstant};
use crate::algebra::{List, State, Timestamp};
use crate::tokens::Tokens;

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
    /// these are not locked, or missing rows are not inserted: then another transaction has them.
    pub(super) fn claimed_free(rows: &[PgRow], asked: usize, inserts: bool) -> Result<Option<Self>, sqlx::Error> {
        let found = Self::claimed(rows, asked)?;
        let there: i64 = rows[0].try_get(8)?;
        let locked = found.states.iter().flatten().count();
        let is_whole = i64::try_from(locked) == Ok(there) && (!inserts || locked + found.inserted.len() == asked);
        Ok(is_whole.then_some(found))
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
