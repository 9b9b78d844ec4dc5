mod alternatives;
mod checked;
mod plain;
mod position;

use std::iter;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::SECOND;
use crate::call_error::CallError;
use crate::call_name::{Keeping, Once};
use crate::error::Error;
use crate::key::{Key, KeyError, ToKey};
use crate::limit::Limit;
use crate::timestamp::Timestamp;
use crate::tokens::{Tokens, TokensError};
pub use alternatives::{first_of, split};
pub(crate) use checked::CheckedRequest;
pub(crate) use plain::Plain;
pub(crate) use position::Position;

/// A question to a limit: a key, and how many tokens to take. Made by [`Limit::key`] and [`Limit::global`].
///
/// A request owns its limit, so requests for `const`, `static` and loaded limits can be stored, sent and collected
/// alike. Building a request never fails. If something is wrong with it, the verb that gets the request reports the
/// fault, before any SQL.
///
/// # Example
///
/// ```
/// use tollgate::{Limit, MINUTE};
///
/// const LLM_TOKENS: Limit = Limit::token_bucket("llm_tokens", 40_000, MINUTE);
///
/// let job = LLM_TOKENS.key(("tenant", 7)).cost(1_200);
/// let nudge = LLM_TOKENS.global().cost(0.5);
/// # let _ = (job, nudge);
/// ```
///
/// Verbs take one request, an array or a `Vec` alike. The requests of one call are granted together or not at all.
///
/// # Options and verbs
///
/// | | `consume`, `wait`, `acquire`, `stream` | `check` | `reserve` | `credit`, `debit` | `reset`, `balance` |
/// | --- | --- | --- | --- | --- | --- |
/// | [`cost`](Self::cost) | counts | counts | counts | counts | – |
/// | [`up_to`](Self::up_to) | counts | counts | fault | fault | – |
/// | [`leaving`](Self::leaving) | counts | counts | fault | fault | – |
/// | [`first_of`](crate::first_of) | counts | counts | fault | fault | – |
/// | [`split`](crate::split) | counts | counts | fault | fault | – |
/// | [`lapses_after`](Self::lapses_after) | counts | – | counts | fault | – |
/// | [`tracked_for`](Self::tracked_for) | counts | – | counts | fault | – |
/// | [`flat`](Self::flat) | counts | – | counts | – | – |
/// | [`once`](Self::once) | counts | counts | counts | counts | – |
/// | [`period`](Self::period) | counts | counts | counts | counts | counts |
///
/// A fault is an [`Error::Call`], and `–` means that the verb ignores the option. A reservation takes tokens that are
/// not there yet, so no balance decides what part it gets, what it leaves behind, or what it chooses:
/// [`CallError::NotConsumed`]. A credit and a debit return no receipt that could lapse:
/// [`CallError::WithoutReceipt`].
///
/// Some options contradict each other: a `split` takes all of its cost from several limits, so none of its requests
/// goes with `up_to`. And some limits do not have what an option names. Only fixed windows and stepped
/// buckets have a `period`. The tokens of a concurrency limit lapse with its lease, so it takes no `lapses_after`, no
/// `tracked_for`, no `split`, no `credit` and no `debit`.
#[derive(Clone, Debug, Eq, PartialEq)]
#[must_use = "a request does nothing until it is given to a verb"]
pub struct Request {
    limit: Limit,
    key: Result<Key, KeyError>,
    cost: Result<Tokens, TokensError>,
    least: Result<Option<Tokens>, TokensError>,
    leaving: Result<Option<Tokens>, TokensError>,
    keeping: Option<Keeping>,
    once: Option<Once>,
    flat: bool,
    period: Option<(Timestamp, Timestamp)>,
    place: Result<Position, CallError>,
}

impl Limit {
    /// One token of this limit for `key`; see [`Request::cost`] for more or less.
    ///
    /// If the value is no key (empty, too long, with NUL), the verb that gets the request reports it, before any SQL.
    pub fn key(&self, key: impl ToKey) -> Request {
        self.ask(Key::new(key))
    }

