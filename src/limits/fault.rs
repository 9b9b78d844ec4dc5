use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::limit::LimitError;
use crate::limit::LimitFault;

/// Why limits could not be read from a file, or from the table of definitions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// The file has faults. Displays all of them, one per line.
    #[error("{0}")]
    Faulty(FileFaults),
    /// The file is in another encoding, such as UTF-16.
    #[error("the limits file {} is not in UTF-8 (save it so)", .file.display())]
    NotUtf8 {
        /// The path of the file.
        file: PathBuf,
    },
    /// A definition in the table is not valid for this release.
    #[error("a definition in tollgate.limits is not valid (push the file again, or update this release)")]
    Stored(#[source] LimitError),
    /// The table of definitions cannot be read.
    #[cfg(feature = "postgres")]
    #[error(
        "could not read tollgate.limits (run `tollgate migrate up`, grant select on it, and switch no row security on)"
    )]
    Table {
        /// The driver's error.
        source: sqlx::Error,
    },
    /// The file cannot be read.
    #[error("could not read the limits file {} (check its path and rights)", .file.display())]
    Unreadable {
        /// The path of the file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file's name says that it is in YAML.
    #[error("the limits file {} is in YAML (write it in TOML or in JSON)", .file.display())]
    Yaml {
        /// The path of the file.
        file: PathBuf,
    },
}

/// All faults of a file, at least one, in the order of the text. Displays one per line, as `file:line:column: …`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileFaults {
    pub(super) file: Option<PathBuf>,
    pub(super) faults: Vec<FileFault>,
}

impl FileFaults {
    /// The path of the file; `None` if the text did not come from a file.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The faults.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &FileFault> {
        self.faults.iter()
    }
}

impl fmt::Display for FileFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            f.write_str(if index > 0 { "\n" } else { "" })?;
            self.file.iter().try_for_each(|file| write!(f, "{}:", file.display()))?;
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

/// One fault of a file, with its place.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct FileFault {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, in characters, counted from 1.
    pub column: usize,
    /// The limit that has the fault, if one has.
    pub limit: Option<String>,
    /// The fault.
    pub kind: FileFaultKind,
    /// The name or value that was probably meant, or a way to mend the fault.
    pub suggestion: Option<String>,
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        self.limit.iter().try_for_each(|limit| write!(f, "limit {limit:?}: "))?;
        write!(f, "{}", self.kind)?;
        self.suggestion.iter().try_for_each(|suggestion| write!(f, " ({suggestion})"))
    }
}

/// A kind of fault in a file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileFaultKind {
    /// The definition of a limit is not valid.
    #[error("{0}")]
    Limit(LimitFault),
    /// A required field is missing.
    #[error("the field {0:?} is missing")]
    MissingField(&'static str),
    /// A single value stands where a limit should be.
    #[error("{0:?} is not a table with the fields of a limit")]
    NotATable(String),
    /// A field or a limit occurs twice.
    #[error("{0:?} occurs twice")]
    Repeated(String),
    /// The text is not valid TOML, or not valid JSON.
    #[error("{0}")]
    Syntax(String),
    /// No limit has a field of this name.
    #[error("unknown field {0:?}")]
    UnknownField(String),
    /// The value of a field has the wrong type, or is out of range.
    #[error("{field}: {reason}")]
    WrongValue {
        /// The field.
        field: &'static str,
        /// The fault of its value.
        reason: String,
    },
}

/// No limit has this name.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct UnknownLimit {
    /// The name.
    pub name: String,
    /// The name that was probably meant.
    pub nearest: Option<String>,
    /// The file that was read; `None` if the limits did not come from a file.
    pub file: Option<PathBuf>,
}

impl fmt::Display for UnknownLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no limit {:?}", self.name)?;
        self.file.iter().try_for_each(|file| write!(f, " in {}", file.display()))?;
        self.nearest.iter().try_for_each(|nearest| write!(f, " (did you mean {nearest:?}?)"))
    }
}

impl std::error::Error for UnknownLimit {}
