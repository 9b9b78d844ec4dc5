//! The definitions that a command works by: those of a limits file.

use std::path::{Path, PathBuf};

use tollgate::{Limit, LimitKind, Limits, Span, Storage, Tokens};

use crate::error::CommandError;
use crate::output::printable;
use crate::storage;

/// Which limits file; the same option for every command that can use one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LimitsArgs {
    /// The limits file, TOML or JSON. Without this option, the command reads `tollgate.toml` in the current directory,
    /// if there is one.
    #[arg(long, env = "TOLLGATE_LIMITS", value_name = "FILE")]
    limits: Option<PathBuf>,
}

impl LimitsArgs {
    /// The limits of the file; none where no file is given and there is none of the usual name.
    pub(crate) fn load(&self) -> Result<Option<Limits>, CommandError> {
        let usual = || Some(Path::new(USUAL)).filter(|path| path.exists());
        Ok(self.limits.as_deref().or_else(usual).map(Limits::from_file).transpose()?)
    }

    /// The definition of one limit, which must be there.
    pub(crate) fn limit(&self, name: &str) -> Result<Limit, CommandError> {
        let Some(limits) = self.load()? else {
            return Err(CommandError::new(
                format!("what limit {name:?} allows is not known here"),
                "pass --limits FILE, set TOLLGATE_LIMITS, or run it where tollgate.toml is",
            ));
        };
        Ok(limits.get(name)?.clone())
    }
}

/// A definition in one line.
pub(crate) fn describe(limit: &Limit) -> String {
    let spec = limit.spec();
    let span = Span;
    let mut words = vec![format!("{}: {}", printable(spec.name()), spec.kind)];
    words.extend(match limit.lease() {
        Some(lease) => Some(format!("{} at once, leases of {}", spec.rate, span(lease))),
        None if spec.kind == LimitKind::Wallet => None,
        None => Some(format!("{} each {}", spec.rate, span(spec.period))),
    });
    words.extend(spec.capacity.filter(|capacity| *capacity != spec.rate).map(|capacity| format!("at most {capacity}")));
    words.extend(spec.start.map(|start| format!("steps from {} after the epoch on", span(start))));
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
