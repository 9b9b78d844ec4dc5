//! A world for each test: a migrated database of its own on one shared server, gone with the test.
//!
//! The code under test has the rights that `SECURITY.md` names, and no more: the service's role decides, the role on
//! call runs the command, the owner migrates. A schema of strangers is in the search path of all three. [`World::sql`]
//! alone is the administrator's. The databases are copies of two that are made once. These and the roles stay on a
//! server of `DATABASE_URL`.
//!
//! With `TOLLGATE_TEST_POOLER` set, the code under test reaches the server through a PgBouncer in transaction mode,
//! without named statements unless it is set to `named`. The tests' own statements go to the server directly. With
//! `TOLLGATE_TEST_DISTRIBUTED` set, the tables have the parts that `tollgate distribute` gives them on Citus, and
//! limiters, gates and sweepers are set up for these parts. Where `DATABASE_URL` is `CITUS_URL`, too, the tables are
//! distributed: a world is a database on each node of that cluster.

mod server;
mod setting;
mod templates;

use std::sync::atomic::{AtomicU32, Ordering};

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, Transaction};
use tollgate::{Gate, GateBuilder, Limit, LimitKind, Limiter, MINUTE, Storage, Sweeper, Tokens, migrate};

pub(crate) use server::nodes;
use server::{PASSWORD, connect, direct_url, on_each_node, options, pooler, run};
pub(crate) use setting::*;
use templates::templates;

/// A database of its own, dropped with the value.
pub(crate) struct World {
    /// Connections of the world's role, for the tests' own statements.
    pub(crate) pool: PgPool,
    name: String,
    role: &'static str,
}

impl World {
    /// A migrated database, for the service's role.
    pub(crate) async fn new() -> Self {
        Self::of_parts(parts()).await
    }

    /// A migrated database whose tables take rows of so many parts, as `distribute` leaves them; 0 for plain tables.
    pub(crate) async fn of_parts(parts: u16) -> Self {
        let world = Self::copy_of(&templates().await.migrated, SERVICE).await;
        if parts > 0 && !is_on_citus() {
            let swap = |table| {
                format!(
                    "alter table tollgate.{table} drop constraint {table}_part;
                     alter table tollgate.{table}
                       add constraint {table}_part check (part between {} and {})",
                    8 * parts,
                    16 * parts - 1
                )
            };
            world.sql(&["ephemeral", "durable", "calls"].map(swap).join(";")).await;
        }
        world
    }

    /// A migrated database with a clock of its own, which [`set_ahead`](Self::set_ahead) moves. Every statement that
    /// asks the server for the time gets this clock's, unless it was prepared before.
    pub(crate) async fn with_clock() -> Self {
        let world = Self::new().await;
        // A function that replaced PostgreSQL's own would be passed over: the server knows that one by its number.
        world
            .sql(
                "create table public.clock (ahead interval not null); insert into public.clock values ('0');
                 grant select on public.clock to public;
                 alter function pg_catalog.clock_timestamp() rename to true_clock;
                 create function pg_catalog.clock_timestamp() returns timestamptz language sql volatile as
                     'select pg_catalog.true_clock() operator(pg_catalog.+) ahead from public.clock'",
            )
            .await;
        world
    }

    /// Sets the clock of [`with_clock`](Self::with_clock) so much before the true one; behind it with a minus.
    pub(crate) async fn set_ahead(&self, span: &str) {
        self.sql(&format!("update public.clock set ahead = '{span}'")).await;
    }

    /// A database without tables, for the owner's role.
    pub(crate) async fn unmigrated() -> Self {
        Self::copy_of(&templates().await.empty, OWNER).await
    }

    /// A migrated database, for the owner's role, that sorts texts as English does and not by their bytes; none on
    /// servers without ICU.
    #[allow(dead_code, reason = "only the tests of the functions need it")]
    pub(crate) async fn in_english() -> Option<Self> {
        let mut conn = connect("postgres").await;
        let sql = "select exists (select from pg_collation where collprovider = 'i')";
        let has_icu = sqlx::query_scalar::<_, bool>(sql).fetch_one(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        if !has_icu {
            return None;
        }
        // They bring the roles, which only this test may need.
        templates().await;
        let english = "encoding 'UTF8' locale 'C' locale_provider icu icu_locale 'en-US'";
        let world = Self::create("template0", english, OWNER).await;
        migrate::run(&mut world.connect().await).await.unwrap();
        Some(world)
    }

    async fn copy_of(template: &str, role: &'static str) -> Self {
        Self::create(template, "", role).await
    }

    async fn create(template: &str, settings: &str, role: &'static str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tollgate_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        on_each_node(template, &format!("create database {name} template {template} {settings} owner {OWNER}")).await;
        // Connections are made as they are needed: most tests need two or three.
        let pool = PgPoolOptions::new().max_connections(64).acquire_timeout(5 * MINUTE);
        let pool = pool.connect_with(options(&name, role)).await.unwrap();
        Self { pool, name, role }
    }

    /// The URL of this database for the code under test.
    pub(crate) fn url(&self) -> String {
        self.url_of(self.role)
    }

    /// The same for another role. The pooler knows that of the service.
    pub(crate) fn url_of(&self, role: &str) -> String {
        if is_pooled() && role == SERVICE { pooler().url(&self.name) } else { direct_url(role, &self.name) }
    }

    /// The URL for the command in the role on call, or in the owner's role where there are no tables.
    #[allow(dead_code, reason = "only the tests of the command need it")]
    pub(crate) fn command_url(&self) -> String {
        self.url_of(if self.role == OWNER { OWNER } else { ON_CALL })
    }

    /// The same for the administrator.
    #[allow(dead_code, reason = "only the tests of the command need it")]
    pub(crate) fn admin_url(&self) -> String {
        server::database_url(&self.name)
    }

    /// The URL of this database on the server itself.
    pub(crate) fn direct_url(&self) -> String {
        direct_url(self.role, &self.name)
    }

    /// The name of this database.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A transaction for the code under test.
    pub(crate) async fn begin(&self) -> Transaction<'static, Postgres> {
        if !is_pooled() {
            return self.pool.begin().await.unwrap();
        }
        one_connection(self.url().parse().unwrap()).await.begin().await.unwrap()
    }

