use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::limit::LimitFault;

/// Why there are no limits to be had from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// The file says what no limit is; all its faults, one a line.
    #[error("{0}")]
    Faulty(FileFaults),
    /// Limits that the code names are not in the file.
    #[error("{}", lines(.0))]
    Missing(Vec<UnknownLimit>),
    /// The file cannot be read.
    #[error("could not read the limits file {}: {source} (check its path and rights)", .file.display())]
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// What the system reported.
        source: io::Error,
    },
}

/// All faults of a file, in the order of their places; never none. Displays one a line, as `file:line:column: …`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileFaults {
    pub(super) file: Option<PathBuf>,
    pub(super) faults: Vec<FileFault>,
}

impl FileFaults {
    /// The file, unless the text was no file's.
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
            if index > 0 {
                writeln!(f)?;
            }
            if let Some(file) = &self.file {
                write!(f, "{}:", file.display())?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

/// One fault of a file, and where it is.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct FileFault {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, in characters, counted from 1.
    pub column: usize,
    /// The limit that it is about, if it is about one.
    pub limit: Option<String>,
    /// What is wrong.
    pub kind: FileFaultKind,
    /// What was probably meant, or what to do.
    pub suggestion: Option<String>,
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if let Some(limit) = &self.limit {
            write!(f, "limit {limit:?}: ")?;
        }
        write!(f, "{}", self.kind)?;
        self.suggestion.iter().try_for_each(|suggestion| write!(f, " ({suggestion})"))
    }
}

/// What can be wrong in a file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileFaultKind {
    /// The definition can grant nothing, contradicts itself, or does not fit.
    #[error("{0}")]
    Limit(LimitFault),
    /// A field that every limit needs is not there.
    #[error("the field {0:?} is missing")]
    MissingField(&'static str),
    /// What should be a limit is a single value.
    #[error("{0:?} is no table with the fields of a limit")]
    NotATable(String),
    /// A field or a limit is there twice.
    #[error("{0:?} is there twice")]
    Repeated(String),
    /// The text is no TOML, or no JSON.
    #[error("{0}")]
    Syntax(String),
    /// A field that no limit has.
    #[error("unknown field {0:?}")]
    UnknownField(String),
    /// A field holds what it cannot.
    #[error("{field}: {reason}")]
    WrongValue {
        /// The field.
        field: &'static str,
        /// What is wrong with its value.
        reason: String,
    },
}

/// A name that no limit of a file has.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct UnknownLimit {
    /// The name.
    pub name: String,
    /// The name in the file that was probably meant.
    pub nearest: Option<String>,
    /// The file, unless the limits are no file's.
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

fn lines(unknown: &[UnknownLimit]) -> String {
    unknown.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