    /// One token of this limit for all callers together.
    pub fn global(&self) -> Request {
        self.ask(Ok(Key::GLOBAL))
    }

    pub(crate) fn ask(&self, key: Result<Key, KeyError>) -> Request {
        Request {
            limit: self.clone(),
            key,
            cost: Ok(Tokens::ONE),
            least: Ok(None),
            leaving: Ok(None),
            keeping: None,
            once: None,
            flat: false,
            period: None,
            place: Ok(Position::default()),
        }
    }
}

impl Request {
    /// The number of tokens to ask for, instead of one: an integer, a float (rounded to the nearest micro-token), or
    /// [`Tokens`].
    ///
    /// A cost of 0 is granted as long as the balance is not negative, and writes nothing.
    pub fn cost(mut self, cost: impl TryInto<Tokens, Error: Into<TokensError>>) -> Self {
        self.cost = amount(cost);
        self
    }

    /// Takes a part if not all of the cost is there: as many tokens as there are, at least `least`, at most the cost.
    /// The grant says how many ([`Grant::amount`](crate::Grant::amount)).
    ///
    /// The part is a whole number of tokens if `least` and the cost are whole. A refusal names the instant at which
    /// `least` are there. All requests of a call with this option get the same number: the least that any of their
    /// limits has. So they must agree in cost and `least`. Two of them for one limit and key share its tokens. Requests
    /// without the option are charged their full cost, or the whole call is refused.
    ///
    /// # Errors
    ///
    /// The verb reports them. [`Error::Call`] if `least` is zero or more than the cost, for requests that do not agree,
    /// and for a verb that does not take the option. [`Error::CostExceedsCapacity`] if not even `least` can ever be
    /// granted.
    ///
    /// # Example
    ///
    /// ```
    /// use tollgate::{Error, Gate, Limit, Tokens, MINUTE};
    ///
    /// const EVENTS: Limit = Limit::token_bucket("events", 10_000, MINUTE);
    ///
    /// /// How many of a batch of events may be sent on now.
    /// async fn claim(gate: &Gate, tenant: i64, batch: u32) -> Result<Tokens, Error> {
    ///     let decision = gate.consume(EVENTS.key(tenant).cost(batch).up_to(1)).await?;
    ///     Ok(decision.granted().map_or(Tokens::ZERO, |grant| grant.amount))
    /// }
    /// # let _ = claim;
    /// ```
    pub fn up_to(mut self, least: impl TryInto<Tokens, Error: Into<TokensError>>) -> Self {
        self.least = amount(least).map(Some);
        self
    }

    /// Grants the call only if so many tokens stay behind. For example, background work can stop at a fifth of a limit.
    ///
    /// Only calls with this option leave the tokens. Other calls, debits and use beyond a charge take them, and a debt
    /// delays calls with this option until it is repaid. If several requests for one limit and key have it, the largest
    /// number stays behind the whole call. With this option a wallet is not overdrawn.
    ///
    /// # Errors
    ///
    /// The verb reports them. [`Error::Call`] for a verb that does not take the option. [`Error::CostExceedsCapacity`]
    /// if the cost, or the least part of [`up_to`](Self::up_to), and the tokens that stay are together more than the
    /// capacity.
    pub fn leaving(mut self, tokens: impl TryInto<Tokens, Error: Into<TokensError>>) -> Self {
        self.leaving = amount(tokens).map(Some);
        self
    }

    /// Lets the call lapse: its tokens come back `span` after they are ready, unless the call is settled or cancelled
    /// before.
    ///
    /// Use it for an estimate that would stay unsettled if its owner dies. One request sets it for the whole call,
    /// which is stored in a row of its own in `tollgate.calls`. The tokens come back a second or two after the lapse,
    /// if some process looks for lapsed calls: the task of a `Sweeper`, or a gate that makes such calls. Until then a
    /// settlement still succeeds.
    ///
    /// If this method and [`tracked_for`](Self::tracked_for) are both called, the last one counts.
    ///
    /// # Errors
    ///
    /// The verb reports [`Error::Call`] for a span that is zero, is longer than [`Limit::MAX_PERIOD`], or has a
    /// fraction of a microsecond. It also reports it for a [concurrency](Limit::concurrency) limit, and for two
    /// different spans in one call.
    pub fn lapses_after(mut self, span: Duration) -> Self {
        self.keeping = Some(Keeping::LapsesAfter(span));
        self
    }

