use tollgate::{Key, KeyError, Request};

use crate::error::CommandError;
use crate::limits_file::LimitsArgs;

/// One row of a limit, and the definition that it is decided by.
#[derive(Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The limit's name.
    #[arg(value_name = "NAME")]
    pub(super) name: String,

    #[command(flatten)]
    pub(super) who: WhoArgs,

    #[command(flatten)]
    pub(super) limits: LimitsArgs,
}

/// Whom a limit applies to: a key, or all callers. A key left out is an error and not the row of all callers: a slip should not
/// change what everybody shares.
#[derive(Debug, clap::Args)]
#[group(id = "who", required = true, multiple = false)]
pub(crate) struct WhoArgs {
    /// The key as `tollgate inspect` shows it; the parts of a combined one are joined by `|`.
    #[arg(value_name = "KEY", value_parser = key)]
    key: Option<Key>,

    /// The one row for all callers together, instead of a key.
    #[arg(long)]
    global: bool,
}

impl TargetArgs {
    /// One token of the limit for whom it is about.
    pub(super) fn request(&self) -> Result<Request, CommandError> {
        let limit = self.limits.limit(&self.name)?;
        Ok(self.who.key.as_ref().map_or_else(|| limit.global(), |key| limit.key(key)))
    }
}

impl WhoArgs {
    /// The key of the row.
    pub(super) fn key(&self) -> Key {
        self.key.clone().unwrap_or(Key::GLOBAL)
    }
}

/// Reads a key in its canonical form.
pub(crate) fn key(text: &str) -> Result<Key, KeyFault> {
    if text.is_empty() {
        return Err(KeyFault::Empty);
    }
    Ok(Key::try_from(text.to_owned())?)
}

/// Why a text on the command line is no key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyFault {
    #[error("the key is empty (use --global for the row of all callers)")]
    Empty,
    #[error("{0}")]
    Key(#[from] KeyError),
}
