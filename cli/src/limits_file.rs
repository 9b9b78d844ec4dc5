//! The definitions that a command works by: those of a limits file, or else those of the table `tollgate.limits`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::PgConnection;
use tollgate::{Limit, LimitKind, LimitSpec, Limits, Span, Storage, Tokens};

use crate::database::{DatabaseArgs, read_only};
use crate::error::CommandError;
use crate::output::{printable, tell};
use crate::storage;

/// Which limits file; the same option for every command that can use one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LimitsArgs {
    /// The limits file, TOML or JSON. Without this option, the command reads `tollgate.toml` in the current directory,
    /// if there is one. A command that asks a database else reads the table `tollgate.limits`.
    #[arg(long, env = "TOLLGATE_LIMITS", value_name = "FILE")]
    limits: Option<PathBuf>,
}

impl LimitsArgs {
    /// The limits of the file; none where no file is given and there is none of the usual name.
    pub(crate) fn load(&self) -> Result<Option<Limits>, CommandError> {
        let usual = || Some(Path::new(USUAL)).filter(|path| path.exists());
        Ok(self.limits.as_deref().or_else(usual).map(Limits::from_file).transpose()?)
    }

    /// The limits of the file, or else those of the table; none where neither has any.
    pub(crate) async fn known(&self, conn: &mut PgConnection) -> Result<Option<Limits>, CommandError> {
        if let Some(limits) = self.load()? {
            return Ok(Some(limits));
        }
        Ok(of_table(conn).await.ok().filter(|limits| !limits.is_empty()))
    }

    /// The definition of one limit, which must be in the file.
    pub(crate) fn of_file(&self, name: &str) -> Result<Limit, CommandError> {
        let Some(limits) = self.load()? else {
            return Err(CommandError::new(
                format!("what limit {name:?} allows is not known here"),
                "pass --limits FILE, set TOLLGATE_LIMITS, or run it where tollgate.toml is",
            ));
        };
        Ok(limits.get(name)?.clone())
    }

    /// The definition of one limit, which must be there. If file and table differ, this says which one counts.
    pub(crate) async fn limit(&self, name: &str, database: &DatabaseArgs) -> Result<Limit, CommandError> {
        let file = self.load()?;
        let of_file = file.as_ref().map(|file| file.get(name)).transpose()?;
        let table = of_table(&mut database.connect().await?).await;
        let Some(limit) = of_file else {
            return match table?.get(name) {
                Ok(limit) => Ok(limit.clone()),
                Err(unknown) if unknown.nearest.is_some() => Err(unknown.into()),
                Err(_) => Err(not_known(name)),
            };
        };
        if let Some(other) = table.ok().as_ref().and_then(|table| table.get(name).ok()).filter(|other| *other != limit)
        {
            tell(format_args!("the limits file counts, and not tollgate.limits, which has {}", describe(other)));
        }
        Ok(limit.clone())
    }
}

/// The limits of the table, by no setting that another client of a pooler left.
async fn of_table(conn: &mut PgConnection) -> Result<Limits, CommandError> {
    let mut tx = read_only(conn, PATIENCE).await?;
    let limits = Limits::from_table(&mut tx).await;
    // A pooler closes the session of a client that goes away within a transaction.
    tx.rollback().await?;
    Ok(limits?)
}

/// How long the server may take for the definitions.
const PATIENCE: Duration = Duration::from_secs(10);

/// The error for a limit that neither a limits file nor the table defines.
pub(crate) fn not_known(name: &str) -> CommandError {
    let remedy = "pass --limits FILE, set TOLLGATE_LIMITS, run it where tollgate.toml is, or fill tollgate.limits by \
                  `tollgate limits push`";
    CommandError::new(format!("what limit {name:?} allows is not known here"), remedy)
}

/// How often the rate comes back.
pub(crate) fn each(spec: &LimitSpec) -> String {
    spec.kind.calendar().map_or_else(|| format!("each {}", Span(spec.period)), |period| format!("each {period}"))
}

/// The period, for an estimate; a month where the calendar or the callers tell it.
pub(crate) fn period(spec: &LimitSpec) -> Duration {
    if spec.kind.has_period() { spec.period } else { Duration::from_hours(31 * 24) }
}

/// A definition in one line.
pub(crate) fn describe(limit: &Limit) -> String {
    let spec = limit.spec();
    let span = Span;
    let mut words = vec![format!("{}: {}", printable(spec.name()), spec.kind)];
    words.extend(match limit.lease() {
        Some(lease) => Some(format!("{} at once, leases of {}", spec.rate, span(lease))),
        None if spec.kind.is_money() => None,
        None => Some(format!("{} {}", spec.rate, each(&spec))),
    });
    words.extend(spec.capacity.filter(|capacity| *capacity != spec.rate).map(|capacity| format!("at most {capacity}")));
    let of_what = if spec.kind == LimitKind::Monthly {
        "months from {} after the 1st on"
    } else {
        "steps from {} after the epoch on"
    };
    words.extend(spec.start.map(|start| of_what.replace("{}", &span(start).to_string())));
    match spec.max_reserved {
        Tokens::ZERO => {}
        overdraft if spec.kind == LimitKind::Wallet => words.push(format!("overdraft of {overdraft}")),
        Tokens::MAX => words.push("reservations without bound".to_owned()),
        bound => words.push(format!("reservations down to -{bound}")),
    }
    if spec.shards > 1 {
        words.push(format!("{} shards", spec.shards));
    }
    if spec.storage == Storage::Ephemeral {
        words.push(storage::name(spec.storage).to_owned());
    }
    words.join(", ")
}

const USUAL: &str = "tollgate.toml";
