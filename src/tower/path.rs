use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::key::{ExtractKey, tagged};
use crate::http::NoKey;
use crate::key::Key;

/// A segment of the request's path: of `/orgs/acme/users` the one at 0 is `orgs`, the one at 1 `acme`.
///
/// Keys are `path|acme`. The segment is decoded first, as routers do, so `%61cme` is no second bucket. An empty one has
/// no key. Inside of axum's `nest` the path is what is left of it.
///
/// Whoever can choose the path can choose the bucket: this limits what is asked for, such as an organisation, rather than who
/// asks.
#[derive(Clone, Copy, Debug)]
pub struct PathSegment(pub usize);

impl ExtractKey for PathSegment {
    fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
        let segment = request.uri.path().split('/').skip(1).nth(self.0);
        let key = segment.and_then(|segment| tagged("path", &percent_decode_str(segment).collect::<Vec<_>>()));
        key.ok_or(NoKey(
            "the request's path has no such segment (count from 0, inside of a nested router from there)".into(),
        ))
    }
}