    /// Makes the receipt of the call good for one use: the call can be settled or cancelled once, until `span` after
    /// the tokens are ready. After that the charges stand.
    ///
    /// A second use fails with [`Error::ReceiptUsed`], or after the span with [`Error::Lapsed`], and changes nothing. A
    /// late first use succeeds until a sweeper has forgotten the call. The call is stored as for
    /// [`lapses_after`](Self::lapses_after), whose errors are the same.
    pub fn tracked_for(mut self, span: Duration) -> Self {
        self.keeping = Some(Keeping::TrackedFor(span));
        self
    }

    /// Carries the call out once under an id of yours, however often you ask. The id of a credit or a debit is kept for
    /// 31 days, and any other for 24 hours, or for the span of [`once_for`](Self::once_for). It is kept at least as long
    /// as [`lapses_after`](Self::lapses_after) or [`tracked_for`](Self::tracked_for) keeps the call.
    ///
    /// One request sets it for the whole call. The same call with the same id is granted again, with
    /// [`Source::Repeated`]. A repeat takes nothing more, whatever the balances are, and its receipt is the same. This
    /// holds in every process, before and after the receipt is used. So the remedy for [`Error::OutcomeUnknown`] is to
    /// ask again. A credit and a debit are carried out once, too: use the id of the payment or of the webhook.
    ///
    /// The id is any text of up to 255 bytes, such as that of a job, or of a client's retries (`Idempotency-Key`). Each
    /// limit and key has its own ids. When a sweep has forgotten an id, a repeat is a new call: it credits or charges
    /// once more. A row of your own, inserted in the transaction of a [`Limiter`](crate::Limiter), never forgets.
    ///
    /// # Errors
    ///
    /// The verb reports them. [`Error::Call`] for an id that is empty or too long, and for two ids in one call.
    /// [`Error::OnceMismatch`] for an id under which another call was granted, with other limits, keys, costs or
    /// options. [`Error::ReceiptUsed`] for the id of a lease that is over.
    ///
    /// # Example
    ///
    /// ```
    /// use tollgate::{DAY, Error, Gate, Limit};
    ///
    /// const MAILS: Limit = Limit::fixed_window("mails", 1_000, DAY);
    ///
    /// async fn charge(gate: &Gate, tenant: i64, job: i64) -> Result<bool, Error> {
    ///     let request = MAILS.key(tenant).once(job);
    ///     match gate.consume(request.clone()).await {
    ///         // It was charged, or it was not. Now it is, once.
    ///         Err(Error::OutcomeUnknown { .. }) => gate.consume(request).await,
    ///         answer => answer,
    ///     }
    ///     .map(|decision| decision.is_granted())
    /// }
    /// # let _ = charge;
    /// ```
    ///
    /// [`Source::Repeated`]: crate::Source::Repeated
    pub fn once(self, id: impl ToString) -> Self {
        self.named(id, None)
    }

    /// Sets [`once`](Self::once) with the least time for which the id is kept.
    pub fn once_for(self, id: impl ToString, span: Duration) -> Self {
        self.named(id, Some(span))
    }

    #[expect(clippy::needless_pass_by_value, reason = "a number or a literal needs no `&`")]
    fn named(mut self, id: impl ToString, span: Option<Duration>) -> Self {
        self.once = Some(Once { id: id.to_string().into(), span });
        self
    }

    /// Leaves this request as it was charged when its call is settled at one cost, or lapses. For a stream that counts
    /// tokens, mark the request that counts the call itself.
    pub fn flat(mut self) -> Self {
        self.flat = true;
        self
    }

