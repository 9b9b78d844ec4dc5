use sqlx::{Connection as _, PgConnection};

use super::error::BenchError;
use super::scene::{TENANTS, USERS, limits};
use super::session;
use crate::limit::{Limit, Storage};
use crate::limiter::Limiter;

/// Makes every row that the scenes ask, so that no turn inserts any. Each gives one token: the exhausted one has no other.
///
/// In a session of its own, whose end completes the server's counts: else these rows would count as the first turn's.
pub(super) async fn fill(url: &str) -> Result<(), BenchError> {
    let mut conn = PgConnection::connect_with(&session::options(url)?).await?;
    for storage in [Storage::Ephemeral, Storage::Durable] {
        let [per_user, per_tenant, total, exhausted] = limits(storage);
        let users = (0..USERS).map(|user| per_user.key(user));
        let tenants = (0..TENANTS).map(|tenant| per_tenant.key(tenant));
        let requests: Vec<_> = users.chain(tenants).chain([total.global(), exhausted.global()]).collect();
        for some in requests.chunks(500) {
            let mut tx = conn.begin().await?;
            Limiter::new().consume_all(&mut tx, some.iter().cloned()).await?.granted()?;
            tx.commit().await?;
        }
    }
    sqlx::raw_sql("analyze tollgate.buckets, tollgate.rate_limits").execute(&mut conn).await?;
    conn.close().await?;
    Ok(())
}

/// Clears away what the last turn left behind, so that the order of turns does not matter.
pub(super) async fn tidy(conn: &mut PgConnection) -> Result<(), BenchError> {
    sqlx::raw_sql("vacuum tollgate.buckets, tollgate.rate_limits").execute(conn).await?;
    Ok(())
}

/// Deletes the rows of the scenes.
pub(super) async fn clear(conn: &mut PgConnection) -> Result<(), BenchError> {
    let names: Vec<_> = limits(Storage::Durable).iter().map(Limit::name).map(str::to_owned).collect();
    for sql in
        ["delete from tollgate.buckets where name = any($1)", "delete from tollgate.rate_limits where name = any($1)"]
    {
        sqlx::query(sql).bind(&names).execute(&mut *conn).await?;
    }
    Ok(())
}
