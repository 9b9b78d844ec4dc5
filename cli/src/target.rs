//! The target of a verb: one key of one limit, and the definition that decides.

use tollgate::{Key, Request};

use crate::error::CommandError;
use crate::limits_file::LimitsArgs;

/// A limit, and whom it applies to.
#[derive(Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The limit's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    #[command(flatten)]
    who: WhoArgs,

    #[command(flatten)]
    pub(crate) limits: LimitsArgs,
}

/// A key, or all callers. A missing key is an error and does not mean the row of all callers: a slip must not change
/// what everybody shares.
#[derive(Debug, clap::Args)]
#[group(id = "who", required = true, multiple = false)]
struct WhoArgs {
    /// The key, written as `tollgate inspect` prints it. `|` joins the parts of a key that has several, as in
    /// `acme|user`.
    #[arg(value_name = "KEY", value_parser = key)]
    key: Option<Key>,

    /// Use the one row that all callers share, instead of a key.
    #[arg(long)]
    global: bool,
}

impl TargetArgs {
    /// One token of the limit for this key.
    pub(crate) fn request(&self) -> Result<Request, CommandError> {
        let limit = self.limits.limit(&self.name)?;
        Ok(self.who.key.as_ref().map_or_else(|| limit.global(), |key| limit.key(key)))
    }

    pub(crate) fn key(&self) -> Key {
        self.who.key.clone().unwrap_or(Key::GLOBAL)
    }
}

/// Reads a key in its canonical form.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    if text.is_empty() {
        return Err("the key is empty (use --global for the row of all callers)".to_owned());
    }
    Key::try_from(text.to_owned()).map_err(|error| error.to_string())
}
