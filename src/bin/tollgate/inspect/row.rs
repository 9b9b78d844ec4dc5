use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;
use tollgate::algebra::{Ask, Pool, Pooled, State, Terms, Timestamp};
use tollgate::{Key, Limit, Storage, Tokens};

/// A row as it is on disk.
#[derive(Clone, Debug, FromRow)]
pub(super) struct Found {
    /// The database's clock, in microseconds since the Unix epoch, as the other instants.
    pub(super) now: i64,
    pub(super) key: Option<String>,
    pub(super) shard: Option<i16>,
    pub(super) storage: Option<String>,
    value: Option<i64>,
    as_of: Option<i64>,
    full_at: Option<i64>,
}

impl Found {
    /// The row, if there is one.
    pub(super) fn row(&self) -> Option<Row> {
        let storage = if self.storage.as_deref()? == "ephemeral" { Storage::Ephemeral } else { Storage::Durable };
        let value = Tokens::from_micros(self.value?);
        let as_of = Timestamp::from_micros(self.as_of?).into();
        let full_at = self.full_at.map(|full_at| Timestamp::from_micros(full_at).into());
        Some(Row { table: table(storage), storage, shard: u16::try_from(self.shard?).ok()?, value, as_of, full_at })
    }
}

/// What is on disk, for people and as JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) table: &'static str,
    pub(super) storage: Storage,
    pub(super) shard: u16,
    /// The balance at `as_of`: what has come back since is not in it.
    pub(super) value: Tokens,
    pub(super) as_of: DateTime<Utc>,
    /// When it is full again, by the definition that wrote it.
    pub(super) full_at: Option<DateTime<Utc>>,
}

/// What the rows of a key, or their absence, mean by a definition.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Standing {
    pub(super) balance: Tokens,
    pub(super) capacity: Tokens,
    pub(super) debt: Tokens,
    pub(super) full_at: DateTime<Utc>,
    pub(super) full_in_ms: u64,
}

impl Standing {
    pub(super) fn of(limit: &Limit, key: &Key, rows: &[Row], now: DateTime<Utc>) -> Self {
        let (pool, now) = (pool(limit, key, rows, now), Timestamp::from(now));
        let balance = pool.balance();
        let full_at = pool.full_at().max(now);
        let capacity = limit.spec().capacity.unwrap_or_default();
        let debt = Tokens::ZERO.checked_sub(balance).unwrap_or(Tokens::MAX).max(Tokens::ZERO);
        Self { balance, capacity, debt, full_at: full_at.into(), full_in_ms: millis_up(span(now, full_at)) }
    }

    pub(super) fn is_full(&self) -> bool {
        self.balance >= self.capacity
    }
}

/// When a call of some cost would be granted, if nobody spends before.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Next {
    pub(super) cost: Tokens,
    /// Never, where it is beyond the capacity.
    pub(super) at: Option<DateTime<Utc>>,
    pub(super) wait_ms: Option<u64>,
}

impl Next {
    pub(super) fn of(limit: &Limit, key: &Key, rows: &[Row], now: DateTime<Utc>, cost: Tokens) -> Self {
        let (pool, now) = (pool(limit, key, rows, now), Timestamp::from(now));
        let is_possible = limit.spec().capacity.is_some_and(|capacity| cost <= capacity);
        let at = match pool.decide(Ask::consume(cost)) {
            Ok(Pooled::Granted { .. }) => Some(now),
            Ok(Pooled::Denied { retry_at, .. }) if is_possible => Some(retry_at),
            _ => None,
        };
        Self { cost, at: at.map(DateTime::from), wait_ms: at.map(|at| millis_up(span(now, at))) }
    }
}

/// The rows that a limit keeps for a key, of which most keep one, as one.
fn pool(limit: &Limit, key: &Key, rows: &[Row], now: DateTime<Utc>) -> Pool {
    let storage = limit.spec().storage;
    let is = |number: u16, row: &Row| row.storage == storage && row.shard == number;
    let found = limit.shard_numbers().map(|number| rows.iter().find(|row| is(number, row)).map(state));
    Pool::of(&Terms::of(limit, key), &found.collect::<Vec<_>>(), now.into())
}

fn state(row: &Row) -> State {
    State { value: row.value, ts: row.as_of.into() }
}

fn span(from: Timestamp, to: Timestamp) -> Duration {
    Duration::from_micros(u64::try_from(to.micros().saturating_sub(from.micros())).unwrap_or_default())
}

fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn table(storage: Storage) -> &'static str {
    match storage {
        Storage::Ephemeral => "tollgate.buckets",
        Storage::Durable => "tollgate.rate_limits",
    }
}
