use super::{FIRST, LAST, PAST_THE_END, Table, owner};
use crate::world::World;

/// A letter of two bytes counts as two.
#[tokio::test]
async fn buckets_have_a_short_name_a_short_key_a_shard_and_instants() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for (table, fault, part, key) in [
        (EPHEMERAL, "ephemeral_row", "ephemeral_part", "ephemeral_pkey"),
        (DURABLE, "durable_row", "durable_part", "durable_pkey"),
    ] {
        let taken = [
            ("name", "repeat('x', 255)"),
            ("key", "''"),
            ("key", "repeat('é', 256)"),
            ("shard", "32767"),
            ("value", "-9223372036854775808"),
            ("ts", FIRST),
            ("ts", LAST),
            ("full_at", FIRST),
            ("full_at", LAST),
            ("list", "null"),
        ];
        table.expect_each_taken(&mut conn, &taken).await;
        let refused = [
            ("name", "repeat('é', 128)"),
            ("key", "repeat('x', 513)"),
            ("shard", "-1"),
            ("ts", "'-infinity'"),
            ("ts", "'infinity'"),
            ("ts", PAST_THE_END),
            ("full_at", "'-infinity'"),
            ("full_at", "'infinity'"),
            ("full_at", PAST_THE_END),
        ];
        table.expect_each_refused(&mut conn, fault, &refused).await;
        table.expect_each_refused(&mut conn, part, &[("part", "1"), ("part", "-1")]).await;
        table.expect_required(&mut conn, &["part", "name", "key", "shard", "value", "ts", "full_at"]).await;
        table.expect_key(&mut conn, key, &[("name", "'m'"), ("key", "'l'"), ("shard", "1")]).await;
    }
}

#[tokio::test]
async fn calls_have_a_short_name_a_short_key_an_id_and_instants() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let taken = [
        ("name", "repeat('x', 255)"),
        ("key", "repeat('é', 256)"),
        ("id", "repeat('x', 255)"),
        ("charged_at", FIRST),
        ("charged_at", LAST),
        ("kept_until", FIRST),
        ("kept_until", LAST),
        ("lapses_at", FIRST),
        ("lapses_at", LAST),
        ("answer", "'{}'"),
    ];
    CALLS.expect_each_taken(&mut conn, &taken).await;
    let refused = [
        ("name", "repeat('é', 128)"),
        ("key", "repeat('x', 513)"),
        ("id", "''"),
        ("id", "repeat('é', 128)"),
        ("charged_at", "'-infinity'"),
        ("charged_at", PAST_THE_END),
        ("kept_until", "'-infinity'"),
        ("kept_until", PAST_THE_END),
        ("lapses_at", "'-infinity'"),
        ("lapses_at", PAST_THE_END),
    ];
    CALLS.expect_each_refused(&mut conn, "calls_row", &refused).await;
    CALLS.expect_each_refused(&mut conn, "calls_part", &[("part", "1"), ("part", "-1")]).await;
    let required = ["part", "name", "key", "id", "asked", "charges", "charged_at", "reported", "kept_until", "used"];
    CALLS.expect_required(&mut conn, &required).await;
    CALLS.expect_key(&mut conn, "calls_pkey", &[("name", "'m'"), ("key", "'l'"), ("id", "'j'")]).await;
    let usual = "select reported = 0 and not used and lapses_at is null and answer is null from tollgate.calls";
    assert!(sqlx::query_scalar::<_, bool>(usual).fetch_one(&mut conn).await.unwrap());
}

/// Only what a crash may take is not logged. A table is empty at first, and has a megabyte that vacuum leaves.
#[tokio::test]
async fn tables_are_laid_out_as_they_should_be() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let sql = "select relname::text, relpersistence = 'u', reloptions, pg_relation_size(oid) / 8192,
                      array(select attname::text from pg_attribute
                             where attrelid = c.oid and attnum > 0 and attstorage = 'p' and attlen = -1)
                 from pg_class c where oid in ('tollgate.ephemeral'::regclass, 'tollgate.durable'::regclass,
                                               'tollgate.calls'::regclass) order by 1";
    let found: Vec<Layout> = sqlx::query_as(sql).fetch_all(&mut conn).await.unwrap();
    let layout = |name: &str, is_unlogged, fill| {
        let options = [format!("fillfactor={fill}"), "vacuum_truncate=off".to_owned()];
        (name.to_owned(), is_unlogged, options.to_vec(), 128, Vec::new())
    };
    assert_eq!(found, [layout("calls", false, 80), layout("durable", false, 90), layout("ephemeral", true, 90)]);
    let rows = "select name from tollgate.calls union all select name from tollgate.balances";
    assert!(sqlx::raw_sql(rows).fetch_all(&mut conn).await.unwrap().is_empty());
    let lapses =
        "select pg_get_expr(indpred, indrelid) from pg_index where indexrelid = 'tollgate.calls_lapse'::regclass";
    let lapses: String = sqlx::query_scalar(lapses).fetch_one(&mut conn).await.unwrap();
    assert_eq!(lapses, "(lapses_at IS NOT NULL)");
}

/// The name of a table, whether it is unlogged, its options, its pages, and its columns that are stored plainly.
type Layout = (String, bool, Vec<String>, i64, Vec<String>);

const EPHEMERAL: Table = Table { name: "ephemeral", row: BUCKET };
const DURABLE: Table = Table { name: "durable", row: BUCKET };
const CALLS: Table = Table {
    name: "calls",
    row: &[
        ("part", "0"),
        ("name", "'n'"),
        ("key", "'k'"),
        ("id", "'i'"),
        ("asked", "1"),
        ("charges", "'[]'"),
        ("charged_at", "'epoch'"),
        ("kept_until", "'epoch'"),
    ],
};
const BUCKET: &[(&str, &str)] = &[
    ("part", "0"),
    ("name", "'n'"),
    ("key", "'k'"),
    ("shard", "0"),
    ("value", "-1"),
    ("ts", "'epoch'"),
    ("full_at", "'epoch'"),
    ("list", "'{1}'"),
];
