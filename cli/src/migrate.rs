use clap::Subcommand;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tollgate::migrate::{self, Callers, Migration, Rights, Status};

use crate::database::DatabaseArgs;
use crate::error::CommandError;
use crate::output::{OutputArgs, printable};

#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    command: MigrateCommand,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Subcommand)]
enum MigrateCommand {
    /// Apply the missing migrations, in one transaction. If several runners start at once, one applies them and the
    /// others wait.
    Up {
        /// Apply the migrations, print them, and roll them back.
        #[arg(long, conflicts_with_all = ["grant", "grant_operator", "grant_reporter"])]
        dry_run: bool,

        #[command(flatten)]
        grants: GrantArgs,
    },
    /// List the applied migrations and the missing ones.
    Status,
    /// Print all migrations as SQL, for psql or another migration tool. The SQL is safe to run twice. Needs no
    /// database.
    Sql {
        #[command(flatten)]
        grants: GrantArgs,
    },
    /// Check that nothing is missing, edited or damaged. Fails with the first fault.
    ///
    /// A right that nobody should have is a fault, too. PUBLIC should have none on a table or a function. Only the
    /// owner should be able to make objects in the schema. If there is no fault, the command prints which roles may
    /// ask, give, report, write rows and read keys. It counts owners, and leaves out administrators.
    Validate,
}

/// Roles that may call the SQL functions. Without a grant only the owner may.
#[derive(Debug, clap::Args)]
struct GrantArgs {
    /// Let a role ask limits through SQL functions (`consume`, `reserve`, `check`, …), without any right on the tables.
    ///
    /// The option takes the other functions from the role. It leaves them to a role that may write the tables anyway,
    /// or that another option names, too.
    #[arg(long, value_name = "ROLE")]
    grant: Vec<String>,

    /// Let a role define and override limits, give and take tokens, and settle calls through SQL functions. Such a role
    /// can give itself any number of tokens.
    #[arg(long, value_name = "ROLE")]
    grant_operator: Vec<String>,

    /// Let a role report through SQL functions that the service behind a limit is in trouble. Such a role can slow
    /// limits down and pause them.
    #[arg(long, value_name = "ROLE")]
    grant_reporter: Vec<String>,
}

impl GrantArgs {
    fn sql(&self) -> String {
        // A grant to ask takes the others from a role, so it comes first.
        let sets = [
            (&self.grant, Callers::Applications),
            (&self.grant_operator, Callers::Operators),
            (&self.grant_reporter, Callers::Reporters),
        ];
        let grants = sets.into_iter().flat_map(|(roles, callers)| roles.iter().map(move |role| (role, callers)));
        grants.map(|(role, callers)| migrate::grants(role, callers)).collect()
    }
}

pub(crate) async fn run(args: MigrateArgs) -> Result<(), CommandError> {
    let MigrateArgs { command, database, output } = args;
    match command {
        MigrateCommand::Up { dry_run, grants } => {
            let mut conn = database.connect().await?;
            let applied = if dry_run { migrate::dry_run(&mut conn).await? } else { migrate::run(&mut conn).await? };
            sqlx::raw_sql(AssertSqlSafe(grants.sql())).execute(&mut conn).await?;
            report(output, &applied, if dry_run { "would apply" } else { "applied" })
        }
        MigrateCommand::Status => {
            let status = migrate::status(&mut database.connect().await?).await?;
            output.print(&document(&status), || list(&status))
        }
        MigrateCommand::Sql { grants } => {
            let sql = migrate::sql() + &grants.sql();
            output.print(&json!({ "sql": sql }), || sql.clone())
        }
        MigrateCommand::Validate => {
            let mut conn = database.connect().await?;
            migrate::validate(&mut conn).await?;
            let rights = migrate::rights(&mut conn).await?;
            let version = env!("CARGO_PKG_VERSION");
            let valid = || format!("the schema is what tollgate {version} needs\n{}", who_may(&rights));
            output.print(&json!({ "valid": true, "version": version, "rights": rights_document(&rights) }), valid)
        }
    }
}

fn report(output: OutputArgs, applied: &[Migration], verb: &str) -> Result<(), CommandError> {
    output.print(&json!({ verb.replace(' ', "_"): migrations(applied) }), || match applied {
        [] => "nothing to do: the schema is up to date".to_owned(),
        applied => applied.iter().map(|migration| format!("{verb} {migration}")).collect::<Vec<_>>().join("\n"),
    })
}

fn list(status: &Status) -> String {
    let Status { applied, pending, newer, .. } = status;
    let date = |migration: &Migration| migration.applied_on.clone().unwrap_or_default();
    let mut lines: Vec<_> = applied.iter().map(|one| format!("applied  {one}  {}", date(one))).collect();
    lines.extend(pending.iter().map(|one| format!("pending  {one}")));
    lines.extend(newer.iter().map(|one| format!("newer    {one}  (from a newer release, which this one works with)")));
    if !status.is_current() {
        lines.push("run `tollgate migrate up` to apply what is pending".to_owned());
    }
    lines.join("\n")
}

/// The names of the roles that have each right, one line for each right.
pub(crate) fn who_may(rights: &Rights) -> String {
    let Rights { may_ask, may_give, may_report, may_write, may_read, .. } = rights;
    let named = [
        ("ask", may_ask),
        ("give", may_give),
        ("report", may_report),
        ("write rows", may_write),
        ("read keys", may_read),
    ];
    let line = |(verb, roles): (&str, &Vec<String>)| {
        let roles = if roles.is_empty() { "only administrators".to_owned() } else { printable(&roles.join(", ")) };
        format!("may {verb}: {roles}")
    };
    named.map(line).join("\n")
}

pub(crate) fn rights_document(rights: &Rights) -> Value {
    let Rights { may_ask, may_give, may_report, may_write, may_read, .. } = rights;
    json!({
        "may_ask": may_ask, "may_give": may_give, "may_report": may_report, "may_write": may_write, "may_read": may_read
    })
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
