//! The target of a verb: one key of one limit, and the definition that decides.

use tollgate::{Key, Limit, Request};

use crate::database::DatabaseArgs;
use crate::error::CommandError;
use crate::limits_file::LimitsArgs;
use crate::output::shown;

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
    /// The key, written as `tollgate inspect` prints it. Of a key that has several parts, each may be a word: `acme
    /// user` is `'acme|user'`.
    #[arg(value_name = "KEY", value_parser = key)]
    key: Vec<Key>,

    /// Use the one row that all callers share, instead of a key.
    #[arg(long)]
    global: bool,
}

impl TargetArgs {
    /// One token of the limit for this key.
    pub(crate) async fn request(&self, database: &DatabaseArgs) -> Result<Request, CommandError> {
        self.of(&self.limits.limit(&self.name, database).await?)
    }

    /// The same of a limit that is known.
    pub(crate) fn of(&self, limit: &Limit) -> Result<Request, CommandError> {
        Ok(joined(&self.who.key)?.map_or_else(|| limit.global(), |key| limit.key(key)))
    }

    /// The key as people read it.
    pub(crate) fn shown(&self) -> Result<String, CommandError> {
        Ok(shown(&joined(&self.who.key)?.unwrap_or(Key::GLOBAL)))
    }
}

/// The key of several words; none of no word.
pub(crate) fn joined(words: &[Key]) -> Result<Option<Key>, CommandError> {
    let text = words.iter().map(Key::as_str).collect::<Vec<_>>().join("|");
    Ok(if words.is_empty() { None } else { Some(Key::try_from(text)?) })
}

/// Reads a key in its canonical form.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    if text.is_empty() {
        return Err("the key is empty (use --global for the row of all callers)".to_owned());
    }
    Key::try_from(text.to_owned()).map_err(|error| error.to_string())
}
