use std::marker::PhantomData;
use std::ops::Index;
use std::path::Path;

use super::Limits;
use super::fault::LimitsError;
use crate::limit::Limit;

/// The names of a service's limits as a type: made by [`limits!`](crate::limits!), so that a misspelt name does not compile.
pub trait LimitName: Copy + 'static {
    /// All names.
    const ALL: &'static [Self];

    /// The name as it stands in the file.
    fn name(self) -> &'static str;

    /// Its place in [`ALL`](Self::ALL).
    fn index(self) -> usize;
}

/// The limits of a file by typed names, all of which are there: what a service loads at start-up.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// tollgate::limits! {
///     pub enum AppLimit in "examples/tollgate.toml" {
///         SendMessage = "send_message",
///         SignUps = "sign_ups",
///     }
/// }
///
/// let limits = AppLimit::load("examples/tollgate.toml")?;
/// let request = limits[AppLimit::SendMessage].key("ada");
/// # let _ = request;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct NamedLimits<N> {
    /// In the order of `N::ALL`.
    limits: Vec<Limit>,
    names: PhantomData<N>,
}

impl<N: LimitName> NamedLimits<N> {
    /// The limits of a file that have names; others may be there, for other services.
    ///
    /// # Errors
    ///
    /// As [`Limits::from_file`]; [`LimitsError::Missing`] with all names that the file lacks.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, LimitsError> {
        Self::from_limits(&Limits::from_file(path)?)
    }

    /// The limits that have names, from those that were read already.
    ///
    /// # Errors
    ///
    /// [`LimitsError::Missing`] with all names that are not there.
    pub fn from_limits(limits: &Limits) -> Result<Self, LimitsError> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in N::ALL {
            match limits.get(name.name()) {
                Ok(limit) => found.push(limit.clone()),
                Err(unknown) => missing.push(unknown),
            }
        }
        if missing.is_empty() {
            Ok(Self { limits: found, names: PhantomData })
        } else {
            Err(LimitsError::Missing(missing))
        }
    }
}

impl<N: LimitName> Index<N> for NamedLimits<N> {
    type Output = Limit;

    fn index(&self, name: N) -> &Limit {
        &self.limits[name.index()]
    }
}

/// Names the limits of a file as an enum, whose variants are checked against the file **when the crate is compiled**, and again
/// when the service loads it.
///
/// The file is given relative to the package's root (where its `Cargo.toml` is) and becomes part of the build: when it changes, it
/// is checked again. What the compiler looks for is a line `[name]`, or in JSON `"name": {`; a name that is not there does not
/// compile. All else that may be wrong in the file is for `tollgate limits check`, and for `load`, which fails at start-up with
/// all faults.
///
/// The enum is [`LimitName`], and gets `load(path)`, which returns [`NamedLimits`].
///
/// # Example
///
/// ```
/// tollgate::limits! {
///     /// The limits of this service.
///     pub enum AppLimit in "examples/tollgate.toml" {
///         /// Per author.
///         SendMessage = "send_message",
///     }
/// }
/// use tollgate::LimitName;
/// assert_eq!(AppLimit::SendMessage.name(), "send_message");
/// ```
///
/// A misspelt one does not compile:
///
/// ```compile_fail
/// tollgate::limits! {
///     pub enum AppLimit in "examples/tollgate.toml" {
///         SendMessage = "send_mesage",
///     }
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! limits {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $enum:ident in $file:literal {
            $($(#[$variant_attribute:meta])* $variant:ident = $name:literal),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        $visibility enum $enum {
            $($(#[$variant_attribute])* #[doc = concat!("`", $name, "`")] $variant),+
        }

        $(const _: () = assert!(
            $crate::is_named_in(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $file)), $name),
            concat!("the limits file has no table of this name: ", $name),
        );)+

        impl $crate::LimitName for $enum {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            fn index(self) -> usize {
                self as usize
            }
        }

        impl $enum {
            /// The limits of these names in the file at `path`, at run time.
            ///
            /// # Errors
            ///
            /// With all faults of the file, or with all names that it lacks.
            $visibility fn load(path: impl AsRef<::std::path::Path>) -> Result<$crate::NamedLimits<Self>, $crate::LimitsError> {
                $crate::NamedLimits::from_file(path)
            }
        }
    };
}

/// Whether a file has a table of this name, as far as the compiler can see: a line `[name]`, or in JSON `"name": {`.
///
/// For [`limits!`](crate::limits!); anything else reads the file with [`Limits`]. Names with escapes are not found.
#[doc(hidden)]
#[must_use]
pub const fn is_named_in(text: &str, name: &str) -> bool {
    let (text, name) = (text.as_bytes(), name.as_bytes());
    let start = skip_space(text, 0);
    let is_json = start < text.len() && text[start] == b'{';
    let mut at = 0;
    while at < text.len() {
        let found = if is_json { is_json_table(text, at, name) } else { is_toml_header(text, at, name) };
        if found {
            return true;
        }
        at += 1;
    }
    false
}

/// Whether a line starts at `at` that is `[name]`, with or without quotes and spaces.
const fn is_toml_header(text: &[u8], at: usize, name: &[u8]) -> bool {
    if at > 0 && text[at - 1] != b'\n' {
        return false;
    }
    let mut at = skip_space(text, at);
    if at == text.len() || text[at] != b'[' {
        return false;
    }
    at = skip_space(text, at + 1);
    let quote = if at < text.len() && matches!(text[at], b'"' | b'\'') { Some(text[at]) } else { None };
    at += quote.is_some() as usize;
    if !starts_with(text, at, name) {
        return false;
    }
    at += name.len();
    if let Some(quote) = quote {
        if at == text.len() || text[at] != quote {
            return false;
        }
        at += 1;
    }
    at = skip_space(text, at);
    at < text.len() && text[at] == b']'
}

/// Whether `"name": {` stands at `at`.
const fn is_json_table(text: &[u8], at: usize, name: &[u8]) -> bool {
    if text[at] != b'"' || !starts_with(text, at + 1, name) {
        return false;
    }
    let mut at = at + 1 + name.len();
    if at == text.len() || text[at] != b'"' {
        return false;
    }
    at = skip_space(text, at + 1);
    if at == text.len() || text[at] != b':' {
        return false;
    }
    at = skip_space(text, at + 1);
    at < text.len() && text[at] == b'{'
}

const fn skip_space(text: &[u8], mut at: usize) -> usize {
    while at < text.len() && text[at].is_ascii_whitespace() {
        at += 1;
    }
    at
}

const fn starts_with(text: &[u8], at: usize, prefix: &[u8]) -> bool {
    let mut index = 0;
    while index < prefix.len() {
        if at + index >= text.len() || text[at + index] != prefix[index] {
            return false;
        }
        index += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_found_by_its_whole_name() {
        for text in ["[mail]", "\n  [ mail ] # here\nrate = 1", "['mail']", "[\"mail\"]", "{\"mail\" :\n {}}"] {
            assert!(is_named_in(text, "mail"), "{text:?}");
        }
        for text in ["", "[", "[mail", "[mails]", "[e.mail]", "# [mail]", "x = '[mail]'", "['mail]", "{\"mail\": 1}"] {
            assert!(!is_named_in(text, "mail"), "{text:?}");
        }
    }
}
