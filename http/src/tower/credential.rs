use std::fmt;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderName};
use http::request::Parts;
use tollgate::Key;

use super::key::{ExtractKey, digest};
use crate::NoKey;
use crate::forwarded::single_value;

/// The place of a secret that identifies the client: a bearer token, or an API key in a header field of its own.
///
/// Anybody can make up a secret, and a made-up one must not get a bucket of its own. So a credential becomes a key only
/// by [`known`](Self::known), which checks it, or by [`checked`](Self::checked), which relies on an earlier check.
#[derive(Clone, Debug)]
#[must_use = "a credential becomes a key by `known` or `checked`"]
pub struct Credential {
    field: HeaderName,
    is_bearer: bool,
}

impl Credential {
    /// The token in `Authorization: Bearer …`.
    pub const fn bearer() -> Self {
        Self { field: AUTHORIZATION, is_bearer: true }
    }

    /// The whole value of a header field, such as `x-api-key`.
    pub const fn header(name: HeaderName) -> Self {
        Self { field: name, is_bearer: false }
    }

    /// Accepts the secrets for which the predicate returns true. A request with any other secret has no key of this
    /// kind.
    ///
    /// It must look the secret up among those that the service has issued. A test of its form, such as a prefix,
    /// accepts as many made-up tokens as an attacker likes. It runs for each request and cannot wait, so it should read
    /// memory.
    ///
    /// ```
    /// use std::collections::HashSet;
    /// use std::sync::{Arc, RwLock};
    ///
    /// use sha2::{Digest, Sha256};
    /// use tollgate_http::tower::{Credential, ExtractKey};
    ///
    /// /// `issued` holds the SHA-256 digests of all valid tokens, loaded from their table and refreshed from it.
    /// fn by_token(issued: Arc<RwLock<HashSet<[u8; 32]>>>) -> impl ExtractKey {
    ///     Credential::bearer().known(move |token| {
    ///         let digest: [u8; 32] = Sha256::digest(token).into();
    ///         issued.read().is_ok_and(|issued| issued.contains(&digest))
    ///     })
    /// }
    /// # let _ = by_token;
    /// ```
    #[must_use]
    pub fn known(self, known: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> CredentialOf {
        CredentialOf { credential: self, is_known: Arc::new(known) }
    }

    /// Accepts all secrets. Use it only **behind** the authentication, which turns made-up secrets away.
    #[must_use]
    pub fn checked(self) -> CredentialOf {
        self.known(|_| true)
    }
}

/// The key of a known credential: its SHA-256 digest, so that no secret is in the table, in logs or in `pk`.
///
/// Keys are `bearer|` or `header|` and the field's name, then 64 hexadecimal digits. A request has no key of this kind
/// if the secret is missing, empty, repeated or unknown. Add [`or`](ExtractKey::or) for such requests, best with the
/// [`ClientAddress`](super::ClientAddress). Without it, a request that sends its field several times gets a 400.
#[derive(Clone)]
pub struct CredentialOf {
    credential: Credential,
    is_known: IsKnown,
}

type IsKnown = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

impl ExtractKey for CredentialOf {
    fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
        let Credential { field, is_bearer } = &self.credential;
        let value = single_value(&request.headers, field);
        let secret = if *is_bearer { value.and_then(bearer_token) } else { value };
        let known = secret.filter(|secret| !secret.is_empty() && (self.is_known)(secret));
        let key = known.and_then(|secret| match is_bearer {
            true => digest("bearer", secret),
            false => digest(("header", field.as_str()), secret),
        });
        key.ok_or(NoKey("the request has no known credential (add `.or(ClientAddress::peer())`)".into()))
    }

    fn repeated(&self, request: &Parts) -> Option<HeaderName> {
        let field = &self.credential.field;
        request.headers.get_all(field).iter().nth(1).map(|_| field.clone())
    }
}

impl fmt::Debug for CredentialOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialOf").field("credential", &self.credential).finish_non_exhaustive()
    }
}

/// The token after the scheme. The scheme's case does not matter.
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}
