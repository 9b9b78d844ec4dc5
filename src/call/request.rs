use std::iter;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::fault::refused;
use super::{Call, CallError};
use crate::SECOND;
use crate::error::Error;
use crate::key::{Key, KeyError, ToKey};
use crate::limit::{Limit, LimitKind};
use crate::tokens::{Tokens, TokensError};
use crate::values::timestamp::Timestamp;

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
/// The requests of one call are granted together or not at all. The options of a whole call make a [`Call`] of it.
///
/// # Options and verbs
///
/// | | `consume`, `wait`, `acquire`, `stream` | `check` | `reserve` | `credit`, `debit` | `reset`, `balance` |
/// | --- | --- | --- | --- | --- | --- |
/// | [`cost`](Self::cost) | counts | counts | counts | counts | – |
/// | [`up_to`](Self::up_to) | counts | counts | fault | fault | – |
/// | [`leaving`](Self::leaving) | counts | counts | fault | fault | – |
/// | [`flat`](Self::flat) | counts | – | counts | – | – |
/// | [`period`](Self::period) | counts | counts | counts | counts | counts |
///
/// A fault is [`CallError::WrongVerb`], and `–` means that the verb ignores the option. A reservation takes tokens that
/// are not there yet, so no balance decides what part it gets, or what it leaves behind. A [`split`](crate::split)
/// takes all of its cost from several limits, so none of its requests goes with `up_to`. Only a
/// [`billing`](Limit::billing) limit has a `period`; there it is a fault to leave it out, except of `credit`, `reset`
/// and `balance`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[must_use = "a request does nothing until it is given to a verb"]
pub struct Request {
    pub(crate) limit: Limit,
    pub(crate) key: Key,
    pub(crate) cost: Tokens,
    #[serde(default)]
    pub(crate) least: Option<Tokens>,
    #[serde(default)]
    pub(crate) leaving: Option<Tokens>,
    #[serde(default)]
    pub(crate) flat: bool,
    #[serde(default)]
    pub(crate) period: Option<(Timestamp, Timestamp)>,
    /// The first value that it could not take.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none", serialize_with = "refused")]
    pub(super) fault: Option<RequestFault>,
}

/// A value that a request could not take.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum RequestFault {
    #[error(transparent)]
    Key(KeyError),
    #[error(transparent)]
    Amount(TokensError),
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
        let (key, fault) = match key {
            Ok(key) => (key, None),
            Err(error) => (Key::GLOBAL, Some(RequestFault::Key(error))),
        };
        let (limit, cost) = (self.clone(), Tokens::ONE);
        Request { limit, key, cost, least: None, leaving: None, flat: false, period: None, fault }
    }
}

impl Request {
    /// The number of tokens to ask for, instead of one: an integer, a float (rounded to the nearest micro-token), or
    /// [`Tokens`].
    ///
    /// A cost of 0 is granted as long as the balance is not negative, and writes nothing.
    pub fn cost(mut self, cost: impl TryInto<Tokens, Error: Into<TokensError>>) -> Self {
        let cost = self.amount(cost);
        Self { cost, ..self }
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
        let least = Some(self.amount(least));
        Self { least, ..self }
    }

    /// Grants the call only if so many tokens stay behind. For example, background work can stop at a fifth of a limit.
    ///
    /// Only calls with this option leave the tokens. Other calls, debits and use beyond a charge take them, and a debt
    /// delays calls with this option until it is repaid. If several requests for one limit and key have it, the largest
    /// number stays behind the whole call. With this option a wallet is not overdrawn. A meter has no bound, so any
    /// number of tokens stays behind: it ignores the option, and refuses nobody.
    ///
    /// # Errors
    ///
    /// The verb reports them. [`Error::Call`] for a verb that does not take the option. [`Error::CostExceedsCapacity`]
    /// if the cost, or the least part of [`up_to`](Self::up_to), and the tokens that stay are together more than the
    /// capacity.
    pub fn leaving(mut self, tokens: impl TryInto<Tokens, Error: Into<TokensError>>) -> Self {
        let leaving = Some(self.amount(tokens));
        Self { leaving, ..self }
    }

    /// Leaves this request as it was charged when its call is settled at one cost, or lapses. Mark the request that
    /// counts the call itself, beside those that count tokens: `settle` and a stream bring all others to one cost.
    pub fn flat(mut self) -> Self {
        self.flat = true;
        self
    }

    /// Names the period that a [`billing`](Limit::billing) limit counts by, such as the billing period of a customer.
    /// The two instants must be the same at each call of the period: a `start` that is computed from the present
    /// refills the limit at each call.
    ///
    /// The tokens of a period come at `start`; a row that was not written for months gets the tokens of each month.
    /// Before `start` no tokens come back, and a key that was never asked is full. A row forgets the use of a period
    /// at its end, or at a later start that has begun, whichever comes first. If callers still name a period that is
    /// over, periods of its length follow it. Nobody has named the end of these. So a row may forget their use an
    /// eighth of the length later, and each further period of a debt, too.
    ///
    /// A refusal names the instant at which a call that names the same period would be granted: the end of the period.
    /// A caller that names a later period may be granted sooner, because a renewal in mid-period refills once. A
    /// renewal that comes late, by less than eight ninths of a period, costs nothing: until then callers go on in the
    /// period before. Between two grants at most one capacity more is granted for each other period that is named.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] for a period shorter than a second or longer than a thousand years, and for other kinds of
    /// limits; [`CallError::ConflictingDefinitions`] for two periods of one limit and key in one call.
    ///
    /// # Example
    ///
    /// ```
    /// use chrono::{DateTime, Utc};
    /// use tollgate::{Limit, Request};
    ///
    /// const MAILS: Limit = Limit::billing("mails_a_month", 10_000);
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

