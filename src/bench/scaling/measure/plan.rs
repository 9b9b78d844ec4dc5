use crate::bench::scaling::summary::UUIDS;
use crate::bench::scaling::{Keys, Subject};
use crate::bench::scene::USERS;
use crate::bench::workload::Workload::{self, Hot, Three, Uniform};
use crate::limit::Storage::{self, Durable, Ephemeral};

/// What callers are measured at.
pub(super) const CALLERS: [Subject; 45] = [
    gate(Uniform, Ephemeral, 1),
    gate(Uniform, Ephemeral, 4),
    gate(Uniform, Ephemeral, 16),
    gate(Uniform, Ephemeral, 64),
    gate(Uniform, Ephemeral, 256),
    gate(Uniform, Durable, 1),
    gate(Uniform, Durable, 4),
    gate(Uniform, Durable, 16),
    gate(Uniform, Durable, 64),
    gate(Uniform, Durable, 256),
    gate(Hot, Ephemeral, 4),
    gate(Hot, Ephemeral, 16),
    gate(Hot, Ephemeral, 64),
    gate(Hot, Ephemeral, 256),
    gate(Hot, Durable, 16),
    gate(Hot, Durable, 64),
    gate(Hot, Durable, 256),
    gate(Three, Ephemeral, 16),
    gate(Three, Ephemeral, 64),
    gate(Three, Ephemeral, 256),
    gate(Three, Durable, 64),
    gate(Three, Durable, 256),
    Subject::Gate { workload: Uniform, storage: Durable, callers: 64, keys: MANY_KEYS, gates: 1 },
    Subject::Gate { workload: Uniform, storage: Durable, callers: 256, keys: MANY_KEYS, gates: 1 },
    Subject::Gate { workload: Hot, storage: Durable, callers: 256, keys: USERS, gates: 2 },
    Subject::Gate { workload: Hot, storage: Durable, callers: 256, keys: USERS, gates: 4 },
    Subject::Gate { workload: Uniform, storage: Durable, callers: 256, keys: USERS, gates: 4 },
    joined(Ephemeral, 1, None, 0),
    joined(Ephemeral, 4, None, 0),
    joined(Ephemeral, 16, None, 0),
    joined(Ephemeral, 64, None, 0),
    joined(Durable, 1, None, 0),
    joined(Durable, 16, None, 0),
    joined(Durable, 64, None, 0),
    joined(Durable, 1, Some(1), WORK_US),
    joined(Durable, 4, Some(1), WORK_US),
    joined(Durable, 16, Some(1), WORK_US),
    joined(Durable, 64, Some(1), WORK_US),
    joined(Durable, 1, Some(4), WORK_US),
    joined(Durable, 16, Some(4), WORK_US),
    joined(Durable, 64, Some(4), WORK_US),
    joined(Durable, 16, Some(16), WORK_US),
    joined(Durable, 64, Some(16), WORK_US),
    joined(Ephemeral, 16, Some(4), WORK_US),
    joined(Ephemeral, 64, Some(16), WORK_US),
];

/// Tables that are filled, frozen, swept and vacuumed.
pub(super) const TABLES: [(Keys, u32); 5] = [
    (Keys::Called, 20_000),
    (Keys::Sorted, 50_000),
    (Keys::Sorted, 200_000),
    (Keys::Pairs, 100_000),
    (Keys::Uuids, UUIDS),
];

const fn gate(workload: Workload, storage: Storage, callers: u32) -> Subject {
    Subject::Gate { workload, storage, callers, keys: USERS, gates: 1 }
}

const fn joined(storage: Storage, clients: u32, shards: Option<u16>, work_us: u32) -> Subject {
    Subject::Joined { storage, clients, shards, work_us }
}

/// How many keys are many.
pub(super) const MANY_KEYS: u32 = 1_000_000;

/// Two milliseconds.
const WORK_US: u32 = 2_000;
