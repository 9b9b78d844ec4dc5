//! The database that a command works on: where it is, and what is said when it cannot be reached.

use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};

/// Which database; the same options for every command that needs one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DatabaseArgs {
    /// The database, as `postgres://user:password@host/database`.
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,

    /// How long to try to connect.
    #[arg(long, global = true, value_name = "SPAN", default_value = "10s", value_parser = humantime::parse_duration)]
    connect_timeout: Duration,
}

impl DatabaseArgs {
    /// One connection.
    pub(crate) async fn connect(&self) -> Result<PgConnection, ConnectError> {
        self.connect_with(&self.options()?).await
    }

    /// A pool of at most so many connections, the first of which is known to work.
    pub(crate) async fn pool(&self, max_connections: u32) -> Result<PgPool, ConnectError> {
        let options = self.options()?;
        // A pool would try again and again where nobody listens, and say only that it took too long.
        let first = self.connect_with(&options).await?;
        first.close().await.map_err(ConnectError::Failed)?;
        let pool = PgPoolOptions::new().max_connections(max_connections).acquire_timeout(self.connect_timeout);
        Ok(pool.connect_lazy_with(options))
    }

    /// How to connect, for those who do it in their own way.
    pub(crate) fn options(&self) -> Result<PgConnectOptions, ConnectError> {
        let url = self.database_url.as_deref().ok_or(ConnectError::NotGiven)?;
        // The driver itself takes any scheme.
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(ConnectError::Url(sqlx::Error::Configuration("the URL is not one of PostgreSQL".into())));
        }
        let options: PgConnectOptions = url.parse().map_err(ConnectError::Url)?;
        // So that the server's views say who it is, unless the URL does.
        Ok(if options.get_application_name().is_none() { options.application_name("tollgate") } else { options })
    }

    async fn connect_with(&self, options: &PgConnectOptions) -> Result<PgConnection, ConnectError> {
        let timed_out = |_| ConnectError::TimedOut(self.connect_timeout);
        let connected = tokio::time::timeout(self.connect_timeout, options.connect()).await.map_err(timed_out)?;
        connected.map_err(ConnectError::Failed)
    }
}

/// Why there is no connection: one sentence with the remedy, and never the password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("could not connect to the database: {} ({})", reason(.0), remedy(.0))]
    Failed(sqlx::Error),
    #[error("no database is given (set DATABASE_URL, or pass --database-url postgres://user:password@host/database)")]
    NotGiven,
    #[error(
        "could not connect to the database within {} (check the host in --database-url, or give it longer with --connect-timeout)",
        humantime::format_duration(*.0)
    )]
    TimedOut(Duration),
    #[error(
        "could not connect to the database: {} (write --database-url as postgres://user:password@host/database)", reason(.0)
    )]
    Url(sqlx::Error),
}

/// What the server said, or else what the driver found, without the driver's preamble.
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
