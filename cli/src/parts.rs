//! The parts of tables that Citus distributes, asked one by one: a node that is away hides no other.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::PgConnection;
use tollgate::migrate::{self, MigrateError};

use crate::database::read_only;
use crate::error::CommandError;

/// Parts that do not answer.
#[derive(Debug)]
pub(crate) struct Away {
    parts: u16,
    numbers: BTreeSet<i16>,
    reason: Option<sqlx::Error>,
}

impl Away {
    pub(crate) fn of(parts: u16) -> Self {
        Self { parts, numbers: BTreeSet::new(), reason: None }
    }

    /// Reads from the tables how many parts they have. If somebody has locked a table, this waits no longer than
    /// `timeout`.
    pub(crate) async fn of_tables(conn: &mut PgConnection, timeout: Duration) -> Result<Self, sqlx::Error> {
        migrate::parts(&mut *read_only(conn, timeout).await?).await.map(Self::of).map_err(|error| match error {
            MigrateError::Database { source, .. } => source,
            other => sqlx::Error::Configuration(other.into()),
        })
    }

    /// The parts to ask; plain tables have one.
    pub(crate) fn parts(&self) -> impl Iterator<Item = i16> + use<> {
        migrate::part_numbers(self.parts)
    }

    /// The answer of a part. If it is an error, this notes that and returns `None`; an error of plain tables, or of the
    /// connection, is returned.
    pub(crate) fn answer<T>(&mut self, part: i16, answer: Result<T, sqlx::Error>) -> Result<Option<T>, sqlx::Error> {
        match answer {
            Err(error) if self.parts > 0 && error.as_database_error().is_some() => {
                self.numbers.insert(part);
                self.reason.get_or_insert(error);
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// An error that names these parts and the reason of the first one, unless there are none.
    pub(crate) fn check(self) -> Result<(), CommandError> {
        let Some(reason) = self.reason else { return Ok(()) };
        let (parts, count, reason) = (self.parts, self.numbers.len(), CommandError::from(reason).what);
        let numbers: Vec<_> = self.numbers.iter().map(i16::to_string).collect();
        Err(CommandError::new(
            format!("{count} of {parts} parts do not answer ({}): {reason}", numbers.join(", ")),
            "`select * from citus_check_cluster_node_health()` shows which node is away",
        ))
    }
}
