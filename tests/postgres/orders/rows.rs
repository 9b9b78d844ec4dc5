//! The rows of one key.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use tollgate::Tokens;

use crate::memory::World as Memory;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    /// By storage, limit and shard.
    rows: BTreeMap<(String, String, i32), Row>,
    calls: Vec<StoredCall>,
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    value: Tokens,
    ts: DateTime<Utc>,
    full_at: DateTime<Utc>,
}

/// A stored call without its name, where that was drawn.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, sqlx::FromRow)]
struct StoredCall {
    name: String,
    id: String,
    used: bool,
    lapses_at: Option<DateTime<Utc>>,
}

impl Rows {
    /// The rows in the tables, and the server's clock.
    pub(crate) async fn of_key(conn: &mut PgConnection, key: &str) -> (Self, DateTime<Utc>) {
        let sql = "select 'ephemeral', name, shard::int, value, ts, full_at from tollgate.ephemeral where key = $1
                   union all
                   select 'durable', name, shard::int, value, ts, full_at from tollgate.durable where key = $1";
        let found = sqlx::query(sql).bind(key).fetch_all(&mut *conn).await.unwrap();
        let row = |found: PgRow| {
            let value = Tokens::from_micros(found.get(3));
            ((found.get(0), found.get(1), found.get(2)), Row { value, ts: found.get(4), full_at: found.get(5) })
        };
        let sql = "select name, id, used, lapses_at from tollgate.calls where key = $1";
        let calls: Vec<StoredCall> = sqlx::query_as(sql).bind(key).fetch_all(&mut *conn).await.unwrap();
        let end = sqlx::query_scalar("select clock_timestamp()").fetch_one(conn).await.unwrap();
        (Self { rows: found.into_iter().map(row).collect(), calls: without_drawn_names(calls) }, end)
    }

    pub(crate) fn of(memory: &Memory) -> Self {
        let rows = memory.rows.iter().map(|(row, state)| {
            let name = (row.storage().to_string(), row.name().to_owned(), i32::from(row.shard()));
            (name, Row { value: state.value, ts: state.ts.into(), full_at: state.full_at.into() })
        });
        let calls = memory.calls.iter().map(|(name, row)| StoredCall {
            name: name.name().to_owned(),
            id: name.id().to_owned(),
            used: row.used,
            lapses_at: row.lapses_at.map(Into::into),
        });
        Self { rows: rows.collect(), calls: without_drawn_names(calls.collect()) }
    }

    /// The rows that a crash of the server leaves.
    pub(crate) fn durable(mut self) -> Self {
        self.rows.retain(|(storage, ..), _| storage == "durable");
        self
    }

    /// The sum of the rows of each limit, to a thousandth of a token, without instants: a write refills its row, and a
    /// draw chooses which row is written.
    pub(crate) fn summed(self) -> Self {
        let mut sums = BTreeMap::<_, Row>::new();
        for ((storage, name, _), row) in self.rows {
            let sum = sums.entry((storage, name, 0)).or_insert_with(|| Row {
                value: Tokens::ZERO,
                ts: DateTime::UNIX_EPOCH,
                full_at: DateTime::UNIX_EPOCH,
            });
            sum.value = Tokens::from_micros(sum.value.micros() + row.value.micros());
        }
        for sum in sums.values_mut() {
            sum.value = Tokens::from_micros((sum.value.micros() + 500).div_euclid(1_000));
        }
        // A row that is full holds nothing.
        sums.retain(|_, sum| sum.value != Tokens::ZERO);
        let calls = self.calls.into_iter().map(|call| StoredCall { lapses_at: None, ..call });
        Self { rows: sums, calls: calls.collect() }
    }
}

fn without_drawn_names(mut calls: Vec<StoredCall>) -> Vec<StoredCall> {
    for call in &mut calls {
        if call.id.len() == 32 {
            call.id.clear();
        }
    }
    calls.sort();
    calls
}
