use super::{Table, owner};
use crate::teller::run;
use crate::world::World;

#[tokio::test]
async fn definitions_are_those_of_a_limit() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let sliding = [("kind", "'sliding_window'"), ("capacity", "10")];
    LIMITS
        .expect_taken(
            &mut conn,
            &[
                &[("name", "repeat('x', 255)")],
                &[("storage", "'ephemeral'")],
                &[("capacity", "0")],
                &[("rate", "1"), ("period", "1")],
                &[("period", "31536000000000000")],
                &[("max_reserved", "5"), ("storage", "'durable'")],
                &[("capacity", "9223372036854775806"), ("max_reserved", "1")],
                &[("capacity", "9223372036854775807"), ("max_reserved", "9223372036854775807")],
                &[("shards", "64"), ("rate", "64")],
                &[("shards", "2"), ("kind", "'fixed_window'")],
                &[("kind", "'fixed_window'"), ("start", "0")],
                &[("kind", "'fixed_window'"), ("start", "59")],
                &[sliding[0], sliding[1], ("resolution", "1")],
                &[sliding[0], sliding[1], ("resolution", "63")],
                &[("kind", "'concurrency'"), ("rate", "1000000000"), ("capacity", "1000000000")],
                &[WALLET[0], WALLET[1], WALLET[2], WALLET[3], ("max_reserved", "5")],
            ],
        )
        .await;
    let required = ["name", "kind", "rate", "period", "capacity", "max_reserved", "shards", "storage"];
    LIMITS.expect_required(&mut conn, &required).await;
    LIMITS.expect_key(&mut conn, "limits_pkey", &[("name", "'m'")]).await;
}

#[tokio::test]
async fn what_is_no_limit_is_no_definition() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let names = [("name", "''"), ("name", "repeat('é', 128)")];
    LIMITS.expect_each_refused(&mut conn, "a_name_has_1_to_255_bytes", &names).await;
    LIMITS
        .expect_refused(
            &mut conn,
            &[
                ("a_kind_is_known", &[("kind", "'leaky_bucket'")]),
                ("a_meter_has_no_overdraft", &[METER[0], METER[1], METER[2], METER[3], ("max_reserved", "5")]),
                ("a_storage_is_ephemeral_or_durable", &[("storage", "'memory'")]),
                ("numbers_are_in_range", &[("capacity", "-1")]),
                ("numbers_are_in_range", &[("max_reserved", "-1")]),
                ("numbers_are_in_range", &[("shards", "0")]),
                ("numbers_are_in_range", &[("shards", "65"), ("rate", "65")]),
                (
                    "numbers_are_in_range",
                    &[("kind", "'concurrency'"), ("rate", "1000000001"), ("capacity", "1000000001")],
                ),
                ("a_rate_and_a_period_are_positive", &[("rate", "0")]),
                ("a_rate_and_a_period_are_positive", &[("rate", "2"), ("shards", "3")]),
                ("a_rate_and_a_period_are_positive", &[("period", "0")]),
                ("a_rate_and_a_period_are_positive", &[("period", "31536000000000001")]),
                ("a_start_is_of_a_fixed_window_or_of_months", &[("start", "0")]),
                ("a_start_is_of_a_fixed_window_or_of_months", &[("kind", "'fixed_window'"), ("start", "-1")]),
                ("a_start_is_of_a_fixed_window_or_of_months", &[("kind", "'fixed_window'"), ("start", "60")]),
                (
                    "a_start_is_of_a_fixed_window_or_of_months",
                    &[("kind", "'monthly'"), ("period", "0"), ("start", "2678400000000")],
                ),
                (
                    "a_start_is_of_a_fixed_window_or_of_months",
                    &[("kind", "'billing'"), ("period", "0"), ("start", "0")],
                ),
                ("a_rate_and_a_period_are_positive", &[("kind", "'monthly'")]),
                ("a_rate_and_a_period_are_positive", &[("kind", "'billing'"), ("period", "0"), ("rate", "0")]),
                (
                    "nobody_reserves_by_periods_that_are_named",
                    &[("kind", "'billing'"), ("period", "0"), ("max_reserved", "1")],
                ),
                ("a_resolution_is_of_a_sliding_window", &[("resolution", "1")]),
                ("shards_are_of_token_buckets_and_windows", &[("shards", "2"), ("kind", "'stepped_bucket'")]),
                ("reservations_are_durable", &[("max_reserved", "1"), ("storage", "'ephemeral'")]),
                ("a_row_can_hold_what_is_used", &[("capacity", "9223372036854775807"), ("max_reserved", "1")]),
            ],
        )
        .await;
    for resolution in ["0", "64"] {
        let sliding = [("kind", "'sliding_window'"), ("capacity", "10"), ("resolution", resolution)];
        LIMITS.expect_refused(&mut conn, &[("a_resolution_is_of_a_sliding_window", &sliding)]).await;
    }
    for kind in ["'sliding_window'", "'concurrency'"] {
        let counts = "what_counts_has_no_capacity_and_no_reservations";
        for change in [("capacity", "11"), ("max_reserved", "1")] {
            let counted = [("kind", kind), ("capacity", "10"), change];
            LIMITS.expect_refused(&mut conn, &[(counts, &counted)]).await;
        }
    }
    for change in [("rate", "1"), ("period", "1"), ("capacity", "1"), ("shards", "2"), ("storage", "'ephemeral'")] {
        let wallet: Vec<_> = WALLET.into_iter().chain([change]).collect();
        LIMITS.expect_refused(&mut conn, &[("a_wallet_has_no_size_and_is_durable", &wallet)]).await;
    }
}

/// How tokens come back follows from the kind, and decides which limits the functions leave to the library.
#[tokio::test]
async fn a_definition_says_how_tokens_come_back() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for (flow, changes) in [
        ("c", &[][..]),
        ("f", &[("kind", "'stepped_bucket'")]),
        ("g", &[("kind", "'fixed_window'")]),
        ("w", &WALLET),
        ("w", &METER),
        ("-", &[("kind", "'sliding_window'"), ("capacity", "10")]),
        ("-", &[("kind", "'concurrency'"), ("capacity", "10")]),
        ("-", &[("shards", "2")]),
        ("-", &[("kind", "'fixed_window'"), ("shards", "2")]),
    ] {
        let sql = format!("{} returning concat_ws(' ', flow, max_reserved, storage, shards)", LIMITS.insert(changes));
        let shards = if changes.contains(&("shards", "2")) { 2 } else { 1 };
        let told: String = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut conn).await.unwrap();
        assert_eq!(told, format!("{flow} 0 durable {shards}"), "{changes:?}");
        run(&mut conn, "delete from tollgate.limits").await;
    }
}

const LIMITS: Table = Table {
    name: "limits",
    row: &[("name", "'n'"), ("kind", "'token_bucket'"), ("rate", "10"), ("period", "60"), ("capacity", "20")],
};
const METER: [(&str, &str); 4] = [("kind", "'meter'"), ("rate", "0"), ("period", "0"), ("capacity", "0")];
const WALLET: [(&str, &str); 4] = [("kind", "'wallet'"), ("rate", "0"), ("period", "0"), ("capacity", "0")];
