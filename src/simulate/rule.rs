use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use super::words::{Words, WordsError};
use crate::key::Key;
use crate::limit::{Limit, LimitError};
use crate::request::Request;
use crate::spec::LimitSpec;
use crate::tokens::Tokens;

/// A limit, and whom each call asks it for: its own key, or all callers together.
///
/// As a text it is a kind and its fields, those of a [`LimitSpec`]; `global` makes it one row for all. Where no name is
/// given, the definition itself is the name.
///
/// # Example
///
/// ```
/// use tollgate::simulate::Rule;
///
/// let rule: Rule = "token_bucket rate=10 per=1m capacity=20".parse()?;
/// assert_eq!(rule.to_string(), "token bucket 10 per 1m, capacity 20");
/// assert_eq!("fixed_window rate=5 per=1h global name=total".parse::<Rule>()?.limit().name(), "total");
/// assert!("token_bucket rate=10 per=1m capcity=20".parse::<Rule>().is_err());
/// # Ok::<(), tollgate::simulate::RuleError>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rule {
    limit: Limit,
    global: bool,
}

impl Rule {
    /// Each call asks for its own key.
    #[must_use]
    pub fn each(limit: Limit) -> Self {
        Self { limit, global: false }
    }

    /// Each call asks for all callers together.
    #[must_use]
    pub fn global(limit: Limit) -> Self {
        Self { limit, global: true }
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether all callers share one row.
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.global
    }

    /// Whose row a call of `key` asks.
    pub(super) fn key(&self, key: &Key) -> Key {
        if self.global { Key::GLOBAL } else { key.clone() }
    }

    pub(super) fn request(&self, key: &Key, cost: Tokens) -> Request {
        Request::new(self.limit.clone(), Ok(self.key(key))).cost(cost)
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let Words { kind, fields, flags } = Words::of(text)?;
        if let Some(flag) = flags.iter().find(|flag| **flag != "global") {
            return Err(RuleError::UnknownWord { word: (*flag).to_owned() });
        }
        let mut values: Map<String, Value> =
            fields.into_iter().map(|(name, text)| (name.to_owned(), value(name, text))).collect();
        values.insert("kind".to_owned(), kind.into());
        let is_named = values.contains_key("name");
        values.entry("name").or_insert_with(|| kind.into());
        let mut spec: LimitSpec =
            serde_json::from_value(values.into()).map_err(|error| RuleError::Field { fault: error.to_string() })?;
        if !is_named {
            spec.name = described(&spec);
        }
        Ok(Self { limit: spec.try_into()?, global: !flags.is_empty() })
    }
}

impl fmt::Display for Rule {
    /// The definition, with what differs from the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&described(&self.limit.spec()))?;
        f.write_str(if self.global { ", for all together" } else { "" })
    }
}

/// What a field says: all of them are texts but the one that counts rows.
fn value(name: &str, text: &str) -> Value {
    match text.parse::<u16>() {
        Ok(number) if name == "shards" => number.into(),
        _ => text.into(),
    }
}

fn described(spec: &LimitSpec) -> String {
    let mut parts = vec![format!("{} {} per {}", spec.kind, spec.rate, humantime::format_duration(spec.period))];
    parts
        .extend(spec.capacity.filter(|capacity| *capacity != spec.rate).map(|capacity| format!("capacity {capacity}")));
    parts.extend(spec.start.map(|start| format!("start {}", humantime::format_duration(start))));
    match spec.max_reserved {
        Tokens::ZERO => {}
        Tokens::MAX => parts.push("reservations unbounded".to_owned()),
        bound => parts.push(format!("max reserved {bound}")),
    }
    if spec.shards > 1 {
        parts.push(format!("{} shards", spec.shards));
    }
    parts.join(", ")
}

/// Why a text defines no limit.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// A field is missing, unknown or malformed.
    #[error("{fault}")]
    Field {
        /// Which, and how.
        fault: String,
    },
    /// The numbers are no limit.
    #[error("{0}")]
    Limit(#[from] LimitError),
    /// A word that is neither a field nor `global`.
    #[error("{word:?} is neither a field (as in rate=10) nor the word \"global\"")]
    UnknownWord {
        /// Which.
        word: String,
    },
    /// Not a kind and its fields.
    #[error("{0}")]
    Words(#[from] WordsError),
}
