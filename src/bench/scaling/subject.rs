use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bench::scene::{USERS, storage_name};
use crate::bench::workload::Workload;
use crate::limit::Storage;

/// What one point is about.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Subject {
    /// Callers of a gate, over 16 connections.
    Gate {
        /// What they ask.
        workload: Workload,
        /// In which table.
        storage: Storage,
        /// How many there are.
        callers: u32,
        /// How many rows their limit has in the table, where each has its own.
        keys: u32,
        /// How many gates there are, as in so many processes, each of which gets its share of all calls.
        gates: u32,
    },
    /// Transactions with a `Limiter` in them, each over a connection of its own.
    Joined {
        /// In which table.
        storage: Storage,
        /// How many connections there are, none of which ever rests.
        clients: u32,
        /// How many rows the limit has, for one key; none where each client asks another of 10 000 keys.
        shards: Option<u16>,
        /// How long each transaction is busy with a statement of its own, after the decision and before the commit.
        work_us: u32,
    },
    /// A table that holds rows of one shape and nothing else.
    Rows {
        /// What their keys look like.
        keys: Keys,
        /// How many there are.
        rows: u32,
    },
    /// A sweep of every second row, after a checkpoint.
    Sweep {
        /// What their keys look like.
        keys: Keys,
        /// How many there were.
        rows: u32,
    },
    /// `vacuum` after that, and after another checkpoint.
    Vacuum {
        /// What their keys look like.
        keys: Keys,
        /// How many there were.
        rows: u32,
    },
    /// `vacuum (freeze)` of rows that are all in use, after a checkpoint.
    Freeze {
        /// What their keys look like.
        keys: Keys,
        /// How many there are.
        rows: u32,
    },
}

/// What keys look like, and in which order rows come: it decides how full the index's pages are.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Keys {
    /// `user:4711`, of a limit named `send_message`, as they sort.
    Sorted,
    /// `tenant|user`, of a limit named `per_user`, two numbers of which one is drawn, so in any order.
    Pairs,
    /// Numbers, of a limit named `bench_per_user`; a call has made each row.
    Called,
    /// 36 characters of a UUID, of a limit named `requests_per_api_key`, in any order.
    Uuids,
}

impl Subject {
    /// Whether the model's prices are taken from it. If not, it is held out, and tests the model.
    #[must_use]
    pub fn calibrates(&self) -> bool {
        match *self {
            Self::Gate { workload, storage, callers, keys, gates } => {
                let is_known = match workload {
                    Workload::Three => storage == Storage::Ephemeral && callers != 64,
                    _ if keys != USERS => callers == 64,
                    _ => callers != 64 || workload == Workload::Uniform && storage == Storage::Ephemeral,
                };
                gates == 1 && is_known
            }
            Self::Joined { storage, clients, shards, .. } => {
                clients == 1
                    || clients == 16 && (storage == Storage::Durable || shards.is_none())
                    || clients == 64 && storage == Storage::Ephemeral && shards.is_none()
            }
            Self::Rows { .. } | Self::Sweep { .. } | Self::Vacuum { .. } | Self::Freeze { .. } => false,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Gate { workload, storage, callers, keys, gates } => {
                let callers = counted(callers, "caller");
                let gate = if gates == 1 { "gate".to_owned() } else { counted(gates, "gate") };
                write!(f, "{gate}, {workload}, {}, {callers}", storage_name(storage))?;
                if keys == USERS { Ok(()) } else { write!(f, ", {keys} keys") }
            }
            Self::Joined { storage, clients, shards, work_us } => {
                let clients = counted(clients, "client");
                let rows = match shards {
                    None => "uniform".to_owned(),
                    Some(shards) => format!("hot, {}", counted(shards.into(), "shard")),
                };
                write!(f, "joined, {rows}, {}, {clients}", storage_name(storage))?;
                if work_us == 0 { Ok(()) } else { write!(f, ", {} ms of work", f64::from(work_us) / 1e3) }
            }
            Self::Rows { keys, rows } => write!(f, "table, {keys}, {rows} rows"),
            Self::Sweep { keys, rows } => write!(f, "sweep, {keys}, {} of {rows} rows", rows / 2),
            Self::Vacuum { keys, rows } => write!(f, "vacuum, {keys}, {} of {rows} rows swept", rows / 2),
            Self::Freeze { keys, rows } => write!(f, "freeze, {keys}, {rows} rows"),
        }
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sorted => "user:…",
            Self::Called => "numbers, called",
            Self::Pairs => "tenant and user",
            Self::Uuids => "UUIDs",
        })
    }
}

fn counted(count: u32, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
