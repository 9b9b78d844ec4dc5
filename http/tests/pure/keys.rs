//! The bucket that a request is charged to.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use http::header::HeaderName;
use http::request::Parts;
use http::{HeaderValue, Request};
use tollgate::Key;
use tollgate_http::tower::{ClientAddress, Credential, CredentialOf, ExtractKey, PathSegment, PeerAddr};
use tollgate_http::{NoKey, TrustedProxies};

fn parts(path: &str) -> Parts {
    Request::builder().uri(path).body(()).unwrap().into_parts().0
}

/// A request from an address.
fn from(peer: &str) -> Parts {
    let mut request = parts("/");
    request.extensions.insert(PeerAddr(SocketAddr::new(peer.parse().unwrap(), 4711)));
    request
}

/// A request with these header fields, from 192.0.2.1.
fn with(fields: &[(&'static str, &[u8])]) -> Parts {
    let mut request = from("192.0.2.1");
    for (name, value) in fields {
        request.headers.append(*name, HeaderValue::from_bytes(value).unwrap());
    }
    request
}

fn key(extract: &impl ExtractKey, request: &Parts) -> String {
    extract.extract(request).unwrap().into()
}

fn bearer() -> CredentialOf {
    Credential::bearer().known(|token| [b"good".as_slice(), b"good-token", b"good-1", b"good-2"].contains(&token))
}

#[test]
fn the_default_is_the_address_and_ipv6_counts_by_64() {
    let peer = ClientAddress::peer();
    assert_eq!(key(&peer, &from("192.0.2.1")), "ip|192.0.2.1");
    assert_eq!(key(&peer, &from("::ffff:192.0.2.1")), "ip|192.0.2.1");
    assert_eq!(key(&peer, &from("2001:db8:1:2:a::1")), "ip|2001:db8:1:2::/64");
    assert_eq!(key(&peer, &from("2001:db8:1:2:b::2")), "ip|2001:db8:1:2::/64");
    let address = from("2001:db8:1:2:a::1");
    let cut = [0, 1, 48, 127, 128, 200].map(|bits| key(&peer.clone().ipv6_prefix(bits), &address));
    let expected =
        ["::/0", "::/1", "2001:db8:1::/48", "2001:db8:1:2:a::/127", "2001:db8:1:2:a::1/128", "2001:db8:1:2:a::1/128"];
    assert_eq!(cut, expected.map(|cut| format!("ip|{cut}")));
}

/// To a server that has IPv6 alone, each client with IPv4 seems to be in one /64.
#[test]
fn an_ipv4_address_inside_of_an_ipv6_address_is_the_key() {
    let peer = ClientAddress::peer();
    for address in [
        "::ffff:192.0.2.1",
        "64:ff9b::192.0.2.1",
        "64:ff9b:1::192.0.2.1",
        "64:ff9b:1:7:8::192.0.2.1",
        "::192.0.2.1",
        "::ffff:0:192.0.2.1",
        "2002:c000:201::",
        "2002:c000:201:7:a::9",
        // The client's address and port are written inverted, after those of the server that it has asked.
        "2001:0:cb00:7109:0:63bf:3fff:fdfe",
        "2001:0:cb00:710a:8000:1234:3fff:fdfe",
    ] {
        assert_eq!(key(&peer, &from(address)), "ip|192.0.2.1", "{address}");
        assert_eq!(key(&peer.clone().ipv6_prefix(48), &from(address)), "ip|192.0.2.1", "{address}");
        let behind = ClientAddress::behind(TrustedProxies::hops(1));
        assert_eq!(key(&behind, &with(&[("x-forwarded-for", address.as_bytes())])), "ip|192.0.2.1", "{address}");
    }
    for (address, expected) in [
        ("::", "::/64"),
        ("::1", "::/64"),
        ("::1:0", "::/64"),
        ("64:ff9b:0:1::192.0.2.1", "64:ff9b:0:1::/64"),
        ("64:ff9b:2::192.0.2.1", "64:ff9b:2::/64"),
        ("64:ff9a::192.0.2.1", "64:ff9a::/64"),
        ("2001:db8::192.0.2.1", "2001:db8::/64"),
        ("2001:1::192.0.2.1", "2001:1::/64"),
        ("2003:c000:201::", "2003:c000:201::/64"),
        // Here an IPv4 address lies in other bits, by a prefix that only the operator knows.
        ("64:ff9b:1:7:c0:2:100:0", "64:ff9b:1:7:c0:2:100:0/128"),
        ("64:ff9b:1:c000:2:100::", "64:ff9b:1:c000:2:100::/128"),
    ] {
        assert_eq!(key(&peer, &from(address)), format!("ip|{expected}"), "{address}");
    }
}

#[test]
fn behind_proxies_the_address_is_theirs_to_tell() {
    let behind = ClientAddress::behind(TrustedProxies::hops(1));
    assert_eq!(key(&behind, &with(&[("x-forwarded-for", b"6.6.6.6, 203.0.113.9")])), "ip|203.0.113.9");
    assert_eq!(key(&behind, &with(&[("x-forwarded-for", b"2001:db8:1:2::9")])), "ip|2001:db8:1:2::/64");
    assert_eq!(key(&behind, &with(&[("x-real-ip", b"6.6.6.6")])), "ip|192.0.2.1");
    let field = HeaderName::from_static("fly-client-ip");
    let behind = ClientAddress::behind(TrustedProxies::single_address(field, ["192.0.2.1"]).unwrap());
    assert_eq!(key(&behind, &with(&[("fly-client-ip", b"2001:db8:1:2::9")])), "ip|2001:db8:1:2::/64");
    assert_eq!(key(&behind.ipv6_prefix(48), &with(&[("fly-client-ip", b"2001:db8:1:2::9")])), "ip|2001:db8:1::/48");
}

#[test]
fn without_an_address_there_is_an_error_with_a_remedy_rather_than_one_bucket_for_all() {
    let NoKey(remedy) = ClientAddress::peer().extract(&parts("/")).unwrap_err();
    for word in ["into_make_service_with_connect_info", "PeerAddr"] {
        assert!(remedy.contains(word), "{remedy}");
    }
}

#[test]
fn a_secret_becomes_a_digest() {
    let token = key(&bearer(), &with(&[("authorization", b"Bearer good-token")]));
    // printf good-token | sha256sum
    assert_eq!(token, "bearer|461caa80a52104436e34006189430d13aba103b2c4344d446ea3d9324b0de1c0");
    for spelled in [b"bearer good-token".as_slice(), b"BEARER   good-token  "] {
        assert_eq!(key(&bearer(), &with(&[("authorization", spelled)])), token);
    }
    let header = Credential::header(HeaderName::from_static("x-api-key")).checked();
    let from_header = key(&header, &with(&[("x-api-key", b"good-token")]));
    assert_eq!(
        from_header,
        format!("header|x-api-key|{}", &token["bearer|".len()..]),
        "the same secret, and another bucket"
    );
    assert_ne!(key(&header, &with(&[("x-api-key", b"\xff\xfe")])), key(&header, &with(&[("x-api-key", b"\xff\xff")])));
}

#[test]
fn a_made_up_credential_is_no_fresh_bucket() {
    let by_token = bearer().or(ClientAddress::peer());
    let made_up: [&[(&'static str, &[u8])]; 8] = [
        &[],
        &[("authorization", b"Bearer bad")],
        &[("authorization", b"Bearer worse")],
        &[("authorization", b"Bearer good-3")],
        &[("authorization", b"Bearer ")],
        &[("authorization", b"Basic good")],
        &[("authorization", b"Bearer good-1"), ("authorization", b"Bearer good-2")],
        &[("authorization", b"\xff\xff\xff\xff\xff\xff\xff\xff")],
    ];
    for fields in made_up {
        assert_eq!(key(&by_token, &with(fields)), "ip|192.0.2.1", "{fields:?}");
    }
}

#[test]
fn a_path_segment_is_one_bucket_however_it_is_spelled() {
    let org = PathSegment(1);
    for path in ["/orgs/acme", "/orgs/acme/users?x=1", "/orgs/%61cme", "/orgs/%61%63%6D%65/"] {
        assert_eq!(key(&org, &parts(path)), "path|acme", "{path}");
    }
    assert_eq!(key(&org, &parts("/orgs/a%7Cb")), r"path|a\|b");
    for path in ["/", "/orgs", "/orgs/", "/orgs//users"] {
        assert!(org.extract(&parts(path)).is_err(), "{path}");
    }
    assert!(PathSegment(usize::MAX).extract(&parts("/orgs")).is_err());
    assert_ne!(key(&org, &parts("/orgs/%ff")), key(&org, &parts("/orgs/%fe")), "no text, and still two");
}

#[test]
fn what_is_too_long_is_digested_and_never_cut() {
    let long = |last: &str| format!("/orgs/{}{last}", "x".repeat(5_000));
    let [one, other] = ["a", "b"].map(|last| key(&PathSegment(1), &parts(&long(last))));
    assert_ne!(one, other);
    assert_eq!(one.len(), "sha256|".len() + 64);
    assert_eq!(key(&PathSegment(1), &parts("/orgs/a%00b")).len(), one.len(), "NUL is none that PostgreSQL holds");
    let closure = |request: &Parts| Some(request.uri.path().to_owned());
    assert_ne!(key(&closure, &parts(&long("a"))), key(&closure, &parts(&long("b"))));
    let both = (PathSegment(1), PathSegment(1), PathSegment(1), PathSegment(1));
    let [one, other] = ["a", "b"].map(|last| {
        let path = format!("/orgs/{}{last}", "x".repeat(400));
        key(&both, &parts(&path))
    });
    assert_ne!(one, other);
}

#[test]
fn a_key_of_ones_own_is_the_one_that_handlers_use() {
    #[derive(Clone)]
    struct User(u64, &'static str);

    let mut request = parts("/");
    let by_user = |request: &Parts| request.extensions.get().map(|User(id, tenant)| (*tenant, *id));
    assert!(by_user.extract(&request).is_err());
    request.extensions.insert(User(42, "acme"));
    assert_eq!(by_user.extract(&request).unwrap(), Key::new(("acme", 42)).unwrap());
    let closure = |request: &Parts| request.extensions.get::<User>().map(|user| user.0);
    assert_eq!(key(&closure, &request), "42");
    let empty = |_: &Parts| Some("");
    assert!(empty.extract(&request).is_err(), "an empty key would be the global row");
}

#[test]
fn a_composite_has_all_of_its_parts_or_none() {
    let both = (ClientAddress::peer(), PathSegment(0));
    let mut request = parts("/a%7Cb");
    assert!(both.extract(&request).is_err());
    request.extensions.insert(PeerAddr("192.0.2.1:1".parse().unwrap()));
    assert_eq!(key(&both, &request), r"ip|192.0.2.1|path|a\|b");
}

#[test]
fn no_kind_of_key_is_mistaken_for_another() {
    let mut request = with(&[("authorization", b"Bearer good"), ("x-api-key", b"good")]);
    request.uri = "/good".parse().unwrap();
    let keys = [
        key(&ClientAddress::peer(), &request),
        key(&bearer(), &request),
        key(&Credential::header(HeaderName::from_static("x-api-key")).checked(), &request),
        key(&PathSegment(0), &request),
        key(&|_: &Parts| Some("good"), &request),
        key(&|_: &Parts| Some("ip|192.0.2.1"), &request),
    ];
    assert_eq!(BTreeSet::from(keys).len(), 6);
}
