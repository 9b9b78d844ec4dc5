//! How values travel: an instant is the `int8` that PostgreSQL itself sends for a `timestamptz`, microseconds since
//! 2000. Going through neither chrono nor SQL arithmetic keeps every instant exact, spares a conversion for each, and
//! lets an infinite one be an error instead of a panic. It also keeps the inferred types of our statements out of reach
//! of the features that other crates switch on in sqlx.

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
    /// What only PostgreSQL can hold, from the year 262143 on, is cut to the last instant.
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        if value.format() == PgValueFormat::Text {
            return Err("an instant was sent as text".into());
        }
        match <i64 as Decode<Postgres>>::decode(value)? {
            i64::MIN | i64::MAX => Err(Box::new(Corrupt("its instant is infinite"))),
            micros => Ok(Self::from_micros(micros.saturating_add(EPOCH_2000))),
        }
    }
}

/// What the limiter never writes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Corrupt(pub(super) &'static str);

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

    /// Not the query's own answer: a mapped query calls itself persistent only until its arguments are taken, which is
    /// before the driver asks.
    fn persistent(&self) -> bool {
        self.named
    }
}

/// Microseconds from the Unix epoch to PostgreSQL's, the start of 2000.
const EPOCH_2000: i64 = 946_684_800_000_000;

/// From PostgreSQL's catalogue, where they never change.
const TIMESTAMPTZ: Oid = Oid(1184);
const TIMESTAMPTZ_ARRAY: Oid = Oid(1185);
