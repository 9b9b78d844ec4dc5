use std::fmt;
use std::sync::Arc;

use http::request::Parts;

use super::key::ExtractKey;
use crate::http::NoKey;
use crate::key::{Key, ToKey};

/// A value among the request's extensions, where authentication left it: `Extension::of(|user: &User| user.id)`.
///
/// The key is the one of the value, as it is, so that handlers can ask the same bucket. The authentication has to run before
/// this layer, which in axum means that it is added after it.
#[derive(Clone)]
pub struct Extension {
    extract: Arc<dyn ExtractKey>,
}

impl Extension {
    /// The key that is taken from an extension of this type.
    #[must_use]
    pub fn of<T, K>(key: impl Fn(&T) -> K + Send + Sync + 'static) -> Self
    where
        T: Send + Sync + 'static,
        K: ToKey + 'static,
    {
        Self { extract: Arc::new(move |request: &Parts| request.extensions.get().map(&key)) }
    }
}

impl ExtractKey for Extension {
    fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
        self.extract.extract(request)
    }
}

impl fmt::Debug for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extension").finish_non_exhaustive()
    }
}
