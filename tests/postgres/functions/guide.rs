//! The guide is true.

use std::process::Command;

use super::{fails, owner};
use crate::teller::run;
use crate::world::{OWNER, World};

/// In the order of the guide, and with the errors that it announces.
#[tokio::test]
async fn the_statements_of_the_guide_run() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, "set search_path = public").await;
    let (mut ran, mut failed) = (0, 0);
    for block in include_str!("../../../docs/sql.md").split("```sql").skip(1) {
        let (told, rest) = block.split_once('\n').unwrap();
        let sql = rest.split("```").next().unwrap();
        let code = told.trim();
        if code.is_empty() {
            run(&mut conn, sql).await;
            ran += 1;
        } else {
            assert_eq!(fails(&mut conn, sql).await, code, "{sql}");
            run(&mut conn, "rollback").await;
            failed += 1;
        }
    }
    assert_eq!((ran, failed), (9, 2));
    // Nobody may call what has the rights of whoever made it.
    let lax = "select p.oid::regprocedure::text
                 from pg_proc p, aclexplode(coalesce(proacl, acldefault('f', proowner))) a
                where p.prosecdef and a.grantee = 0 and a.privilege_type = 'EXECUTE'";
    let lax: Vec<String> = sqlx::query_scalar(lax).fetch_all(&mut conn).await.unwrap();
    assert_eq!(lax, Vec::<String>::new());
    // The facts that its comments state.
    let told: (bool, bool, String, i32) = sqlx::query_as(
        "select (tollgate.check('send_message', 'ada', 2)).granted,
           tollgate.balance('llm_tokens', 'ada') between 8750 and 9999,
                tollgate.balance('credits', 'ada')::text, tollgate.balance('log_in', 'ada')::int",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert_eq!(told, (false, true, "50.000000".to_owned(), 3));
}

/// As sqlx sends them; other drivers are tried by `.ci/clients`.
#[tokio::test]
async fn a_number_for_a_key_and_a_float_for_a_cost_need_a_cast() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, "select tollgate.define('ten', 'token_bucket', 10, '100 days')").await;
    let bare = sqlx::query_scalar::<_, bool>("select granted from tollgate.consume('ten', $1)").bind(7_i64);
    let bare = bare.fetch_one(&mut conn).await.unwrap_err();
    let float = sqlx::query_scalar::<_, bool>("select granted from tollgate.consume('ten', '7', $1)").bind(0.5_f64);
    let float = float.fetch_one(&mut conn).await.unwrap_err();
    for error in [bare, float] {
        assert_eq!(error.as_database_error().unwrap().code().unwrap(), "42883");
    }
    assert_eq!(world.rows().await, 0);
    let cast = "select granted, round(remaining, 1)::text from tollgate.consume('ten', $1::text, $2::float8::numeric)";
    let cast = sqlx::query_as::<_, (bool, String)>(cast).bind(7_i64).bind(0.1 + 0.2);
    assert_eq!(cast.fetch_one(&mut conn).await.unwrap(), (true, "9.7".to_owned()));
}

#[ignore = "needs the drivers that .ci/clients installs"]
#[tokio::test]
async fn each_driver_sends_keys_and_costs_as_the_guide_says() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, "select tollgate.define('ten', 'token_bucket', 10, '100 days')").await;
    let programs = [("python3", "-c", include_str!("drivers.py")), ("node", "-e", include_str!("drivers.js"))];
    for (program, option, source) in programs {
        let output = Command::new(program).args([option, source]).env("DATABASE_URL", world.url_of(OWNER)).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // Each driver was charged once for a key, and never for a call without a needed cast.
    for (key, left) in [("7", 5), ("00000000-0000-0000-0000-000000000007", 5)] {
        let left_now = format!("select tollgate.balance('ten', '{key}')::int");
        assert_eq!(super::asked::one::<i32>(&mut conn, &left_now).await, left, "{key}");
    }
}

#[ignore = "needs the drivers that .ci/clients installs"]
#[tokio::test]
async fn the_programs_of_the_guide_run() {
    let world = World::new().await;
    run(&mut owner(&world).await, "select tollgate.define('send_message', 'token_bucket', 2, '1 day')").await;
    let python = ["import os, psycopg\nurl = os.environ['DATABASE_URL']\n", "print(granted)"];
    let node = [
        "const { Client } = require('pg');
         (async () => {
             const client = new Client(process.env.DATABASE_URL);
             await client.connect();",
        "    console.log(rows[0].granted);
             await client.end();
         })();",
    ];
    let programs = [("python3", "-c", "```python", python), ("node", "-e", "```js", node)];
    let mut told = String::new();
    for (program, option, fence, [before, after]) in programs.into_iter().chain([programs[0]]) {
        let snippet = include_str!("../../../docs/sql.md").split(fence).nth(1).unwrap();
        let source = format!("{before}{}{after}", snippet.split("```").next().unwrap());
        let output = Command::new(program).args([option, &source]).env("DATABASE_URL", world.url_of(OWNER)).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        told += &String::from_utf8(output.stdout).unwrap();
    }
    assert_eq!(told, "True\ntrue\nFalse\n");
}
