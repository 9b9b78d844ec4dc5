use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HeaderMap, HeaderName};

/// Which header field the proxies write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ForwardedField {
    /// `Forwarded: for=…` (RFC 7239).
    Forwarded,
    /// `X-Forwarded-For: …`
    XForwardedFor,
}

impl ForwardedField {
    /// The addresses in it, the last one first; `None` for an entry that is none. Nothing is read before it is asked for.
    pub(super) fn last_first(self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let name = match self {
            Self::Forwarded => FORWARDED,
            Self::XForwardedFor => X_FORWARDED_FOR,
        };
        let lines = headers.get_all(name).iter().rev();
        lines.flat_map(|line| RightSplit::new(line.as_bytes(), b',')).map(move |entry| match self {
            Self::Forwarded => element(entry),
            Self::XForwardedFor => node(entry),
        })
    }
}

/// An element of `Forwarded`: pairs, of which exactly one is named `for`.
fn element(element: &[u8]) -> Option<IpAddr> {
    let mut clients = RightSplit::new(element, b';').filter_map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        name.trim_ascii().eq_ignore_ascii_case(b"for").then_some(&value[1..])
    });
    let (client, another) = (clients.next()?.trim_ascii(), clients.next());
    let unquoted = client.strip_prefix(b"\"").map_or(Some(client), |rest| rest.strip_suffix(b"\""))?;
    another.is_none().then(|| node(unquoted))?
}

/// An address, with or without a port, an IPv6 one with or without brackets.
fn node(entry: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(entry).ok()?.trim_ascii();
    let bare = || text.parse().ok();
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address: Option<IpAddr> = bare().or_else(with_port).or_else(in_brackets);
    address.map(|address| address.to_canonical())
}

/// The parts between separators that are in no quoted string, the last one first.
///
/// From the left, a quote that a client opens and never closes would swallow what the proxies add after it. From the right,
/// it is met last.
struct RightSplit<'t> {
    rest: Option<&'t [u8]>,
    separator: u8,
}

impl<'t> RightSplit<'t> {
    fn new(text: &'t [u8], separator: u8) -> Self {
        Self { rest: Some(text), separator }
    }
}

impl<'t> Iterator for RightSplit<'t> {
    type Item = &'t [u8];

    fn next(&mut self) -> Option<&'t [u8]> {
        let text = self.rest.take()?;
        let mut quoted = false;
        for (place, byte) in text.iter().enumerate().rev() {
            if *byte == b'"' && !is_escaped(&text[..place]) {
                quoted = !quoted;
            } else if *byte == self.separator && !quoted {
                self.rest = Some(&text[..place]);
                return Some(&text[place + 1..]);
            }
        }
        Some(text)
    }
}

/// Whether what follows is escaped: by an odd number of backslashes.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
