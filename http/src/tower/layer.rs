use std::fmt;
use std::sync::Arc;

use http::Method;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::request::Parts;
use tollgate::Gate;

use super::key::MissingKey;
use super::respond::ProblemJson;
use super::rule::{AppliedRule, OnRequest, Rule};
use crate::{Fields, NotServed};

/// Asks limits of a gate for each request; see the [module](super).
#[derive(Clone)]
#[must_use = "a layer limits nothing until a service is wrapped in it"]
pub struct TollgateLayer<R = ProblemJson> {
    pub(super) gate: Gate,
    rules: Vec<Rule>,
    skip: OnRequest,
    counts_preflights: bool,
    missing_key: MissingKey,
    pub(super) fields: Fields,
    pub(super) respond: R,
}

impl TollgateLayer {
    /// A layer without limits: it passes all requests.
    pub fn new(gate: Gate) -> Self {
        let (missing_key, fields) = (MissingKey::default(), Fields::default());
        let skip = Arc::new(|_: &_| false);
        Self { gate, rules: Vec::new(), skip, counts_preflights: false, missing_key, fields, respond: ProblemJson }
    }
}

impl<R> TollgateLayer<R> {
    /// Adds a limit: a [`Rule`], or a [`Limit`](tollgate::Limit) with the peer's address as its key.
    ///
    /// # Panics
    ///
    /// If a [billing](tollgate::Limit::billing) limit has no [`Rule::period_by`]. Each request would fail.
    #[track_caller]
    pub fn limit(mut self, rule: impl Into<Rule>) -> Self {
        let rule = rule.into();
        rule.expect_period();
        self.rules.push(rule);
        self
    }

    /// Serves these requests without asking any limit. Their responses get no fields.
    pub fn skip(mut self, skipped: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.skip = Arc::new(skipped);
        self
    }

    /// Asks the limits for preflights, too: `OPTIONS` requests by which a browser asks whether it may send the real
    /// one.
    ///
    /// By default they are served like requests that are [skipped](Self::skip), because a page cannot read why a
    /// preflight was refused. Use this if the service itself does work for such requests: anybody can send one by hand.
    pub fn count_preflights(mut self) -> Self {
        self.counts_preflights = true;
        self
    }

    /// Sets the header fields that responses get.
    pub fn fields(mut self, fields: Fields) -> Self {
        self.fields = fields;
        self
    }

    /// Sets what happens to a request that has no key for a limit.
    pub fn missing_key(mut self, then: MissingKey) -> Self {
        self.missing_key = then;
        self
    }

    /// Replaces the problem document of a request that is not served: by [`Grpc`](super::Grpc) for tonic, or by a
    /// closure `Fn(&NotServed) -> Response<B>`.
    pub fn respond_with<T>(self, respond: T) -> TollgateLayer<T> {
        let Self { gate, rules, skip, counts_preflights, missing_key, fields, .. } = self;
        TollgateLayer { gate, rules, skip, counts_preflights, missing_key, fields, respond }
    }

    /// The rules that apply to a request; none if it is skipped.
    pub(super) fn applied_rules(&self, request: &Parts) -> Result<Vec<AppliedRule>, NotServed> {
        if (self.skip)(request) || (!self.counts_preflights && is_preflight(request)) {
            return Ok(Vec::new());
        }
        self.rules.iter().filter_map(|rule| rule.apply(request, self.missing_key).transpose()).collect()
    }
}

/// Whether a request is a CORS-preflight request by the Fetch standard.
fn is_preflight(request: &Parts) -> bool {
    let has = |field| request.headers.contains_key(field);
    request.method == Method::OPTIONS && has(ORIGIN) && has(ACCESS_CONTROL_REQUEST_METHOD)
}

impl<R> fmt::Debug for TollgateLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TollgateLayer").field("rules", &self.rules).finish_non_exhaustive()
    }
}
