use std::io::{Write, stdout};

use sqlx::{Connection, PgConnection};
use tollgate::migrate::{self, Migration, Status};

use crate::args::{MigrateArgs, MigrateCommand};
use crate::error::CommandError;

pub(crate) async fn run(args: MigrateArgs) -> Result<(), CommandError> {
    let url = args.database_url.as_deref();
    match args.command {
        MigrateCommand::Up { dry_run: false } => {
            let applied = migrate::run(&mut connect(url).await?).await?;
            report(&applied, "applied")
        }
        MigrateCommand::Up { dry_run: true } => {
            let applied = migrate::dry_run(&mut connect(url).await?).await?;
            report(&applied, "would apply")
        }
        MigrateCommand::Status => list(&migrate::status(&mut connect(url).await?).await?),
        MigrateCommand::Sql => Ok(stdout().write_all(migrate::sql().as_bytes())?),
        MigrateCommand::Validate => {
            migrate::validate(&mut connect(url).await?).await?;
            Ok(writeln!(stdout(), "the schema is what tollgate {} needs", env!("CARGO_PKG_VERSION"))?)
        }
    }
}

async fn connect(url: Option<&str>) -> Result<PgConnection, CommandError> {
    let url = url.ok_or(CommandError::NoDatabase)?;
    PgConnection::connect(url).await.map_err(CommandError::Connect)
}

fn report(applied: &[Migration], verb: &str) -> Result<(), CommandError> {
    let mut out = stdout().lock();
    if applied.is_empty() {
        writeln!(out, "nothing to do: the schema is up to date")?;
    }
    for migration in applied {
        writeln!(out, "{verb} {migration}")?;
    }
    Ok(())
}

fn list(status: &Status) -> Result<(), CommandError> {
    let mut out = stdout().lock();
    for migration in &status.applied {
        writeln!(out, "applied  {migration}  {}", migration.applied_on.as_deref().unwrap_or_default())?;
    }
    for migration in &status.pending {
        writeln!(out, "pending  {migration}")?;
    }
    for migration in &status.newer {
        writeln!(out, "newer    {migration}  (from a newer release, which this one works with)")?;
    }
    if !status.is_current() {
        writeln!(out, "run `tollgate migrate up` to apply what is pending")?;
    }
    Ok(())
}
