//! The client, as proxies report it.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tollgate_http::{CidrError, TrustedProxies};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The client of a request from 10.0.0.1 with these lines of `X-Forwarded-For`.
fn client<T: AsRef<[u8]>>(proxies: &TrustedProxies, lines: impl IntoIterator<Item = T>) -> String {
    through(proxies, "x-forwarded-for", lines)
}

fn through<T: AsRef<[u8]>>(
    proxies: &TrustedProxies,
    field: &'static str,
    lines: impl IntoIterator<Item = T>,
) -> String {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(field, HeaderValue::from_bytes(line.as_ref()).unwrap());
    }
    proxies.client(ip("10.0.0.1"), &headers).to_string()
}

fn hops(proxies: u8) -> TrustedProxies {
    TrustedProxies::hops(proxies)
}

fn ours() -> TrustedProxies {
    TrustedProxies::networks(["10.0.0.0/8", "2001:db8:ffff::/48", "192.0.2.1"]).unwrap()
}

#[test]
fn the_client_is_the_nth_from_the_right() {
    let line = ["spoof, 6.6.6.6, 203.0.113.9, 10.0.0.2"];
    let counted: Vec<_> = (0..6).map(|proxies| client(&hops(proxies), line)).collect();
    assert_eq!(counted, ["10.0.0.1", "10.0.0.2", "203.0.113.9", "6.6.6.6", "10.0.0.1", "10.0.0.1"]);
    for spoof in ["", "1.2.3.4", "1.2.3.4, ", "\"", "a,b,c,,,", "::1"] {
        assert_eq!(client(&hops(1), [format!("{spoof}, 7.7.7.7")]), "7.7.7.7", "{spoof}");
    }
}

#[test]
fn the_client_is_the_first_from_the_right_that_is_no_proxy() {
    assert_eq!(client(&ours(), ["6.6.6.6, 203.0.113.9, 10.0.0.2, 192.0.2.1"]), "203.0.113.9");
    assert_eq!(client(&ours(), ["6.6.6.6, 2001:db8:1::9, 2001:db8:ffff::1"]), "2001:db8:1::9");
    assert_eq!(client(&ours(), ["6.6.6.6, nonsense, 10.0.0.2"]), "10.0.0.1", "a malformed entry: the peer");
    assert_eq!(client(&ours(), ["nonsense, 203.0.113.9"]), "203.0.113.9", "what lies further left is not looked at");
    assert_eq!(client(&ours(), ["10.7.7.7, 10.0.0.2"]), "10.7.7.7", "all are ours: the one furthest away");
    assert_eq!(client(&ours(), Vec::<String>::new()), "10.0.0.1");
    let mut headers = HeaderMap::new();
    headers.insert("x-forwarded-for", "203.0.113.9".parse().unwrap());
    let stranger = ip("198.51.100.7");
    assert_eq!(ours().client(stranger, &headers), stranger, "nobody believes a peer that is no proxy");
}

