use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use http::{request, response};
use tollgate::{Key, Limit, LimitKind, Request, Tokens, TokensError};

use super::address::ClientAddress;
use super::key::{ExtractKey, MissingKey};
use crate::{NotServed, RepeatedField};

/// One limit of a layer: the requests that it applies to, the bucket that it charges, and the costs of requests and
/// responses.
///
/// Defaults: all requests, one token, whatever the response, and the bucket of the peer's address. For calls to another
/// service ([`OutgoingLayer`](super::OutgoingLayer)) the default is one bucket for all.
#[derive(Clone)]
#[must_use = "a rule limits nothing until it is given to a layer"]
pub struct Rule {
    limit: Limit,
    limit_by: Option<LimitOf>,
    /// `None` for the global key.
    key: Option<Arc<dyn ExtractKey>>,
    names_key: bool,
    cost: CostOf,
    period: Option<PeriodOf>,
    when: OnRequest,
    settle: Option<OnResponse>,
}

type LimitOf = Arc<dyn Fn(&request::Parts) -> Limit + Send + Sync>;
type CostOf = Arc<dyn Fn(Request, &request::Parts) -> Request + Send + Sync>;
type PeriodOf = Arc<dyn Fn(&request::Parts) -> (DateTime<Utc>, DateTime<Utc>) + Send + Sync>;
pub(super) type OnRequest = Arc<dyn Fn(&request::Parts) -> bool + Send + Sync>;
/// The request with the cost of its response, if that differs from the charge.
type OnResponse = Arc<dyn Fn(&Request, &response::Parts) -> Option<Request> + Send + Sync>;

impl Rule {
    /// A limit with the default key. Each request costs one token.
    pub fn new(limit: Limit) -> Self {
        let key = Some(Arc::new(ClientAddress::peer()) as Arc<dyn ExtractKey>);
        let (cost, when) = (Arc::new(|asked, _: &_| asked), Arc::new(|_: &_| true));
        Self { limit, limit_by: None, key, names_key: false, cost, period: None, when, settle: None }
    }

    /// Chooses the limit from the request, for example from the plan that an earlier layer has put into its extensions.
    ///
    /// Limits of one name share the rows of their keys, whatever their numbers. So tokens that a customer has used stay
    /// used when he changes his plan.
    pub fn limit_by(mut self, limit: impl Fn(&request::Parts) -> Limit + Send + Sync + 'static) -> Self {
        self.limit_by = Some(Arc::new(limit));
        self
    }

    /// Sets the key of the bucket that is charged.
    pub fn key(mut self, key: impl ExtractKey) -> Self {
        self.key = Some(Arc::new(key));
        self.names_key = true;
        self
    }

    /// Charges one bucket for all requests together.
    pub fn global(mut self) -> Self {
        self.key = None;
        self.names_key = true;
        self
    }

    /// The rule for calls to another service, which have no peer.
    pub(super) fn outgoing(self) -> Self {
        self.expect_period();
        if self.names_key { self } else { self.global() }
    }

    /// Sets how many tokens each request costs, as [`Request::cost`] does.
    ///
    /// A request with an invalid cost gets a 500, and a request with a cost that can never be granted gets a 400.
    pub fn cost<C>(self, cost: C) -> Self
    where
        C: TryInto<Tokens, Error: Into<TokensError>> + Clone + Send + Sync + 'static,
    {
        self.cost_by(move |_| cost.clone())
    }

