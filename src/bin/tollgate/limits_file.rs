//! The definitions that a command works by: those of a limits file.

use std::path::{Path, PathBuf};

use tollgate::{Limit, Limits, LimitsError, Storage, Tokens, UnknownLimit};

use crate::output::printable;

/// Which limits file; the same option for every command that can use one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LimitsArgs {
    /// The limits file, TOML or JSON; `tollgate.toml` in this directory unless given, if it is there.
    #[arg(long, env = "TOLLGATE_LIMITS", value_name = "FILE")]
    limits: Option<PathBuf>,
}

impl LimitsArgs {
    /// The limits of the file; none where no file is given and there is none of the usual name.
    pub(crate) fn load(&self) -> Result<Option<Limits>, LimitsFileError> {
        let path = match &self.limits {
            Some(path) => path,
            None if Path::new(USUAL).exists() => Path::new(USUAL),
            None => return Ok(None),
        };
        Limits::from_file(path).map(Some).map_err(LimitsFileError::from)
    }

    /// The definition of one limit, which must be there.
    pub(crate) fn limit(&self, name: &str) -> Result<Limit, LimitsFileError> {
        let limits = self.load()?.ok_or_else(|| LimitsFileError::NotGiven { limit: name.to_owned() })?;
        Ok(limits.get(name)?.clone())
    }
}

/// A definition in one line.
pub(crate) fn describe(limit: &Limit) -> String {
    let spec = limit.spec();
    let capacity =
        spec.capacity.filter(|&capacity| capacity != spec.rate).map(|capacity| format!(", at most {capacity}"));
    let storage = if spec.storage == Storage::Ephemeral { ", ephemeral" } else { "" };
    let debt = match spec.max_reserved {
        Tokens::ZERO => String::new(),
        Tokens::MAX => ", reservations without bound".to_owned(),
        bound => format!(", reservations down to -{bound}"),
    };
    let start =
        spec.start.map(|start| format!(", steps from {} after the epoch on", humantime::format_duration(start)));
    let (name, period) = (printable(&spec.name), humantime::format_duration(spec.period));
    let (capacity, start) = (capacity.unwrap_or_default(), start.unwrap_or_default());
    let shards = if spec.shards > 1 { format!(", {} shards", spec.shards) } else { String::new() };
    format!("{name}: {}, {} each {period}{capacity}{start}{debt}{shards}{storage}", spec.kind, spec.rate)
}

/// Why there is no definition to work by: one sentence with the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LimitsFileError {
    #[error("{first}{}", and_more(file, *.more))]
    Faulty { first: String, file: PathBuf, more: usize },
    #[error(
        "what limit {limit:?} allows is not known here (pass --limits FILE, set TOLLGATE_LIMITS, or run it where tollgate.toml is)"
    )]
    NotGiven { limit: String },
    #[error("{0}")]
    Unknown(#[from] UnknownLimit),
    #[error("{0}")]
    Unreadable(LimitsError),
}

impl From<LimitsError> for LimitsFileError {
    fn from(error: LimitsError) -> Self {
        let LimitsError::Faulty(faults) = &error else { return Self::Unreadable(error) };
        let file = faults.file().unwrap_or(Path::new(USUAL)).to_owned();
        // There is always a first one.
        let first = faults.iter().next().map(|fault| format!("{}:{fault}", file.display())).unwrap_or_default();
        Self::Faulty { first, file, more: faults.iter().len().saturating_sub(1) }
    }
}

fn and_more(file: &Path, more: usize) -> String {
    let file = file.display();
    if more == 0 { String::new() } else { format!("; and {more} more (run `tollgate limits check {file}`)") }
}

const USUAL: &str = "tollgate.toml";
