use sqlx::{PgConnection, Row as _};

use super::owner;
use crate::teller::run;
use crate::world::World;

/// Amounts in tokens, to the last micro-token.
#[tokio::test]
async fn the_view_tells_what_is_used_owned_and_listed() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let (past, later) = ("2023-11-14 22:13:20.000001+00", "2023-11-14 23:13:20.999999+00");
    let micros = "1700000000000001";
    for (value, list, used, balance, listed, leaves_at) in [
        (-3_500_001, "null".to_owned(), "3.500001", None, "0.000000", None),
        (1, "null".to_owned(), "0.000000", None, "0.000000", None),
        (7_000_001, "'{3}'".to_owned(), "0.000000", Some("7.000001"), "0.000000", None),
        (-7_000_001, "'{3}'".to_owned(), "7.000001", Some("-7.000001"), "0.000000", None),
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
                              b.leaves_at is not distinct from $1::timestamptz
                         from tollgate.balances b where name = 'n' and key = 'k' and shard = 2";
            let row = sqlx::query(sql).bind(leaves_at.map(str::to_owned)).fetch_one(&mut conn).await.unwrap();
            assert_eq!(row.get::<&str, _>(0), table);
            assert_eq!(row.get::<&str, _>(1), used, "{value} {list}");
            assert_eq!(row.get::<Option<&str>, _>(2), balance, "{value} {list}");
            assert_eq!(row.get::<&str, _>(3), listed, "{value} {list}");
            assert_eq!(row.get::<i16, _>(4), 0);
            assert_eq!(row.get::<Option<Vec<i64>>, _>(5).is_none(), list == "null");
            assert!(row.get::<bool, _>(6), "{value} {list}");
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

async fn put(conn: &mut PgConnection, table: &str, value: i64, (ts, full_at): (&str, &str), list: &str) {
    let sql = format!("insert into tollgate.{table} values (0, 'n', 'k', 2, {value}, {ts}, {full_at}, {list})");
    run(conn, &sql).await;
}
