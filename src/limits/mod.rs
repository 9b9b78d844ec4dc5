mod document;
mod fault;
mod names;
mod nearest;
mod reader;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::limit::Limit;
use document::Format;
pub use fault::{FileFault, FileFaultKind, FileFaults, LimitsError, UnknownLimit};
pub use names::{LimitName, NamedLimits, is_named_in};
use nearest::nearest;

/// The limits of a file, by name.
///
/// A file is a table of limits, in TOML or in JSON; the name of each is its table's. The fields are those of
/// [`LimitSpec`](crate::LimitSpec), but for the name:
///
/// ```toml
/// [send_message]
/// kind = "token_bucket"      # or "fixed_window", "stepped_bucket"
/// rate = 10                  # tokens that come back in each period; 0.5 and "0.5" are fine
/// per = "1m"                 # the period: "10s", "1m 30s", "1h", "1d"; `period` is the same
/// capacity = 20              # the most at once; the rate unless given
///
/// [sign_ups]
/// kind = "fixed_window"
/// rate = 100
/// per = "1d"
/// start = "22h"              # aligns the steps to the Unix epoch plus this: midnight at UTC+2
///
/// [llm_tokens]
/// kind = "token_bucket"
/// rate = 40_000
/// per = "1m"
/// max_reserved = 200_000     # how far reservations may go below zero, or "unbounded"; 0 unless given
/// shards = 10                # over how many rows a key is spread; 1 unless given
/// storage = "durable"        # or "ephemeral", for traffic whose count a crash may forget
/// ```
///
/// Nothing is guessed: a field that is not known is an error, and all faults are reported together, each with its line and
/// column, and with what was probably meant.
///
/// # Example
///
/// ```
/// use tollgate::Limits;
///
/// let limits = Limits::from_toml("
///     [send_message]
///     kind = 'token_bucket'
///     rate = 10
///     per = '1m'
/// ")?;
/// let request = limits.get("send_message")?.key("ada");
/// # let _ = request;
///
/// let error = limits.get("send_mesage").unwrap_err();
/// assert_eq!(error.to_string(), r#"there is no limit "send_mesage" (did you mean "send_message"?)"#);
///
/// let error = Limits::from_toml("[uploads]\nkind = 'fixed_window'\nrate = 5\nper = '10s'\ncapcity = 20").unwrap_err();
/// assert_eq!(error.to_string(), r#"5:1: limit "uploads": unknown field "capcity" (did you mean "capacity"?)"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    by_name: BTreeMap<String, Limit>,
    file: Option<PathBuf>,
}

impl Limits {
    /// The limits of a file: JSON where its name ends in `.json`, else TOML.
    ///
    /// # Errors
    ///
    /// [`LimitsError::Unreadable`] for a file that cannot be read, [`LimitsError::Faulty`] with all its faults.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, LimitsError> {
        let path = path.as_ref();
        let unreadable = |source| LimitsError::Unreadable { file: path.to_owned(), source };
        let text = fs::read_to_string(path).map_err(unreadable)?;
        Self::read(&text, Format::of(path), Some(path))
    }

    /// The limits of a text in TOML.
    ///
    /// # Errors
    ///
    /// [`LimitsError::Faulty`] with all its faults.
    pub fn from_toml(text: &str) -> Result<Self, LimitsError> {
        Self::read(text, Format::Toml, None)
    }

    /// The limits of a text in JSON: an object of objects.
    ///
    /// # Errors
    ///
    /// [`LimitsError::Faulty`] with all its faults.
    pub fn from_json(text: &str) -> Result<Self, LimitsError> {
        Self::read(text, Format::Json, None)
    }

    /// The limit of a name.
    ///
    /// # Errors
    ///
    /// [`UnknownLimit`], with the name that was probably meant.
    pub fn get(&self, name: &str) -> Result<&Limit, UnknownLimit> {
        self.by_name.get(name).ok_or_else(|| UnknownLimit {
            name: name.to_owned(),
            nearest: nearest(name, self.by_name.keys().map(String::as_str)).map(str::to_owned),
            file: self.file.clone(),
        })
    }

    /// All limits, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Limit> {
        self.by_name.values()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    fn read(text: &str, format: Format, file: Option<&Path>) -> Result<Self, LimitsError> {
        let file = file.map(Path::to_owned);
        match reader::read(text, format) {
            Ok(limits) => {
                let by_name = limits.into_iter().map(|limit| (limit.name().to_owned(), limit)).collect();
                Ok(Self { by_name, file })
            }
            Err(faults) => Err(LimitsError::Faulty(FileFaults { file, faults })),
        }
    }
}
