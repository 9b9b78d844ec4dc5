use std::error::Error;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::response::Parts;
use http::{Response, request};
use tokio::sync::Mutex;
use tollgate::{Gate, MINUTE, Overrides, Request, SECOND, SlowDown};
use tower_layer::Layer;
use tower_service::Service;

use super::admission::Admission;
use super::body::Body;
use super::key::MissingKey;
use super::rule::{AppliedRule, Rule};
use super::signs::Signs;
use crate::{NotServed, Trouble};

/// For calls **to** another service, whose rate follows that service. Each call waits for its turn at a limit. An
/// answer that tells of [trouble](Trouble::of) slows the limit down for all processes. If it asks callers to wait, it
/// pauses the limit for all of them. The tokens of a concurrency limit are held until the body of the answer is read to
/// its end, or dropped. A [`Rule`] names keys, costs and settlements as it does for requests.
///
/// Calls are made by a client that speaks tower with the types of `http`, such as hyper's. For another client, wait
/// with [`Gate::wait`] and report with [`Trouble::report`].
///
/// The gate must go by the same [`Overrides`]. A role that is no operator needs the right to report:
/// `tollgate migrate up --grant-reporter ROLE`. The caller does not wait for the report: a task reports, one answer
/// after another, over one connection of the pool. A report that fails, or takes longer than a second, is given up, and
/// a `tracing` event at level `warn` says so.
///
/// # Example
///
/// ```
/// use tollgate::{Gate, Limit, Overrides, SECOND};
/// use tollgate_http::tower::OutgoingLayer;
///
/// const THEIR_SERVICE: Limit = Limit::token_bucket("their_service", 100, SECOND).capacity(20);
///
/// async fn outgoing(pool: sqlx::PgPool) -> Result<OutgoingLayer, tollgate::OverrideError> {
///     let overrides = Overrides::watch(pool.clone()).await?;
///     let gate = Gate::builder(pool).overrides(&overrides).build();
///     Ok(OutgoingLayer::new(gate, overrides, THEIR_SERVICE))
/// }
/// # let _ = outgoing;
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer limits nothing until a client is wrapped in it"]
pub struct OutgoingLayer {
    gate: Gate,
    overrides: Overrides,
    follows: Rule,
    others: Vec<Rule>,
    missing_key: MissingKey,
    timeout: Duration,
    slow_down: SlowDown,
    longest_pause: Duration,
    signs: Signs,
    /// Held by the report under way. Those of the same trouble wait for it, and then know its answer.
    reports: Arc<Mutex<()>>,
}

impl OutgoingLayer {
    /// A layer whose calls each take from this limit, which follows the service, and wait for it for a minute at most.
    /// A report is about the key of its call.
    ///
    /// # Panics
    ///
    /// If the limit is a [billing](tollgate::Limit::billing) one and the rule names no period.
    #[track_caller]
    pub fn new(gate: Gate, overrides: Overrides, follows: impl Into<Rule>) -> Self {
        Self {
            gate,
            overrides,
            follows: follows.into().outgoing(),
            others: Vec::new(),
            missing_key: MissingKey::default(),
            timeout: MINUTE,
            slow_down: SlowDown::new(),
            longest_pause: 5 * MINUTE,
            signs: Signs::default(),
            reports: Arc::default(),
        }
    }

