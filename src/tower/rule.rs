use std::fmt;
use std::sync::Arc;

use http::{request, response};

use super::address::ClientAddress;
use super::key::ExtractKey;
use super::layer::MissingKey;
use crate::http::{NoKey, Rejection};
use crate::key::Key;
use crate::limit::Limit;
use crate::request::{Asked, Request};
use crate::tokens::TokensError;

/// One limit of a layer: whose bucket, for which requests, at what cost, and when.
///
/// What is not said is usual: by the peer's address, for all requests, one token, before the request is served.
///
/// # Example
///
/// ```
/// use http::{Method, StatusCode};
/// use tollgate::tower::{ClientAddress, Rule};
/// use tollgate::{Limit, MINUTE};
///
/// const FAILED_LOGINS: Limit = Limit::token_bucket("failed_logins", 5, MINUTE);
///
/// let failed_logins = Rule::new(FAILED_LOGINS)
///     .when(|request| request.method == Method::POST && request.uri.path() == "/login")
///     .charge_if(|response| response.status == StatusCode::UNAUTHORIZED);
/// # let _ = failed_logins;
/// ```
#[derive(Clone)]
#[must_use = "a rule limits nothing until it is given to a layer"]
pub struct Rule {
    limit: Limit,
    whose: Whose,
    cost: Option<Cost>,
    when: Option<OnRequest>,
    moment: Moment,
}

#[derive(Clone)]
enum Whose {
    All,
    By(Arc<dyn ExtractKey>),
}

/// When a request is charged.
#[derive(Clone)]
pub(super) enum Moment {
    /// Before it is served.
    Before,
    /// After it was served, if its response says so.
    If(OnResponse),
    /// Before it is served, and given back if its response says so.
    Unless(OnResponse),
}

type Cost = Arc<dyn Fn(Request, &request::Parts) -> Request + Send + Sync>;
pub(super) type OnRequest = Arc<dyn Fn(&request::Parts) -> bool + Send + Sync>;
pub(super) type OnResponse = Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>;

impl Rule {
    /// A limit by the peer's address, at one token for each request.
    pub fn new(limit: Limit) -> Self {
        let whose = Whose::By(Arc::new(ClientAddress::peer()));
        Self { limit, whose, cost: None, when: None, moment: Moment::Before }
    }

    /// Whose bucket.
    pub fn key(mut self, key: impl ExtractKey) -> Self {
        self.whose = Whose::By(Arc::new(key));
        self
    }

    /// One bucket for all requests together.
    pub fn global(mut self) -> Self {
        self.whose = Whose::All;
        self
    }

    /// How many tokens each request costs, as for [`Request::cost`].
    ///
    /// A wrong cost is a response of 500 that says so in words, and one that can never be granted is 400.
    pub fn cost<C>(self, cost: C) -> Self
    where
        C: TryInto<crate::Tokens, Error: Into<TokensError>> + Clone + Send + Sync + 'static,
    {
        self.cost_by(move |_| cost.clone())
    }

    /// How many tokens a request costs: by route, by method, or by what it says.
    pub fn cost_by<C>(mut self, cost: impl Fn(&request::Parts) -> C + Send + Sync + 'static) -> Self
    where
        C: TryInto<crate::Tokens, Error: Into<TokensError>>,
    {
        self.cost = Some(Arc::new(move |asked, request| asked.cost(cost(request))));
        self
    }

    /// Applies to requests of this kind only.
    pub fn when(mut self, applies: impl Fn(&request::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Arc::new(applies));
        self
    }

    /// Looks before the request is served, and charges after it, if the response says so: failed log-ins. The last of this and
    /// [`refund_if`](Self::refund_if) counts; the [module](super) compares them.
    pub fn charge_if(mut self, charged: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.moment = Moment::If(Arc::new(charged));
        self
    }

    /// Charges before the request is served, and gives back after it, if the response says so.
    pub fn refund_if(mut self, refunded: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.moment = Moment::Unless(Arc::new(refunded));
        self
    }

    /// What a request asks of this limit, if it applies to it.
    pub(super) fn asking(
        &self,
        request: &request::Parts,
        missing_key: MissingKey,
    ) -> Result<Option<Asking>, Rejection> {
        if self.when.as_ref().is_some_and(|applies| !applies(request)) {
            return Ok(None);
        }
        let Some(key) = self.whose(request, missing_key)? else { return Ok(None) };
        let asked = if key.is_global() { self.limit.global() } else { self.limit.key(key) };
        let asked = match &self.cost {
            Some(cost) => cost(asked, request),
            None => asked,
        };
        Ok(Some(Asking { asked: asked.into_parts()?, moment: self.moment.clone() }))
    }

    fn whose(&self, request: &request::Parts, missing_key: MissingKey) -> Result<Option<Key>, NoKey> {
        let Whose::By(key) = &self.whose else { return Ok(Some(Key::GLOBAL)) };
        match (key.extract(request), missing_key) {
            (Ok(key), _) => Ok(Some(key)),
            (Err(missing), MissingKey::Reject) => Err(missing),
            (Err(_), MissingKey::Pass) => Ok(None),
            (Err(missing), MissingKey::Share) => Key::new(("nobody", "")).map(Some).map_err(|_| missing),
        }
    }
}

impl From<Limit> for Rule {
    fn from(limit: Limit) -> Self {
        Self::new(limit)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// What one request asks of one limit.
pub(super) struct Asking {
    pub(super) asked: Asked,
    pub(super) moment: Moment,
}
