use std::io::{Write, stdout};

use tollgate::migrate::{self, Migration, Status};

use crate::args::{MigrateArgs, MigrateCommand};
use crate::error::CommandError;

pub(crate) async fn run(args: MigrateArgs) -> Result<(), CommandError> {
    let database = &args.database;
    match args.command {
        MigrateCommand::Up { dry_run: false } => {
            let applied = migrate::run(&mut database.connect().await?).await?;
            report(&applied, "applied")
        }
        MigrateCommand::Up { dry_run: true } => {
            let applied = migrate::dry_run(&mut database.connect().await?).await?;
            report(&applied, "would apply")
        }
        MigrateCommand::Status => list(&migrate::status(&mut database.connect().await?).await?),
        MigrateCommand::Sql => Ok(stdout().write_all(migrate::sql().as_bytes())?),
        MigrateCommand::Validate => {
            migrate::validate(&mut database.connect().await?).await?;
            Ok(writeln!(stdout(), "the schema is what tollgate {} needs", env!("CARGO_PKG_VERSION"))?)
        }
    }
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