    /// Makes a call of it, which [lapses](Call::lapses_after).
    pub fn lapses_after(self, span: Duration) -> Call {
        Call::from(self).lapses_after(span)
    }

    /// Makes a call of it, whose receipt is [good for one use](Call::tracked_for).
    pub fn tracked_for(self, span: Duration) -> Call {
        Call::from(self).tracked_for(span)
    }

    /// Makes a call of it, which is carried out [once](Call::once) under an id of yours.
    pub fn once(self, id: impl ToString) -> Call {
        Call::from(self).once(id)
    }

    /// Makes a call of it as [`once`](Self::once) does, with the least time for which the id is kept.
    pub fn once_for(self, id: impl ToString, span: Duration) -> Call {
        Call::from(self).once_for(id, span)
    }

    /// Its limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The limit and the key.
    #[cfg(feature = "postgres")]
    pub(crate) fn target(&self) -> Result<(&Limit, &Key), KeyError> {
        match self.fault {
            Some(RequestFault::Key(error)) => Err(error),
            _ => Ok((&self.limit, &self.key)),
        }
    }

    /// The limit, the key, and the tokens that it asks for; with [`up_to`](Self::up_to), the most.
    ///
    /// # Errors
    ///
    /// [`Error::Key`] and [`Error::Call`], as a verb would report them.
    pub fn asked(&self) -> Result<(&Limit, &Key, Tokens), Error> {
        self.check()?;
        Ok((&self.limit, &self.key, self.cost))
    }

    /// Fails if it is wrong by itself, whatever call it is in.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { limit, cost, least, leaving, period, fault, .. } = self;
        let source = match (*fault, *period) {
            (Some(RequestFault::Key(source)), _) => {
                return Err(Error::Key { limit: limit.name.clone().into(), source });
            }
            (Some(RequestFault::Amount(source)), _) => CallError::Cost(source),
            _ if [Some(*cost), *least, *leaving].into_iter().flatten().any(Tokens::is_negative) => {
                CallError::Cost(TokensError::Negative)
            }
            _ if least.is_some_and(|least| least == Tokens::ZERO || least > *cost) => CallError::Least,
            (None, Some(_)) if limit.kind != LimitKind::Billing => CallError::PeriodOfKind,
            (None, Some((start, end))) if !(start.plus(SECOND)..=start.plus(Limit::MAX_PERIOD)).contains(&end) => {
                CallError::PeriodOutOfRange
            }
            (None, _) => return Ok(()),
        };
        Err(Error::of_call(&limit.name, source))
    }

    /// Fails if it must name a period to take tokens, and names none.
    pub(crate) fn expect_period(&self) -> Result<(), Error> {
        let is_missing = self.limit.kind == LimitKind::Billing && self.period.is_none();
        if is_missing { Err(Error::of_call(&self.limit.name, CallError::PeriodMissing)) } else { Ok(()) }
    }

    /// An option of it that goes only with verbs that consume, if it has one.
    pub(crate) fn of_consume(&self) -> Option<&'static str> {
        self.least.map(|_| "up_to").or(self.leaving.map(|_| "leaving"))
    }

    /// The amount; where it is none, notes that as the fault.
    fn amount(&mut self, amount: impl TryInto<Tokens, Error: Into<TokensError>>) -> Tokens {
        amount.try_into().unwrap_or_else(|error| {
            self.fault.get_or_insert(RequestFault::Amount(error.into()));
            Tokens::ZERO
        })
    }
}

/// A request is a list of one request, for functions that take several.
impl IntoIterator for Request {
    type Item = Self;
    type IntoIter = iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        iter::once(self)
    }
}

/// A cost to pay at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain<'r> {
    pub(crate) limit: &'r Limit,
    pub(crate) key: &'r Key,
    pub(crate) cost: Tokens,
    pub(crate) flat: bool,
}

impl Call {
    /// Its requests, if it says nothing but them.
    pub(crate) fn plain(&self) -> Option<impl Iterator<Item = &Request>> {
        let Self { once, keeping, fault, .. } = self;
        let is_choice = self.choice().is_some();
        (!is_choice && once.is_none() && keeping.is_none() && fault.is_none()).then(|| self.requests())
    }
}

impl Request {
    /// The cost that it pays at once, if it asks for nothing else.
    pub(crate) fn plain(&self) -> Option<Plain<'_>> {
        let Self { limit, key, cost, least, leaving, flat, period, fault } = self;
        let is_plain = least.is_none() && leaving.is_none() && period.is_none() && fault.is_none();
        (is_plain && !cost.is_negative()).then_some(Plain { limit, key, cost: *cost, flat: *flat })
    }
}
