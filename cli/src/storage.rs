//! The names of the two storages, as the view and the output have them, and their tables.

use tollgate::Storage;

/// The name of a storage.
pub(crate) const fn name(storage: Storage) -> &'static str {
    match storage {
        Storage::Ephemeral => "ephemeral",
        Storage::Durable => "durable",
    }
}

/// The storage of a name, which the view tells.
pub(crate) fn of(text: &str) -> Storage {
    if text == name(Storage::Ephemeral) { Storage::Ephemeral } else { Storage::Durable }
}

/// The table that holds the rows.
pub(crate) const fn table(storage: Storage) -> &'static str {
    match storage {
        Storage::Ephemeral => "tollgate.ephemeral",
        Storage::Durable => "tollgate.durable",
    }
}
