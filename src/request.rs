use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

use crate::error::Error;
use crate::key::{Key, KeyError};
use crate::limit::Limit;
use crate::tokens::{Tokens, TokensError};

/// What is asked of a limit: which key, and how many tokens. Made by [`Limit::key`] and [`Limit::global`].
///
/// A request owns its limit, so requests of `const`, `static` and loaded limits can be stored, sent and collected alike.
/// Building one never fails: a wrong key or cost is kept, and reported by the verb that the request is given to, before any SQL.
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
    tracked: bool,
}

impl Request {
    pub(crate) fn new(limit: Limit, key: Result<Key, KeyError>) -> Self {
        Self { limit, key, cost: Ok(Tokens::ONE), tracked: false }
    }

    /// How many tokens to ask for, instead of one: an integer, a float (which goes to the nearest micro-token), or [`Tokens`].
    ///
    /// A cost of 0 is granted as long as the balance is not negative, and writes nothing.
    pub fn cost(mut self, cost: impl TryInto<Tokens, Error: Into<TokensError>>) -> Self {
        self.cost = cost
            .try_into()
            .map_err(Into::into)
            .and_then(|cost: Tokens| if cost.is_negative() { Err(TokensError::Negative) } else { Ok(cost) });
        self
    }

    /// Keeps a row in `tollgate.reservations` for what this request is charged, until its receipt is used.
    ///
    /// With it a receipt that was stored, copied or sent to several workers is settled or cancelled exactly once. Callers
    /// whose own table holds the receipt do not need it: deleting that row in the same transaction says the same.
    pub fn tracked(mut self) -> Self {
        self.tracked = true;
        self
    }

    /// The limit that is asked.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The parts of a valid request.
    pub(crate) fn into_parts(self) -> Result<Asked, Error> {
        let Self { limit, key, cost, tracked } = self;
        match (key, cost) {
            (Ok(key), Ok(cost)) => Ok(Asked { limit, key, cost, tracked }),
            (Err(source), _) => Err(Error::Key { limit: limit.name.into(), source }),
            (_, Err(source)) => Err(Error::Cost { limit: limit.name.into(), source }),
        }
    }
}

/// A request whose key and cost are right.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Asked {
    pub(crate) limit: Limit,
    pub(crate) key: Key,
    pub(crate) cost: Tokens,
    #[serde(default)]
    pub(crate) tracked: bool,
}

impl From<Asked> for Request {
    fn from(asked: Asked) -> Self {
        let Asked { limit, key, cost, tracked } = asked;
        let request = Self::new(limit, Ok(key)).cost(cost);
        if tracked { request.tracked() } else { request }
    }
}

impl Serialize for Request {
    /// Fails for a request whose key or cost is wrong.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.clone().into_parts().map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Request {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Asked::deserialize(deserializer).map(Self::from)
    }
}
