use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

use crate::error::Error;
use crate::key::{Key, KeyError, ToKey};
use crate::limit::Limit;
use crate::tokens::{Tokens, TokensError};

/// What is asked of a limit: which key, and how many tokens. Made by [`Limit::key`] and [`Limit::global`].
///
/// A request owns its limit, so requests for `const`, `static` and loaded limits can be stored, sent and collected
/// alike. Building one never fails: the verb that the request is given to reports a wrong key or cost, before any SQL.
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
}

impl Limit {
    /// One token of this limit for `key`; see [`Request::cost`] for more or less.
    ///
    /// A value that is no key (empty, too long, with NUL) is reported by the verb that the request is given to, before
    /// any SQL.
    pub fn key(&self, key: impl ToKey) -> Request {
        Request { limit: self.clone(), key: Key::new(key), cost: Ok(Tokens::ONE) }
    }

    /// One token of this limit for all callers together.
    pub fn global(&self) -> Request {
        Request { limit: self.clone(), key: Ok(Key::GLOBAL), cost: Ok(Tokens::ONE) }
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

    /// The limit that is asked.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The request, if its key and cost are right.
    pub(crate) fn checked(self) -> Result<CheckedRequest, Error> {
        let Self { limit, key, cost } = self;
        match (key, cost) {
            (Ok(key), Ok(cost)) => Ok(CheckedRequest { limit, key, cost }),
            (Err(source), _) => Err(Error::Key { limit: limit.name.into(), source }),
            (_, Err(source)) => Err(Error::Cost { limit: limit.name.into(), source }),
        }
    }
}

/// A request whose key and cost are right.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct CheckedRequest {
    pub(crate) limit: Limit,
    pub(crate) key: Key,
    pub(crate) cost: Tokens,
}

impl From<CheckedRequest> for Request {
    fn from(CheckedRequest { limit, key, cost }: CheckedRequest) -> Self {
        Self { limit, key: Ok(key), cost: Ok(Tokens::ZERO) }.cost(cost)
    }
}

impl Serialize for Request {
    /// Fails for a request whose key or cost is wrong.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.clone().checked().map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Request {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        CheckedRequest::deserialize(deserializer).map(Self::from)
    }
}
