use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::{database, first_of_each_key};
use crate::algebra::{State, Timestamp};
use crate::error::{Error, Step};
use crate::plan::{Row, Stranger, place_of};
use crate::tokens::Tokens;

/// What a statement found for a plan's rows.
#[derive(Debug)]
pub(crate) struct Found {
    /// The clock: after the last lock, or after the snapshot of a read without one.
    pub(crate) now: Timestamp,
    /// The transaction that holds the locks.
    pub(crate) xid: Option<i64>,
    /// Whether every row that is there is locked.
    pub(crate) held: bool,
    /// Whether rows of another number of shards are beside one that is absent, so that it is not a full one.
    pub(crate) strange: bool,
    /// The state of each row, `None` where it is absent.
    pub(crate) states: Vec<Option<State>>,
    /// The instant at which this very statement inserted the row, as a full one, if it did; its state is `None` then.
    pub(crate) inserted: Vec<Option<Timestamp>>,
    /// Where a row lies that was peeked at, as PostgreSQL writes it.
    pub(super) tids: Vec<Option<String>>,
}

impl Found {
    /// Nothing yet, to append to.
    pub(super) fn none() -> Self {
        Self {
            now: Timestamp::MIN,
            xid: None,
            held: true,
            strange: false,
            states: Vec::new(),
            inserted: Vec::new(),
            tids: Vec::new(),
        }
    }

    /// Nothing where rows were looked for.
    fn absent(rows: &[Row]) -> Self {
        Self { states: vec![None; rows.len()], inserted: vec![None; rows.len()], ..Self::none() }
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether a row is neither there nor inserted: it is absent, or too new to be seen.
    pub(crate) fn misses_one(&self) -> bool {
        self.states.iter().zip(&self.inserted).any(|(state, inserted)| state.is_none() && inserted.is_none())
    }

    /// Adds what was found later, in the next table or on the next node: the latest clock counts for all.
    pub(super) fn append(&mut self, later: Self) {
        self.now = self.now.max(later.now);
        self.xid = later.xid.or(self.xid);
        self.held &= later.held;
        self.strange |= later.strange;
        self.states.extend(later.states);
        self.inserted.extend(later.inserted);
        self.tids.extend(later.tids);
    }

    /// Reads the result that all locking and reading statements share.
    pub(super) fn read(rows: &[Row], step: Step, result: Result<Vec<PgRow>, sqlx::Error>) -> Result<Self, Error> {
        let read = || {
            let mut found = Self::absent(rows);
            for row in result? {
                found.add(&row)?;
            }
            Ok(found)
        };
        read().map_err(|source| database(step, rows[0].name(), source))
    }

    /// Reads the one row of arrays that peeking statements return.
    pub(super) fn peeked(rows: &[Row], result: Result<Vec<PgRow>, sqlx::Error>) -> Result<Self, Error> {
        let read = || {
            let peeked = result?;
            let row = peeked.first().ok_or(sqlx::Error::RowNotFound)?;
            let (values, instants): (Vec<Option<i64>>, Vec<Option<Timestamp>>) = (row.try_get(1)?, row.try_get(2)?);
            let state = |(value, ts): (Option<i64>, Option<Timestamp>)| {
                value.map(Tokens::from_micros).zip(ts).map(|(value, ts)| State { value, ts })
            };
            Ok(Self {
                now: row.try_get(0)?,
                states: values.into_iter().zip(instants).map(state).collect(),
                inserted: vec![None; rows.len()],
                tids: row.try_get(3)?,
                strange: row.try_get(4)?,
                held: false,
                ..Self::none()
            })
        };
        read().map_err(|source| database(Step::Read, rows[0].name(), source))
    }

    /// Columns go by place: their names carry the macros' annotations.
    fn add(&mut self, row: &PgRow) -> Result<(), sqlx::Error> {
        self.now = row.try_get(0)?;
        self.xid = row.try_get(1)?;
        self.held = row.try_get(2)?;
        self.strange |= row.try_get::<bool, _>(7)?;
        let place: i64 = row.try_get(3)?;
        let inserted: Option<Timestamp> = row.try_get(4)?;
        let (value, ts): (Option<i64>, Option<Timestamp>) = (row.try_get(5)?, row.try_get(6)?);
        // Places count from 1, in the order in which the rows were given.
        let place = usize::try_from(place - 1).unwrap_or(usize::MAX);
        if let (Some(state), Some(instant)) = (self.states.get_mut(place), self.inserted.get_mut(place)) {
            *instant = inserted;
            *state = value.map(Tokens::from_micros).zip(ts).map(|(value, ts)| State { value, ts });
        }
        Ok(())
    }
}

/// All rows of a plan's keys: its own, and strangers.
#[derive(Debug)]
pub(crate) struct Shards {
    /// What was found for the plan's rows, without a lock.
    pub(crate) found: Found,
    /// The rows beside them, key by key.
    pub(crate) strangers: Vec<Stranger>,
    /// When the transaction began that looked.
    pub(crate) began: Timestamp,
}

impl Shards {
    /// Nothing yet, to append to.
    pub(super) fn none() -> Self {
        Self { found: Found::none(), strangers: Vec::new(), began: Timestamp::MIN }
    }

