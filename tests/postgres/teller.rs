//! One transaction in which a story is played, at the instants that the story names.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row, Transaction};
use tollgate::{Balance, Call, Decision, Limit, Receipt, Request, Reservation, Settlement, Storage, Tokens};

use crate::world::{World, limiter, second, top};

/// The verbs at an instant, in seconds, where only the answer is of interest.
pub(crate) struct Teller {
    pub(crate) tx: Transaction<'static, Postgres>,
    /// The limits that were charged: receipts do not know them.
    pub(crate) limits: Vec<Limit>,
}

impl Teller {
    pub(crate) async fn of(world: &World) -> Self {
        Self { tx: world.begin().await, limits: Vec::new() }
    }

    pub(crate) async fn consume(&mut self, at: f64, call: impl Into<Call>) -> Decision {
        let call = call.into();
        self.limits.extend(call.requests().map(|request| request.limit().clone()));
        limiter().at(second(at)).consume(&mut self.tx, call).await.unwrap()
    }

    pub(crate) async fn reserve(&mut self, at: f64, call: impl Into<Call>) -> Decision<Reservation> {
        let call = call.into();
        self.limits.extend(call.requests().map(|request| request.limit().clone()));
        limiter().at(second(at)).reserve(&mut self.tx, call).await.unwrap()
    }

    pub(crate) async fn check(&mut self, at: f64, call: impl Into<Call>) -> Decision {
        limiter().at(second(at)).check(&mut self.tx, call).await.unwrap()
    }

    pub(crate) async fn balance(&mut self, at: f64, request: Request) -> Balance {
        limiter().at(second(at)).balance(&mut self.tx, request).await.unwrap()
    }

    pub(crate) async fn credit(&mut self, at: f64, call: impl Into<Call>) -> Tokens {
        limiter().at(second(at)).credit(&mut self.tx, call).await.unwrap().remaining
    }

    pub(crate) async fn debit(&mut self, at: f64, call: impl Into<Call>) -> Tokens {
        limiter().at(second(at)).debit(&mut self.tx, call).await.unwrap().remaining
    }

    pub(crate) async fn reset(&mut self, at: f64, request: Request) -> Tokens {
        limiter().at(second(at)).reset(&mut self.tx, request).await.unwrap().remaining
    }

    pub(crate) async fn settle(&mut self, at: f64, receipt: impl Into<Receipt>, actual: u32) -> Tokens {
        let settled = limiter().at(second(at)).settle(&mut self.tx, receipt, actual).await.unwrap();
        self.lowest(at, &settled).await
    }

    pub(crate) async fn cancel(&mut self, at: f64, receipt: impl Into<Receipt>) -> Tokens {
        let settled = limiter().at(second(at)).cancel(&mut self.tx, receipt).await.unwrap();
        self.lowest(at, &settled).await
    }

    /// The lowest balance of those that were settled.
    async fn lowest(&mut self, at: f64, settled: &Settlement) -> Tokens {
        let mut lowest = Tokens::MAX;
        for charge in &settled.charges {
            let limit = self.limits.iter().rev().find(|limit| limit.name() == charge.limit()).unwrap();
            let request: Request =
                serde_json::from_value(serde_json::json!({ "limit": limit, "key": charge.key, "cost": Tokens::ONE }))
                    .unwrap();
            lowest = lowest.min(limiter().at(second(at)).balance(&mut self.tx, request).await.unwrap().remaining);
        }
        lowest
    }

    /// A row by hand, in which so much is left at an instant. It says nothing of when it is full.
    pub(crate) async fn put(&mut self, limit: &Limit, key: &str, left: Tokens, ts: DateTime<Utc>) {
        let sql = format!(
            "insert into tollgate.{} values (0, $1, $2, 0, $3, $4, '0001-01-01') on conflict (part, name, key, shard)
                 do update set value = excluded.value, ts = excluded.ts, full_at = excluded.full_at",
            limit.storage
        );
        let query = sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .bind(limit.name())
            .bind(key)
            .bind(left.micros().saturating_sub(top(limit)))
            .bind(ts);
        query.execute(&mut *self.tx).await.unwrap();
    }

    /// The balance of a key's row at the row's instant.
    pub(crate) async fn row(&mut self, limit: &Limit, key: &str) -> Option<(Tokens, DateTime<Utc>)> {
        let storage = limit.spec().storage;
        let mut rows = rows(&mut self.tx).await.into_iter();
        let row = rows.find(|row| (row.storage, &*row.name, &*row.key) == (storage, limit.name(), key));
        row.map(|row| (Tokens::from_micros(row.value.micros() + top(limit)), row.ts))
    }

    /// Every row, down to where it lies on disk: equal only if nothing was written meanwhile.
    pub(crate) async fn rows(&mut self) -> Vec<Stored> {
        rows(&mut self.tx).await
    }

    pub(crate) async fn commit(self) {
        self.tx.commit().await.unwrap();
    }
}

/// A row on disk. Two versions of one row lie in different places, even if they hold the same.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Stored {
    pub(crate) storage: Storage,
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) value: Tokens,
    pub(crate) ts: DateTime<Utc>,
    pub(crate) full_at: DateTime<Utc>,
    pub(crate) place: String,
}

/// All rows of both tables, in lock order.
pub(crate) async fn rows(conn: &mut PgConnection) -> Vec<Stored> {
    let sql = "select 'b', name, key, value, ts, full_at, ctid::text from tollgate.ephemeral
               union all
               select 'r', name, key, value, ts, full_at, ctid::text from tollgate.durable
               order by 1, 2, 3";
    let rows = sqlx::query(sql).persistent(false).fetch_all(conn).await.unwrap();
    let stored = |row: sqlx::postgres::PgRow| Stored {
        storage: if row.get::<&str, _>(0) == "b" { Storage::Ephemeral } else { Storage::Durable },
        name: row.get(1),
        key: row.get(2),
        value: Tokens::from_micros(row.get(3)),
        ts: row.get(4),
        full_at: row.get(5),
        place: row.get(6),
    };
    rows.into_iter().map(stored).collect()
}

/// Runs statements over a connection of the test's own.
pub(crate) async fn run(conn: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await.unwrap();
}

/// A limit kept in either table.
pub(crate) fn both(limit: &Limit) -> [Limit; 2] {
    [limit.clone(), limit.clone().ephemeral()]
}

/// Whole tokens, negative for a debt.
pub(crate) fn tokens(whole: i32) -> Tokens {
    Tokens::from_micros(i64::from(whole) * 1_000_000)
}

/// The tokens that remain after a grant.
#[track_caller]
pub(crate) fn left(decision: Decision) -> Tokens {
    decision.granted().unwrap().remaining
}

/// How long a refusal says to wait.
#[track_caller]
pub(crate) fn retry<T: std::fmt::Debug>(decision: Decision<T>) -> Duration {
    decision.granted().unwrap_err().retry_after().unwrap()
}

/// How long a reservation says to wait.
#[track_caller]
pub(crate) fn wait(decision: Decision<Reservation>) -> Duration {
    decision.granted().unwrap().wait()
}
