use std::io;
use std::path::PathBuf;

use crate::limit::LimitError;

/// Why limits could not be read from a file, or from the table of definitions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// The file has a fault.
    #[error("{}{fault}", .file.as_ref().map_or_else(String::new, |file| format!("{}:", file.display())))]
    #[non_exhaustive]
    Faulty {
        /// The path of the file; `None` if the text did not come from a file.
        file: Option<PathBuf>,
        /// Its first fault.
        fault: FileFault,
    },
    /// A definition in the table is not valid for this release.
    #[error("a definition in tollgate.limits is not valid (push the file again, or update this release)")]
    Stored(#[source] LimitError),
    /// The table of definitions cannot be read.
    #[cfg(feature = "postgres")]
    #[error(
        "could not read tollgate.limits (run `tollgate migrate up`, grant select on it, and switch no row security on)"
    )]
    #[non_exhaustive]
    Table {
        /// The driver's error.
        source: sqlx::Error,
    },
    /// Two limits of a program have the same name, and different definitions.
    #[error("limit {limit:?} has two definitions (give each a name of its own)")]
    #[non_exhaustive]
    Twice {
        /// The limit's name.
        limit: String,
    },
    /// The file cannot be read, is not in UTF-8, or is in YAML.
    #[error("could not read the limits file {} (check its path, its rights and its format)", .file.display())]
    #[non_exhaustive]
    Unreadable {
        /// The path of the file.
        file: PathBuf,
        /// Its fault.
        source: io::Error,
    },
}

/// The first fault of a file. Displays as `line:column: message`.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
#[non_exhaustive]
pub struct FileFault {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, in characters, counted from 1.
    pub column: usize,
    /// The fault.
    pub message: String,
}

impl FileFault {
    /// A fault at a byte of a text.
    pub(super) fn at(text: &str, at: usize, message: String) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1, message }
    }
}

/// No limit has this name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "there is no limit {name:?}{}{}",
    file.as_ref().map_or_else(String::new, |file| format!(" in {}", file.display())),
    nearest.as_ref().map_or_else(String::new, |nearest| format!(" (did you mean {nearest:?}?)"))
)]
#[non_exhaustive]
pub struct UnknownLimit {
    /// The name.
    pub name: String,
    /// The name that was probably meant.
    pub nearest: Option<String>,
    /// The file that was read; `None` if the limits did not come from a file.
    pub file: Option<PathBuf>,
}
