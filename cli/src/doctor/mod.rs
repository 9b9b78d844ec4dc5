//! `tollgate doctor`: finds faults and risks, and explains them in plain words.

mod calls;
mod definitions;
mod finding;
mod overrides;
mod rows;
mod schema;
mod server;
mod tables;

use std::time::Duration;

use sqlx::PgConnection;
use tollgate::Limits;
use tollgate::migrate::Rights;

use crate::database::{DatabaseArgs, read_only};
use crate::error::{CommandError, Exit};
use crate::limits_file::LimitsArgs;
use crate::migrate::OwnerArgs;
use crate::output::OutputArgs;
use finding::{Finding, Severity};

/// Find faults and risks, and say what each of them means and what to do.
///
/// An error makes callers fail, or gives them wrong answers, now. A warning costs something, or will do harm one day. A
/// note is worth knowing. The command changes nothing. It reads both tables whole. It also compares
/// their rows with the definitions of the limits file, or else of the table, and the two with each other.
///
/// Exit status: 0 no errors found, 1 errors found, or the doctor itself failed.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The role of the service, whose rights the command checks. Without this option, it checks those of its own role.
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,

    #[command(flatten)]
    owner: OwnerArgs,

    /// Report transactions that are at least this old and keep old row versions alive.
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = humantime::parse_duration)]
    old_snapshot: Duration,

    /// How long the server may take for one statement. If one takes longer, the command leaves out the check, and
    /// warns.
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    #[command(flatten)]
    limits: LimitsArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: DoctorArgs) -> Result<Exit, CommandError> {
    let file = args.limits.load()?;
    let mut conn = args.database.connect().await?;
    let limits = args.limits.known(&mut conn).await?;
    let mut doctor = Doctor { conn, args: &args, findings: Vec::new(), rights: None };
    doctor.examine(limits.as_ref(), file.as_ref()).await?;
    let Doctor { mut findings, rights, .. } = doctor;
    findings.sort_by_key(|finding| finding.severity);
    finding::print(args.output, &findings, rights.as_ref())?;
    Ok(if has_error(&findings) { Exit::Failed } else { Exit::Done })
}

struct Doctor<'a> {
    conn: PgConnection,
    args: &'a DoctorArgs,
    findings: Vec<Finding>,
    rights: Option<Rights>,
}

impl Doctor<'_> {
    async fn examine(&mut self, limits: Option<&Limits>, file: Option<&Limits>) -> Result<(), CommandError> {
        self.look("server", async |conn| server::check(conn).await).await?;
        self.findings.extend(server::pooler(&self.args.database).await?);
        self.look("snapshots", async |conn| server::snapshots(conn, self.args.old_snapshot).await).await?;
        let role = self.args.role.as_deref();
        let has_rights = self.look("rights", async |conn| schema::rights(conn, role).await).await?;
        self.look("row_security", async |conn| schema::row_security(conn, role).await).await?;
        let mut who_may = None;
        let look = async |conn: &mut PgConnection| {
            who_may = Some(schema::who_may(conn).await?);
            Ok(Vec::new())
        };
        self.look("rights", look).await?;
        self.rights = who_may;
        // Without rights of one's own, or without tables, there is nothing more to look at.
        let owner = &self.args.owner;
        if !has_rights && role.is_none() || !self.look("schema", async |conn| schema::check(conn, owner).await).await? {
            return Ok(());
        }
        self.look("tables", async |conn| tables::check(conn).await).await?;
        self.look("log", async |conn| Ok(tables::log(conn).await?.into_iter().collect())).await?;
        if let Some(file) = file {
            self.look("definitions", async |conn| Ok(definitions::compare(conn, file).await)).await?;
        }
        let seen = rows::look(&mut self.conn, self.args.timeout, limits).await;
        self.findings.extend(seen.or_else(|error| unseen("rows", error))?);
        let seen = overrides::look(&mut self.conn, self.args.timeout, limits).await;
        self.findings.extend(seen.or_else(|error| unseen("overrides", error))?);
        Ok(())
    }

    /// One look, in a transaction of its own that changes nothing. Returns whether it found no error.
    async fn look(
        &mut self,
        check: &'static str,
        look: impl AsyncFnOnce(&mut PgConnection) -> Result<Vec<Finding>, sqlx::Error>,
    ) -> Result<bool, CommandError> {
        let mut tx = read_only(&mut self.conn, self.args.timeout).await?;
        let found = look(&mut tx).await.or_else(|error| unseen(check, error))?;
        tx.rollback().await?;
        let is_sound = !has_error(&found);
        self.findings.extend(found);
        Ok(is_sound)
    }
}

fn has_error(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.severity == Severity::Error)
}

/// Whether the look took too long, was not permitted, or lost its statement to a pooler that does not follow names.
fn is_not_seen(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("57014" | "42501" | "26000" | "42P05"))
}

/// A warning about a look that was not possible. Any other error stays an error.
fn unseen(check: &'static str, error: sqlx::Error) -> Result<Vec<Finding>, sqlx::Error> {
    if !is_not_seen(&error) {
        return Err(error);
    }
    Ok(vec![Finding::warning(
        check,
        format!("could not look: {}", CommandError::from(error)),
        "What this check would have found is not known.",
        "Run the doctor as the owner of the schema, or give it longer with --timeout.",
    )])
}
