use super::{FIRST, LAST, PAST_THE_END, Table, owner};
use crate::world::World;

#[tokio::test]
async fn overrides_have_an_effect_with_its_numbers_a_span_a_reason_and_an_author() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let unlimited = [("effect", "'unlimited'")];
    let taken = [
        ("name", "repeat('x', 255)"),
        ("key", "''"),
        ("key", "repeat('é', 256)"),
        ("label", "repeat('x', 255)"),
        ("starts_at", FIRST),
        ("ends_at", LAST),
        ("ends_at", "timestamptz 'epoch' + interval '1 microsecond'"),
        ("set_at", FIRST),
        ("set_at", LAST),
        ("reason", "repeat('é', 250)"),
        ("set_by", "repeat('x', 255)"),
    ];
    OVERRIDES.expect_each_taken(&mut conn, &taken).await;
    let last = [("starts_at", LAST), ("ends_at", "'infinity'")];
    OVERRIDES.expect_taken(&mut conn, &[&unlimited, &last]).await;
    for (fault, changes) in [
        ("a_name_has_1_to_255_bytes", &[("name", "''"), ("name", "repeat('é', 128)")][..]),
        ("a_key_has_at_most_512_bytes", &[("key", "repeat('x', 513)")]),
        ("a_label_has_at_most_255_bytes", &[("label", "repeat('é', 128)")]),
        ("a_reason_has_1_to_500_bytes", &[("reason", "''"), ("reason", "repeat('x', 501)")]),
        ("who_has_1_to_255_bytes", &[("set_by", "''"), ("set_by", "repeat('é', 128)")]),
        ("it_was_set_at_an_instant", &[("set_at", "'-infinity'"), ("set_at", "'infinity'"), ("set_at", PAST_THE_END)]),
        (
            "it_ends_after_it_starts",
            &[
                ("starts_at", "'-infinity'"),
                ("starts_at", PAST_THE_END),
                ("ends_at", "'epoch'"),
                ("ends_at", PAST_THE_END),
            ],
        ),
    ] {
        OVERRIDES.expect_each_refused(&mut conn, fault, changes).await;
    }
    let required = ["name", "key", "label", "effect", "starts_at", "ends_at", "reason", "set_by", "set_at"];
    OVERRIDES.expect_required(&mut conn, &required).await;
    OVERRIDES.expect_key(&mut conn, "overrides_pkey", &[("name", "'m'"), ("key", "'l'"), ("label", "'x'")]).await;
}

#[tokio::test]
async fn each_effect_has_its_numbers_and_no_others() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let fault = "numbers_have_a_kind_a_rate_a_period_and_a_capacity";
    for (column, value) in NUMBERS.iter().skip(1) {
        for effect in ["'deny'", "'unlimited'"] {
            OVERRIDES.expect_refused(&mut conn, &[(fault, &[("effect", effect), (column, value)])]).await;
        }
        // Without a kind they are those of no limit either, and PostgreSQL names the first constraint of the alphabet.
        let of_null = if *column == "kind" { "numbers_are_those_of_a_limit" } else { fault };
        OVERRIDES.expect_refused(&mut conn, &[(of_null, &with(&NUMBERS, &[(column, "null")]))]).await;
        if *column != "rate" {
            OVERRIDES.expect_refused(&mut conn, &[(fault, &with(&SLOWED, &[(column, value)]))]).await;
        }
    }
    OVERRIDES.expect_refused(&mut conn, &[("an_effect_is_known", &[("effect", "'allow'")])]).await;
}

#[tokio::test]
async fn a_slow_down_has_a_share_of_the_rate_and_an_end() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let fault = "slowed_has_a_share_of_the_rate_and_an_end";
    for rate in ["1", "1000000"] {
        OVERRIDES.expect_taken(&mut conn, &[&with(&SLOWED, &[("rate", rate)])]).await;
    }
    for change in [("rate", "0"), ("rate", "1000001"), ("ends_at", "'infinity'")] {
        OVERRIDES.expect_refused(&mut conn, &[(fault, &with(&SLOWED, &[change]))]).await;
    }
    // Without a share it has as many nulls as its neighbour without a kind.
    let odd = [("rate", "null"), ("kind", "'token_bucket'")];
    OVERRIDES.expect_refused(&mut conn, &[(fault, &with(&SLOWED, &odd))]).await;
}

#[tokio::test]
async fn other_numbers_are_those_of_a_limit() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let fault = "numbers_are_those_of_a_limit";
    let (most, size) = ("9223372036854775807", ("capacity", "10"));
    for change in [
        &[("kind", "'concurrency'"), ("rate", "1000000000"), ("capacity", "1000000000")][..],
        &[("kind", "'wallet'"), ("rate", "0"), ("period", "0"), ("capacity", "0"), ("max_reserved", "1")],
        &[("rate", "1"), ("period", "1"), ("capacity", "1")],
        &[("period", "31536000000000000")],
        &[("capacity", "0"), ("max_reserved", "1")],
        &[("capacity", "9223372036854775806"), ("max_reserved", "1")],
        &[("capacity", most), ("max_reserved", most)],
    ] {
        OVERRIDES.expect_taken(&mut conn, &[&with(&NUMBERS, change)]).await;
    }
    for change in [
        &[("kind", "'leaky_bucket'")][..],
        &[("max_reserved", "-1")],
        &[("rate", "0")],
        &[("period", "0")],
        &[("period", "31536000000000001")],
        &[("capacity", "-1"), ("max_reserved", "5")],
        &[("capacity", "0")],
        &[("capacity", most), ("max_reserved", "1")],
        &[("kind", "'sliding_window'"), ("capacity", "11")],
        &[("kind", "'concurrency'"), ("capacity", "11")],
        &[("kind", "'sliding_window'"), size, ("max_reserved", "1")],
        &[("kind", "'concurrency'"), size, ("max_reserved", "1")],
        &[("kind", "'concurrency'"), ("rate", "1000000001"), ("capacity", "1000000001")],
        &[("kind", "'wallet'"), ("rate", "1"), ("period", "0"), ("capacity", "0")],
        &[("kind", "'wallet'"), ("rate", "0"), ("period", "1"), ("capacity", "0")],
        &[("kind", "'wallet'"), ("rate", "0"), ("period", "0"), ("capacity", "1")],
        &[("kind", "'wallet'"), ("rate", "0"), ("period", "0"), ("capacity", "0"), ("max_reserved", "-1")],
    ] {
        OVERRIDES.expect_refused(&mut conn, &[(fault, &with(&NUMBERS, change))]).await;
    }
}

fn with<'c>(changes: &[(&'c str, &'c str)], more: &[(&'c str, &'c str)]) -> Vec<(&'c str, &'c str)> {
    [changes, more].concat()
}

const OVERRIDES: Table = Table {
    name: "overrides",
    row: &[
        ("name", "'n'"),
        ("key", "'k'"),
        ("effect", "'deny'"),
        ("starts_at", "'epoch'"),
        ("ends_at", "'infinity'"),
        ("reason", "'r'"),
        ("set_by", "'s'"),
        ("set_at", "'epoch'"),
    ],
};
const NUMBERS: [(&str, &str); 6] = [
    ("effect", "'numbers'"),
    ("kind", "'token_bucket'"),
    ("rate", "10"),
    ("period", "60"),
    ("capacity", "20"),
    ("max_reserved", "0"),
];
const SLOWED: [(&str, &str); 3] = [("effect", "'slowed'"), ("rate", "500000"), ("ends_at", "'2030-01-01'")];
