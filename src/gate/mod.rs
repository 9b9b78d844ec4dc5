mod batch;
mod builder;
mod clock;
mod connection;
mod guards;
mod lanes;
mod memory;
mod outage;
mod raised;
mod reply;
mod shared;
mod tally;
mod verbs;
mod wait;
mod worker;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::PgPool;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::Instrument;

use crate::balance::Balance;
use crate::call_name::CallName;
use crate::decision::{Decision, Grant, Reservation};
use crate::error::{Error, Step};
use crate::execution::{checked, overruled};
use crate::meter::{self, By};
use crate::plan::settlement::Settlement;
use crate::plan::{Answer, Call, CheckedCall};
use crate::receipt::Receipt;
use crate::request::Request;
use crate::text::Text;
use crate::tokens::{Tokens, TokensError};
pub use builder::GateBuilder;
use connection::{Connection, within};
use guards::Reaping;
pub use guards::{Lease, Stream};
use lanes::{Lanes, Width};
use memory::Outlet;
pub use outage::OnFailure;
use reply::{QueuedCall, Reply};
use shared::Shared;
pub use tally::Refused;

/// Decides **in transactions of its own**: what it answers is committed, whatever the caller does afterwards.
///
/// Take a gate for what must count even if its handler rolls back, such as a failed log-in, and for requests that have
/// no transaction otherwise. Take a [`Limiter`](crate::Limiter) for a decision that shares the fate of other work. Both
/// work on the same rows, at the same time.
///
/// A gate is cheap to clone, and clones are one gate. Make one per process and keep it: it is fast because its callers
/// share statements. Like its pool it belongs to one tokio runtime.
///
/// # How it works
///
/// Callers queue in lanes, and all that wait in a lane form the next batch. Two statements decide hundreds of calls, in
/// the order in which they came; a third looks for calls with ids. There is no timer: a lone caller is a batch of one,
/// and pays two round trips. Calls for one row meet in one lane, so lanes do not wait for each other; lanes open as
/// batches grow. A thousand callers hold a handful of connections. Where the pool has no other connection left, a lane
/// gives its own back between batches.
///
/// A batch reads its rows without a lock. It writes each row that still is the version that was read
/// (compare-and-swap), so no lock is held across a round trip. Rows that changed meanwhile and rows that are missing
/// are decided again in a transaction that locks them, for at most [`lock_timeout`](GateBuilder::lock_timeout). Only
/// what is granted or changed is written.
///
/// # Errors
///
/// A failure of the database reaches every caller of the batch; [`OnFailure`] decides what may be answered instead.
/// [`Error::Locked`], [`Error::Overloaded`], [`Error::PoolExhausted`]: callers ask too much at once, and nothing
/// was taken.
/// [`Error::OutcomeUnknown`]: no answer came to the commit.
///
/// # Cancellation
///
/// Futures may be dropped at any time. A call that waits in the queue is not counted; one that is being decided is
/// counted whole. The caller cannot know which of the two, so drop only calls that may count.
///
/// # Example
///
/// ```
/// use tollgate::{Gate, Limit, MINUTE};
///
/// const FAILED_LOGINS: Limit = Limit::token_bucket("failed_logins", 5, MINUTE);
///
/// async fn log_in(gate: &Gate, user: i64, password: &str) -> Result<bool, Box<dyn std::error::Error>> {
///     // Charged before it is tried, so that parallel guesses count. A right one is given back.
///     let guess = gate.consume(FAILED_LOGINS.key(user)).await?.granted()?;
///     let is_right = verify(user, password).await;
///     if is_right {
///         gate.settle(guess, 0).await?;
///     }
///     Ok(is_right)
/// }
/// # async fn verify(_: i64, _: &str) -> bool { true }
/// # let _ = log_in;
/// ```
#[derive(Clone)]
#[must_use = "a gate limits nothing until it is asked"]
pub struct Gate {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    lanes: Arc<Lanes>,
    reaping: Reaping,
    built: Instant,
}

impl Gate {
    /// A gate with the defaults of [`GateBuilder`]. Connects when it is first asked.
    pub fn new(pool: PgPool) -> Self {
        Self::builder(pool).build()
    }

