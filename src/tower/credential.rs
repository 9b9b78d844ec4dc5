use std::fmt;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderName};
use http::request::Parts;

use super::key::{ExtractKey, digest};
use crate::http::NoKey;
use crate::key::Key;

/// Where a secret is that tells who asks: a bearer token, or an API key in a header field of its own.
///
/// Anybody can make one up, and a made-up one must not open a fresh bucket. So it is no key yet: say which are
/// [known](Self::known), or that [others have checked](Self::checked) it before.
#[derive(Clone, Debug)]
#[must_use = "a credential is no key before `known` or `checked` says which count"]
pub struct Credential {
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Bearer,
    Header(HeaderName),
}

impl Credential {
    /// The token in `Authorization: Bearer …`.
    pub const fn bearer() -> Self {
        Self { place: Place::Bearer }
    }

    /// The whole value of a header field, such as `x-api-key`.
    pub const fn header(name: HeaderName) -> Self {
        Self { place: Place::Header(name) }
    }

    /// Counts those that are known, by the predicate; a request with another has no key of this kind.
    ///
    /// The predicate is asked for each request, so it should look into memory.
    #[must_use]
    pub fn known(self, known: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> CredentialOf {
        CredentialOf { place: self.place, known: Arc::new(known) }
    }

    /// Counts all that come here: right only **behind** the authentication, which turns the others away.
    #[must_use]
    pub fn checked(self) -> CredentialOf {
        self.known(|_| true)
    }
}

/// The key of a credential that is known: a digest of it (SHA-256), so that no secret is in the table, in logs or in `pk`.
///
/// Keys are `bearer|` or `header|`, the name, and 64 hexadecimal digits. A request without it, with an empty one, with more than
/// one, or with one that is not known has no key of this kind: add [`or`](ExtractKey::or) for those, which is best the
/// [`ClientAddress`](super::ClientAddress).
#[derive(Clone)]
pub struct CredentialOf {
    place: Place,
    known: Known,
}

type Known = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

impl ExtractKey for CredentialOf {
    fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
        let key = match &self.place {
            Place::Bearer => only(request, &AUTHORIZATION)
                .and_then(bearer_token)
                .filter(|token| (self.known)(token))
                .and_then(|token| digest("bearer", token)),
            Place::Header(name) => only(request, name)
                .filter(|secret| !secret.is_empty() && (self.known)(secret))
                .and_then(|secret| digest(("header", name.as_str()), secret)),
        };
        key.ok_or(NoKey("the request has no credential that is known (add `.or(ClientAddress::peer())`)".into()))
    }
}

impl fmt::Debug for CredentialOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialOf").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The value of a field that is there once. Of two nobody knows which one the service will look at.
fn only<'r>(request: &'r Parts, name: &HeaderName) -> Option<&'r [u8]> {
    let mut values = request.headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value.as_bytes().trim_ascii())
}

/// The token after the scheme, whose case does not matter.
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}