#[test]
fn addresses_are_read_as_proxies_write_them_and_as_one() {
    let cases = [
        ("203.0.113.9:4711", "203.0.113.9"),
        ("[2001:db8::9]:4711", "2001:db8::9"),
        ("[2001:db8::9]", "2001:db8::9"),
        ("2001:DB8:0::9", "2001:db8::9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        (" \t203.0.113.9 ", "203.0.113.9"),
    ];
    for (entry, expected) in cases {
        assert_eq!(client(&hops(1), [entry]), expected, "{entry}");
    }
    for entry in
        ["", " ", "unknown", "_hidden", "unix:", "203.0.113.09", "203.0.113", "fe80::1%eth0", "[::1", "1.2.3.4:x"]
    {
        assert_eq!(client(&hops(1), [entry]), "10.0.0.1", "{entry:?} is no address");
    }
    let mapped = TrustedProxies::networks(["::ffff:10.0.0.0/104"]).unwrap();
    assert_eq!(mapped.client(ip("::ffff:10.0.0.1"), &HeaderMap::new()), ip("10.0.0.1"));
    assert_eq!(client(&mapped, ["203.0.113.9, 10.9.9.9"]), "203.0.113.9");
}

#[test]
fn lines_of_one_field_are_one_list() {
    assert_eq!(client(&hops(1), ["6.6.6.6", "203.0.113.9"]), "203.0.113.9");
    assert_eq!(client(&hops(2), ["6.6.6.6", "203.0.113.9"]), "6.6.6.6");
    assert_eq!(client(&ours(), ["6.6.6.6", "203.0.113.9, 10.0.0.3", "10.0.0.2"]), "203.0.113.9");
}

#[test]
fn forwarded_is_read_from_the_right_too() {
    let one = |line: &str| through(&hops(1).forwarded(), "forwarded", [line]);
    assert_eq!(one("for=6.6.6.6, for=203.0.113.9;proto=https"), "203.0.113.9");
    assert_eq!(one(r#"proto=http; For="[2001:db8::9]:4711" ;by=10.0.0.1"#), "2001:db8::9");
    assert_eq!(one(r#"for="203.0.113.9""#), "203.0.113.9");
    assert_eq!(one(r#"for=203.0.113.9;host="a,b;for=6.6.6.6;\",""#), "203.0.113.9", "a host may say anything");
    for malformed in ["for=unknown", "for=_x", "203.0.113.9", "for", "", "for=1.2.3.4;for=5.6.7.8", r#"for="1.2.3.4"#] {
        assert_eq!(one(malformed), "10.0.0.1", "{malformed}");
    }
    assert_eq!(one(r#"for="6.6.6.6, for=203.0.113.9"#), "203.0.113.9", "a quote that a client never closes");
    let two = through(&ours().forwarded(), "forwarded", [r"for=6.6.6.6, for=203.0.113.9", r#"for="10.0.0.2:80""#]);
    assert_eq!(two, "203.0.113.9");
}

#[test]
fn only_the_field_that_the_proxies_write_is_read() {
    assert_eq!(through(&hops(1), "forwarded", ["for=6.6.6.6"]), "10.0.0.1");
    assert_eq!(through(&hops(1).forwarded(), "x-forwarded-for", ["6.6.6.6"]), "10.0.0.1");
}

#[test]
fn a_field_of_one_address_is_read_from_the_named_proxies_alone() {
    let field = HeaderName::from_static("cf-connecting-ip");
    let behind = |networks: &[&str]| TrustedProxies::single_address(field.clone(), networks).unwrap();
    let ours = behind(&["10.0.0.0/8"]);
    let one = |line: &[u8]| through(&ours, "cf-connecting-ip", [line]);
    for (line, expected) in [
        ("203.0.113.9", "203.0.113.9"),
        (" 203.0.113.9:4711 ", "203.0.113.9"),
        ("2001:DB8:0::9", "2001:db8::9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("10.0.0.7", "10.0.0.7"),
    ] {
        assert_eq!(one(line.as_bytes()), expected, "{line}");
    }
    for line in [b"".as_slice(), b"unknown", b"6.6.6.6, 203.0.113.9", b"203.0.113.9,", b"\xff", b"\"203.0.113.9\""] {
        assert_eq!(one(line), "10.0.0.1", "{line:?} is no address");
    }
    assert_eq!(through(&ours, "cf-connecting-ip", ["6.6.6.6", "203.0.113.9"]), "10.0.0.1", "which of the two?");
    assert_eq!(through(&ours, "x-real-ip", ["6.6.6.6"]), "10.0.0.1", "only the field that the proxies write");
    assert_eq!(client(&ours, ["6.6.6.6"]), "10.0.0.1");
    for strangers in [&["192.0.2.1"] as &[_], &[]] {
        assert_eq!(
            through(&behind(strangers), "cf-connecting-ip", ["6.6.6.6"]),
            "10.0.0.1",
            "nobody believes a stranger"
        );
    }
    assert!(TrustedProxies::single_address(field, ["10.0.0.0/33"]).is_err());
}

#[test]
fn bytes_that_are_no_text_spoil_only_their_own_entry() {
    assert_eq!(client(&hops(1), [b"\xff\xfe, 203.0.113.9".as_slice()]), "203.0.113.9");
    assert_eq!(client(&hops(1), [b"6.6.6.6, \xff\xfe".as_slice()]), "10.0.0.1");
    assert_eq!(client(&ours(), [b"6.6.6.6, \xff".as_slice()]), "10.0.0.1");
}

#[test]
fn a_thousand_entries_are_no_more_work_than_a_few() {
    let spoofed = vec!["10.6.6.6"; 1_000].join(", ");
    assert_eq!(client(&hops(1), [format!("{spoofed}, 203.0.113.9")]), "203.0.113.9");
    assert_eq!(client(&ours(), [format!("{spoofed}, 203.0.113.9")]), "203.0.113.9");
    assert_eq!(client(&ours(), [spoofed]), "10.0.0.1", "nobody has a thousand proxies");
    let chain = vec!["10.0.0.2"; 31].join(", ");
    assert_eq!(client(&ours(), [format!("203.0.113.9, {chain}")]), "203.0.113.9", "thirty-two of them are fine");
}

#[test]
fn what_is_no_network_is_named() {
    let error = TrustedProxies::networks(["10.0.0.0/8", "10.0.0.0/33"]).unwrap_err();
    let remedy = r#""10.0.0.0/33" is not a network (write it as 10.0.0.0/8, 2001:db8::/32, or a single address)"#;
    assert_eq!(error.to_string(), remedy);
}

#[test]
fn a_list_of_proxies_that_holds_everybody_is_an_error() {
    let field = HeaderName::from_static("cf-connecting-ip");
    let refused = |networks: &[&str]| {
        let error = TrustedProxies::networks(networks).unwrap_err();
        assert!(matches!(error, CidrError::Everybody), "{networks:?}: {error}");
        assert!(error.to_string().contains("hops"), "the remedy: {error}");
        let single = TrustedProxies::single_address(field.clone(), networks).unwrap_err();
        assert_eq!(single, CidrError::Everybody, "{networks:?}");
    };
    for network in [
        "0.0.0.0/0",
        "1.2.3.4/0",
        "::/0",
        "2001:db8::/0",
        "::ffff:0:0/96",
        "::ffff:1.2.3.4/96",
        "::ffff:0:0/95",
        "::ffff:0:0/80",
        "::/96",
        "::/64",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b::/32",
        "64:ff9b:1::/48",
        "2002::/16",
        "2001::/32",
        "2000::/3",
        "2000::/4",
        "2a00::/12",
        "0.0.0.0/1",
        "128.0.0.0/1",
        "64.0.0.0/2",
        "32.0.0.0/3",
        "::ffff:64.0.0.0/98",
        "64:ff9b::64.0.0.0/98",
        "2002:4000::/18",
    ] {
        refused(&[network]);
        refused(&["10.0.0.0/8", network]);
    }
    refused(&["0.0.0.0/1", "128.0.0.0/1"]);
    refused(&["8000::/1", "::/1"]);
    let eighths: Vec<_> = (0..=255).map(|first| format!("{first}.0.0.0/8")).collect();
    refused(&eighths.iter().map(String::as_str).collect::<Vec<_>>());
    refused(&["1.0.0.0/8", "2.0.0.0/8", "3.0.0.0/8", "4.0.0.0/7", "64:ff9b::6.0.0.0/104"]);
    let sixteenths: Vec<_> = (0x2000..0x2100).map(|first| format!("{first:x}::/16")).collect();
    refused(&sixteenths.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn the_networks_that_operators_have_are_fine() {
    let private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"];
    let public = ["173.245.48.0/20", "104.16.0.0/13", "2400:cb00::/32", "2600:1900::/28", "3.0.0.0/9", "8.8.8.8"];
    let odd = ["240.0.0.0/4", "fc00::/7", "fe80::/10", "::1", "64:ff9b::10.0.0.0/104", "::ffff:10.0.0.0/104"];
    let all = [private.as_slice(), &public, &odd].concat();
    assert!(TrustedProxies::networks(&all).is_ok());
    assert!(TrustedProxies::networks(all.iter().cycle().take(500)).is_ok(), "however often they are listed");
    assert!(TrustedProxies::networks(<[&str; 0]>::default()).is_ok(), "nobody is trusted");
}

/// Anything that a client may send in a header field.
fn spoofs() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec((32_u8..=255).prop_filter("DEL is none", |byte| *byte != 127), 0..60),
        r#"(([0-9]{1,3}\.){3}[0-9]{1,3}|for=|"|;|\\|, ?|\[|\]|::){0,30}"#.prop_map(String::into_bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    /// The proxies add to any header that a client sends, and the client stays the same.
    #[test]
    fn what_a_client_sends_never_changes_who_it_is(
        spoof in spoofs(), own_line in any::<bool>(), inner in 0_usize..3, quoted in any::<bool>(),
    ) {
        let us = vec!["10.0.0.2"; inner];
        let plain = [["203.0.113.9"].as_slice(), &us].concat();
        let quote = |address: &&str| {
            if quoted { format!("for=\"{address}:80\";host=\",;\"") } else { format!("for={address}") }
        };
        let pairs: Vec<_> = plain.iter().map(quote).collect();
        let hops = TrustedProxies::hops(u8::try_from(inner).unwrap() + 1);
        for (field, added, by_hops, by_networks) in [
            ("x-forwarded-for", plain.join(", "), hops.clone(), ours()),
            ("forwarded", pairs.join(", "), hops.forwarded(), ours().forwarded()),
        ] {
            let lines = if own_line {
                vec![spoof.clone(), added.into_bytes()]
            } else {
                vec![[spoof.as_slice(), b", ", added.as_bytes()].concat()]
            };
            for proxies in [by_hops, by_networks] {
                prop_assert_eq!(through(&proxies, field, &lines), "203.0.113.9");
            }
        }
    }
}