    /// A gate to be, on the connections of a pool that it shares with whoever else uses it.
    pub fn builder(pool: PgPool) -> GateBuilder {
        GateBuilder::new(pool)
    }

    fn with(shared: Shared, width: Width) -> Self {
        let shared = Arc::new(shared);
        let lanes = Arc::new(Lanes::new(&shared, width));
        if let Some(prefetch) = &shared.memories.prefetch {
            let lanes: Weak<Lanes> = Arc::downgrade(&lanes);
            prefetch.send_over(lanes);
        }
        Self { inner: Arc::new(Inner { shared, lanes, reaping: Reaping::default(), built: Instant::now() }) }
    }

    /// Takes tokens, if all of them are there: of one request, or of several, from every limit or from none. As
    /// [`Limiter::consume`](crate::Limiter::consume).
    ///
    /// # Errors
    ///
    /// Before any SQL: [`Error::Key`], [`Error::Cost`], [`Error::Call`], [`Error::CostExceedsCapacity`];
    /// [`Error::NothingAsked`] for no requests; [`Error::ConflictingDefinitions`] for two definitions of one limit.
    /// Then those of the section *Errors* of [`Gate`].
    pub async fn consume(&self, requests: impl IntoIterator<Item = Request>) -> Result<Decision, Error> {
        // Before the first await, so that no iterator of the caller lives across it.
        match self.prepaid_or_asked(requests) {
            ControlFlow::Break(grant) => Ok(Decision::Granted(grant)),
            ControlFlow::Continue(call) => self.decide(self.checked(call)?).await,
        }
    }

    /// Decides many calls in one go, each by itself, as [`Limiter::consume_each`](crate::Limiter::consume_each): they
    /// are queued together, and share batches with each other. Calls that ask one row, and no other, are decided in
    /// their order.
    ///
    /// Each has its own answer, of which the errors are those of [`consume`](Self::consume). All of them wait in the
    /// [queue](GateBuilder::queue) at once.
    pub async fn consume_each(
        &self,
        calls: impl IntoIterator<Item: IntoIterator<Item = Request>>,
    ) -> Vec<Result<Decision, Error>> {
        join_all(calls.into_iter().map(|requests| self.consume(requests))).await
    }

