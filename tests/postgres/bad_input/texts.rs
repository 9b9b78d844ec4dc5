//! Texts of every kind, as keys and as names of limits.

use proptest::prelude::{any, prop};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tollgate::{Call, Error, Limit, LimitKind, LimitSpec, MINUTE, Storage, Tokens};

use super::LIMITER;
use crate::teller::{Teller, both, left, tokens};
use crate::world::{World, second};

/// Texts that have been trouble somewhere.
fn texts() -> Vec<String> {
    let picked = [
        "é",
        "e\u{301}",
        "Å",
        "A\u{30a}",
        "ﬁ",
        "fi",
        "İ",
        "i\u{307}",
        "ß",
        "ss",
        "שלום",
        "\u{202e}abc",
        "\u{200f}",
        "\u{200b}",
        "\u{feff}",
        "🚦",
        "👩\u{200d}👩\u{200d}👧",
        "\u{10ffff}",
        "\u{ffff}",
        "\u{fffd}",
        "\u{1}",
        "\u{7f}",
        "\u{85}",
        "\n",
        "\r\n",
        "\t",
        " ",
        "  ",
        "a ",
        " a",
        "a",
        "A",
        "'",
        "''",
        "\"",
        "\\",
        "\\\\",
        "|",
        "||",
        "\\|",
        "a|b",
        "a\\|b",
        "%",
        "_",
        "$1",
        "{}",
        "{a,b}",
        "NULL",
        "null",
        "\\N",
        "--",
        "/*",
        ";",
        "'; drop table tollgate.ephemeral; --",
        "0",
        "00",
        "-0",
        "1e3",
        "∅",
        "ＡＢＣ",
        "ΑΒΓ",
        "АВС",
    ];
    let mut runner = TestRunner::deterministic();
    let any = prop::collection::vec(any::<char>().prop_filter("NUL", |c| *c != '\0'), 1..40);
    let random = (0..200).map(|_| any.new_tree(&mut runner).unwrap().current().into_iter().collect());
    let mut texts: Vec<String> = picked.map(str::to_owned).into_iter().chain(random).collect();
    texts.extend([("ü".repeat(127)), ("東".repeat(85)), ("🚦".repeat(63))]);
    texts.retain(|text| text.len() <= 255);
    texts.sort();
    texts.dedup();
    texts
}

#[tokio::test]
async fn any_text_is_a_key_of_its_own() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("unicode", 1_000, MINUTE)) {
        let limiter = LIMITER.at(second(0.0));
        let texts = texts();
        // One by one, each with a cost of its own, and all in one statement.
        for (cost, text) in (1_u32..).zip(&texts) {
            assert_eq!(
                left(teller.consume(0.0, limit.key(text).cost(cost)).await),
                Tokens::new(1_000 - cost),
                "{text:?}"
            );
        }
        let grant =
            limiter.consume(&mut teller.tx, texts.iter().map(|text| limit.key(text)).collect::<Call>()).await.unwrap();
        let grant = grant.granted().unwrap();
        assert_eq!(grant.receipt.charges.len(), texts.len());
        let stored = teller.rows().await.into_iter().filter(|row| row.storage == limit.spec().storage);
        let mut stored: Vec<(String, Tokens)> = stored.map(|row| (row.key, row.value)).collect();
        let mut expected: Vec<(String, Tokens)> = (1_u32..)
            .zip(&grant.receipt.charges)
            .map(|(cost, charge)| (charge.key.as_str().to_owned(), used(cost + 1)))
            .collect();
        stored.sort();
        expected.sort();
        assert_eq!(stored, expected);
        for (cost, text) in (1_u32..).zip(&texts) {
            assert_eq!(teller.balance(0.0, limit.key(text)).await.remaining, Tokens::new(999 - cost), "{text:?}");
        }
    }
}

#[tokio::test]
async fn the_longest_keys_are_stored_whole() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("long", 10, MINUTE)) {
        for (unit, count) in [("x", 512), ("ü", 256), ("🚦", 128), ("|", 256), ("\\", 256)] {
            let key = unit.repeat(count);
            left(teller.consume(0.0, limit.key(&key)).await);
            assert_eq!(left(teller.consume(0.0, limit.key(&key)).await), tokens(8));
            let error = LIMITER.consume(&mut teller.tx, limit.key(key + "x")).await.unwrap_err();
            assert!(matches!(error, Error::Key { .. }), "{error:?}");
        }
        let stored = teller.rows().await;
        assert!(stored.iter().all(|row| row.key.len() == 512 && row.value == tokens(-2)), "{stored:?}");
    }
}

#[tokio::test]
async fn keys_of_several_components_are_not_the_key_of_one() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("several", 10, MINUTE)) {
        let asked = [
            limit.key(("a", "b")),
            limit.key("a|b"),
            limit.key("a\\|b"),
            limit.key(("a\\", "b")),
            limit.key(("a", "b", "")),
        ];
        for request in asked {
            assert_eq!(left(teller.consume(0.0, request).await), tokens(9));
        }
    }
}

#[tokio::test]
async fn any_text_is_a_limit_of_its_own() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for storage in [Storage::Ephemeral, Storage::Durable] {
        let named = |name: &String| {
            let mut spec = LimitSpec::new(name, LimitKind::TokenBucket, tokens(1_000), MINUTE);
            spec.storage = storage;
            Limit::try_from(spec).unwrap()
        };
        let texts = texts();
        for (cost, text) in (1_u32..).zip(&texts) {
            left(teller.consume(0.0, named(text).key("k").cost(cost)).await);
        }
        let stored: Vec<_> = teller.rows().await.into_iter().filter(|row| row.storage == storage).collect();
        let expected: Vec<_> = (1_u32..).zip(&texts).map(|(cost, text)| (text, used(cost))).collect();
        assert_eq!(stored.iter().map(|row| (&row.name, row.value)).collect::<Vec<_>>(), expected, "sorted alike, too");
    }
}

/// The value of a row of which so many tokens are used.
fn used(whole: u32) -> Tokens {
    Tokens::from_micros(-1_000_000 * i64::from(whole))
}
