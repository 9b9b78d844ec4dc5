use clap::{Parser, Subcommand};

/// An exact rate limiter on PostgreSQL.
///
/// Exit status: 0 done, 1 failed (one sentence on standard error says why), 2 wrong usage.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what the limiter does, on a private PostgreSQL that is gone afterwards.
    Demo(DemoArgs),
    /// Create the tables, or bring them up to date.
    Migrate(MigrateArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Run in this database instead of a private one: migrates it, and removes what the demo itself wrote.
    ///
    /// Never taken from the environment, so that a `DATABASE_URL` lying about is left alone.
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    pub(crate) command: MigrateCommand,

    /// The database, as `postgres://user:password@host/database`.
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Apply what is missing, in one transaction; of several runners one applies and the others wait.
    Up {
        /// Apply it, say what was applied, and roll it back.
        #[arg(long)]
        dry_run: bool,
    },
    /// Say what is applied and what is missing.
    Status,
    /// Print all migrations as SQL that is safe to run twice, for psql or another migration tool. Needs no database.
    Sql,
    /// Check that nothing is missing, edited or damaged; fails with the first fault.
    Validate,
}
