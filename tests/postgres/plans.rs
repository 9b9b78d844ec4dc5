//! A session keeps the plan of a statement. That plan looks rows up one by one, for any size that the tables had when
//! it was made.

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tollgate::migrate;

use crate::distributed::statement_files;
use crate::world::World;

/// The tables, and the values that a row of each is filled with behind its part, name and key.
const TABLES: [(&str, &str); 3] = [
    ("ephemeral", "0, 0, now(), now()"),
    ("durable", "0, 0, now(), now()"),
    ("calls", "n::text, 0, '[]', null, now(), 0, now() + interval '1 hour', now() + interval '1 hour', false"),
];

#[tokio::test]
async fn whatever_the_size_of_the_tables_no_plan_reads_all_rows() {
    let world = World::unmigrated().await;
    migrate::run(&mut world.connect().await).await.unwrap();
    let mut rows = 0;
    for more in [0, 60, 940, 19_000] {
        let fill = TABLES.map(|(table, row)| {
            format!(
                "insert into tollgate.{table} select 0, 'n', n, {row} \
                 from generate_series({rows} + 1, {rows} + {more}) n"
            )
        });
        world.sql(&fill.join(";")).await;
        rows += more;
        expect_look_ups(&world, &format!("{rows} rows, other statistics")).await;
        for (table, _) in TABLES {
            world.sql(&format!("vacuum (analyze) tollgate.{table}")).await;
        }
        expect_look_ups(&world, &format!("{rows} rows")).await;
    }
}

async fn expect_look_ups(world: &World, tables: &str) {
    // A session without plans.
    let mut conn = world.admin().await;
    conn.execute("set plan_cache_mode = force_generic_plan").await.unwrap();
    let mut looked_up = 0;
    // Resets are rare, so the one about shards of older definitions may read all rows. The question for the number of
    // parts reads the catalogue.
    let others = ["remove_stale.sql", "parts.sql"];
    for file in statement_files().iter().filter(|file| !others.iter().any(|other| file.ends_with(other))) {
        for node in plan(&mut conn, &std::fs::read_to_string(file).unwrap()).await {
            let told = || format!("{} with {tables}: {node:#}", file.display());
            if let Some(condition) = node["Index Cond"].as_str() {
                let by_key = condition.contains("(name = ") && condition.contains("(key = ");
                let by_lapse = condition.contains("(lapses_at > ") && condition.contains("(lapses_at <= ");
                assert!(by_key || by_lapse, "{}", told());
            }
            let (kind, table) = (node["Node Type"].as_str().unwrap(), node["Relation Name"].as_str());
            if table.is_some_and(|name| TABLES.iter().any(|(table, _)| *table == name)) && kind != "ModifyTable" {
                let by_row = ["Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Tid Scan", "Tid Range Scan"];
                assert!(by_row.contains(&kind), "{}", told());
                looked_up += 1;
            }
        }
    }
    assert!(looked_up > 30, "{looked_up}");
    conn.close().await.unwrap();
}

/// The nodes of the plan that a session keeps for all executions.
async fn plan(conn: &mut PgConnection, statement: &str) -> Vec<Value> {
    let parameters = (1..99).take_while(|number| statement.contains(&format!("${number}"))).count();
    let arguments = if parameters > 0 { format!("({})", vec!["null"; parameters].join(", ")) } else { String::new() };
    conn.execute(AssertSqlSafe(format!("prepare statement as {statement}"))).await.unwrap();
    let explain = AssertSqlSafe(format!("explain (format json) execute statement{arguments}"));
    let plan: Value = sqlx::query_scalar(explain).persistent(false).fetch_one(&mut *conn).await.unwrap();
    conn.execute("deallocate statement").await.unwrap();
    let mut nodes = vec![plan[0]["Plan"].clone()];
    let mut seen = 0;
    while seen < nodes.len() {
        let inner = nodes[seen]["Plans"].as_array().cloned().unwrap_or_default();
        nodes.extend(inner);
        seen += 1;
    }
    nodes
}