    /// Names the period that the limit counts by, such as the billing period of a customer. The two instants must be
    /// the same at each call of the period: a `start` that is computed from the present refills the limit at each call.
    ///
    /// It is for fixed windows and stepped buckets, and replaces their own period and grid. The tokens of a period come
    /// at `start`; a row that was not written for months gets the tokens of each month. If callers still name a period
    /// that is over, periods of its length follow it. Before `start` no tokens come back, and a key that was never
    /// asked is full.
    ///
    /// A refusal names the instant at which a call that names the same period would be granted: for a window, the end
    /// of the period. A caller that names a later period may be granted sooner, because a renewal in mid-period refills
    /// once. A renewal that comes late, by less than the shortest period, costs nothing: until then callers go on in
    /// the period before. Between two grants at most one capacity more is granted for each other period that is named.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] for a period shorter than a second and for other kinds of limits;
    /// [`CallError::ConflictingDefinitions`] for two periods of one limit and key in one call.
    ///
    /// # Example
    ///
    /// ```
    /// use chrono::{DateTime, Utc};
    /// use tollgate::{DAY, Limit, Request};
    ///
    /// /// The period is the customer's own; thirty days are a stand-in.
    /// const MAILS: Limit = Limit::fixed_window("mails_a_month", 10_000, DAY.saturating_mul(30));
    ///
    /// /// `current_period_start` and `current_period_end` of the subscription, as Stripe tells them.
    /// fn mail(customer: i64, start: DateTime<Utc>, end: DateTime<Utc>) -> Request {
    ///     MAILS.key(customer).period(start, end)
    /// }
    /// # let _ = mail;
    /// ```
    pub fn period(mut self, start: DateTime<Utc>, end: DateTime<Utc>) -> Self {
        self.period = Some((start.into(), end.into()));
        self
    }

    /// The request that an empty `first_of` or `split` returns. Every verb answers it with the fault.
    pub(crate) fn wrong(maker: &'static str, fault: CallError) -> Self {
        Self { place: Err(fault), ..Limit::token_bucket(maker, 1, SECOND).global() }
    }

    /// Makes it a request of an alternative.
    pub(crate) fn in_alternative(mut self, number: usize) -> Self {
        self.place = match self.place {
            Ok(Position { alternative: None, split }) => Ok(Position { alternative: Some(number), split }),
            place => place.and(Err(CallError::AlternativesNested)),
        };
        self
    }

    /// Makes it one of several limits that give a cost together.
    pub(crate) fn in_split(mut self, place: usize, cost: Result<Tokens, TokensError>) -> Self {
        self.cost = cost.and_then(amount);
        self.place = match self.place {
            Ok(Position { alternative: None, split: None }) => Ok(Position { alternative: None, split: Some(place) }),
            place => place.and(Err(CallError::SplitNested)),
        };
        self
    }

    /// Its limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The limit and the key.
    #[cfg(feature = "postgres")]
    pub(crate) fn target(&self) -> Result<(&Limit, &Key), KeyError> {
        Ok((&self.limit, self.key.as_ref().map_err(|source| *source)?))
    }

    /// The limit, the key, and the tokens that it asks for; with [`up_to`](Self::up_to), the most.
    ///
    /// # Errors
    ///
    /// [`Error::Key`] and [`CallError::Cost`], as a verb would report them.
    pub fn asked(&self) -> Result<(&Limit, &Key, Tokens), Error> {
        let name = || self.limit.name.clone().into();
        let key = self.key.as_ref().map_err(|source| Error::Key { limit: name(), source: *source })?;
        let cost = self.cost.map_err(|source| Error::Call { limit: Some(name()), source: CallError::Cost(source) })?;
        Ok((&self.limit, key, cost))
    }
}

/// An amount that is no debt.
pub(crate) fn amount(tokens: impl TryInto<Tokens, Error: Into<TokensError>>) -> Result<Tokens, TokensError> {
    let tokens = tokens.try_into().map_err(Into::into)?;
    if tokens.is_negative() { Err(TokensError::Negative) } else { Ok(tokens) }
}

/// A request is a call of one request, for verbs and functions that take several.
impl IntoIterator for Request {
    type Item = Self;
    type IntoIter = iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        iter::once(self)
    }
}
