//! The encoding of values: an instant is the `int8` that PostgreSQL itself sends for a `timestamptz`, microseconds
//! since the year 2000. No instant goes through chrono or SQL arithmetic; `to_timestamp(µs / 1e6)` is wrong in 3 % of
//! cases. So every instant stays exact and needs no conversion, and an infinite one is an error and no panic. This also
//! keeps the inferred types of our statements independent of the features that other crates switch on in sqlx.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, Execute, Postgres, SqlStr, Type};

use crate::algebra::Timestamp;

impl Type<Postgres> for Timestamp {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }
}

impl PgHasArrayType for Timestamp {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ_ARRAY)
    }
}

impl Encode<'_, Postgres> for Timestamp {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<Postgres>>::encode(self.micros() - EPOCH_2000, buffer)
    }
}

impl Decode<'_, Postgres> for Timestamp {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        Stored::decode(value)?.instant().map_err(|fault| Corrupt { fault, place: 0 }.into())
    }
}

/// An instant in a row, which may be infinite. It is checked later, so that the error can name the corrupt row among
/// many.
#[derive(Clone, Copy)]
pub(super) struct Stored(i64);

impl Stored {
    pub(super) fn instant(self) -> Result<Timestamp, &'static str> {
        if matches!(self.0, i64::MIN | i64::MAX) { Err("its instant is infinite") } else { Ok(self.nearest()) }
    }

    /// An instant that only PostgreSQL can hold (after the year 262142, or infinity) is cut to the last instant.
    pub(super) fn nearest(self) -> Timestamp {
        Timestamp::from_micros(self.0.saturating_add(EPOCH_2000))
    }
}

impl Type<Postgres> for Stored {
    fn type_info() -> PgTypeInfo {
        Timestamp::type_info()
    }
}

impl PgHasArrayType for Stored {
    fn array_type_info() -> PgTypeInfo {
        Timestamp::array_type_info()
    }
}

impl Decode<'_, Postgres> for Stored {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        if value.format() == PgValueFormat::Text {
            return Err("an instant was sent as text".into());
        }
        <i64 as Decode<Postgres>>::decode(value).map(Self)
    }
}

/// A value that the limiter never writes, and the place of its row among those that a statement asked for.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub(super) struct Corrupt {
    pub(super) fault: &'static str,
    pub(super) place: usize,
}

/// A statement that is prepared under a name and kept, or under none, as poolers in transaction mode need it.
pub(super) struct Statement<E> {
    pub(super) query: E,
    pub(super) named: bool,
}

impl<'q, E: Execute<'q, Postgres>> Execute<'q, Postgres> for Statement<E> {
    fn sql(self) -> SqlStr {
        self.query.sql()
    }

    fn statement(&self) -> Option<&<Postgres as sqlx::Database>::Statement> {
        self.query.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<<Postgres as sqlx::Database>::Arguments>, BoxDynError> {
        self.query.take_arguments()
    }

    /// This is not the query's own answer, because a mapped query is persistent only until its arguments are taken,
    /// which happens before the driver asks.
    fn persistent(&self) -> bool {
        self.named
    }
}

/// Microseconds from the Unix epoch to PostgreSQL's, the start of 2000.
const EPOCH_2000: i64 = 946_684_800_000_000;

/// From PostgreSQL's catalogue, where they never change.
const TIMESTAMPTZ: Oid = Oid(1184);
const TIMESTAMPTZ_ARRAY: Oid = Oid(1185);
