//! The names of the two storages, as the view and the output have them, and their tables.

use tollgate::Storage;

/// The name of a storage.
pub(crate) const fn name(storage: Storage) -> &'static str {
    if matches!(storage, Storage::Ephemeral) { "ephemeral" } else { "durable" }
}

/// The storage of a name, which the view tells.
pub(crate) fn of(text: &str) -> Storage {
    if text == name(Storage::Ephemeral) { Storage::Ephemeral } else { Storage::Durable }
}

/// The table that holds the rows.
pub(crate) const fn table(storage: Storage) -> &'static str {
    if matches!(storage, Storage::Ephemeral) { "tollgate.ephemeral" } else { "tollgate.durable" }
}
