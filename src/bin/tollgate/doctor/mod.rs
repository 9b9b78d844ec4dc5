//! What is wrong or risky, in plain words.

mod clock;
mod finding;
mod pooler;
mod report;
mod rights;
mod rows;
mod schema;
mod server;
mod snapshots;
mod tables;

use std::time::Duration;

use sqlx::PgConnection;
use tollgate::Limits;

use crate::connect::DatabaseArgs;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::limits_file::LimitsArgs;
use crate::output::{OutputArgs, answered};
use crate::transaction::read_only;
use finding::{Finding, Severity};

/// Say what is wrong or risky: each finding with what it means, and what to do.
///
/// An error is what makes callers fail or answers wrong now; a warning costs something, or will hurt one day; a note is worth
/// knowing. Nothing is changed. With a limits file the rows are compared with its definitions, for which both tables are
/// read whole.
///
/// Exit status: 0 no errors, 1 errors (or the doctor itself failed).
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Check the rights of this role, which the service uses, instead of one's own.
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,

    /// From which age on a transaction is reported that keeps old row versions alive.
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = humantime::parse_duration)]
    old_snapshot: Duration,

    /// How long each look may take; what takes longer is left out, with a warning.
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
    let limits = args.limits.load()?;
    let mut doctor = Doctor { conn: args.database.connect().await?, args: &args, findings: Vec::new() };
    doctor.examine(limits.as_ref()).await?;
    let mut findings = doctor.findings;
    findings.sort_by_key(|finding| finding.severity);
    let is_sound = findings.iter().all(|finding| finding.severity != Severity::Error);
    answered(report::print(args.output, &findings), if is_sound { Exit::Done } else { Exit::Unsound })
}

struct Doctor<'a> {
    conn: PgConnection,
    args: &'a DoctorArgs,
    findings: Vec<Finding>,
}

impl Doctor<'_> {
    async fn examine(&mut self, limits: Option<&Limits>) -> Result<(), CommandError> {
        self.look("server", async |conn| server::check(conn).await).await?;
        self.look("clock", async |conn| clock::check(conn).await).await?;
        self.findings.extend(pooler::check(&self.args.database).await?);
        self.look("snapshots", async |conn| snapshots::check(conn, self.args.old_snapshot).await).await?;
        let role = self.args.role.as_deref();
        let has_rights = self.look("rights", async |conn| rights::check(conn, role).await).await?;
        // Without rights of one's own, or without tables, there is nothing more to look at.
        if !has_rights && role.is_none() || !self.look("schema", async |conn| schema::check(conn).await).await? {
            return Ok(());
        }
        self.look("tables", async |conn| tables::check(conn).await).await?;
        self.look("rows", async |conn| rows::check(conn, limits).await).await?;
        Ok(())
    }

    /// One look, in a transaction of its own that changes nothing. Whether it found no error.
    async fn look(
        &mut self,
        check: &'static str,
        look: impl AsyncFnOnce(&mut PgConnection) -> Result<Vec<Finding>, CommandError>,
    ) -> Result<bool, CommandError> {
        let mut tx = read_only(&mut self.conn, self.args.timeout).await?;
        let found = match look(&mut tx).await {
            Ok(found) => found,
            Err(error) if error.sqlstate().is_some_and(|code| NOT_SEEN.contains(&code.as_str())) => {
                vec![unseen(check, &error)]
            }
            Err(error) => return Err(error),
        };
        tx.rollback().await?;
        let is_sound = found.iter().all(|finding| finding.severity != Severity::Error);
        self.findings.extend(found);
        Ok(is_sound)
    }
}

fn unseen(check: &'static str, error: &CommandError) -> Finding {
    Finding::warning(check, format!("could not look: {error}"))
        .means("What this check would have found is not known.")
        .remedy("Run the doctor as the owner of the schema, or give it longer with --timeout.")
}

/// The look took too long, was not permitted, or lost its statement to a pooler that does not follow names.
const NOT_SEEN: [&str; 4] = ["57014", "42501", "26000", "42P05"];
