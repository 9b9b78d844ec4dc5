use std::io::{Write, stdout};

use serde_json::{Value, json};
use tollgate::migrate::{self, Migration, Status};

use crate::args::{MigrateArgs, MigrateCommand};
use crate::error::CommandError;
use crate::output::{self, OutputArgs};

pub(crate) async fn run(args: MigrateArgs) -> Result<(), CommandError> {
    let MigrateArgs { command, database, output } = args;
    match command {
        MigrateCommand::Up { dry_run: false } => {
            let applied = migrate::run(&mut database.connect().await?).await?;
            report(output, &applied, "applied")
        }
        MigrateCommand::Up { dry_run: true } => {
            let applied = migrate::dry_run(&mut database.connect().await?).await?;
            report(output, &applied, "would apply")
        }
        MigrateCommand::Status => {
            let status = migrate::status(&mut database.connect().await?).await?;
            if output.json { output::json(&document(&status)) } else { list(&status) }
        }
        MigrateCommand::Sql if output.json => output::json(&json!({ "sql": migrate::sql() })),
        MigrateCommand::Sql => Ok(stdout().write_all(migrate::sql().as_bytes())?),
        MigrateCommand::Validate => {
            migrate::validate(&mut database.connect().await?).await?;
            valid(output)
        }
    }
}

fn report(output: OutputArgs, applied: &[Migration], verb: &str) -> Result<(), CommandError> {
    if output.json {
        return output::json(&json!({ verb.replace(' ', "_"): migrations(applied) }));
    }
    let mut out = output::out();
    if applied.is_empty() {
        writeln!(out, "nothing to do: the schema is up to date")?;
    }
    for migration in applied {
        writeln!(out, "{verb} {migration}")?;
    }
    Ok(())
}

fn list(status: &Status) -> Result<(), CommandError> {
    let mut out = output::out();
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

fn valid(output: OutputArgs) -> Result<(), CommandError> {
    let version = env!("CARGO_PKG_VERSION");
    if output.json {
        return output::json(&json!({ "valid": true, "version": version }));
    }
    Ok(writeln!(output::out(), "the schema is what tollgate {version} needs")?)
}

fn document(status: &Status) -> Value {
    json!({
        "applied": migrations(&status.applied),
        "pending": migrations(&status.pending),
        "newer": migrations(&status.newer),
        "is_current": status.is_current(),
    })
}

fn migrations(migrations: &[Migration]) -> Vec<Value> {
    let one = |one: &Migration| json!({ "version": one.version, "name": one.name, "applied_on": one.applied_on });
    migrations.iter().map(one).collect()
}
