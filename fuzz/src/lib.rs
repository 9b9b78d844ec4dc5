//! Strangers, and people who write by hand, can put any bytes where tollgate reads. Each function here tries one such
//! place, and panics where a property does not hold.
//!
//! `./dev fuzz` makes up bytes, and `tests/replay.rs` replays those of `corpus/`.

#![expect(clippy::missing_panics_doc, reason = "a panic is how each function tells of a fault")]

mod fields;
mod forwarded;
mod input;
mod key;
mod limits_file;
mod list;
mod receipt;
mod settled;
mod stored_call;
mod trouble;

pub use fields::fields;
pub use forwarded::forwarded;
pub use key::key;
pub use limits_file::limits_file;
pub use list::list;
pub use receipt::receipt;
pub use stored_call::stored_call;
pub use trouble::trouble;

/// Tries bytes.
pub type Target = fn(&[u8]);

/// All functions, by their names.
pub const TARGETS: [(&str, Target); 8] = [
    ("fields", fields),
    ("forwarded", forwarded),
    ("key", key),
    ("limits_file", limits_file),
    ("list", list),
    ("receipt", receipt),
    ("stored_call", stored_call),
    ("trouble", trouble),
];