    /// Adds a limit that each call takes from, too, and that follows nothing. A call takes from all limits together, or
    /// from none.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn limit(mut self, rule: impl Into<Rule>) -> Self {
        self.others.push(rule.into().outgoing());
        self
    }

    /// Sets what happens to a call that has no key for a limit.
    pub fn missing_key(mut self, then: MissingKey) -> Self {
        self.missing_key = then;
        self
    }

    /// How long a call waits for its turn. A call that would have to wait longer fails at once.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How far trouble slows the limit down, and how fast it recovers.
    pub fn slow_down(mut self, how: SlowDown) -> Self {
        self.slow_down = how;
        self
    }

    /// How long an answer may pause the limit; 5 minutes unless set, and a day at most.
    pub fn longest_pause(mut self, span: Duration) -> Self {
        self.longest_pause = span;
        self
    }

    /// Whether an answer is trouble that [says so](Trouble::of); on unless set.
    pub fn heed_answers(mut self, heeds: bool) -> Self {
        self.signs.answers = heeds;
        self
    }

    /// Whether an error of the client is trouble; on unless set. It must have a [`std::io::Error`] among its sources
    /// that says that the connection was refused, reset, aborted or broken, or that it timed out. Other errors may be
    /// faults of this machine alone.
    pub fn heed_errors(mut self, heeds: bool) -> Self {
        self.signs.errors = heeds;
        self
    }

    /// How long a call may be under way, until the head of its answer comes, before it is trouble; without end unless
    /// set. It is reported then, and goes on.
    pub fn heed_latency(mut self, longest: Duration) -> Self {
        self.signs.latency = longest;
        self
    }

    /// Other answers are trouble, too, if the predicate holds for them: such as 500 and 502.
    pub fn trouble_if(mut self, is_trouble: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.signs.also = Arc::new(is_trouble);
        self
    }

    /// The rules that apply to a call. The limit that follows the service comes first, and by itself.
    fn applied(&self, call: &request::Parts) -> Result<(Option<Request>, Vec<AppliedRule>), NotServed> {
        let follows = self.follows.apply(call, self.missing_key)?;
        let followed = follows.as_ref().map(|rule| rule.asked.clone());
        let others = self.others.iter().filter_map(|rule| rule.apply(call, self.missing_key).transpose());
        let rules = follows.into_iter().map(Ok).chain(others).collect::<Result<_, _>>()?;
        Ok((followed, rules))
    }

    /// `None` where no rule applies.
    async fn turn(&self, rules: Vec<AppliedRule>) -> Result<Option<Admission>, NotServed> {
        if rules.is_empty() {
            return Ok(None);
        }
        Admission::within(&self.gate, rules, self.timeout).await.map(Some)
    }

    /// Reports trouble in a task, so that neither the caller nor his answer waits.
    fn heed(&self, trouble: Trouble, followed: Option<&Request>) {
        let Some(followed) = followed.cloned() else { return };
        let Self { overrides, slow_down, longest_pause, reports, .. } = self.clone();
        tokio::spawn(async move {
            let report = async {
                let _turn = reports.lock().await;
                trouble.at_most(longest_pause).report(&overrides, followed, &slow_down).await
            };
            let report = tokio::time::timeout(SECOND, report).await.map_err(Box::<dyn Error>::from);
            if let Err(error) = report.and_then(|report| report.map_err(Box::from)) {
                tracing::warn!(error = &*error, "trouble of another service is not reported");
            }
        });
    }
}

/// A client behind an [`OutgoingLayer`].
#[derive(Clone, Debug)]
pub struct Outgoing<S> {
    inner: S,
    layer: Arc<OutgoingLayer>,
}

impl<S> Layer<S> for OutgoingLayer {
    type Service = Outgoing<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Outgoing { inner, layer: Arc::new(self.clone()) }
    }
}

impl<S, Req, Res> Service<http::Request<Req>> for Outgoing<S>
where
    S: Service<http::Request<Req>, Response = Response<Res>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: std::error::Error + Send + 'static,
    Req: Send + 'static,
    Res: Send,
{
    type Response = Response<Body<Res>>;
    type Error = OutgoingError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(OutgoingError::Client)
    }

    fn call(&mut self, request: http::Request<Req>) -> Self::Future {
        // The client that was polled is ready, but its clone may not be.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        let (head, body) = request.into_parts();
        let rules = layer.applied(&head);
        let request = http::Request::from_parts(head, body);
        Box::pin(async move {
            let (followed, rules) = rules.map_err(OutgoingError::NotSent)?;
            let admission = layer.turn(rules).await.map_err(OutgoingError::NotSent)?;
            let mut call = pin!(inner.call(request));
            let answer = if let Ok(answer) = tokio::time::timeout(layer.signs.latency, &mut call).await {
                answer
            } else {
                layer.heed(Trouble::default(), followed.as_ref());
                call.await
            };
            let answer = answer.map(Response::into_parts);
            let trouble = match &answer {
                Ok((head, _)) => layer.signs.in_answer(head),
                Err(error) => layer.signs.in_error(error),
            };
            if let Some(trouble) = trouble {
                layer.heed(trouble, followed.as_ref());
            }
            let (head, body) = answer.map_err(OutgoingError::Client)?;
            let lease = match admission {
                Some(admission) => Some(admission.settle(&head).await.1),
                None => None,
            };
            Ok(Response::from_parts(head, Body::new(body, lease)))
        })
    }
}

/// Why a call to another service has no answer.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError<E: std::error::Error + 'static> {
    /// It was not sent: there was no turn for it in time, or no decision.
    #[error("the call was not sent")]
    NotSent(#[source] NotServed),
    /// The client failed.
    #[error("the call failed")]
    Client(#[source] E),
}