    /// Adds what was found later.
    pub(super) fn append(&mut self, later: Self) {
        let before = self.found.len();
        let moved = |stranger: Stranger| Stranger { beside: before + stranger.beside, ..stranger };
        self.strangers.extend(later.strangers.into_iter().map(moved));
        self.found.append(later.found);
        self.began = later.began;
    }

    /// Reads all rows of the keys that some rows of one table have.
    pub(super) fn read(rows: &[Row], result: Result<Vec<PgRow>, sqlx::Error>) -> Result<Self, Error> {
        let firsts: Vec<_> = first_of_each_key(rows).collect();
        let read = || {
            let mut shards = Self { found: Found::absent(rows), ..Self::none() };
            for row in result? {
                (shards.found.now, shards.began) = (row.try_get(0)?, row.try_get(1)?);
                let (key, shard): (i64, Option<i16>) = (row.try_get(2)?, row.try_get(3)?);
                let (value, ts): (Option<i64>, Option<Timestamp>) = (row.try_get(4)?, row.try_get(5)?);
                // Keys count from 1, in the order in which they were given.
                let first = usize::try_from(key - 1).ok().and_then(|key| firsts.get(key).copied());
                if let (Some(first), Some(shard), Some(value), Some(ts)) = (first, shard, value, ts) {
                    shards.put(rows, first, shard, State { value: Tokens::from_micros(value), ts });
                }
            }
            Ok(shards)
        };
        read().map_err(|source| database(Step::Read, rows[0].name(), source))
    }

    /// Reads all rows of the one key that some rows have, from arrays.
    pub(super) fn of_key(rows: &[Row], step: Step, result: Result<Vec<PgRow>, sqlx::Error>) -> Result<Self, Error> {
        let read = || {
            let mut shards = Self { found: Found::absent(rows), ..Self::none() };
            let read = result?;
            let row = read.first().ok_or(sqlx::Error::RowNotFound)?;
            (shards.found.now, shards.found.xid) = (row.try_get(0)?, row.try_get(1)?);
            let (numbers, values): (Option<Vec<i16>>, Option<Vec<i64>>) = (row.try_get(2)?, row.try_get(3)?);
            let instants: Option<Vec<Timestamp>> = row.try_get(4)?;
            let columns = numbers.into_iter().flatten().zip(values.into_iter().flatten());
            for ((shard, value), ts) in columns.zip(instants.into_iter().flatten()) {
                shards.put(rows, 0, shard, State { value: Tokens::from_micros(value), ts });
            }
            Ok(shards)
        };
        read().map_err(|source| database(step, rows[0].name(), source))
    }

    /// Sorts in a row of the key whose rows begin at `first`: one of them, or a stranger, or one of the same number that is
    /// not asked.
    fn put(&mut self, rows: &[Row], first: usize, shard: i16, state: State) {
        // Shards are never negative: the fallback is not taken.
        let shard = u16::try_from(shard).unwrap_or_default();
        let asked = rows[first..].iter().take_while(|row| row.is_beside(&rows[first]));
        if let Some(place) = asked.into_iter().position(|row| row.shard() == shard) {
            self.found.states[first + place] = Some(state);
        } else if place_of(shard).0 != place_of(rows[first].shard()).0 {
            self.strangers.push(Stranger { beside: first, shard, state });
        }
    }
}
