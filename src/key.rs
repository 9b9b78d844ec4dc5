use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::values::text::Text;

/// The user, tenant, address or combination of them that a limit applies to, as a canonical text.
///
/// At most 512 bytes of UTF-8 without NUL. The empty key is the limit's global row, made by [`Key::GLOBAL`] only.
/// Anything that implements [`ToKey`] becomes a key.
///
/// The key of an account is what the look-up of the account uses, and not the name as typed: `ada` and `Ada` are two
/// keys.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(Text);

impl Key {
    /// The key of the limit as a whole.
    pub const GLOBAL: Self = Self(Text::Static(""));

    /// The longest key, in bytes of its canonical text.
    pub const MAX_BYTES: usize = 512;

    /// The canonical key of a value.
    ///
    /// # Errors
    ///
    /// [`KeyError`] for an empty value, one whose text is too long, and one that contains NUL.
    pub fn new(value: impl ToKey) -> Result<Self, KeyError> {
        let text = KeyWriter::text_of(value, Self::MAX_BYTES);
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        Self::try_from(text)
    }

    /// The canonical text of a value, of any length. Use it for the digest of a value that is too long for a key.
    #[must_use]
    pub fn text(value: impl ToKey) -> String {
        KeyWriter::text_of(value, usize::MAX)
    }

    /// The canonical text, as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether this is the key of the limit as a whole.
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.as_str().is_empty()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.as_str().to_owned()
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;

    /// Makes a key from a canonical text, as [`Key::as_str`] returns it. The empty text is [`Key::GLOBAL`].
    fn try_from(canonical: String) -> Result<Self, KeyError> {
        if canonical.len() > Self::MAX_BYTES {
            return Err(KeyError::TooLong { bytes: canonical.len() });
        }
        if canonical.contains('\0') {
            return Err(KeyError::Nul);
        }
        Ok(if canonical.is_empty() { Self::GLOBAL } else { Self(canonical.into()) })
    }
}

/// A value that can be the key of a limit.
///
/// Implemented for integers, strings, IP addresses, keys themselves, [`Slash64`], `uuid::Uuid` (feature `uuid`), and
/// tuples of them. A value writes one component or several; they are joined by `|`, and a `|` or `\` inside of one is
/// escaped by `\`. So a plain identifier stays as it is, and different values of one shape never share a key.
///
/// # Example
///
/// ```
/// use tollgate::{Key, KeyWriter, ToKey};
///
/// struct Tenant { region: &'static str, id: u64 }
///
/// impl ToKey for Tenant {
///     fn write_key(&self, key: &mut KeyWriter) {
///         key.push(self.region);
///         key.push(self.id);
///     }
/// }
///
/// assert_eq!(Key::new(42)?.as_str(), "42");
/// assert_eq!(Key::new((Tenant { region: "eu", id: 7 }, "a|b"))?.as_str(), r"eu|7|a\|b");
/// # Ok::<(), tollgate::KeyError>(())
/// ```
pub trait ToKey {
    /// Writes this value's components, in order.
    fn write_key(&self, key: &mut KeyWriter);
}

/// A key under construction.
#[derive(Debug)]
pub struct KeyWriter {
    text: String,
    count: usize,
    most: usize,
}

impl KeyWriter {
    /// The text of a value. A text longer than `most` bytes is cut soon after them, and is still seen to be too long.
    fn text_of(value: impl ToKey, most: usize) -> String {
        let mut key = Self { text: String::with_capacity(USUAL_BYTES), count: 0, most };
        value.write_key(&mut key);
        key.text
    }

    /// Adds one component: the text that it displays, escaped.
    pub fn push(&mut self, component: impl fmt::Display) {
        use fmt::Write;

        self.separate();
        // Writing to a string fails only where the component's own `Display` does; what it wrote until then is kept.
        let _ = write!(Escape { text: &mut self.text, most: self.most }, "{component}");
    }

    fn separate(&mut self) {
        if self.count > 0 {
            self.text.push('|');
        }
        self.count += 1;
    }
}

/// A key's components were escaped once: a key of a key is the same key.
impl ToKey for Key {
    fn write_key(&self, key: &mut KeyWriter) {
        key.separate();
        key.text.push_str(self.as_str());
    }
}

/// Puts a backslash before each separator and each backslash.
struct Escape<'t> {
    text: &'t mut String,
    most: usize,
}

impl fmt::Write for Escape<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            // One character past the limit is enough to be refused: a huge key costs no huge memory.
            if self.text.len() > self.most {
                self.text.push(character);
                return Ok(());
            }
            if matches!(character, '|' | '\\') {
                self.text.push('\\');
            }
            self.text.push(character);
        }
        Ok(())
    }
}

/// Room for a number, an address or a UUID.
const USUAL_BYTES: usize = 40;

/// An address for limits by client: IPv4 as it is, IPv6 cut to its /64, which is what one subscriber gets.
///
/// Without it, one IPv6 client owns 2^64 buckets.
///
/// ```
/// use tollgate::{Key, Slash64};
///
/// let address = "2001:db8:1:2:a:b:c:d".parse()?;
/// assert_eq!(Key::new(Slash64(address))?.as_str(), "2001:db8:1:2::/64");
/// assert_eq!(Key::new(Slash64("::ffff:192.0.2.1".parse()?))?.as_str(), "192.0.2.1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Slash64(pub IpAddr);

impl ToKey for Slash64 {
    fn write_key(&self, key: &mut KeyWriter) {
        match self.0.to_canonical() {
            IpAddr::V4(address) => key.push(address),
            IpAddr::V6(address) => {
                let network = u128::from(address) >> 64 << 64;
                key.push(format_args!("{}/64", Ipv6Addr::from(network)));
            }
        }
    }
}

/// An IPv4 address that arrives mapped into IPv6 is the same client, so it is the same key.
impl ToKey for IpAddr {
    fn write_key(&self, key: &mut KeyWriter) {
        key.push(self.to_canonical());
    }
}

impl ToKey for Ipv6Addr {
    fn write_key(&self, key: &mut KeyWriter) {
        key.push(self.to_canonical());
    }
}

macro_rules! displayed {
    ($($value:ty),*) => {$(
        impl ToKey for $value {
            fn write_key(&self, key: &mut KeyWriter) {
                key.push(self);
            }
        }
    )*};
}
displayed!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);
displayed!(str, String, Cow<'_, str>, Box<str>, Arc<str>, Ipv4Addr);

#[cfg(feature = "uuid")]
displayed!(uuid::Uuid);

impl<T: ToKey + ?Sized> ToKey for &T {
    fn write_key(&self, key: &mut KeyWriter) {
        (**self).write_key(key);
    }
}

macro_rules! tuples {
    ($($($value:ident)+;)*) => {$(
        impl<$($value: ToKey),+> ToKey for ($($value,)+) {
            fn write_key(&self, key: &mut KeyWriter) {
                #[expect(non_snake_case, reason = "one name serves the type and the value")]
                let ($($value,)+) = self;
                $($value.write_key(key);)+
            }
        }
    )*};
}
tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

/// Why a value is no key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is empty. It would name the global row.
    #[error("a key is empty (use `global()` to limit all callers together)")]
    Empty,
    /// The text has a NUL character, which PostgreSQL cannot store.
    #[error("a key contains a NUL character")]
    Nul,
    /// The canonical text is longer than [`Key::MAX_BYTES`].
    #[error("a key is longer than {} bytes (hash it, and use the digest)", Key::MAX_BYTES)]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    TooLong {
        /// A lower bound of the length. Reading stops as soon as the key is known to be too long.
        bytes: usize,
    },
}
