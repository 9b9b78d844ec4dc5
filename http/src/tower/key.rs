use std::fmt::Write;

use http::HeaderName;
use http::request::Parts;
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use tollgate::{Key, KeyError, ToKey};

use crate::NoKey;

/// Chooses the bucket that a request is charged to.
///
/// Implemented for closures `Fn(&Parts) -> Option<impl ToKey>`, such as `|request: &Parts|
/// Some(request.extensions.get::<User>()?.id)`. Their key is used as it is, so handlers can ask the same bucket. A
/// closure's key of several components should begin with a word of its own; the keys of this module begin with `ip`,
/// `bearer`, `header` and `path`. Tuples of up to four join the components of each, and have a key if each has one.
pub trait ExtractKey: Send + Sync + 'static {
    /// The key of a request.
    ///
    /// # Errors
    ///
    /// [`NoKey`] if the request has none. [`MissingKey`] decides what happens then.
    fn extract(&self, request: &Parts) -> Result<Key, NoKey>;

    /// The header field that leaves the request without a key because the client has sent it several times; none by
    /// default. The response is then 400, whatever [`MissingKey`] says, because the service may go by another of the
    /// values.
    fn repeated(&self, _request: &Parts) -> Option<HeaderName> {
        None
    }

    /// Falls back to another key if this one is missing.
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

/// A key, or another one if the first is missing; made by [`ExtractKey::or`].
#[derive(Clone, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A: ExtractKey, B: ExtractKey> ExtractKey for Or<A, B> {
    fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
        self.first.extract(request).or_else(|_| self.second.extract(request))
    }

    fn repeated(&self, request: &Parts) -> Option<HeaderName> {
        self.first.repeated(request).or_else(|| self.second.repeated(request))
    }
}

macro_rules! tuples {
    ($($($key:ident)+;)*) => {$(
        impl<$($key: ExtractKey),+> ExtractKey for ($($key,)+) {
            fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
                #[expect(non_snake_case, reason = "one name serves the type and the value")]
                let ($($key,)+) = self;
                Ok(any_length(($($key.extract(request)?,)+))?)
            }

            fn repeated(&self, request: &Parts) -> Option<HeaderName> {
                #[expect(non_snake_case, reason = "one name serves the type and the value")]
                let ($($key,)+) = self;
                None$(.or_else(|| $key.repeated(request)))+
            }
        }
    )*};
}
tuples! {
    A B;
    A B C;
    A B C D;
}

/// A segment of the request's path: in `/orgs/acme/users`, 0 is `orgs` and 1 is `acme`.
///
/// Keys are `path|acme`. The segment is decoded first, as routers do, so `%61cme` is the same bucket. An empty segment
/// has no key. Inside of axum's `nest` the path is the rest after the prefix. This limits the use of a thing, such as
/// an organisation, and not a client.
#[derive(Clone, Copy, Debug)]
pub struct PathSegment(pub usize);

impl ExtractKey for PathSegment {
    fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
        let segment = request.uri.path().split('/').skip(1).nth(self.0).unwrap_or_default();
        let decoded: Vec<u8> = percent_decode_str(segment).collect();
        let key = match str::from_utf8(&decoded) {
            Ok("") => None,
            Ok(text) => any_length(("path", text)).ok(),
            Err(_) => digest(("path", "bytes"), &decoded),
        };
        key.ok_or(NoKey("the request's path has no such segment (count from 0; a nested router counts its own)".into()))
    }
}

/// The fate of a request that has no key for a limit. Such requests never share a bucket by accident.
///
/// A request that lacks its key because the client has sent a field several times gets a 400 instead.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The response is 500 and names the remedy, because the service does not know its client.
    #[default]
    Fail,
    /// The limit does not apply to the request. Other limits do.
    Pass,
    /// All such requests share one bucket, with the key `nobody|`.
    Share,
}

/// A key of a kind that hides the value.
///
/// The digest is not keyed. Tokens are long and random, so nobody can try them all. The key of a keyed digest would
/// have to be the same in all processes for as long as the rows live.
pub(super) fn digest(kind: impl ToKey, value: &[u8]) -> Option<Key> {
    Key::new((kind, hex_digest(value))).ok()
}

/// The key of a value, or of its digest if a key cannot hold the value.
fn any_length(value: impl ToKey) -> Result<Key, KeyError> {
    match Key::new(&value) {
        Err(KeyError::TooLong { .. } | KeyError::Nul) => Key::new(("sha256", hex_digest(Key::text(&value).as_bytes()))),
        other => other,
    }
}

fn hex_digest(value: &[u8]) -> String {
    Sha256::digest(value).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a string never fails.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
