use http::request::Parts;
use sha2::{Digest, Sha256};

use crate::http::NoKey;
use crate::key::{Key, KeyError, ToKey};

/// Says whose bucket a request is charged to.
///
/// Implemented for closures `Fn(&Parts) -> Option<impl ToKey>`, whose key is taken as it is, so that handlers can ask the same
/// bucket: `|request| Some(request.extensions.get::<User>()?.id)`. A closure's key of several parts should begin with
/// a word of its own; those of this module begin with `ip`, `bearer`, `header` and `path`. Tuples of up to four take the parts
/// of each, and have no key where one of them has none.
///
/// What a closure returns may be of any length: beyond [`Key::MAX_BYTES`], and with NUL in it, it is a digest.
///
/// # Example
///
/// ```
/// use http::request::Parts;
/// use tollgate::http::NoKey;
/// use tollgate::tower::ExtractKey;
/// use tollgate::Key;
///
/// struct Host;
///
/// impl ExtractKey for Host {
///     fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
///         let host = request.uri.host().ok_or(NoKey("the request has no host".into()))?;
///         Key::new(("host", host)).map_err(|error| NoKey(error.to_string().into()))
///     }
/// }
/// ```
pub trait ExtractKey: Send + Sync + 'static {
    /// The key of a request.
    ///
    /// # Errors
    ///
    /// [`NoKey`] where the request has none; what happens then is up to [`MissingKey`](super::MissingKey).
    fn extract(&self, request: &Parts) -> Result<Key, NoKey>;

    /// Asks another where this one has no key.
    fn or<E: ExtractKey>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or { first: self, second: other }
    }
}

impl<F, K> ExtractKey for F
where
    F: Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    K: ToKey,
{
    fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
        let missing = || NoKey("the request has no key (return one, or choose what happens with `missing_key`)".into());
        self(request).and_then(|value| any_length(value).ok()).ok_or_else(missing)
    }
}

/// One key, and else another; made by [`ExtractKey::or`].
#[derive(Clone, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A: ExtractKey, B: ExtractKey> ExtractKey for Or<A, B> {
    fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
        self.first.extract(request).or_else(|_| self.second.extract(request))
    }
}

macro_rules! tuples {
    ($($($part:ident)+;)*) => {$(
        impl<$($part: ExtractKey),+> ExtractKey for ($($part,)+) {
            fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
                #[expect(non_snake_case, reason = "one name serves the type and the value")]
                let ($($part,)+) = self;
                // None of the keys is empty, so neither are all together.
                any_length(($($part.extract(request)?,)+)).map_err(|error| NoKey(error.to_string().into()))
            }
        }
    )*};
}
tuples! {
    A B;
    A B C;
    A B C D;
}

/// A key of a kind, from what a client chose: different for different values, and none for an empty one.
pub(super) fn tagged(kind: &'static str, value: &[u8]) -> Option<Key> {
    match str::from_utf8(value) {
        Ok("") => None,
        Ok(text) => any_length((kind, text)).ok(),
        Err(_) => digest((kind, "bytes"), value),
    }
}

/// A key of a kind that does not tell what it was made of.
///
/// The digest has no key of its own: the secrets of services are random and long, so nobody can try them all, and a
/// key would have to be the same in all processes and for as long as the rows live.
pub(super) fn digest(kind: impl ToKey, value: &[u8]) -> Option<Key> {
    Key::new((kind, hex(value))).ok()
}

/// The key of a value; a digest of the whole of it where a key cannot hold it.
fn any_length(value: impl ToKey) -> Result<Key, KeyError> {
    match Key::new(&value) {
        Err(KeyError::TooLong { .. } | KeyError::Nul) => Key::new(("sha256", hex(Key::text(&value).as_bytes()))),
        other => other,
    }
}

fn hex(value: &[u8]) -> String {
    use std::fmt::Write;

    Sha256::digest(value).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // A string takes whatever is written.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
