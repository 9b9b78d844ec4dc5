//! The helpers of most tests of the gate.

use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tollgate::{Limit, MINUTE};

use crate::proxy::Proxy;
use crate::world::numbers;
pub(crate) use crate::world::{one_connection, patient, soon};

/// So long that nothing comes back while a test runs.
pub(crate) const EVER: Duration = Limit::MAX_PERIOD;

/// A pool of so many connections.
pub(crate) async fn pool(url: &str, connections: u32) -> PgPool {
    PgPoolOptions::new().max_connections(connections).acquire_timeout(5 * MINUTE).connect(url).await.unwrap()
}

/// A pool that leads nowhere, and says so at once.
pub(crate) fn nowhere() -> PgPool {
    PgPoolOptions::new().connect_lazy("postgres://nobody@localhost/none?host=/nowhere").unwrap()
}

/// Returns once all other sessions of this database are gone, and have handed in their counts.
pub(crate) async fn until_alone(conn: &mut PgConnection) {
    // Citus keeps a daemon and connections of its own.
    let sql = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
                and backend_type = 'client backend' and application_name not like 'citus%'";
    soon(async { while sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut *conn).await.unwrap() > 0 {} }).await;
}

/// How many deadlocks there were in this database.
pub(crate) async fn deadlocks(conn: &mut PgConnection) -> i64 {
    let sql = "select deadlocks from pg_stat_database where datname = current_database()";
    sqlx::query_scalar(sql).fetch_one(conn).await.unwrap()
}

/// How many sessions of this database sit in a transaction without doing anything.
pub(crate) async fn idle_in_transaction(pool: &PgPool) -> i64 {
    let sql = "select count(*) from pg_stat_activity
                where datname = current_database() and state like 'idle in transaction%'";
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

/// Deletes rows that are full, part by part, and waits for nobody.
pub(crate) async fn sweep(conn: &mut PgConnection) -> u64 {
    let mut deleted = 0;
    for part in numbers() {
        for table in ["ephemeral", "durable"] {
            let sql = format!(
                "delete from tollgate.{table} where part = {part} and full_at <= now() and ctid = any (array(
                     select ctid from tollgate.{table} where part = {part} and full_at <= now()
                      limit 100 for update skip locked))"
            );
            deleted += sqlx::query(AssertSqlSafe(sql)).execute(&mut *conn).await.unwrap().rows_affected();
        }
    }
    deleted
}

/// Returns once there were more statements than so many.
pub(crate) async fn until_asked(proxy: &Proxy, asked: u64) {
    soon(async {
        while proxy.statements() == asked {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
