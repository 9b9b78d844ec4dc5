mod alternatives;
mod fault;
mod id;
mod request;
mod stored;

use std::slice;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::tokens::Tokens;
pub use alternatives::{first_of, split};
pub use fault::CallError;
pub use id::CallId;
use id::span_fault;
pub(crate) use id::{Drawn, Keeping, Once};
pub(crate) use request::Plain;
pub use request::Request;
pub use stored::{Given, StoredCall};

/// One request, or several that are taken all or none; or alternatives of these, made by [`first_of`]; or limits that
/// give a cost together, made by [`split`]. With the options of the whole call.
///
/// Verbs take a call, a request, an array of requests or a `Vec` alike. Requests of an iterator are collected into a
/// call.
///
/// # Options and verbs
///
/// | | `consume`, `wait`, `acquire`, `stream` | `check` | `reserve` | `credit`, `debit` |
/// | --- | --- | --- | --- | --- |
/// | [`and`](Self::and) | counts | counts | counts | fault |
/// | [`first_of`](crate::first_of) | counts | counts | fault | fault |
/// | [`split`](crate::split) | counts | counts | fault | fault |
/// | [`lapses_after`](Self::lapses_after) | counts | – | counts | fault |
/// | [`tracked_for`](Self::tracked_for) | counts | – | counts | fault |
/// | [`once`](Self::once) | counts | counts | counts | counts |
///
/// A fault is [`CallError::WrongVerb`], and `–` means that the verb ignores the option. `reset` and `balance` take a
/// [`Request`], which has options of its own. A reservation takes tokens that are not there yet, so no balance decides
/// what it chooses. A credit and a debit change one balance, and return no receipt that could lapse. The tokens of a
/// concurrency limit lapse with its lease, so a call of such limits alone takes neither `lapses_after` nor
/// `tracked_for`.
///
/// # Example
///
/// ```
/// use tollgate::{Call, Error, Gate, Limit, MINUTE};
///
/// const ORG: Limit = Limit::token_bucket("org", 40_000, MINUTE);
/// const USER: Limit = Limit::token_bucket("user", 4_000, MINUTE);
///
/// async fn ask(gate: &Gate, org: i64, user: i64, job: i64) -> Result<bool, Error> {
///     let call = Call::from([ORG.key(org).cost(100), USER.key(user).cost(100)]).once(job).lapses_after(MINUTE);
///     Ok(gate.consume(call).await?.is_granted())
/// }
/// # let _ = ask;
/// ```
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[must_use = "a call does nothing until it is given to a verb"]
pub struct Call {
    pub(crate) asked: Asked,
    #[serde(default)]
    pub(crate) once: Option<Once>,
    #[serde(default)]
    pub(crate) keeping: Option<Keeping>,
    /// The first fault of its making.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none", serialize_with = "fault::refused")]
    pub(crate) fault: Option<CallError>,
}

/// The requests of a call. A single one needs no list.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Asked {
    Request(Request),
    Requests(Vec<Wanted>),
    FirstOf(Vec<Vec<Wanted>>),
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wanted {
    Request(Request),
    Split { cost: Tokens, of: Vec<Request> },
}

impl Call {
    fn of(asked: Asked) -> Self {
        Self { asked, once: None, keeping: None, fault: None }
    }

    /// The same with more requests, which are taken with those before or not at all. Each alternative of a
    /// [`first_of`] gets them.
    pub fn and(mut self, requests: impl IntoIterator<Item = Request>) -> Self {
        let more: Vec<_> = requests.into_iter().map(Wanted::Request).collect();
        self.asked = match self.asked {
            Asked::Request(request) => Asked::Requests(vec![Wanted::Request(request)]),
            asked => asked,
        };
        let alternatives = self.alternatives_mut();
        // With these requests an alternative that asks nothing could be granted alone.
        let is_one_empty = alternatives.len() > 1 && alternatives.iter().any(Vec::is_empty);
        for wanted in alternatives {
            wanted.extend_from_slice(&more);
        }
        if is_one_empty {
            self.fault.get_or_insert(CallError::NothingAsked);
        }
        self
    }

    /// Lets the call lapse: its tokens come back `span` after they are ready, unless the call is settled or cancelled
    /// before.
    ///
    /// Use it for an estimate that would stay unsettled if its owner dies. The call is stored in a row of its own in
    /// `tollgate.calls`. The tokens come back a second or two after the lapse, if some process looks for lapsed calls:
    /// the task of a `Sweeper`, or a gate that makes such calls. Until then a settlement still succeeds.
    ///
    /// If this method and [`tracked_for`](Self::tracked_for) are both called, the last one counts.
    ///
    /// # Errors
    ///
    /// The verb reports [`Error::Call`](crate::Error::Call) for a span that is zero, is longer than
    /// [`Limit::MAX_PERIOD`](crate::Limit::MAX_PERIOD), or has a fraction of a microsecond. It also reports it for a
    /// call that asks [concurrency](crate::Limit::concurrency) limits alone.
    pub fn lapses_after(mut self, span: Duration) -> Self {
        self.keeping = Some(Keeping::LapsesAfter(span));
        self
    }

