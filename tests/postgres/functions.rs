//! The SQL functions decide as the library does, and by themselves as they should.

mod asked;
mod attacks;
mod beside;
mod bytes;
mod defaults;
mod errors;
mod guide;
mod installed;
mod lost;
mod rights;
mod rule;
mod settings;
mod settled;
mod several;
mod traps;
mod triggers;
mod walk;
mod wrong;

use sqlx::PgConnection;
use tollgate::{Limit, LimitKind, Storage, Tokens};

use crate::world::World;

/// Puts a definition into the table.
pub(crate) async fn define(conn: &mut PgConnection, limit: &Limit) {
    let sql = "insert into tollgate.limits (name, kind, rate, period, capacity, max_reserved,
      start, resolution, shards, storage)
               values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
                   on conflict (name) do update
                  set (kind, rate, period, capacity, max_reserved, start, resolution, shards, storage)
                    = (excluded.kind, excluded.rate, excluded.period, excluded.capacity, excluded.max_reserved,
                       excluded.start, excluded.resolution, excluded.shards, excluded.storage)";
    let micros = |span: std::time::Duration| i64::try_from(span.as_micros()).unwrap();
    let query = sqlx::query(sql).bind(limit.name()).bind(kind(limit.kind)).bind(limit.rate.micros());
    let query =
        query.bind(micros(limit.period)).bind(limit.capacity.map(Tokens::micros)).bind(limit.max_reserved.micros());
    let query = query.bind(limit.start.map(micros)).bind(limit.resolution.map(u16::cast_signed));
    query.bind(limit.shards.cast_signed()).bind(storage(limit.storage)).execute(conn).await.unwrap();
}

/// The same dice in each run, so that a run that was green stays green. Other dice: `TOLLGATE_TEST_SEED=7`.
fn seed() -> u64 {
    std::env::var("TOLLGATE_TEST_SEED").map_or(5, |seed| seed.parse().unwrap())
}

fn kind(kind: LimitKind) -> String {
    kind.to_string().replace(" limit", "").replace(' ', "_")
}

fn storage(storage: Storage) -> String {
    storage.to_string()
}

/// The code of the error that a statement ends with.
pub(crate) async fn fails(conn: &mut PgConnection, sql: &str) -> String {
    let error = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(conn).await.expect_err(sql);
    error.as_database_error().unwrap_or_else(|| panic!("{error}: {sql}")).code().unwrap().into_owned()
}

/// A connection of the owner, whose search path has no strangers.
async fn owner(world: &World) -> PgConnection {
    let mut conn = world.connect_as(crate::world::OWNER).await;
    crate::teller::run(&mut conn, "set search_path = pg_catalog").await;
    conn
}
