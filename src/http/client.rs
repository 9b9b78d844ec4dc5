use std::net::IpAddr;

use http::HeaderMap;
use ipnet::{IpNet, Ipv4Net};

use super::forwarded::ForwardedField;

/// Which proxies to believe when they say on whose behalf they ask.
///
/// Anybody can send `X-Forwarded-For`. What a proxy of your own **adds** to it stands at the right end, so it is read from
/// there, and no further than the proxies that are trusted. What a client writes itself stands further left and is never
/// looked at. Where an entry that is needed is missing or no address, the peer's own address counts.
///
/// Only one of the two header fields is read, `X-Forwarded-For` unless [`forwarded`](Self::forwarded) says otherwise: a proxy
/// that writes the one lets a client's other one through. Requests that reach the service around the proxies can claim
/// anything, so close that way.
///
/// # Example
///
/// ```
/// use tollgate::http::TrustedProxies;
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert("x-forwarded-for", "6.6.6.6, 203.0.113.9".parse()?);
/// let (proxy, stranger) = ("10.0.0.1".parse()?, "198.51.100.7".parse()?);
///
/// assert_eq!(TrustedProxies::hops(1).client(proxy, &headers).to_string(), "203.0.113.9");
/// let ours = TrustedProxies::networks(["10.0.0.0/8"])?;
/// assert_eq!(ours.client(proxy, &headers).to_string(), "203.0.113.9");
/// assert_eq!(ours.client(stranger, &headers), stranger);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    trusted: Trusted,
    field: ForwardedField,
}

#[derive(Clone, Debug)]
enum Trusted {
    Hops(u8),
    Networks(Vec<IpNet>),
}

impl TrustedProxies {
    /// So many proxies, one behind the other, each of which adds an entry: the client is the entry so far from the right. With
    /// 0 it is the peer.
    #[must_use]
    pub const fn hops(proxies: u8) -> Self {
        Self { trusted: Trusted::Hops(proxies), field: ForwardedField::XForwardedFor }
    }

    /// Proxies with addresses in these networks (`10.0.0.0/8`, `2001:db8::/32`, or a single address): the client is the first
    /// address from the right that is in none of them. A peer outside of them is the client itself.
    ///
    /// If all are inside, the client is the last one reached, a machine of yours. List proxies, not the networks of
    /// machines that may ask on nobody's behalf: whoever is inside is believed. Beyond 32 proxies the peer counts.
    ///
    /// # Errors
    ///
    /// [`CidrError`] for a text that is no network.
    pub fn networks<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Self, CidrError> {
        let networks = networks.into_iter().map(|text| network(text.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { trusted: Trusted::Networks(networks), field: ForwardedField::XForwardedFor })
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`.
    #[must_use]
    pub const fn forwarded(mut self) -> Self {
        self.field = ForwardedField::Forwarded;
        self
    }

    /// The client of a request that came from `peer`. Bounded work, however many entries there are.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let (peer, mut entries) = (peer.to_canonical(), self.field.last_first(headers));
        match &self.trusted {
            Trusted::Hops(0) => peer,
            Trusted::Hops(proxies) => entries.nth(usize::from(*proxies) - 1).flatten().unwrap_or(peer),
            Trusted::Networks(networks) => first_outside(networks, peer, entries).unwrap_or(peer),
        }
    }
}

fn first_outside(
    networks: &[IpNet],
    peer: IpAddr,
    mut entries: impl Iterator<Item = Option<IpAddr>>,
) -> Option<IpAddr> {
    let is_outside = |address: IpAddr| !networks.iter().any(|network| network.contains(&address));
    let mut last = peer;
    for _ in 0..=MAX_PROXIES {
        if is_outside(last) {
            return Some(last);
        }
        let Some(entry) = entries.next() else { return Some(last) };
        last = entry?;
    }
    None
}

fn network(text: &str) -> Result<IpNet, CidrError> {
    let single = || text.parse().ok().map(|address: IpAddr| IpNet::from(address.to_canonical()));
    let network: Option<IpNet> = text.parse().ok().or_else(single);
    network.map(unmapped).ok_or_else(|| CidrError { text: text.to_owned() })
}

/// IPv4 networks that are written as IPv6 ones: addresses are compared in their plain form.
fn unmapped(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else { return network };
    let plain = mapped.prefix_len().checked_sub(96).zip(mapped.addr().to_ipv4_mapped());
    plain.and_then(|(length, address)| Ipv4Net::new(address, length).ok()).map_or(network, IpNet::V4)
}

/// A text that is no network of addresses.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{text:?} is no network (write it as 10.0.0.0/8, 2001:db8::/32, or a single address)")]
pub struct CidrError {
    text: String,
}

/// Nobody has as many, and a client could make us read all that it sent if its own address were trusted.
const MAX_PROXIES: usize = 32;
