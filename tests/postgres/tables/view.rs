use sqlx::{PgConnection, Row as _};

use super::owner;
use crate::teller::run;
use crate::world::World;

/// Amounts in tokens, to the last micro-token.
#[tokio::test]
async fn the_view_tells_what_is_used_owned_and_listed_and_when_it_ends() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let (past, later) = ("2023-11-14 22:13:20.000001+00", "2023-11-14 23:13:20.999999+00");
    let micros = "1700000000000001";
    for (value, list, used, balance, listed, first_at) in [
        (-3_500_001, "null".to_owned(), "3.500001", None, "0.000000", None),
        (1, "null".to_owned(), "0.000000", None, "0.000000", None),
        (7_000_001, "'{3}'".to_owned(), "0.000000", Some("7.000001"), "0.000000", None),
        (-7_000_001, "'{3}'".to_owned(), "7.000001", Some("-7.000001"), "0.000000", None),
        (-2_000_000, "'{4,1700003600999999,5}'".to_owned(), "2.000000", None, "0.000000", Some(later)),
        (-2_000_000, format!("'{{5,{micros},0}}'"), "2.000000", None, "0.000000", Some(past)),
        (0, "'{1}'".to_owned(), "0.000000", None, "0.000000", None),
        (0, format!("'{{1,{micros},2,1700003600999999,5}}'"), "0.000000", None, "0.000007", Some(past)),
        (0, format!("'{{2,{micros},4,8,16,1700003600999999,32,64,128}}'"), "0.000000", None, "0.000036", Some(past)),
        (0, "'{1,1700003600999999,2}'".to_owned(), "0.000000", None, "0.000002", Some(later)),
        (0, "'{1,-210866803200000000,2}'".to_owned(), "0.000000", None, "0.000002", Some("4714-11-24 00:00:00+00 BC")),
        (0, "'{1,-210866803200000001,2}'".to_owned(), "0.000000", None, "0.000002", None),
    ] {
        for table in ["ephemeral", "durable"] {
            put(&mut conn, table, value, ("'epoch'", "'epoch'"), &list).await;
            let sql = "select b.storage, b.used::text, b.balance::text, b.listed::text, b.part, b.list,
                              coalesce(b.leaves_at, b.ends_at) is not distinct from $1::timestamptz,
                              coalesce(b.list[1], 0) in (4, 5), b.ends_at is not null
                         from tollgate.balances b where name = 'n' and key = 'k' and shard = 2";
            let row = sqlx::query(sql).bind(first_at.map(str::to_owned)).fetch_one(&mut conn).await.unwrap();
            assert_eq!(row.get::<&str, _>(0), table);
            assert_eq!(row.get::<&str, _>(1), used, "{value} {list}");
            assert_eq!(row.get::<Option<&str>, _>(2), balance, "{value} {list}");
            assert_eq!(row.get::<&str, _>(3), listed, "{value} {list}");
            assert_eq!(row.get::<i16, _>(4), 0);
            assert_eq!(row.get::<Option<Vec<i64>>, _>(5).is_none(), list == "null");
            assert!(row.get::<bool, _>(6), "{value} {list}");
            assert_eq!(row.get::<bool, _>(7), row.get::<bool, _>(8), "{value} {list}");
            run(&mut conn, &format!("delete from tollgate.{table}")).await;
        }
    }
}

#[tokio::test]
async fn the_view_tells_when_a_row_is_full_and_whether_it_is_ahead() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let (past, earlier, later) = ("'epoch'", "timestamptz 'epoch' - interval '1 s'", "now() + interval '1 hour'");
    for (ts, full_at, is_full, full_in, is_ahead) in [
        (past, past, true, false, false),
        (earlier, past, true, false, false),
        (past, earlier, false, false, false),
        (past, later, false, true, false),
        (later, later, false, true, true),
        (later, past, false, false, true),
    ] {
        put(&mut conn, "durable", -1, (ts, full_at), "null").await;
        let hour = "between interval '59 minutes' and interval '1 hour'";
        let sql = format!(
            "select b.is_full, b.full_in {hour}, b.ahead {hour}, b.full_in = interval '0', b.ahead = interval '0',
                    b.as_of = r.ts and b.full_at = r.full_at
               from tollgate.balances b, tollgate.durable r"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_one(&mut conn).await.unwrap();
        let told: Vec<bool> = (0..6).map(|column| row.get(column)).collect();
        assert_eq!(told, [is_full, full_in, is_ahead, !full_in, !is_ahead, true], "{ts}, {full_at}");
        run(&mut conn, "delete from tollgate.durable").await;
    }
}

#[tokio::test]
async fn the_view_names_the_kind_and_the_sorts_of_live_overrides() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    put(&mut conn, "durable", -1, ("now()", "now()"), "null").await;
    run(&mut conn, "insert into tollgate.durable values (0, 'unknown', 'k', 0, 0, now(), now(), null)").await;
    run(&mut conn, "select tollgate.define('n', 'token_bucket', 10, '1 minute')").await;
    let numbers = "'token_bucket', 10000000, 60000000, 10000000, 0";
    for (key, label, effect, numbers, starts_at, ends_at, sorts) in [
        ("another", "", "deny", "null, null, null, null, null", "now()", "'infinity'", None),
        ("k", "over", "deny", "null, null, null, null, null", "'epoch'", "now()", None),
        ("k", "later", "deny", "null, null, null, null, null", "now() + '1 hour'", "'infinity'", None),
        ("k", "", "numbers", numbers, "now()", "'infinity'", Some("numbers")),
        ("", "", "numbers", numbers, "now()", "'infinity'", Some("numbers")),
        // It had begun when it was set, before the clock went back.
        ("", "ban", "deny", "null, null, null, null, null", "now() + '1 hour'", "'infinity'", Some("deny, numbers")),
    ] {
        let set_at = if label == "ban" { starts_at } else { "now()" };
        let set = format!(
            "insert into tollgate.overrides values ('n', '{key}', '{label}', '{effect}', {numbers}, {starts_at},
                                                    {ends_at}, 'r', 'w', {set_at})"
        );
        run(&mut conn, &set).await;
        let sql = "select kind, overrides from tollgate.balances order by name";
        let told: Vec<(Option<String>, Option<String>)> = sqlx::query_as(sql).fetch_all(&mut conn).await.unwrap();
        assert_eq!(told, [(Some("token_bucket".to_owned()), sorts.map(str::to_owned)), (None, None)], "{label}");
    }
}

/// As `tollgate reset --all` and `tollgate doctor` ask it.
#[tokio::test]
async fn a_question_to_the_view_costs_what_it_names() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let plan = async |conn: &mut PgConnection, sql: &str| {
        let lines = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("explain {sql}"))).fetch_all(conn).await.unwrap();
        lines.into_iter().fold(String::new(), |plan, line: String| plan + &line + "\n")
    };
    let all = plan(&mut conn, "select used, list from tollgate.balances where part = 0").await;
    assert!(!all.contains("SubPlan"), "{all}");
    let page = "select key from tollgate.balances
                 where part = 0 and name = 'n' and storage = 'durable' and key >= 'k' order by key limit 1000";
    let page = plan(&mut conn, page).await;
    assert!(page.contains("using durable_pkey") && !page.contains("Sort"), "{page}");
}

async fn put(conn: &mut PgConnection, table: &str, value: i64, (ts, full_at): (&str, &str), list: &str) {
    let sql = format!("insert into tollgate.{table} values (0, 'n', 'k', 2, {value}, {ts}, {full_at}, {list})");
    run(conn, &sql).await;
}
