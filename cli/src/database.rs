//! The database that a command works on: where it is, how to look at it, and what to do where it cannot be reached.

use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, Postgres, Transaction};
use tollgate::algebra::Timestamp;

use crate::error::CommandError;

/// Which database; the same options for every command that needs one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DatabaseArgs {
    /// The database, as `postgres://user:password@host/database`.
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,

    /// How long the command waits for a connection. A refused connection fails at once.
    #[arg(long, global = true, value_name = "SPAN", default_value = "30s", value_parser = humantime::parse_duration)]
    connect_timeout: Duration,
}

impl DatabaseArgs {
    /// One connection.
    pub(crate) async fn connect(&self) -> Result<PgConnection, CommandError> {
        Ok(self.open().await?.0)
    }

    /// A pool of at most so many connections, the first of which is known to work.
    pub(crate) async fn pool(&self, max_connections: u32) -> Result<PgPool, CommandError> {
        // A pool would try again and again where nobody listens, and say only that it took too long.
        let (first, options) = self.open().await?;
        first.close().await?;
        let pool = PgPoolOptions::new().max_connections(max_connections).acquire_timeout(self.connect_timeout);
        Ok(pool.connect_lazy_with(options))
    }

    /// A connection, and the options that it was made with. Its statements look up names in no schema of strangers, and
    /// fail where row security would hide rows, unless a pooler refuses these settings or the URL has others.
    async fn open(&self) -> Result<(PgConnection, PgConnectOptions), CommandError> {
        let options = self.options()?;
        if options.get_options().is_some_and(|settings| settings.contains("search_path")) {
            return Ok((self.within_time(&options).await?, options));
        }
        let secured = options.clone().options([("search_path", "pg_catalog"), ("row_security", "off")]);
        match self.within_time(&secured).await {
            Ok(conn) => Ok((conn, secured)),
            Err(error) if error.what.contains("unsupported startup parameter") => {
                Ok((self.within_time(&options).await?, options))
            }
            Err(error) => Err(error),
        }
    }

    fn options(&self) -> Result<PgConnectOptions, CommandError> {
        let Some(url) = self.database_url.as_deref() else {
            return Err(CommandError::new(
                "no database is given",
                "set DATABASE_URL, or pass --database-url postgres://user:password@host/database",
            ));
        };
        let malformed = |reason: String| {
            let remedy = "write --database-url as postgres://user:password@host/database";
            CommandError::new(format!("could not connect to the database: {reason}"), remedy)
        };
        // The driver itself takes any scheme.
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(malformed("the URL is not one of PostgreSQL".to_owned()));
        }
        let options: PgConnectOptions = url.parse().map_err(|error| malformed(reason(&error)))?;
        // The server's views name it, unless the URL has another name.
        Ok(if options.get_application_name().is_none() { options.application_name("tollgate") } else { options })
    }

    async fn within_time(&self, options: &PgConnectOptions) -> Result<PgConnection, CommandError> {
        let Ok(connected) = tokio::time::timeout(self.connect_timeout, options.connect()).await else {
            let timeout = humantime::format_duration(self.connect_timeout);
            return Err(CommandError::new(
                format!("could not connect to the database within {timeout}"),
                "check the host in --database-url, or give it longer with --connect-timeout",
            ));
        };
        connected.map_err(|error| {
            CommandError::new(format!("could not connect to the database: {}", reason(&error)), remedy(&error))
        })
    }
}

/// The message of the server, or else of the driver, without the driver's preamble and never with the password.
fn reason(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        sqlx::Error::Configuration(error) => error.to_string(),
        error => error.to_string(),
    }
}

fn remedy(error: &sqlx::Error) -> &'static str {
    match error.as_database_error().and_then(DatabaseError::code).as_deref() {
        Some("28P01") => "check the user and the password in --database-url",
        Some("28000") => "create the role, or let it in by the server's pg_hba.conf",
        Some("3D000") => "create the database, or check its name in --database-url",
        Some("53300") => "close other connections, or raise the server's max_connections",
        Some("57P03") => "the server is starting up or shutting down: try again in a moment",
        _ => "check --database-url, and that the server runs",
    }
}

/// A transaction whose statements fail where row security would hide rows, also on a connection without that setting.
/// It has the settings that the session began with: a pooler hands on what others have set.
pub(crate) async fn begin(conn: &mut PgConnection) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    conn.begin_with(AssertSqlSafe(format!("{BEGIN}; {OWN}"))).await
}

/// The same over a connection of a pool.
pub(crate) async fn begin_from(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    pool.begin_with(AssertSqlSafe(format!("{BEGIN}; {OWN}"))).await
}

/// A transaction that cannot write, whose statements see one state of the database, and take no longer than `timeout`
/// each. Its settings end with it: a pooler would hand them on to others.
pub(crate) async fn read_only(
    conn: &mut PgConnection,
    timeout: Duration,
) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    let begin = AssertSqlSafe(format!("begin isolation level repeatable read read only; {OWN}"));
    let mut tx = conn.begin_with(begin).await?;
    let millis = timeout.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
    let settings = "select pg_catalog.set_config('search_path', 'pg_catalog', true),
                           pg_catalog.set_config('row_security', 'off', true),
                           pg_catalog.set_config('statement_timeout', $1, true)";
    sqlx::query(settings).bind(millis.to_string()).persistent(false).execute(&mut *tx).await?;
    Ok(tx)
}

const BEGIN: &str = "begin isolation level read committed read write";
/// A timeout for statements that was left counts until it is replaced, so that one comes first.
const OWN: &str = "set local statement_timeout to default; set local row_security = off; set local role to default; \
                   set local lock_timeout to default; set local idle_in_transaction_session_timeout to default";

/// The time of the database's clock.
pub(crate) async fn clock(conn: &mut PgConnection) -> Result<Timestamp, sqlx::Error> {
    let sql = "select (extract(epoch from pg_catalog.clock_timestamp()) * 1000000.0)::int8";
    Ok(Timestamp::from_micros(sqlx::query_scalar(sql).persistent(false).fetch_one(conn).await?))
}
