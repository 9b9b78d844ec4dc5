//! How bytes become inputs of many fields.

use std::error::Error;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tollgate::Tokens;
use tollgate::algebra::{List, State, Timestamp};
use tollgate::plan::Plan;

/// An input in JSON, which people read, or else in postcard. `None` where it is neither.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    if bytes.starts_with(b"{") { serde_json::from_slice(bytes).ok() } else { postcard::from_bytes(bytes).ok() }
}

/// A row that anybody may have written.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Row {
    value: i64,
    ts: i64,
    full_at: i64,
    /// As its column has it; nothing for null.
    list: Vec<i64>,
}

impl Row {
    /// The row as the store reads it; `None` where it reports a list that cannot be read.
    pub(crate) fn state(&self) -> Option<State> {
        let list = if self.list.is_empty() { List::None } else { List::from_column(&self.list)? };
        let [ts, full_at] = [self.ts, self.full_at].map(Timestamp::from_micros);
        Some(State { value: Tokens::from_micros(self.value), ts, full_at, list })
    }
}

/// The rows that a plan names, as far as there are enough; none for the others.
pub(crate) fn found(rows: &[Option<Row>], plan: &Plan) -> Vec<Option<State>> {
    let rows = rows.iter().map(|row| row.as_ref().and_then(Row::state));
    let mut found: Vec<_> = rows.take(plan.rows().len()).collect();
    found.resize(plan.rows().len(), None);
    found
}

/// An error says something, and so does each of its sources.
pub(crate) fn expect_words(error: &dyn Error) {
    let mut source = Some(error);
    while let Some(error) = source {
        assert!(!error.to_string().is_empty(), "{error:?} says nothing");
        source = error.source();
    }
}

/// JSON and postcard both return an equal value.
pub(crate) fn expect_round_trip<T>(value: &T)
where
    T: DeserializeOwned + PartialEq + Serialize + std::fmt::Debug,
{
    let text = serde_json::to_string(value).expect("it becomes JSON");
    assert_eq!(&serde_json::from_str::<T>(&text).expect("its JSON is read"), value, "{text}");
    let bytes = postcard::to_allocvec(value).expect("it becomes bytes");
    assert_eq!(&postcard::from_bytes::<T>(&bytes).expect("its bytes are read"), value, "{bytes:?}");
}
