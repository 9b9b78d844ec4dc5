use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

use crate::error::Error;
use crate::hold::{HoldError, Holding};
use crate::key::{Key, KeyError, ToKey};
use crate::limit::Limit;
use crate::tokens::{Tokens, TokensError};

/// What is asked of a limit: which key, and how many tokens. Made by [`Limit::key`] and [`Limit::global`].
///
/// A request owns its limit, so requests for `const`, `static` and loaded limits can be stored, sent and collected
/// alike. Building one never fails: the verb that the request is given to reports what is wrong with it, before any
/// SQL.
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
#[derive(Clone, Debug, Eq, PartialEq)]
#[must_use = "a request does nothing until it is given to a verb"]
pub struct Request {
    limit: Limit,
    key: Result<Key, KeyError>,
    cost: Result<Tokens, TokensError>,
    holding: Result<Option<Holding>, HoldError>,
    once: Option<Box<str>>,
}

impl Limit {
    /// One token of this limit for `key`; see [`Request::cost`] for more or less.
    ///
    /// A value that is no key (empty, too long, with NUL) is reported by the verb that the request is given to, before
    /// any SQL.
    pub fn key(&self, key: impl ToKey) -> Request {
        self.ask(Key::new(key))
    }

    /// One token of this limit for all callers together.
    pub fn global(&self) -> Request {
        self.ask(Ok(Key::GLOBAL))
    }

    fn ask(&self, key: Result<Key, KeyError>) -> Request {
        Request { limit: self.clone(), key, cost: Ok(Tokens::ONE), holding: Ok(None), once: None }
    }
}

impl Request {
    /// How many tokens to ask for, instead of one: an integer, a float (which goes to the nearest micro-token), or
    /// [`Tokens`].
    ///
    /// A cost of 0 is granted as long as the balance is not negative, and writes nothing.
    pub fn cost(mut self, cost: impl TryInto<Tokens, Error: Into<TokensError>>) -> Self {
        self.cost = cost
            .try_into()
            .map_err(Into::into)
            .and_then(|cost: Tokens| if cost.is_negative() { Err(TokensError::Negative) } else { Ok(cost) });
        self
    }

    /// Lets the charge lapse: its tokens come back `span` after they are ready, unless it is settled or cancelled
    /// before.
    ///
    /// For an estimate that nobody settles if its owner dies. A charge that is settled in time keeps what it settled
    /// at, and it is settled once: see [`tracked_for`](Self::tracked_for). What a refill has brought back meanwhile
    /// does not come back twice.
    ///
    /// The row keeps a hold of 24 bytes until then, and at most 1 000 of them: one more is refused until the first
    /// lapses. A charge of several limits keeps one in each. Of this and `tracked_for` the last one counts.
    ///
    /// A zero span, one longer than [`Limit::MAX_PERIOD`], one of a fraction of a microsecond, a limit with
    /// [`shards`](Limit::shards) and a [concurrency](Limit::concurrency) limit are reported by the verb that the request
    /// is given to, as [`Error::Hold`].
    pub fn lapses_after(mut self, span: Duration) -> Self {
        self.holding = Holding::LapsesAfter(span).checked().map(Some);
        self
    }

    /// Makes the receipt good for one use: it can be settled or cancelled once, until `span` after the tokens are
    /// ready. Then the charge stands.
    ///
    /// A second use is [`Error::ReceiptUsed`], a late one [`Error::Lapsed`]; neither changes anything. An undo is
    /// exact: what a refill has brought back meanwhile does not come back twice. So a receipt of a window that is
    /// settled at 0 after the window's end does not lift the next window above its capacity.
    ///
    /// In a [sliding window](Limit::sliding_window) the charge leaves by itself one period after the grant, and its hold
    /// with it: there a receipt, and the id of [`once`](Self::once), are good until then, whatever the span.
    ///
    /// The row keeps a hold, as that of [`lapses_after`](Self::lapses_after), whose errors are the same. Jobs that
    /// outnumber it keep their receipts in a table of their own (`delete from jobs … returning receipt`).
    pub fn tracked_for(mut self, span: Duration) -> Self {
        self.holding = Holding::TrackedFor(span).checked().map(Some);
        self
    }

