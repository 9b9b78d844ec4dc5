//! The statements of a sweeper.

use std::fmt;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row as _, query_file};

use super::{Store, table_of, unswept};
use crate::algebra::Timestamp;
use crate::error::Error;
use crate::limit::Storage;

/// Rows that have been full for a margin, in the order of their places.
#[derive(Debug)]
pub(crate) struct FullRows {
    /// The clock, read after the snapshot.
    pub(crate) now: Timestamp,
    /// Whether no other sweeper was at work. If one was, no row was looked at.
    pub(crate) alone: bool,
    pub(crate) rows: Vec<FullRow>,
}

/// A row that has been full for a margin.
#[derive(Debug)]
pub(crate) struct FullRow {
    pub(crate) place: Ctid,
    /// Its writer, and the file in which it lies.
    version: String,
}

/// Where a row lies: PostgreSQL's `ctid`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ctid {
    pub(crate) page: u32,
    pub(crate) item: u16,
}

impl Store<'_> {
    /// The number of pages of each table: ephemeral rows, durable rows, calls.
    pub(crate) async fn count_pages(&mut self) -> Result<[u32; 3], Error> {
        let rows = self.fetch(query_file!("src/store/sql/count_pages.sql")).await;
        let count = |rows: Vec<PgRow>| {
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            Ok([row.try_get(0)?, row.try_get(1)?, row.try_get(2)?])
        };
        let pages: [i64; 3] = rows.and_then(count).map_err(|source| unswept("tollgate.durable", source))?;
        Ok(pages.map(|pages| u32::try_from(pages).expect("PostgreSQL counts pages in 32 bits")))
    }

    /// Deletes the calls between two places that have not needed to be known for a margin, and that no transaction
    /// holds. Returns how many it deleted.
    pub(crate) async fn forget_calls(&mut self, [from, to]: [Ctid; 2], margin: Duration) -> Result<u64, Error> {
        let (from, to) = (from.to_string(), to.to_string());
        let statement =
            query_file!("src/store/sql/forget_calls.sql", &from, &to, self.at as Option<Timestamp>, micros(margin));
        let deleted = self.fetch(statement).await.map_err(|source| unswept("tollgate.calls", source))?;
        Ok(deleted.len() as u64)
    }

    /// The first rows between two places that have been full for a margin. Locks none.
    pub(crate) async fn find_full(
        &mut self,
        table: Storage,
        [from, to]: [Ctid; 2],
        most: u32,
        margin: Duration,
    ) -> Result<FullRows, Error> {
        let (from, to) = (from.to_string(), to.to_string());
        let rows = fetch!(
            self,
            table,
            "src/store/sql/find_full.sql",
            "src/store/sql/ephemeral/find_full.sql",
            &from,
            &to,
            i64::from(most),
            self.at as Option<Timestamp>,
            micros(margin)
        );
        let read = |rows: Vec<PgRow>| FullRows::read(rows.first().ok_or(sqlx::Error::RowNotFound)?);
        rows.and_then(read).map_err(|source| unswept(table_of(table), source))
    }

    /// Deletes those found rows that still have the version that was found, and that no transaction holds. Returns how
    /// many it deleted.
    pub(crate) async fn delete_full(&mut self, table: Storage, rows: &[FullRow]) -> Result<u64, Error> {
        let places: Vec<_> = rows.iter().map(|row| row.place.to_string()).collect();
        let versions: Vec<_> = rows.iter().map(|row| &*row.version).collect();
        let deleted = fetch!(
            self,
            table,
            "src/store/sql/delete_full.sql",
            "src/store/sql/ephemeral/delete_full.sql",
            &places,
            &versions as &[&str]
        );
        Ok(deleted.map_err(|source| unswept(table_of(table), source))?.len() as u64)
    }
}

fn micros(margin: Duration) -> i64 {
    i64::try_from(margin.as_micros()).expect("a margin is at most the longest period")
}

impl FullRows {
    /// Columns are read by number, because their names carry the macros' annotations.
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let (now, alone, places, versions): (_, _, Option<Vec<String>>, Option<Vec<String>>) = FromRow::from_row(row)?;
        let row = |(place, version): (String, String)| {
            let place = Ctid::parse(&place).ok_or_else(|| sqlx::Error::Decode("a place was sent as no pair".into()))?;
            Ok(FullRow { place, version })
        };
        let found = places.unwrap_or_default().into_iter().zip(versions.unwrap_or_default());
        Ok(Self { now, alone, rows: found.map(row).collect::<Result<_, sqlx::Error>>()? })
    }
}

impl Ctid {
    /// Reads `(page,item)`.
    fn parse(tid: &str) -> Option<Self> {
        let (page, item) = tid.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
        Some(Self { page: page.parse().ok()?, item: item.parse().ok()? })
    }
}

impl fmt::Display for Ctid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.page, self.item)
    }
}