    /// Computes the cost from the request, for example by route or method.
    pub fn cost_by<C>(mut self, cost: impl Fn(&request::Parts) -> C + Send + Sync + 'static) -> Self
    where
        C: TryInto<Tokens, Error: Into<TokensError>>,
    {
        self.cost = Arc::new(move |asked, request| asked.cost(cost(request)));
        self
    }

    /// Names the period of each request, as [`Request::period`] does: where the limit is a
    /// [billing](Limit::billing) one, which must have it. It asks other limits that
    /// [`limit_by`](Self::limit_by) chooses without a period.
    pub fn period_by(
        mut self,
        period: impl Fn(&request::Parts) -> (DateTime<Utc>, DateTime<Utc>) + Send + Sync + 'static,
    ) -> Self {
        self.period = Some(Arc::new(period));
        self
    }

    /// Applies the limit to these requests only.
    pub fn when(mut self, applies: impl Fn(&request::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.when = Arc::new(applies);
        self
    }

    /// Charges before the request is served, and settles at the cost that the response shows: for a language model, the
    /// tokens that it used. With `None` the charge stays.
    ///
    /// It gives the difference back, or takes it whatever the balance is, as [`Gate::settle`](tollgate::Gate::settle)
    /// does. The [module](super) explains the consequences. If this, [`refund_if`](Self::refund_if) and
    /// [`charge_if`](Self::charge_if) are combined, the last one counts.
    pub fn settle_by<C>(mut self, actual: impl Fn(&response::Parts) -> Option<C> + Send + Sync + 'static) -> Self
    where
        C: TryInto<Tokens, Error: Into<TokensError>>,
    {
        self.settle = Some(Arc::new(move |asked, response| Some(asked.clone().cost(actual(response)?))));
        self
    }

    /// Charges before the request is served, and gives all of it back if the predicate holds for the response.
    pub fn refund_if(self, refunded: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.settle_by(move |response| refunded(response).then_some(Tokens::ZERO))
    }

    /// Works as [`refund_if`](Self::refund_if) the other way round: gives the charge back unless the predicate holds
    /// for the response.
    pub fn charge_if(self, charged: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.refund_if(move |response| !charged(response))
    }

    /// Fails where each request would be a fault.
    ///
    /// # Panics
    ///
    /// If the limit is a billing one and the rule names no period.
    #[track_caller]
    pub(super) fn expect_period(&self) {
        let is_named = self.limit.kind != LimitKind::Billing || self.period.is_some() || self.limit_by.is_some();
        assert!(is_named, "the rule of billing limit {:?} names no period (use `Rule::period_by`)", self.limit.name());
    }

    /// The rule as it applies to a request; `None` if it does not apply.
    pub(super) fn apply(
        &self,
        request: &request::Parts,
        missing_key: MissingKey,
    ) -> Result<Option<AppliedRule>, NotServed> {
        if !(self.when)(request) {
            return Ok(None);
        }
        let Some(key) = self.key_of(request, missing_key)? else { return Ok(None) };
        let limit = self.limit_by.as_ref().map_or_else(|| self.limit.clone(), |limit| limit(request));
        let asked = if key.is_global() { limit.global() } else { limit.key(key) };
        let asked = match &self.period {
            Some(period) if asked.limit().kind == LimitKind::Billing => {
                let (start, end) = period(request);
                asked.period(start, end)
            }
            _ => asked,
        };
        let asked = (self.cost)(asked, request);
        let (_, key, cost) = asked.asked()?;
        Ok(Some(AppliedRule { key: key.clone(), cost, asked, settle: self.settle.clone() }))
    }

    fn key_of(&self, request: &request::Parts, missing_key: MissingKey) -> Result<Option<Key>, NotServed> {
        let Some(key) = &self.key else { return Ok(Some(Key::GLOBAL)) };
        let missing = match key.extract(request) {
            Ok(key) => return Ok(Some(key)),
            Err(missing) => missing,
        };
        if let Some(field) = key.repeated(request) {
            return Err(RepeatedField(field).into());
        }
        match missing_key {
            MissingKey::Fail => Err(missing.into()),
            MissingKey::Pass => Ok(None),
            MissingKey::Share => Ok(Some(Key::new(("nobody", "")).map_err(|_| missing)?)),
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

/// A rule that applies to a request.
pub(super) struct AppliedRule {
    pub(super) asked: Request,
    pub(super) key: Key,
    pub(super) cost: Tokens,
    settle: Option<OnResponse>,
}

impl AppliedRule {
    /// The cost of the request now that its response is known. An invalid one leaves the charge as it is.
    pub(super) fn actual_cost(&self, response: &response::Parts) -> Tokens {
        let settled = self.settle.as_ref().and_then(|settle| settle(&self.asked, response));
        let cost = settled.map_or(Ok(self.cost), |request| request.asked().map(|(.., cost)| cost));
        cost.unwrap_or_else(|error| {
            tracing::warn!(error = %error.chain(), "what a response costs is no cost");
            self.cost
        })
    }
}
