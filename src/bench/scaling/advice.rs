use std::fmt;

use super::{Measurements, Quantity, Subject};
use crate::bench::scene::USERS;
use crate::bench::table::{Table, number};
use crate::bench::workload::Workload;
use crate::limit::Storage::{self, Durable, Ephemeral};

/// What to use for what, with the measured figures that speak for it.
#[derive(Debug)]
pub(super) struct Advice<'a> {
    pub(super) measurements: &'a Measurements,
}

impl Advice<'_> {
    /// Decisions per second of a gate.
    fn gate(&self, workload: Workload, storage: Storage, callers: u32, gates: u32) -> String {
        self.figure(Subject::Gate { workload, storage, callers, keys: USERS, gates }, Quantity::PerSecond)
    }

    /// Decisions per second of transactions.
    fn joined(&self, storage: Storage, clients: u32, shards: Option<u16>) -> String {
        let work_us = if shards.is_some() { 2_000 } else { 0 };
        self.figure(Subject::Joined { storage, clients, shards, work_us }, Quantity::PerSecond)
    }

    fn figure(&self, subject: Subject, quantity: Quantity) -> String {
        self.measurements.figure(subject, quantity).map_or_else(|| "–".to_owned(), number)
    }
}

impl fmt::Display for Advice<'_> {
    /// Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uniform = |storage, quantity| {
            self.figure(
                Subject::Gate { workload: Workload::Uniform, storage, callers: 64, keys: USERS, gates: 1 },
                quantity,
            )
        };
        let lines = [
            [
                "calls that need no transaction of yours".to_owned(),
                "a `Gate`: its callers share statements".to_owned(),
                format!(
                    "{} decisions/s for 256 callers, {} for 64 transactions at a time (ephemeral, 10 000 keys)",
                    self.gate(Workload::Uniform, Ephemeral, 256, 1),
                    self.joined(Ephemeral, 64, None),
                ),
                "the decision stands though your transaction rolls back".to_owned(),
            ],
            [
                "one hot key, asked through gates".to_owned(),
                "one gate: send the calls of a hot key to one process".to_owned(),
                format!(
                    "{} decisions/s by one gate, {} by two on the same row, {} by four (durable, 256 callers)",
                    self.gate(Workload::Hot, Durable, 256, 1),
                    self.gate(Workload::Hot, Durable, 256, 2),
                    self.gate(Workload::Hot, Durable, 256, 4),
                ),
                "none; without it the limit is as exact, and slower".to_owned(),
            ],
            [
                "one hot key, in transactions of yours".to_owned(),
                "`shards(16)`, and short transactions".to_owned(),
                format!(
                    "{} decisions/s through 1 row, {} through 4, {} through 16 (durable, 16 clients, 2 ms of other work)",
                    self.joined(Durable, 16, Some(1)),
                    self.joined(Durable, 16, Some(4)),
                    self.joined(Durable, 16, Some(16)),
                ),
                "none; a look at all rows in each call, and n rows for each key".to_owned(),
            ],
            [
                "limits whose loss costs one burst".to_owned(),
                "`ephemeral()`".to_owned(),
                format!(
                    "{} bytes of log for each decision, {} for a durable one (64 callers)",
                    uniform(Ephemeral, Quantity::WalBytes),
                    uniform(Durable, Quantity::WalBytes),
                ),
                "a crash or a failover empties the table: every bucket is full again; no reservations".to_owned(),
            ],
            [
                "many application processes".to_owned(),
                "few connections each, and a pooler in transaction mode".to_owned(),
                format!(
                    "{} transactions/s over 16 connections, {} over 64 (ephemeral)",
                    self.joined(Ephemeral, 16, None),
                    self.joined(Ephemeral, 64, None),
                ),
                "none; poolers that do not follow named statements need `unnamed_statements()`".to_owned(),
            ],
            [
                "limits whose load disturbs the other tables".to_owned(),
                "a database, or a server, for gates alone".to_owned(),
                format!(
                    "{} flushes of the log for each durable decision (64 callers); each batch uses up a transaction id",
                    uniform(Durable, Quantity::Flushes),
                ),
                "in another database no decision has one fate with your work".to_owned(),
            ],
            [
                "more decisions than one server bears".to_owned(),
                "several databases: the application picks one by a hash of the key".to_owned(),
                "cores and log, in the arithmetic below".to_owned(),
                "limits in two databases are not all or none; a key that moves comes back full".to_owned(),
            ],
            [
                "the same, and PostgreSQL is to do the routing".to_owned(),
                "[Citus](citus.md)".to_owned(),
                "2 018 to 2 293 transactions/s, 14 180 to 15 603 on a local table, coordinator and workers on the same two cores"
                    .to_owned(),
                "several keys on two nodes are two-phase commits; each node has a clock of its own".to_owned(),
            ],
        ];
        let headings = ["what you have", "what to use", "what speaks for it", "what it costs"];
        write!(f, "{}", Table::new(&headings, headings.len(), lines.into_iter().map(Vec::from)))
    }
}