    /// Makes the receipt of the call good for one use: the call can be settled or cancelled once, until `span` after
    /// the tokens are ready. After that the charges stand.
    ///
    /// A second use fails with [`Error::ReceiptUsed`](crate::Error::ReceiptUsed), or after the span with
    /// [`Error::Lapsed`](crate::Error::Lapsed), and changes nothing. A late first use succeeds until a sweeper has
    /// forgotten the call. The call is stored as for [`lapses_after`](Self::lapses_after), whose errors are the same.
    pub fn tracked_for(mut self, span: Duration) -> Self {
        self.keeping = Some(Keeping::TrackedFor(span));
        self
    }

    /// Carries the call out once under an id of yours, however often you ask. The id of a credit or a debit is kept for
    /// 31 days, and any other for 24 hours, or for the span of [`once_for`](Self::once_for). It is kept at least as
    /// long as [`lapses_after`](Self::lapses_after) or [`tracked_for`](Self::tracked_for) keeps the call.
    ///
    /// The same call with the same id is granted again, with [`Source::Repeated`](crate::Source::Repeated). A repeat
    /// takes nothing more, whatever the balances are, and its receipt is the same. This holds in every process, before
    /// and after the receipt is used. So the remedy for [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown) is to
    /// ask again. A credit and a debit are carried out once, too: use the id of the payment or of the webhook.
    ///
    /// The id is any text of up to 255 bytes, such as that of a job, or of a client's retries (`Idempotency-Key`). It
    /// belongs to the limit and key of the **first request**, and each limit and key has its own ids. So a call whose
    /// first request is another one is another call. When a sweep has forgotten an id, a repeat is a new call: it
    /// credits or charges once more. A row of your own, inserted in the transaction of a
    /// [`Limiter`](crate::Limiter), never forgets.
    ///
    /// # Errors
    ///
    /// The verb reports them. [`Error::Call`](crate::Error::Call) for an id that is empty or too long.
    /// [`Error::OnceMismatch`](crate::Error::OnceMismatch) for an id under which another call was granted, with other
    /// limits, keys, costs or options. [`Error::ReceiptUsed`](crate::Error::ReceiptUsed) for the id of a lease that is
    /// over.
    ///
    /// # Example
    ///
    /// ```
    /// use tollgate::{DAY, Error, Gate, Limit};
    ///
    /// const MAILS: Limit = Limit::fixed_window("mails", 1_000, DAY);
    ///
    /// async fn charge(gate: &Gate, tenant: i64, job: i64) -> Result<bool, Error> {
    ///     let call = MAILS.key(tenant).once(job);
    ///     match gate.consume(call.clone()).await {
    ///         // It was charged, or it was not. Now it is, once.
    ///         Err(Error::OutcomeUnknown { .. }) => gate.consume(call).await,
    ///         answer => answer,
    ///     }
    ///     .map(|decision| decision.is_granted())
    /// }
    /// # let _ = charge;
    /// ```
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

    /// Its requests, of all alternatives.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        let (only, several) = match &self.asked {
            Asked::Request(request) => (Some(request), &[][..]),
            Asked::Requests(wanted) => (None, slice::from_ref(wanted)),
            Asked::FirstOf(alternatives) => (None, &alternatives[..]),
        };
        only.into_iter().chain(several.iter().flatten().flat_map(Wanted::requests))
    }

    /// The option that leaves it a choice between limits, if it has one.
    pub(crate) fn choice(&self) -> Option<&'static str> {
        let is_split = |wanted: &Wanted| matches!(wanted, Wanted::Split { .. });
        match &self.asked {
            Asked::FirstOf(_) => Some("first_of"),
            Asked::Requests(wanted) if wanted.iter().any(is_split) => Some("split"),
            _ => None,
        }
    }

    /// The first fault of its making and of its options.
    pub(crate) fn fault(&self) -> Option<CallError> {
        let of_keeping = || self.keeping.and_then(|keeping| span_fault(keeping.span()));
        self.fault.or_else(|| self.once.as_ref().and_then(Once::fault)).or_else(of_keeping)
    }

    fn alternatives_mut(&mut self) -> &mut [Vec<Wanted>] {
        match &mut self.asked {
            Asked::Request(_) => &mut [],
            Asked::Requests(wanted) => slice::from_mut(wanted),
            Asked::FirstOf(alternatives) => alternatives,
        }
    }
}

impl Wanted {
    fn requests(&self) -> &[Request] {
        match self {
            Self::Request(request) => slice::from_ref(request),
            Self::Split { of, .. } => of,
        }
    }
}

impl From<Request> for Call {
    fn from(request: Request) -> Self {
        Self::of(Asked::Request(request))
    }
}

impl FromIterator<Request> for Call {
    fn from_iter<I: IntoIterator<Item = Request>>(requests: I) -> Self {
        let mut requests = requests.into_iter();
        match (requests.next(), requests.next()) {
            (Some(only), None) => only.into(),
            (first, second) => {
                let all = first.into_iter().chain(second).chain(requests);
                Self::of(Asked::Requests(all.map(Wanted::Request).collect()))
            }
        }
    }
}

impl<const N: usize> From<[Request; N]> for Call {
    fn from(requests: [Request; N]) -> Self {
        requests.into_iter().collect()
    }
}

impl From<Vec<Request>> for Call {
    fn from(requests: Vec<Request>) -> Self {
        requests.into_iter().collect()
    }
}

impl From<&[Request]> for Call {
    fn from(requests: &[Request]) -> Self {
        requests.iter().cloned().collect()
    }
}
