//! The written forms of values that numbers alone do not express: spans of time with their units, and the absence of a
//! bound.

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};

/// A kind or a storage, by the word that stands for it in a table.
pub(crate) fn word<'w, T: Deserialize<'w>>(word: &'w str) -> Result<T, Error> {
    T::deserialize(StrDeserializer::new(word))
}

/// A span as `1h 30m`.
pub(crate) mod span {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::values::span::Span;

    pub(crate) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        Span(*span).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Span::deserialize(deserializer).map(|Span(span)| span)
    }
}

pub(crate) mod optional_span {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::values::span::Span;

    #[expect(clippy::ref_option, reason = "the signature that serde's `with` calls")]
    pub(crate) fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        span.map(Span).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Span>::deserialize(deserializer)?.map(|Span(span)| span))
    }
}

/// `Tokens::MAX` as the word "unbounded".
pub(super) mod bound {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::tokens::{Amount, Tokens};

    const UNBOUNDED: &str = "unbounded";

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde's `with` calls")]
    pub(in super::super) fn serialize<S: Serializer>(bound: &Tokens, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() && *bound == Tokens::MAX {
            serializer.serialize_str(UNBOUNDED)
        } else {
            bound.serialize(serializer)
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tokens, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Amount { largest: Some(UNBOUNDED) })
        } else {
            Tokens::deserialize(deserializer)
        }
    }
}
