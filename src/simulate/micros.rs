//! Spans as whole microseconds, for documents.

use std::time::Duration;

use serde::Serializer;

pub(super) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(of(*span))
}

pub(super) mod option {
    use std::time::Duration;

    use serde::{Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde's `with` calls")]
    pub(in crate::simulate) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(super::of).serialize(serializer)
    }
}

/// Whole microseconds; those of 580 000 years, if there are more.
pub(super) fn of(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
