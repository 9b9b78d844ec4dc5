//! Keys: texts, and tuples of texts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use tollgate::plan::{Plan, Verb};
use tollgate::{Error, Key, KeyError, Request, ToKey};

use super::{bucket, travelled};
use crate::story::config;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_key_comes_back(text in texts()) {
        if let Ok(key) = Key::new(text.as_str()) {
            prop_assert_eq!(&travelled(&key), &key);
            prop_assert_eq!(Key::try_from(String::from(key.clone())), Ok(key));
        }
    }

    /// A text is a key if PostgreSQL can hold it and it fits.
    #[test]
    fn a_text_is_a_key_unless_it_is_empty_has_nul_or_is_too_long(text in texts(), times in 1_usize..200) {
        let text = text.repeat(times);
        let length = text.len() + text.matches(['|', '\\']).count();
        match Key::new(text.as_str()) {
            Ok(key) => prop_assert_eq!(components(key.as_str()), [text]),
            Err(KeyError::Empty) => prop_assert!(text.is_empty()),
            Err(KeyError::TooLong { bytes }) => prop_assert!(length > Key::MAX_BYTES && bytes > Key::MAX_BYTES),
            Err(KeyError::Nul) => prop_assert!(text.contains('\0') && length <= Key::MAX_BYTES),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    /// Different tuples never share a key, for the components can be read back.
    #[test]
    fn tuples_of_any_texts_are_told_apart(one in [texts(), texts(), texts()], two in [texts(), texts(), texts()]) {
        let key = |[a, b, c]: &[String; 3]| Key::new((a.as_str(), b.as_str(), c.as_str())).ok();
        if let (Some(first), Some(second)) = (key(&one), key(&two)) {
            prop_assert_eq!(first == second, one == two);
            prop_assert_eq!(components(first.as_str()), one.to_vec());
        }
    }
}

#[test]
fn a_plain_identifier_stays_plain() {
    assert_eq!(key("user:42"), "user:42");
    assert_eq!(key(-7), "-7");
    assert_eq!(key(("tenant", 42)), "tenant|42");
    assert_eq!(key("ключ 🔑"), "ключ 🔑");
}

#[test]
fn separators_inside_a_component_are_escaped() {
    assert_ne!(key("a|b"), key(("a", "b")));
    assert_ne!(key(("a|b", "c")), key(("a", "b|c")));
    assert_ne!(key((r"a\", "b")), key(r"a\|b"));
    assert_ne!(key(("", "a")), key(("a", "")));
    assert_eq!(key(((1, 2), 3)), key((1, (2, 3))), "nesting only groups");
    assert_eq!(key(Key::new(("a|b", "c")).unwrap()), key(("a|b", "c")), "a key stays itself");
}

#[test]
fn a_mapped_address_is_no_second_bucket() {
    let mapped: Ipv6Addr = "::ffff:192.0.2.1".parse().unwrap();
    assert_eq!(key(mapped), "192.0.2.1");
    assert_eq!(key(IpAddr::V6(mapped)), key(Ipv4Addr::new(192, 0, 2, 1)));
    assert_eq!(key("2001:DB8:0:0::1".parse::<IpAddr>().unwrap()), "2001:db8::1");
}

#[test]
fn a_key_that_cannot_be_stored_has_a_named_error() {
    assert_eq!(Key::new(""), Err(KeyError::Empty));
    assert_eq!(Key::new("a\0b"), Err(KeyError::Nul));
    assert!(Key::new("x".repeat(512)).is_ok());
    assert_eq!(Key::new("x".repeat(513)), Err(KeyError::TooLong { bytes: 513 }));
    assert!(matches!(Key::new("x".repeat(10_000_000)), Err(KeyError::TooLong { bytes: ..600 })));
    assert!(matches!(Key::new("|".repeat(257)), Err(KeyError::TooLong { .. })), "escapes count");
}

#[test]
fn a_stored_key_comes_back_as_it_was() {
    for key in [Key::GLOBAL, Key::new((r"a\", "b|c", "")).unwrap()] {
        assert_eq!(travelled(&key), key);
    }
}

#[test]
fn a_key_that_is_none_is_an_error_with_a_name() {
    let fault = |request: Request| match Plan::new([Verb::Look(request)]).unwrap_err() {
        Error::Key { limit, source } if limit == "some" => source,
        other => panic!("{other}"),
    };
    assert_eq!(fault(bucket().key("")), KeyError::Empty);
    assert_eq!(fault(bucket().key("a\0")), KeyError::Nul);
    assert_eq!(fault(bucket().key(("a", "\0"))), KeyError::Nul);
    assert!(matches!(fault(bucket().key("x".repeat(10_000))), KeyError::TooLong { bytes: 513..600 }));
    assert_eq!(Plan::new([Verb::Look(bucket().key("ключ 🔑"))]).unwrap().rows()[0].key().as_str(), "ключ 🔑");
}

/// The canonical text of a key.
fn key(value: impl ToKey) -> String {
    Key::new(value).unwrap().into()
}

/// The components of a canonical key, read back.
fn components(canonical: &str) -> Vec<String> {
    let mut components = vec![String::new()];
    let mut characters = canonical.chars();
    while let Some(character) = characters.next() {
        let last = components.last_mut().unwrap();
        match character {
            '\\' => last.push(characters.next().unwrap()),
            '|' => components.push(String::new()),
            plain => last.push(plain),
        }
    }
    components
}

/// Texts of all of Unicode, and short ones of the characters that keys treat specially.
pub(super) fn texts() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), r"[|\\a\x00]{0,4}", r"[|\\a]{0,3}"]
}