    /// A gate that outlasts a busy machine.
    pub(crate) fn gate(&self) -> Gate {
        patient(&self.pool).build()
    }

    /// A connection of its own, outside the pool.
    pub(crate) async fn connect(&self) -> PgConnection {
        self.connect_as(self.role).await
    }

    /// The same as another role.
    pub(crate) async fn connect_as(&self, role: &str) -> PgConnection {
        PgConnection::connect_with(&options(&self.name, role)).await.unwrap()
    }

    /// A connection that enters by one of the [`nodes`].
    #[allow(dead_code, reason = "only the tests of overrides need it")]
    pub(crate) async fn connect_through(&self, node: usize, role: &str) -> PgConnection {
        PgConnection::connect_with(&self.options_through(node, role).await).await.unwrap()
    }

    /// How a role enters this database by one of the [`nodes`].
    #[allow(dead_code, reason = "only the tests of overrides need it")]
    pub(crate) async fn options_through(&self, node: usize, role: &str) -> PgConnectOptions {
        nodes().await[node].clone().username(role).password(PASSWORD).database(&self.name)
    }

    /// A connection of the administrator, who may do everything.
    pub(crate) async fn admin(&self) -> PgConnection {
        connect(&self.name).await
    }

    /// The row of a limit and key on disk, `(value, ts)`, if it is there.
    pub(crate) async fn row(&self, storage: Storage, name: &str, key: &str) -> Option<(Tokens, DateTime<Utc>)> {
        let sql = AssertSqlSafe(format!("select value, ts from tollgate.{storage} where name = $1 and key = $2"));
        let row: Option<(i64, DateTime<Utc>)> =
            sqlx::query_as(sql).bind(name).bind(key).fetch_optional(&self.pool).await.unwrap();
        row.map(|(micros, ts)| (Tokens::from_micros(micros), ts))
    }

    /// The tokens that remain in the row of a limit and key at its instant, if it is there.
    pub(crate) async fn left(&self, limit: &Limit, key: &str) -> Option<Tokens> {
        let (value, _) = self.row(limit.spec().storage, limit.name(), key).await?;
        Some(Tokens::from_micros(value.micros() + top(limit)))
    }

    /// How many rows there are in both tables.
    pub(crate) async fn rows(&self) -> i64 {
        let sql = "select (select count(*) from tollgate.ephemeral) + (select count(*) from tollgate.durable)";
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    /// A role without rights, gone with this database's name, that each of the others may become.
    pub(crate) async fn role(&self) -> String {
        let role = format!("{}_role", self.name);
        let make = format!("drop role if exists {role}; create role {role}");
        self.sql(&format!("{make}; grant {role} to {SERVICE}, {ON_CALL}, {OWNER}")).await;
        role
    }

    /// Returns once a transaction of backend `pid` waits for another's.
    pub(crate) async fn until_blocked(&self, pid: i32) {
        let mut admin = self.admin().await;
        let blocked = async {
            let sql = if is_on_citus() {
                "select exists (select from citus_lock_waits where waiting_gpid % 10000000000 = $1)"
            } else {
                "select pg_catalog.cardinality(pg_blocking_pids($1)) > 0"
            };
            while !sqlx::query_scalar::<_, bool>(sql).bind(pid).fetch_one(&mut admin).await.unwrap() {}
        };
        tokio::time::timeout(5 * MINUTE, blocked).await.unwrap();
    }

    /// Returns once any session of this database waits for a lock.
    pub(crate) async fn until_anyone_is_blocked(&self) {
        let mut admin = self.admin().await;
        let blocked = async {
            let waits = "select exists (select from pg_stat_activity
                                         where datname = current_database() and wait_event_type = 'Lock')";
            let on_nodes = format!("select bool_or(result = 't') from run_command_on_all_nodes($${waits}$$)");
            let sql = if is_on_citus() { on_nodes } else { waits.to_owned() };
            while !sqlx::query_scalar::<_, bool>(AssertSqlSafe(&*sql)).fetch_one(&mut admin).await.unwrap() {}
        };
        tokio::time::timeout(5 * MINUTE, blocked).await.unwrap();
    }

