//! The databases of which worlds are copies.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use sqlx::{Connection, PgConnection};
use tokio::sync::OnceCell;
use tollgate::migrate;

use super::server::{PASSWORD, connect, nodes, on_each_node, options, run};
use super::setting::{PARTS, is_on_citus};
use super::{ON_CALL, OWNER, SERVICE};
use crate::ROOT;

/// The databases of which worlds are copies.
pub(super) struct Templates {
    /// With nothing but the objects of strangers.
    pub(super) empty: String,
    pub(super) migrated: String,
}

pub(super) async fn templates() -> &'static Templates {
    static TEMPLATES: OnceCell<Templates> = OnceCell::const_new();
    TEMPLATES.get_or_init(Templates::make).await
}

impl Templates {
    /// One run of the tests makes them, if others begin on the same server meanwhile. Their names depend on their
    /// contents.
    async fn make() -> Self {
        let strangers = include_str!("../strangers.sql").replace("{called}", &format!("'{{{}}}'", called().join(",")));
        let mut hasher = DefaultHasher::new();
        (&strangers, migrate::sql(), SECURITY, is_on_citus()).hash(&mut hasher);
        let [empty, migrated] = ["empty", "migrated"].map(|what| format!("tollgate_{what}_{:x}", hasher.finish()));
        let mut conn = connect("postgres").await;
        run(&mut conn, "select pg_advisory_lock(1)").await;
        for role in [SERVICE, ON_CALL, OWNER] {
            let make = format!(
                "do $$ begin if to_regrole('{role}') is null then create role {role}; end if; end $$;
                 alter role {role} login password '{PASSWORD}';
                 alter role {role} set search_path = public, strangers"
            );
            for node in nodes().await {
                let mut conn = PgConnection::connect_with(node).await.unwrap();
                run(&mut conn, "set citus.enable_create_role_propagation = off").await;
                run(&mut conn, "set citus.enable_alter_role_propagation = off").await;
                run(&mut conn, &make).await;
                conn.close().await.unwrap();
            }
        }
        make(&mut conn, &empty, "template1", async |conn| {
            if is_on_citus() {
                join_nodes(conn, &making(&empty)).await;
            }
            // Where the service has tables of its own, and tests make some for it.
            let public = format!(
                "grant create on schema public to {SERVICE}, {OWNER};
                 alter default privileges in schema public grant all on tables to {SERVICE};
                 alter default privileges in schema public grant all on sequences to {SERVICE}"
            );
            run(conn, &format!("begin; {KEEP_HERE}; {strangers}; {public}; commit")).await;
        })
        .await;
        make(&mut conn, &migrated, &empty, async |conn| {
            let [schema, grants] = rights();
            run(conn, schema).await;
            let mut owner = PgConnection::connect_with(&options(&making(&migrated), OWNER)).await.unwrap();
            migrate::run(&mut owner).await.unwrap();
            if is_on_citus() {
                migrate::distribute(&mut owner, PARTS, migrate::Buckets::default()).await.unwrap();
            }
            owner.close().await.unwrap();
            run(conn, grants).await;
            // As autovacuum does soon.
            run(conn, "vacuum tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
        })
        .await;
        conn.close().await.unwrap();
        Self { empty, migrated }
    }
}

/// Makes a database under another name first, so that every database of this name is whole.
async fn make(conn: &mut PgConnection, name: &str, template: &str, fill: impl AsyncFnOnce(&mut PgConnection)) {
    let exists = "select exists (select from pg_database where datname = $1)";
    if sqlx::query_scalar(exists).bind(name).fetch_one(&mut *conn).await.unwrap() {
        return;
    }
    let making = making(name);
    on_each_node(&making, &format!("drop database if exists {making}")).await;
    on_each_node(template, &format!("create database {making} template {template}")).await;
    let mut inside = connect(&making).await;
    fill(&mut inside).await;
    inside.close().await.unwrap();
    on_each_node(&making, &format!("alter database {making} rename to {name}")).await;
}

/// Makes a cluster of the databases of one name that the nodes have.
async fn join_nodes(coordinator: &mut PgConnection, database: &str) {
    for node in nodes().await {
        let mut conn = PgConnection::connect_with(&node.clone().database(database)).await.unwrap();
        run(&mut conn, "create extension if not exists citus").await;
        conn.close().await.unwrap();
    }
    for (number, node) in nodes().await.iter().enumerate() {
        let join = if number == 0 { "citus_set_coordinator_host" } else { "citus_add_node" };
        run(coordinator, &format!("select {join}('{}', {})", node.get_host(), node.get_port())).await;
    }
}

fn making(name: &str) -> String {
    format!("{name}_in_the_making")
}

/// The statements of `SECURITY.md`: before the migrations, and after them.
fn rights() -> [&'static str; 2] {
    let mut blocks = SECURITY.split("```sql").skip(1).map(|block| block.split("```").next().unwrap());
    std::array::from_fn(|_| blocks.next().unwrap())
}

/// All words of the sources that are followed by a parenthesis: among them the names of all functions that statements
/// call.
fn called() -> Vec<String> {
    let mut called = BTreeSet::new();
    let mut places = ["src", "cli/src", "migrations"].map(|place| Path::new(ROOT).join(place)).to_vec();
    while let Some(place) = places.pop() {
        if place.is_dir() {
            places.extend(std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(place).unwrap();
        let is_of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        for before in text.split('(') {
            called.insert(before.rsplit(|c| !is_of_a_name(c)).next().unwrap().to_owned());
        }
    }
    called.remove("");
    called.into_iter().collect()
}

/// Keeps the objects that a transaction makes on the coordinator of Citus. PostgreSQL ignores it.
const KEEP_HERE: &str = "set local citus.enable_ddl_propagation = off";
const SECURITY: &str = include_str!("../../../SECURITY.md");
