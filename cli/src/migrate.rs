use clap::Subcommand;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};
use tollgate::migrate::{self, Callers, Leftover, Migration, Migrator, Rights, Status};

use crate::database::DatabaseArgs;
use crate::error::CommandError;
use crate::output::{OutputArgs, printable};

#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    command: MigrateCommand,

    #[command(flatten)]
    owner: OwnerArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Whose schema it is.
#[derive(Debug, clap::Args)]
pub(crate) struct OwnerArgs {
    /// Trust this role, too. The schema and what is in it must belong to the role that connects, to one that it is a
    /// member of, to an administrator, or to this role: an owner can run code with the rights of whoever migrates. A
    /// role that can create nothing, and only looks, takes the owner of the tables as given.
    #[arg(long, global = true, value_name = "ROLE")]
    owner: Option<String>,
}

impl OwnerArgs {
    fn to_write(&self) -> Migrator {
        self.owner.as_ref().map_or_else(Migrator::new, |owner| Migrator::new().owner(owner))
    }

    pub(crate) async fn to_look(&self, conn: &mut PgConnection) -> Result<Migrator, sqlx::Error> {
        if self.owner.is_some() {
            return Ok(self.to_write());
        }
        let owner = sqlx::query_scalar(include_str!("owner.sql")).persistent(false).fetch_one(conn).await?;
        Ok(Self { owner }.to_write())
    }
}

#[derive(Debug, Subcommand)]
enum MigrateCommand {
    /// Apply the missing migrations, in one transaction. If several runners start at once, one applies them and the
    /// others wait.
    ///
    /// Takes back the rights that nobody should have, and names what only a person can put right.
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
    let MigrateArgs { command, owner, database, output } = args;
    match command {
        MigrateCommand::Up { dry_run, grants } => {
            let (mut conn, migrator) = (database.connect().await?, owner.to_write());
            let applied = if dry_run { migrator.dry_run(&mut conn).await? } else { migrator.run(&mut conn).await? };
            sqlx::raw_sql(AssertSqlSafe(grants.sql())).execute(&mut conn).await?;
            let left = migrator.left(&mut conn).await?;
            report(output, &applied, if dry_run { "would apply" } else { "applied" }, &left)
        }
        MigrateCommand::Status => {
            let mut conn = database.connect().await?;
            let status = owner.to_look(&mut conn).await?.status(&mut conn).await?;
            output.print(&document(&status), || list(&status))
        }
        MigrateCommand::Sql { grants } => {
            let sql = owner.to_write().sql() + &grants.sql();
            output.print(&json!({ "sql": sql }), || sql.clone())
        }
        MigrateCommand::Validate => {
            let mut conn = database.connect().await?;
            let migrator = owner.to_look(&mut conn).await?;
            migrator.validate(&mut conn).await?;
            let (left, rights) = (migrator.left(&mut conn).await?, migrate::rights(&mut conn).await?);
            let version = env!("CARGO_PKG_VERSION");
            let valid = || {
                let valid = format!("the schema is what tollgate {version} needs");
                [vec![valid], left_lines(&left), vec![who_may(&rights)]].concat().join("\n")
            };
            let rights = rights_document(&rights);
            let document = json!({ "valid": true, "version": version, "left": left_document(&left), "rights": rights });
            output.print(&document, valid)
        }
    }
}

fn report(output: OutputArgs, applied: &[Migration], verb: &str, left: &[Leftover]) -> Result<(), CommandError> {
    output.print(&json!({ verb.replace(' ', "_"): migrations(applied), "left": left_document(left) }), || {
        let applied = match applied {
            [] => vec!["nothing to do: the schema is up to date".to_owned()],
            applied => applied.iter().map(|migration| format!("{verb} {migration}")).collect(),
        };
        [applied, left_lines(left)].concat().join("\n")
    })
}

fn left_lines(left: &[Leftover]) -> Vec<String> {
    let line =
        |left: &Leftover| format!("left: {} (if that is wrong: {})", printable(&left.what), printable(&left.remedy));
    left.iter().map(line).collect()
}

fn left_document(left: &[Leftover]) -> Vec<Value> {
    left.iter().map(|left| json!({ "what": left.what, "remedy": left.remedy })).collect()
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
