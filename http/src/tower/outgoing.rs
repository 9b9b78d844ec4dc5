use std::error::Error;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use http::response::Parts;
use tokio::sync::Mutex;
use tollgate::{Gate, MINUTE, Overrides, Request, SECOND, SlowDown};
use tower_layer::Layer;
use tower_service::Service;

use super::signs::Signs;
use crate::{NotServed, Trouble};

/// For calls **to** another service, whose rate follows that service. Each call waits for its turn at a limit. An answer
/// that tells of [trouble](Trouble::of) slows the limit down for all processes. If it asks callers to wait, it pauses
/// the limit for all of them.
///
/// Calls are made by a client that speaks tower with the types of `http`, such as hyper's. For another client, wait
/// with [`Gate::wait`] and report with [`Trouble::report`].
///
/// The gate must go by the same [`Overrides`]. A role that is no operator needs the right to report:
/// `tollgate migrate up --grant-reporter ROLE`. The caller gets the answer at once: a task reports, one answer after
/// another, over one connection of the pool. A report that fails, or takes longer than a second, is given up, and a
/// `tracing` event at level `warn` says so.
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
///     Ok(OutgoingLayer::new(gate, overrides, THEIR_SERVICE.global()))
/// }
/// # let _ = outgoing;
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer limits nothing until a client is wrapped in it"]
pub struct OutgoingLayer {
    gate: Gate,
    overrides: Overrides,
    request: Request,
    timeout: Duration,
    slow_down: SlowDown,
    longest_pause: Duration,
    signs: Signs,
    /// Held by the report under way. Those of the same trouble wait for it, and then know its answer.
    reports: Arc<Mutex<()>>,
}

impl OutgoingLayer {
    /// A layer whose calls each take this request's cost from its limit, and wait for it for a minute at most.
    pub fn new(gate: Gate, overrides: Overrides, request: Request) -> Self {
        let (slow_down, signs, reports) = (SlowDown::new(), Signs::default(), Arc::default());
        Self { gate, overrides, request, timeout: MINUTE, slow_down, longest_pause: 5 * MINUTE, signs, reports }
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

    async fn turn(&self) -> Result<(), NotServed> {
        self.gate.wait(self.request.clone(), self.timeout).await?.granted()?;
        Ok(())
    }

    /// Reports trouble in a task, so that neither the caller nor his answer waits.
    fn heed(&self, trouble: Trouble) {
        let Self { overrides, request, slow_down, longest_pause, reports, .. } = self.clone();
        tokio::spawn(async move {
            let report = async {
                let _turn = reports.lock().await;
                trouble.at_most(longest_pause).report(&overrides, request, &slow_down).await
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

impl<S, Req, Res> Service<Req> for Outgoing<S>
where
    S: Service<Req, Response = Response<Res>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: std::error::Error + Send + 'static,
    Req: Send + 'static,
    Res: Send,
{
    type Response = Response<Res>;
    type Error = OutgoingError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(OutgoingError::Client)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        // The client that was polled is ready, but its clone may not be.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        Box::pin(async move {
            layer.turn().await.map_err(OutgoingError::NotSent)?;
            let mut call = pin!(inner.call(request));
            let answer = if let Ok(answer) = tokio::time::timeout(layer.signs.latency, &mut call).await {
                answer
            } else {
                layer.heed(Trouble::default());
                call.await
            };
            let answer = answer.map(Response::into_parts);
            let trouble = match &answer {
                Ok((head, _)) => layer.signs.in_answer(head),
                Err(error) => layer.signs.in_error(error),
            };
            if let Some(trouble) = trouble {
                layer.heed(trouble);
            }
            answer.map(|(head, body)| Response::from_parts(head, body)).map_err(OutgoingError::Client)
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
