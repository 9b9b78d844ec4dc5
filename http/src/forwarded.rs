use std::iter;
use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HeaderMap, HeaderName};

/// Which header field the proxies write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ForwardedField {
    /// `Forwarded: for=…` (RFC 7239).
    Forwarded,
    /// `X-Forwarded-For: …`
    XForwardedFor,
}

impl ForwardedField {
    /// The addresses in the field, the last one first; `None` for an entry that is not an address. Reads lazily.
    pub(crate) fn last_first(self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let name = match self {
            Self::Forwarded => FORWARDED,
            Self::XForwardedFor => X_FORWARDED_FOR,
        };
        let lines = headers.get_all(name).iter().rev();
        lines.flat_map(|line| right_split(line.as_bytes(), b',')).map(move |entry| match self {
            Self::Forwarded => element(entry),
            Self::XForwardedFor => node(entry),
        })
    }
}

/// The value of a field that occurs once. If it occurred twice, another program might read the other value.
pub(crate) fn single_value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value.as_bytes().trim_ascii())
}

/// The address of an element of `Forwarded`, which must have exactly one pair named `for`.
fn element(element: &[u8]) -> Option<IpAddr> {
    let mut clients = right_split(element, b';').filter_map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        name.trim_ascii().eq_ignore_ascii_case(b"for").then_some(&value[1..])
    });
    let (client, another) = (clients.next()?.trim_ascii(), clients.next());
    let unquoted = client.strip_prefix(b"\"").map_or(Some(client), |rest| rest.strip_suffix(b"\""))?;
    another.is_none().then(|| node(unquoted))?
}

/// An address with or without a port. An IPv6 address can have brackets.
pub(crate) fn node(entry: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(entry).ok()?.trim_ascii();
    let bare = || text.parse().ok();
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address: Option<IpAddr> = bare().or_else(with_port).or_else(in_brackets);
    address.map(|address| address.to_canonical())
}

/// The parts between separators outside of quoted strings, the last one first.
///
/// If the text were read from the left, a quote that a client never closes would swallow the parts that the proxies add
/// after it. From the right, that quote comes last.
fn right_split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    iter::from_fn(move || {
        let text = rest.take()?;
        let mut quoted = false;
        let place = (0..text.len()).rev().find(|&place| {
            let is_quote = text[place] == b'"' && !is_escaped(&text[..place]);
            quoted ^= is_quote;
            text[place] == separator && !quoted
        });
        rest = place.map(|place| &text[..place]);
        Some(place.map_or(text, |place| &text[place + 1..]))
    })
}

/// Whether an odd number of backslashes escapes the next byte.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
