use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use http::StatusCode;
use serde::Serialize;
use tollgate::{Denied, Reason};

use crate::policy::printable;

/// A problem document (RFC 9457), the body of a refusal: `application/problem+json`.
///
/// A refusal by a limit has the draft's type `quota-exceeded`, and the names of the limits that refused, written as in
/// `RateLimit-Policy`. Two members are our own. `reason` is the reason of the limit with the longest wait. `retry_at`
/// is the exact instant by the database's clock, which `Retry-After` gives in whole seconds. No member holds a key.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// The kind of problem, as a URI.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The kind of problem in words.
    pub title: &'static str,
    /// The status of the response.
    #[serde(serialize_with = "number")]
    pub status: StatusCode,
    /// The particulars of this problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The names of the limits that refused.
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    pub violated_policies: Vec<String>,
    /// The reason of the limit with the longest wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// When the same request would be granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<DateTime<Utc>>,
}

impl Problem {
    /// The media type of [`to_json`](Self::to_json).
    pub const MEDIA_TYPE: &str = "application/problem+json";

    pub(crate) fn new(status: StatusCode, kind: &'static str, title: &'static str) -> Self {
        Self { kind, title, status, detail: None, violated_policies: Vec::new(), reason: None, retry_at: None }
    }

    /// The document.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "its members are strings, numbers and lists")]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and lists are JSON")
    }
}

impl From<&Denied> for Problem {
    fn from(denied: &Denied) -> Self {
        let others = denied.others.iter().map(|other| &other.limit);
        let mut seen = BTreeSet::new();
        let violated = [&denied.limit].into_iter().chain(others).filter(|name| seen.insert(*name));
        let title = "Request cannot be satisfied as assigned quota has been exceeded";
        Self {
            detail: Some(denied.to_string()),
            violated_policies: violated.map(|name| printable(name)).collect(),
            reason: Some(denied.reason),
            retry_at: denied.retry_at,
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED, title)
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde's `serialize_with` calls")]
fn number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

/// The type of a problem that its title describes completely.
pub(crate) const ABOUT_BLANK: &str = "about:blank";
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
pub(crate) const TEMPORARY_REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
