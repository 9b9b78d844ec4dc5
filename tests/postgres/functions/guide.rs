//! The guide says what is so.

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
    assert_eq!((ran, failed), (5, 2));
    // What the comments in it say.
    let told: (bool, bool, String) = sqlx::query_as(
        "select (tollgate.check('send_message', 'ada', 2)).granted, tollgate.balance('llm_tokens', 'ada') between 8750 and 9999,
                tollgate.balance('credits', 'ada')::text",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert_eq!(told, (false, true, "50.000000".to_owned()));
}

#[ignore = "needs psycopg and node-postgres, which .ci/clients installs"]
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
