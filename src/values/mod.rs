//! Values that every room shares: instants, spans, texts, and the columns of the tables.

#[cfg(feature = "postgres")]
pub(crate) mod clock;
pub(crate) mod driver_error;
pub(crate) mod hash;
pub(crate) mod lean;
#[cfg(feature = "postgres")]
pub(crate) mod lock;
#[cfg(any(feature = "migrate", feature = "postgres"))]
pub(crate) mod schema;
pub(crate) mod span;
pub(crate) mod text;
pub(crate) mod timestamp;