    /// Answers as [`consume`](Self::consume) would now, and takes nothing. The answer may be outdated when you
    /// act on it: if one token is left, all callers who check at the same time pass.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn check(&self, requests: impl IntoIterator<Item = Request>) -> Result<Decision, Error> {
        self.decide(self.checked(Call::check(requests))?).await
    }

    /// Answers each of many calls as [`check`](Self::check) does.
    pub async fn check_each(
        &self,
        calls: impl IntoIterator<Item: IntoIterator<Item = Request>>,
    ) -> Vec<Result<Decision, Error>> {
        join_all(calls.into_iter().map(|requests| self.check(requests))).await
    }

    /// Takes tokens as [`consume`](Self::consume) does, and waits for them if they will be there within `timeout`.
    ///
    /// Sleeps until the instant that the refusal names, and asks again; if somebody else was quicker, sleeps again.
    /// Returns the refusal at once where the instant lies beyond the timeout. One gate serves the callers that wait for
    /// one key in the order in which they came, whatever they cost. If a caller's timeout ends while others wait before
    /// it, it is refused, even if its tokens are there. Waiting reserves nothing: callers of [`consume`](Self::consume)
    /// and other processes may take the tokens first. A caller who needs a promise calls [`reserve`](Self::reserve).
    ///
    /// A credit, a reset, a settlement, a release or a lapse of this gate wakes the first of the line at once. So does
    /// an override, when this process has read it. For what other processes raise, the first of each line asks again at
    /// least every 5 seconds. An outage that such an early question meets is no error: the caller sleeps on.
    ///
    /// The database gives the span to sleep, and this machine's monotonic clock measures it; see
    /// [`jitter`](GateBuilder::jitter).
    ///
    /// A call of several requests waits in the line of the limit that refused, and if another refuses it then, in the
    /// line of that one. Of [alternatives](crate::first_of) it waits in a line of each, and asks for all of them as
    /// soon as its turn comes in one. A cost that is [split](crate::split) waits in the line of its first limit, and
    /// hears of the others.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume), and [`Error::Stopped`] once the gate was [closed](Self::close).
    pub async fn wait(
        &self,
        requests: impl IntoIterator<Item = Request>,
        timeout: Duration,
    ) -> Result<Decision, Error> {
        self.wait_in_turn(Vec::from_iter(requests), timeout).await.map(|(decision, _)| decision)
    }

    /// Takes tokens of a [concurrency](crate::Limit::concurrency) limit, if they are there, and holds them as long as
    /// the [`Lease`] lives. Tokens of other limits in the same call stay taken.
    ///
    /// A future that is dropped while it waits for its answer may have been granted; such a grant lapses at the end of
    /// the lease.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume). [`Error::Stopped`] once the gate was [closed](Self::close), if one of the
    /// limits is a concurrency limit.
    pub async fn acquire(&self, requests: impl IntoIterator<Item = Request>) -> Result<Decision<Lease>, Error> {
        let (runtime, sent, requests) = (runtime()?, Instant::now(), Vec::from_iter(requests));
        if requests.iter().filter_map(Request::asked).any(|(limit, _)| limit.lease().is_some()) {
            self.expect_open()?;
        }
        Ok(self.leased(self.consume(requests).await?, sent, &runtime))
    }

    /// As [`acquire`](Self::acquire), and waits for up to `timeout` until somebody releases what is missing, or lets it
    /// lapse.
    ///
    /// One gate serves its callers in the order in which they came, and a release by the same gate wakes the first. It
    /// finds the releases of other processes by asking: after 10 ms, and then ever less often, down to once a second,
    /// until the holders change again. It leaves every eighth release to them: for a fifth of the time since the
    /// release before it, and at most a second, no caller of this gate asks for it, but those that wait for an
    /// alternative as well. It hears of all else that raises a limit as in [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait).
    pub async fn acquire_within(
        &self,
        requests: impl IntoIterator<Item = Request>,
        timeout: Duration,
    ) -> Result<Decision<Lease>, Error> {
        let runtime = runtime()?;
        let (decision, sent) = self.wait_in_turn(Vec::from_iter(requests), timeout).await?;
        Ok(self.leased(decision, sent, &runtime))
    }

    fn leased(&self, decision: Decision, sent: Instant, runtime: &Handle) -> Decision<Lease> {
        match decision {
            Decision::Granted(grant) => Decision::Granted(Lease::new(self, grant, sent, runtime)),
            Decision::Denied(denied) => Decision::Denied(denied),
        }
    }

    /// An instant at which other leases of this length are due as well, not after the given one.
    fn together(&self, at: Instant, lease: Duration) -> Instant {
        let step = (lease / 12).as_micros().max(1);
        let late = at.saturating_duration_since(self.inner.built).as_micros() % step;
        at - Duration::from_micros(u64::try_from(late).unwrap_or(0))
    }

    /// Takes tokens now, to be spent as soon as they are there. As [`Limiter::reserve`](crate::Limiter::reserve).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::reserve`](crate::Limiter::reserve) and of [`Gate`].
    pub async fn reserve(&self, requests: impl IntoIterator<Item = Request>) -> Result<Decision<Reservation>, Error> {
        let call = self.checked(Call::reserve(requests))?;
        let answer = match self.overruled(&call) {
            Some(answer) => answer,
            None => self.ask(call).await?,
        };
        Ok(answer.reservation())
    }

    /// Reserves for many calls in one go, each by itself. As [`consume_each`](Self::consume_each).
    pub async fn reserve_each(
        &self,
        calls: impl IntoIterator<Item: IntoIterator<Item = Request>>,
    ) -> Vec<Result<Decision<Reservation>, Error>> {
        join_all(calls.into_iter().map(|requests| self.reserve(requests))).await
    }

    /// Tells how much a limit holds for a key now. The request's cost does not matter.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn balance(&self, request: Request) -> Result<Balance, Error> {
        self.change(Call::look(request)).await.map(Answer::balance)
    }

    /// Gives tokens, up to the capacity; a [wallet](crate::Limit::wallet) has none.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn credit(&self, request: Request) -> Result<Balance, Error> {
        self.change(Call::credit(request)).await.map(Answer::balance)
    }

    /// Takes tokens whatever is there. As [`Limiter::debit`](crate::Limiter::debit).
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume); [`Error::DebtTooDeep`] where the debt does not fit.
    pub async fn debit(&self, request: Request) -> Result<Balance, Error> {
        self.change(Call::debit(request)).await.map(Answer::balance)
    }

    /// Fills a key up, forgives its debts, and deletes stale shards. The request's cost does not matter.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn reset(&self, request: Request) -> Result<Balance, Error> {
        self.change(Call::reset(request)).await.map(Answer::balance)
    }

    /// Brings what was charged to its actual cost, in either direction. As [`Limiter::settle`](crate::Limiter::settle).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::settle`](crate::Limiter::settle) and of [`Gate`]. A grant without the database charged
    /// nothing: [`Error::NothingAsked`].
    pub async fn settle(
        &self,
        receipt: impl Into<Receipt>,
        actual: impl TryInto<Tokens, Error: Into<TokensError>>,
    ) -> Result<Settlement, Error> {
        let receipt = receipt.into();
        let actual = receipt.actual_cost(actual)?;
        self.change(Call::settle(receipt, actual)).await.map(Answer::settlement)
    }

    /// The same with an actual cost for each request, in the order asked. As
    /// [`Limiter::settle_each`](crate::Limiter::settle_each).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::settle_each`](crate::Limiter::settle_each) and of [`Gate`].
    pub async fn settle_each(&self, receipt: impl Into<Receipt>, costs: &[Tokens]) -> Result<Settlement, Error> {
        self.change(Call::settle_each(receipt.into(), costs)).await.map(Answer::settlement)
    }

    /// Gives back what was charged, if it is not ready to be spent. As [`Limiter::cancel`](crate::Limiter::cancel).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::cancel`](crate::Limiter::cancel) and of [`Gate`].
    pub async fn cancel(&self, receipt: impl Into<Receipt>) -> Result<Settlement, Error> {
        self.change(Call::cancel(receipt.into())).await.map(Answer::settlement)
    }

    /// Takes an estimate from every limit, or from none, for a call whose cost is known when it has ended. The
    /// [`Stream`] counts what is used, and settles the call at that when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::MixedCosts`] for requests that are counted, and whose costs differ; those of
    /// [`consume`](Self::consume).
    pub async fn stream(&self, requests: impl IntoIterator<Item = Request>) -> Result<Decision<Stream>, Error> {
        // Its settlement needs one.
        let (runtime, requests) = (runtime()?, Vec::from_iter(requests));
        // Once the answer has streamed it is too late to say so.
        self.checked(Call::consume(requests.iter().cloned()))?.expect_one_cost()?;
        Ok(match self.consume(requests).await? {
            Decision::Granted(grant) => Decision::Granted(Stream::new(self, grant, runtime)),
            Decision::Denied(denied) => Decision::Denied(denied),
        })
    }

    /// Notes how much of a stored call is used so far.
    async fn report(&self, call: &CallName, used: Tokens) -> Result<(), Error> {
        let shared = &self.inner.shared;
        let call = CallName { part: shared.settings.backend.parts.of(call.key()), ..call.clone() };
        let mut connection = Connection::acquire(shared, call.name()).await?;
        connection.begin();
        let reporting = async { shared.store(&mut connection).report_call(&call, used).await };
        let reported = within(shared.settings.statement_timeout, Step::Save, call.name(), reporting).await;
        if reported.as_ref().err().is_none_or(Error::leaves_connection) {
            connection.finished();
            connection.give_back(shared).await;
        }
        reported
    }

    /// Lets each lease of a receipt last anew. As [`Limiter::renew`](crate::Limiter::renew).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::renew`](crate::Limiter::renew) and of [`Gate`].
    pub async fn renew(&self, receipt: &Receipt) -> Result<Receipt, Error> {
        self.ask(self.checked(Call::renew(receipt))?).await.map(|answer| answer.renewal(receipt))
    }

    /// Ends each lease of a receipt. As [`Limiter::release`](crate::Limiter::release).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::release`](crate::Limiter::release) and of [`Gate`].
    pub async fn release(&self, receipt: impl Into<Receipt>) -> Result<Settlement, Error> {
        self.change(Call::release(&receipt.into())).await.map(Answer::settlement)
    }

    /// The keys that this gate has refused most since it was built, most first: whom an operator asks about, or an
    /// application warns. Empty unless [`GateBuilder::count_refusals`] asked for it.
    ///
    /// A key is counted under the limit that it has to wait for longest. Reservations are not counted.
    #[must_use]
    pub fn most_refused(&self, n: usize) -> Vec<Refused> {
        self.inner.shared.tally.as_ref().map_or_else(Vec::new, |tally| tally.most(n))
    }

    /// How many tokens of a limit and key lie in this process's memory, taken ahead; see [`GateBuilder::prefetch`].
    /// None of a request that is wrong.
    #[must_use]
    pub fn prefetched(&self, request: &Request) -> Tokens {
        self.inner.shared.memories.held(request)
    }

    /// Ends the gate's work, so that nothing is owed when the process ends: gives back what was
    /// [taken ahead](GateBuilder::prefetch), releases each [`Lease`], and settles each [`Stream`] that was dropped.
    ///
    /// Callers that [wait](Self::wait) are refused, and nothing is taken for them. From now on `wait`, `acquire_within`
    /// and a lease are [`Error::Stopped`], and the database alone answers every other call. Returns when all of that is
    /// done, whether its callers poll their futures or not. Where the database does not answer, it returns when the
    /// timeouts of the gate have passed; then leases lapse, and tokens that were taken ahead or streamed stay charged.
    pub async fn close(&self) {
        let Inner { shared, lanes, .. } = &*self.inner;
        shared.closed.send_replace(true);
        shared.waiters.close();
        // A slice that is still being charged is given back in the second round.
        for _ in 0..2 {
            shared.memories.give_back_all().into_iter().for_each(|call| lanes.send(call));
            shared.closed.closed().await;
        }
    }

    /// A grant from what was taken ahead, else the call for the database.
    fn prepaid_or_asked(&self, requests: impl IntoIterator<Item = Request>) -> ControlFlow<Grant, Call> {
        let mut requests = requests.into_iter();
        if self.inner.shared.memories.prefetch.is_none() {
            return ControlFlow::Continue(Call::consume(requests));
        }
        match (requests.next(), requests.next()) {
            // One request needs no list.
            (Some(only), None) => self.prepaid_or([only]),
            (first, second) => self.prepaid_or(first.into_iter().chain(second).chain(requests).collect::<Vec<_>>()),
        }
    }

    fn prepaid_or(&self, requests: impl AsRef<[Request]> + IntoIterator<Item = Request>) -> ControlFlow<Grant, Call> {
        match self.prepaid(requests.as_ref()) {
            Some(grant) => ControlFlow::Break(grant),
            None => ControlFlow::Continue(Call::consume(requests)),
        }
    }

    /// A grant from what was taken ahead.
    fn prepaid(&self, requests: &[Request]) -> Option<Grant> {
        let Shared { memories, overrides, settings, .. } = &*self.inner.shared;
        let prefetch = memories.prefetch.as_ref()?;
        if let Some(overrides) = overrides {
            // Tokens from before an override were charged by other numbers: they are dropped.
            let asked = requests.iter().filter_map(Request::asked);
            let said: Vec<_> = asked.filter(|(limit, key)| overrides.says(limit, key, settings.clock.at())).collect();
            if !said.is_empty() {
                for (limit, key) in said {
                    prefetch.forget(limit, key);
                }
                return None;
            }
        }
        let grant = prefetch.grant(requests)?;
        let limit = requests.first()?.limit().name();
        tracing::trace!(limit, "granted from what was taken ahead");
        Some(grant)
    }

    /// Decides from memory, else by the database, else by the failure policy.
    async fn decide(&self, call: CheckedCall) -> Result<Decision, Error> {
        let Shared { memories, fallback, settings, tally, .. } = &*self.inner.shared;
        let remembered = memories.refuse(&call, &settings.clock);
        let decision = if let Some(answer) = self.overruled(&call) {
            Ok(answer.grant())
        } else if let Some(denied) = remembered {
            meter::refused(By::Gate, &denied);
            Ok(Decision::Denied(denied))
        } else {
            let kept = fallback.keep(&call);
            match self.ask(call).await {
                Ok(answer) => Ok(answer.grant()),
                Err(error) => fallback.answer(kept, error),
            }
        };
        if let (Some(tally), Ok(Decision::Denied(denied))) = (tally, &decision) {
            tally.note(denied);
        }
        decision
    }

    async fn change(&self, call: Call) -> Result<Answer, Error> {
        self.ask(self.checked(call)?).await
    }

    /// That the gate was not closed, for what would be owed then.
    fn expect_open(&self) -> Result<(), Error> {
        if *self.inner.shared.closed.borrow() { Err(Error::Stopped) } else { Ok(()) }
    }

    fn checked(&self, call: Call) -> Result<CheckedCall, Error> {
        let Shared { settings, overrides, .. } = &*self.inner.shared;
        checked(call, settings.backend.parts, overrides.as_ref(), || settings.clock.at())
    }

    /// The answer that overrides alone give.
    fn overruled(&self, call: &CheckedCall) -> Option<Answer> {
        let Shared { settings, overrides, .. } = &*self.inner.shared;
        let answer = overruled(call, overrides.as_ref(), || settings.clock.at())?;
        tell(call.limit(), &answer);
        Some(answer)
    }

    /// Queues a call, and waits for its answer.
    async fn ask(&self, call: CheckedCall) -> Result<Answer, Error> {
        let (limit, lapses) = (call.limit().clone(), call.lapses());
        let span = tracing::debug_span!("tollgate", limit = limit.as_str(), outcome = tracing::field::Empty);
        // Before anything is charged: the caller may be gone when the answer comes, and the answer may be lost.
        if let Some(lapses_in) = lapses {
            self.inner.note_lapse(lapses_in);
        }
        let asked_at = Instant::now();
        let answer = self.queue(call, &limit).instrument(span.clone()).await;
        meter::waited(asked_at.elapsed());
        match &answer {
            Ok(answer) => {
                // A reservation that has to wait lapses later.
                if let (Some(_), Some(lapses_in)) = (lapses, answer.stored_for()) {
                    self.inner.note_lapse(lapses_in);
                }
                span.record("outcome", answer.outcome());
                tell(&limit, answer);
            }
            Err(error) => {
                span.record("outcome", "error");
                meter::failed(By::Gate, limit.as_str(), error);
            }
        }
        answer
    }

    async fn queue(&self, call: CheckedCall, limit: &Text) -> Result<Answer, Error> {
        let (mut reply, answer) = Reply::new(limit.clone());
        if call.is_held() {
            reply.owe(self.inner.shared.owing());
        }
        let queued = QueuedCall { call, reply, blocked_since: None };
        if let Err(error) = self.inner.lanes.submit(queued) {
            if error.is_outage() {
                // A caller that tries again without a pause must not keep the runtime from the task that asks the
                // server.
                tokio::task::yield_now().await;
            }
            return Err(error);
        }
        answer.await.expect("a reply is sent even when it is dropped")
    }
}

impl Inner {
    /// Sees to it that a call which lapses after so long is given back then.
    fn note_lapse(&self, lapses_in: Duration) {
        self.reaping.note(lapses_in, &self.shared);
    }
}

/// Without the keys that its queues and memories know.
impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("settings", &self.inner.shared.settings).finish_non_exhaustive()
    }
}

fn tell(limit: &Text, answer: &Answer) {
    answer.would_deny().iter().for_each(|shadow| meter::would_deny(By::Gate, &shadow.limit));
    match answer {
        Answer::Denied(denied) => meter::refused(By::Gate, denied),
        _ => meter::decided(By::Gate, limit.as_str(), answer.outcome(), answer.source()),
    }
}

/// The runtime of the caller: asked for before anything is taken that only a task of it could give back.
fn runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| Error::Stopped)
}