    /// Runs the statement that another one makes for a part, such as [`MOVE`].
    #[allow(dead_code, reason = "only the tests of moves need it")]
    pub(crate) async fn change_part(&self, part: i16, change: &str) {
        let sql = sqlx::query_scalar(AssertSqlSafe(change)).bind(part);
        let sql: String = sql.fetch_one(&mut self.admin().await).await.unwrap();
        self.sql(&sql).await;
    }

    /// Runs statements that a test needs around the limiter, as the administrator.
    pub(crate) async fn sql(&self, sql: &str) {
        let mut conn = self.admin().await;
        run(&mut conn, sql).await;
        conn.close().await.unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let name = self.name.clone();
        let [database, role] =
            [format!("drop database if exists {name} with (force)"), format!("drop role if exists {name}_role")];
        // Dropping may happen inside a runtime, which must not block: so another thread, with its own.
        let dropping = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                on_each_node(&name, &database).await;
                let mut conn = connect("postgres").await;
                run(&mut conn, &role).await;
                conn.close().await.unwrap();
            });
        });
        dropping.join().unwrap();
    }
}

/// The statement that moves a part, in each table, to the node after the one that has it.
#[allow(dead_code, reason = "only the tests of moves need it")]
pub(crate) const MOVE: &str = "
    select format('select citus_move_shard_placement(%s, %L, %s, %L, %s, %L)',
                  p.shardid, n.nodename, n.nodeport, o.nodename, o.nodeport, 'block_writes')
      from pg_dist_placement p join pg_dist_node n using (groupid)
      join pg_dist_node o on o.groupid > 0 and o.groupid <> n.groupid
     where p.shardid = get_shard_id_for_distribution_column('tollgate.durable', $1::int2)
     limit 1";

/// A pool of one connection, to wherever these lead.
pub(crate) async fn one_connection(options: PgConnectOptions) -> PgPool {
    PgPoolOptions::new().max_connections(1).acquire_timeout(5 * MINUTE).connect_with(options).await.unwrap()
}

/// A gate that outlasts a busy machine.
pub(crate) fn patient(pool: &PgPool) -> GateBuilder {
    let gate = Gate::builder(pool.clone()).lock_timeout(MINUTE).statement_timeout(MINUTE).acquire_timeout(MINUTE);
    let gate = if is_unnamed() { gate.unnamed_statements() } else { gate };
    let gate = gate.parts(parts());
    if is_on_citus() { gate.by_node() } else { gate }
}

/// Fails where something hangs.
#[track_caller]
pub(crate) fn soon<T>(what: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let timeout = tokio::time::timeout(10 * MINUTE, what).await;
        timeout.unwrap_or_else(|_| panic!("hangs at {caller}"))
    }
}

/// Runs a statement that fails until sessions that have ended are gone: PostgreSQL itself awaits that for five seconds
/// only.
pub(crate) async fn run_until_done(conn: &mut PgConnection, sql: &str) {
    soon(async {
        loop {
            match sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *conn).await {
                Err(sqlx::Error::Database(error)) if error.code().is_some_and(|code| code == IN_USE) => {}
                done => break done.unwrap(),
            }
        }
    })
    .await;
}

/// A limiter that works in the world as it is.
pub(crate) fn limiter() -> Limiter {
    let limiter = if is_unnamed() { Limiter::new().unnamed_statements() } else { Limiter::new() };
    limiter.parts(parts())
}

/// A sweeper of the world as it is.
pub(crate) fn sweeper() -> Sweeper {
    Sweeper::new().parts(parts())
}

/// The server process behind a connection.
pub(crate) async fn pid(conn: &mut PgConnection) -> i32 {
    sqlx::query_scalar("select pg_backend_pid()").persistent(false).fetch_one(conn).await.unwrap()
}

/// An instant, in seconds after an arbitrary one.
pub(crate) fn second(seconds: f64) -> DateTime<Utc> {
    #[expect(clippy::cast_possible_truncation, reason = "tests stay near the epoch")]
    DateTime::from_timestamp_micros(1_700_000_000_000_000 + (seconds * 1e6).round() as i64).unwrap()
}

/// A search path in which strangers come before `pg_catalog`, as in services that stop the clock for tests. It can
/// stand in a URL, too.
pub(crate) const LATE: &str = "strangers,public,pg_catalog";
/// The role of the service.
pub(crate) const SERVICE: &str = "tollgate_service";
/// The role that runs the command.
pub(crate) const ON_CALL: &str = "tollgate_on_call";
/// The role that migrates.
pub(crate) const OWNER: &str = "tollgate_owner";
/// SQLSTATE `object_in_use`.
const IN_USE: &str = "55006";

/// The micro-tokens that remain in a full row of a limit.
pub(crate) fn top(limit: &Limit) -> i64 {
    let spec = limit.spec();
    if spec.kind == LimitKind::Wallet { 0 } else { spec.capacity.unwrap_or(spec.rate).micros() }
}
