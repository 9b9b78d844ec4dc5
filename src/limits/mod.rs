mod fault;
mod file;
#[cfg(feature = "postgres")]
mod table;
mod written;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::limit::{self, Limit};
pub use fault::{FileFault, LimitsError, UnknownLimit};

/// The limits of a file, by name.
///
/// The file is in TOML or in JSON. It has one table for each limit, and the table's name is the limit's name. The
/// fields are those of [`LimitSpec`](crate::LimitSpec) without `name`, and the kinds those of
/// [`LimitKind`](crate::LimitKind), such as:
///
/// ```toml
/// [send_message]
/// kind = "token_bucket"
/// rate = 10                  # tokens per period; fractions are allowed: 0.5 or "0.5"
/// per = "1m"                 # the period: "10s", "1m 30s", "1h", "1d"; also spelled `period`
/// capacity = 20              # the most at once; default: the rate
///
/// [sign_ups]
/// kind = "fixed_window"
/// rate = 100
/// per = "1d"
/// start = "22h"              # windows start at the Unix epoch plus this: midnight at UTC+2
///
/// [llm]
/// kind = "monthly"           # months of UTC; no `per`
/// rate = 100_000
/// start = "14d"              # months start on the 15th; default: on the 1st
///
/// [mails]
/// kind = "billing"           # each request names its period; no `per`
/// rate = 10_000
///
/// [their_api]
/// kind = "sliding_window"
/// rate = 100
/// per = "1m"
/// resolution = 10            # in how many steps it slides; default: as finely as can be
///
/// [renders]
/// kind = "concurrency"
/// rate = 8                   # how many at once
/// lease = "30s"              # when a dead holder's ends; the same field as `per`
///
/// [credits]
/// kind = "wallet"            # holds what is credited to it, and has neither a rate nor a period
/// overdraft = 50             # how deep calls may take it below zero; the same field as `max_reserved`
///
/// [llm_usage]
/// kind = "meter"             # counts what is used; it has nothing but its name
///
/// [llm_tokens]
/// kind = "token_bucket"
/// rate = 40_000
/// per = "1m"
/// max_reserved = 200_000     # how far reservations may go below zero, or "unbounded"; default: 0
/// shards = 10                # how many rows share one key; default: 1
/// storage = "durable"        # or "ephemeral": a crash of the server forgets the count
/// ```
///
/// An unknown field is an error, and so is a limit that occurs twice. The first fault is reported, with its line and
/// its column. A fault of a limit as a whole, such as a rate of zero, has the place of its table in TOML, and of its
/// end in JSON.
///
/// ```
/// use tollgate::Limits;
///
/// let limits = Limits::from_toml("[send_message]\nkind = 'token_bucket'\nrate = 10\nper = '1m'")?;
/// let request = limits.get("send_message")?.key("ada");
/// # let _ = request;
///
/// let error = limits.get("send_mesage").unwrap_err();
/// assert_eq!(error.to_string(), r#"there is no limit "send_mesage" (did you mean "send_message"?)"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    by_name: BTreeMap<String, Limit>,
    file: Option<PathBuf>,
}

impl Limits {
    /// Reads a file: JSON if its name ends in `.json`, else TOML. YAML is an error.
    ///
    /// # Errors
    ///
    /// [`LimitsError::Unreadable`], [`LimitsError::Faulty`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, LimitsError> {
        let file = path.as_ref().to_owned();
        let ends_in = |ending| file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
        let read = if ends_in("yaml") || ends_in("yml") {
            Err(io::Error::new(io::ErrorKind::Unsupported, "it is in YAML (write it in TOML or in JSON)"))
        } else {
            fs::read_to_string(&file)
        };
        let text = match read {
            Ok(text) => text,
            Err(source) => return Err(LimitsError::Unreadable { file, source }),
        };
        let of_text = if ends_in("json") { file::of_json } else { file::of_toml };
        Self::read(of_text(&text), Some(file))
    }

    /// Reads a text in TOML.
    ///
    /// # Errors
    ///
    /// [`LimitsError::Faulty`].
    pub fn from_toml(text: &str) -> Result<Self, LimitsError> {
        Self::read(file::of_toml(text), None)
    }

    /// Reads a text in JSON: an object of objects.
    ///
    /// # Errors
    ///
    /// [`LimitsError::Faulty`].
    pub fn from_json(text: &str) -> Result<Self, LimitsError> {
        Self::read(file::of_json(text), None)
    }

    /// The limits that a program defines, such as its constants.
    ///
    /// # Errors
    ///
    /// [`LimitsError::Twice`].
    pub fn of<'l>(limits: impl IntoIterator<Item = &'l Limit>) -> Result<Self, LimitsError> {
        let by_name = limit::by_name(limits).map_err(|limit| LimitsError::Twice { limit })?;
        Ok(Self { by_name, file: None })
    }

    /// Writes the limits as a file in TOML. A service that prints its constants so lets a deploy push them:
    /// `service --limits > limits.toml && tollgate limits push limits.toml`.
    ///
    /// ```
    /// use tollgate::{Limit, Limits, MINUTE};
    ///
    /// const SEND_MESSAGE: Limit = Limit::token_bucket("send_message", 10, MINUTE).capacity(20);
    ///
    /// let limits = Limits::of([&SEND_MESSAGE])?;
    /// let text = "[send_message]\nkind = \"token_bucket\"\ncapacity = 20\nperiod = \"1m\"\nrate = 10\n";
    /// assert_eq!(limits.to_toml(), text);
    /// assert_eq!(Limits::from_toml(text)?, limits);
    /// # Ok::<(), tollgate::LimitsError>(())
    /// ```
    #[must_use]
    pub fn to_toml(&self) -> String {
        written::to_toml(self.iter())
    }

    /// The limit of this name.
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

    /// All limits, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Limit> {
        self.by_name.values()
    }

    /// The number of limits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there are no limits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    fn read(by_name: Result<BTreeMap<String, Limit>, FileFault>, file: Option<PathBuf>) -> Result<Self, LimitsError> {
        match by_name {
            Ok(by_name) => Ok(Self { by_name, file }),
            Err(fault) => Err(LimitsError::Faulty { file, fault }),
        }
    }
}

/// The candidate that `written` most probably misspells: at most every third letter is wrong, missing or swapped.
fn nearest<'c>(written: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let distance = |candidate: &&str| strsim::osa_distance(&written.to_lowercase(), &candidate.to_lowercase());
    let best = candidates.min_by_key(distance)?;
    let most = (written.chars().count().max(best.chars().count()) / 3).max(1);
    (distance(&best) <= most).then_some(best)
}