    /// Charges once under an id of yours, however often it is asked, as long as the hold of the first grant lives.
    ///
    /// Whoever asks again with the same id is granted again: nothing more is taken, whatever the balance is, and the
    /// receipt names the same hold. This is so in every process, before and after the receipt is used, until the hold
    /// lapses; then the id is new. A grant for which nothing at all was taken has [`Source::Repeated`]. Of several
    /// limits, those that have the id take nothing, and the others take, all or none. So the remedy for
    /// [`Error::OutcomeUnknown`] is to ask again.
    ///
    /// The id is any text: of a job, of a client's retries (`Idempotency-Key`). It counts for each limit and key apart.
    /// Rows keep 48 bits of its hash, never the text, so two ids of one row are taken for one about once in 3·10¹⁴
    /// pairs; whoever can choose ids can make such pairs on purpose. So do the work itself once for each id, too.
    ///
    /// It needs a hold: [`lapses_after`](Self::lapses_after), [`tracked_for`](Self::tracked_for), or a
    /// [concurrency](Limit::concurrency) limit. The hold keeps its place among the 1 000 of a row until it lapses, used
    /// or not. A repeated reservation is ready when the first one was, a repeated lease ends when the first one does.
    ///
    /// # Errors
    ///
    /// Reported by the verb that the request is given to: [`Error::Hold`] for an empty id and for one without a hold,
    /// which a credit and a debit never have; [`Error::OnceMismatch`] for an id that was granted another cost, or
    /// another hold (by 13 bits of a hash: one difference in 8 192 is not noticed, and the charge stays what it was);
    /// [`Error::ReceiptUsed`] for that of a lease that was released, until it would have ended.
    ///
    /// # Example
    ///
    /// ```
    /// use tollgate::{DAY, Error, Gate, HOUR, Limit};
    ///
    /// const MAILS: Limit = Limit::fixed_window("mails", 1_000, DAY);
    ///
    /// async fn charge(gate: &Gate, tenant: i64, job: i64) -> Result<bool, Error> {
    ///     let request = MAILS.key(tenant).tracked_for(HOUR).once(job);
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
    #[expect(clippy::needless_pass_by_value, reason = "a number or a literal needs no `&`")]
    pub fn once(mut self, id: impl ToString) -> Self {
        self.once = Some(id.to_string().into());
        self
    }

    /// The limit that is asked.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The request, if its key, cost and hold are right.
    pub(crate) fn checked(self) -> Result<CheckedRequest, Error> {
        let Self { limit, key, cost, holding, once } = self;
        let name = || limit.name.clone().into();
        let key = key.map_err(|source| Error::Key { limit: name(), source })?;
        let cost = cost.map_err(|source| Error::Cost { limit: name(), source })?;
        let holding = match holding {
            Ok(Some(_)) if limit.shards > 1 => Err(HoldError::Shards),
            Ok(Some(_)) if limit.lease().is_some() => Err(HoldError::Leased),
            Ok(_) if once.as_deref() == Some("") => Err(HoldError::IdEmpty),
            Ok(None) if once.is_some() && limit.lease().is_none() => Err(HoldError::IdWithoutHold),
            holding => holding,
        };
        let holding = holding.map_err(|source| Error::Hold { limit: name(), source })?;
        Ok(CheckedRequest { limit, key, cost, holding, once })
    }
}

/// A request whose key, cost and hold are right.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct CheckedRequest {
    pub(crate) limit: Limit,
    pub(crate) key: Key,
    pub(crate) cost: Tokens,
    #[serde(default, rename = "hold")]
    pub(crate) holding: Option<Holding>,
    #[serde(default)]
    pub(crate) once: Option<Box<str>>,
}

impl From<CheckedRequest> for Request {
    fn from(CheckedRequest { limit, key, cost, holding, once }: CheckedRequest) -> Self {
        let holding = holding.map(Holding::checked).transpose();
        Self { limit, key: Ok(key), cost: Ok(Tokens::ZERO), holding, once }.cost(cost)
    }
}

impl Serialize for Request {
    /// Fails for a request whose key, cost or hold is wrong.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.clone().checked().map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Request {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        CheckedRequest::deserialize(deserializer).map(Self::from)
    }
}
