use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate_http::TrustedProxies;

/// The header fields that a client sends and proxies pass on.
///
/// The first line has a letter for each proxy, the outermost first, which says how it adds the address that it sees.
/// The second line is the client's `Host`. The others are lines of `Forwarded` and of `X-Forwarded-For` that the client
/// makes up. No matter what these lines are, the client is the one that the outermost proxy saw.
pub fn forwarded(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let [ways, host] = [lines.next(), lines.next()].map(Option::unwrap_or_default);
    let made_up: Vec<_> = lines.filter(|line| HeaderValue::from_bytes(line).is_ok()).map(<[u8]>::to_vec).collect();
    for client in CLIENTS {
        let peers: Vec<_> = (1..=ways.len().min(MOST)).map(proxy).collect();
        let seen: Vec<_> = [client].into_iter().chain(peers.iter().copied()).collect();
        for (name, field) in [(FORWARDED, Field::Forwarded), (X_FORWARDED_FOR, Field::XForwardedFor)] {
            let mut sent = made_up.clone();
            for (way, seen) in ways.iter().zip(&seen).take(peers.len()) {
                field.append(&mut sent, Way::of(*way), *seen, host);
            }
            let mut headers = HeaderMap::new();
            for line in &sent {
                headers.append(&name, HeaderValue::from_bytes(line).expect("a proxy writes a right line"));
            }
            expect_client(field, &seen, &headers);
        }
    }
}

/// `seen` has the client, and then each proxy.
fn expect_client(field: Field, seen: &[IpAddr], headers: &HeaderMap) {
    let peer = seen[seen.len() - 1];
    let chosen = |proxies: TrustedProxies| if field == Field::Forwarded { proxies.forwarded() } else { proxies };
    for hops in 0..seen.len() {
        let proxies = chosen(TrustedProxies::hops(u8::try_from(hops).expect("they are few")));
        assert_eq!(proxies.client(peer, headers), seen[seen.len() - 1 - hops], "{hops} hops: {headers:?}");
    }
    let named = chosen(TrustedProxies::networks(OURS).expect("these are networks"));
    assert_eq!(named.client(peer, headers), seen[0], "{headers:?}");
    // Where fewer proxies wrote than are counted, the client may make up the rest; nothing else must happen.
    for beyond in [seen.len(), 32, 255] {
        let _ = chosen(TrustedProxies::hops(u8::try_from(beyond).expect("they are few"))).client(peer, headers);
    }
    let stranger = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
    assert_eq!(named.client(stranger, headers), stranger, "nobody believes a peer that is no proxy");
    let single = TrustedProxies::single_address(X_REAL_IP, OURS).expect("these are networks");
    assert_eq!(single.client(peer, headers), peer, "another field is not read");
}

/// How a proxy writes what it sees.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of a letter")]
struct Way {
    /// On a line of its own.
    own_line: bool,
    port: bool,
    /// In one line with all that it got.
    joined: bool,
    /// `host` before `for`, and not behind it.
    host_first: bool,
    no_space: bool,
}

impl Way {
    fn of(letter: u8) -> Self {
        let [own_line, port, joined, host_first, no_space] = [1, 2, 4, 8, 16].map(|bit| letter & bit > 0);
        Self { own_line, port, joined, host_first, no_space }
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Field {
    Forwarded,
    XForwardedFor,
}

impl Field {
    /// Adds what a proxy saw to the lines that it got.
    fn append(self, sent: &mut Vec<Vec<u8>>, way: Way, seen: IpAddr, host: &[u8]) {
        let entry = match self {
            Self::Forwarded => element(way, seen, host),
            Self::XForwardedFor => node(way, seen).into_bytes(),
        };
        if way.joined && !sent.is_empty() {
            *sent = vec![sent.join(&b", "[..])];
        }
        match sent.last_mut() {
            Some(last) if !way.own_line => {
                last.extend_from_slice(if way.no_space { b"," } else { b", " });
                last.extend(entry);
            }
            _ => sent.push(entry),
        }
    }
}

/// An element of `Forwarded`: the host is whatever the client said, in quotes.
fn element(way: Way, seen: IpAddr, host: &[u8]) -> Vec<u8> {
    let client = node(way, seen);
    let quoted = if client.contains(':') { format!("for=\"{client}\"") } else { format!("For={client}") };
    let mut told = b"host=\"".to_vec();
    for byte in host.iter().filter(|byte| !byte.is_ascii_control()) {
        if matches!(byte, b'"' | b'\\') {
            told.push(b'\\');
        }
        told.push(*byte);
    }
    told.push(b'"');
    let pairs = if way.host_first { [told, quoted.into_bytes()] } else { [quoted.into_bytes(), told] };
    pairs.join(&b";"[..])
}

/// An address as a proxy writes it.
fn node(way: Way, seen: IpAddr) -> String {
    match seen {
        IpAddr::V4(address) if way.port => format!("{address}:4711"),
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) if way.port => format!("[{address}]:4711"),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

fn proxy(number: usize) -> IpAddr {
    let last = u8::try_from(number).expect("they are few");
    if number.is_multiple_of(2) {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    } else {
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, last.into()))
    }
}

const CLIENTS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 9))];
const FORWARDED: HeaderName = http::header::FORWARDED;
/// The most proxies.
const MOST: usize = 6;
/// Where the proxies are.
const OURS: [&str; 2] = ["10.0.0.0/24", "2001:db8:ffff::/48"];
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
