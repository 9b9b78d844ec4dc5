//! The server of the tests, or the nodes of a cluster, and the pooler before it.

use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock};

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::OnceCell;
use tollgate_embedded::Server;

use super::setting::{is_named, is_on_citus};
use super::{SERVICE, run_until_done};
use crate::pgbouncer::PgBouncer;

/// How the administrator reaches each node of the cluster, the coordinator first; without one, the server.
pub(crate) async fn nodes() -> &'static [PgConnectOptions] {
    static NODES: OnceCell<Vec<PgConnectOptions>> = OnceCell::const_new();
    let find = async || {
        let server = admin_options().database("postgres");
        if !is_on_citus() {
            return vec![server];
        }
        let mut conn = PgConnection::connect_with(&admin_options()).await.unwrap();
        let sql = "select nodename, nodeport from pg_dist_node order by groupid";
        let found: Vec<(String, i32)> = sqlx::query_as(sql).fetch_all(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        found.into_iter().map(|(host, port)| server.clone().host(&host).port(port.try_into().unwrap())).collect()
    };
    NODES.get_or_init(find).await
}

/// The server of this test run. It is never dropped: it ends when this process does.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::builder().setting("max_connections", "500").start().unwrap())
}

/// The pooler of this test run, which has fewer connections to a database than most tests have callers.
pub(super) fn pooler() -> MutexGuard<'static, PgBouncer> {
    static POOLER: LazyLock<Mutex<PgBouncer>> = LazyLock::new(|| {
        let url = direct_url(SERVICE, "postgres");
        let start = if is_named() { PgBouncer::following } else { PgBouncer::start };
        Mutex::new(start(&url, 8))
    });
    POOLER.lock().unwrap()
}

/// A connection of the administrator.
pub(super) async fn connect(database: &str) -> PgConnection {
    PgConnection::connect_with(&admin_options().database(database)).await.unwrap()
}

pub(super) fn options(database: &str, role: &str) -> PgConnectOptions {
    admin_options().username(role).password(PASSWORD).database(database)
}

fn admin_options() -> PgConnectOptions {
    std::env::var("DATABASE_URL").unwrap_or_else(|_| server().url().to_owned()).parse().unwrap()
}

pub(super) fn direct_url(role: &str, database: &str) -> String {
    let url = database_url(database);
    let (_, host) = url.split_once("://").unwrap();
    format!("postgres://{role}:{PASSWORD}@{}", host.split_once('@').map_or(host, |(_, host)| host))
}

/// The URL of a database for the administrator.
pub(super) fn database_url(database: &str) -> String {
    match std::env::var("DATABASE_URL") {
        Ok(url) => {
            let (base, query) = url.split_once('?').map_or((url.as_str(), None), |(base, query)| (base, Some(query)));
            let base = base.rsplit_once('/').map_or(base, |(base, _)| base);
            let query = query.map(|query| format!("?{query}")).unwrap_or_default();
            format!("{base}/{database}{query}")
        }
        Err(_) => server().database_url(database),
    }
}

/// Runs a statement on a database on each node: Citus copies and renames none by itself, and has a daemon in each.
pub(super) async fn on_each_node(database: &str, sql: &str) {
    let end_daemon = format!("select pg_terminate_backend(pid) from pg_stat_activity where datname = '{database}'");
    for node in nodes().await {
        let mut conn = PgConnection::connect_with(node).await.unwrap();
        if is_on_citus() {
            run(&mut conn, &end_daemon).await;
        }
        run_until_done(&mut conn, sql).await;
        conn.close().await.unwrap();
    }
}

pub(super) async fn run(conn: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await.unwrap();
}

pub(super) const PASSWORD: &str = "tollgate";
