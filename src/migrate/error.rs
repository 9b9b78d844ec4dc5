use super::Migration;
use super::strangers::{REMEDY, listed};

/// Why the schema is not as it should be, or why it could not be migrated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The connection is in a transaction that sqlx did not begin. The migrations cannot run inside such a transaction.
    #[error("the connection is in a transaction that was begun by hand (begin it with sqlx, or end it first)")]
    BegunByHand,
    /// The migrations are applied, but one of their tables or columns is missing, or a table is not logged as it should
    /// be.
    #[error(
        "tollgate.{table} lacks column {column:?}, or is not logged as it should be (restore it from `tollgate migrate \
         sql`)"
    )]
    #[non_exhaustive]
    Damaged {
        /// The table.
        table: &'static str,
        /// The first column that is not as it should be.
        column: &'static str,
    },
    /// PostgreSQL or the connection failed.
    #[error("could not {step}")]
    #[non_exhaustive]
    Database {
        /// The step that failed.
        step: &'static str,
        /// The driver's error.
        source: sqlx::Error,
    },
    /// A table is distributed by another column than `part`, or over another number of parts.
    #[error(
        "tollgate.{table} is distributed by another column than part, or over another number of parts (`tollgate \
         distribute --undo`, then try again)"
    )]
    #[non_exhaustive]
    DistributedOtherwise {
        /// The table.
        table: &'static str,
    },
    /// A migration was applied from a text that differs from this release's. One of the two was edited.
    #[error(
        "migration V{version}__{name} was applied from another text (undo what was edited, or move the rows as \
         docs/operating.md says under *Deploys*)"
    )]
    #[non_exhaustive]
    Edited {
        /// Its number.
        version: i64,
        /// Its title in this release.
        name: String,
    },
    /// A function is missing, or its text differs from that of the migrations.
    #[error("the function tollgate.{name} is missing, or was edited (restore it from `tollgate migrate sql`)")]
    #[non_exhaustive]
    EditedFunction {
        /// Its name.
        name: String,
    },
    /// A migration could not be applied.
    #[error("{0}")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The transaction sees an older state of the database, in which an object that a stranger makes now is not there.
    #[error("migrations need a transaction at READ COMMITTED (begin it so, or set default_transaction_isolation)")]
    Isolation,
    /// Another session held the lock of the migrations for a minute, or for this session's `lock_timeout`.
    #[error("{}", LOCKED)]
    Locked,
    /// A migration is not applied.
    #[error("migration {0} is not applied (run `tollgate migrate up`)")]
    Missing(Migration),
    /// The extension Citus is not in the database.
    #[error("Citus is not in this database (`create extension citus`, and add its nodes; or go without `distribute`)")]
    NoCitus,
    /// A role, or every role, has a right that nobody should have. Or this role may not revoke such a right.
    #[error("{what}, a right that nobody should have (run `tollgate migrate up` as the owner of the schema)")]
    #[non_exhaustive]
    Rights {
        /// The role and its right.
        what: String,
    },
    /// The schema, an object in it that has one of tollgate's names, or something that runs with such an object,
    /// belongs to a role that is not trusted. See [`Migrator`](super::Migrator).
    #[error("{} ({REMEDY})", listed(what))]
    #[non_exhaustive]
    Strangers {
        /// What belongs to whom.
        what: Vec<String>,
    },
}

pub(super) fn failed(step: &'static str) -> impl FnOnce(sqlx::Error) -> MigrateError {
    move |source| MigrateError::Database { step, source }
}

pub(super) const LOCKED: &str = "another session keeps the lock of the migrations, a runner that hangs or a stranger \
                      (find it with: select pid from pg_locks join pg_stat_activity using (pid) \
                      where datname = current_database() and granted and locktype = 'advisory' \
                      and objid = '1734440037')";
