use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::embedded::embedded_network;
use crate::forwarded::{ForwardedField, node, single_value};

/// The proxies that are trusted to report the client's address.
///
/// Anybody can send `X-Forwarded-For`. A proxy **appends** its entry, so the field is read from the right, and only as
/// far as the proxies are trusted. Entries that the client wrote itself stand further left and are never read. If a
/// needed entry is missing or is not an address, the peer's own address counts.
///
/// Only one header field is read: `X-Forwarded-For`, or `Forwarded` after [`forwarded`](Self::forwarded), or the field
/// of [`single_address`](Self::single_address). A proxy that writes one of them passes the client's other ones on
/// unchanged. A request that reaches the service around the proxies can claim any address, so block that way.
///
/// # Example
///
/// ```
/// use tollgate_http::TrustedProxies;
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert("x-forwarded-for", "6.6.6.6, 203.0.113.9".parse()?);
/// let proxies = TrustedProxies::networks(["10.0.0.0/8"])?;
/// assert_eq!(proxies.client("10.0.0.1".parse()?, &headers).to_string(), "203.0.113.9");
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
    /// The proxies write a field with one address.
    SingleAddress(HeaderName, Vec<IpNet>),
}

impl TrustedProxies {
    /// Trusts a chain of so many proxies, each of which appends an entry. The client is the entry at this position from
    /// the right; with 0 it is the peer.
    #[must_use]
    pub const fn hops(proxies: u8) -> Self {
        Self { trusted: Trusted::Hops(proxies), field: ForwardedField::XForwardedFor }
    }

    /// Trusts proxies with addresses in these networks (`10.0.0.0/8`, `2001:db8::/32`, or a single address). The client
    /// is the first address from the right that is outside of them; a peer outside is the client itself.
    ///
    /// If all addresses are inside, the client is the last one that was read. If more than 32 are inside, the peer
    /// counts. List the proxies only: every machine inside can claim any client.
    ///
    /// # Errors
    ///
    /// [`CidrError::NoNetwork`] if a text is not a network. [`CidrError::Everybody`] for networks that hold strangers:
    /// together more than four `/8` of public IPv4 addresses, or more than a `/16` of IPv6. An IPv6 network that stands
    /// for IPv4 addresses, such as `64:ff9b::/96`, counts as those. Private networks do not count. A list that passes
    /// may still be too wide.
    pub fn networks<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Self, CidrError> {
        Ok(Self { trusted: Trusted::Networks(parsed(networks)?), field: ForwardedField::XForwardedFor })
    }

    /// Trusts proxies with addresses in these networks, which name the client in a field with one address:
    /// `CF-Connecting-IP`, `True-Client-IP`, `X-Real-IP`, `Fly-Client-IP`.
    ///
    /// The field is read only if the peer is inside. It counts only if it occurs once and is an address; else the peer
    /// counts. The proxies must overwrite what a client sends in this field. Behind two proxies the peer is the inner
    /// one: list it, and block every way to it around the outer one.
    ///
    /// # Errors
    ///
    /// Those of [`networks`](Self::networks).
    ///
    /// # Example
    ///
    /// ```
    /// use http::HeaderName;
    /// use tollgate_http::TrustedProxies;
    ///
    /// let field = HeaderName::from_static("cf-connecting-ip");
    /// let proxies = TrustedProxies::single_address(field, ["173.245.48.0/20", "2400:cb00::/32"])?;
    /// let mut headers = http::HeaderMap::new();
    /// headers.insert("cf-connecting-ip", "203.0.113.9".parse()?);
    /// assert_eq!(proxies.client("173.245.48.1".parse()?, &headers).to_string(), "203.0.113.9");
    /// assert_eq!(proxies.client("198.51.100.7".parse()?, &headers).to_string(), "198.51.100.7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn single_address<T: AsRef<str>>(
        field: HeaderName,
        networks: impl IntoIterator<Item = T>,
    ) -> Result<Self, CidrError> {
        let trusted = Trusted::SingleAddress(field, parsed(networks)?);
        Ok(Self { trusted, field: ForwardedField::XForwardedFor })
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`. Changes nothing for a field of a
    /// [single address](Self::single_address).
    #[must_use]
    pub const fn forwarded(mut self) -> Self {
        self.field = ForwardedField::Forwarded;
        self
    }

    /// The client of a request that came from `peer`. The work is bounded, however many entries there are.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let (peer, mut entries) = (peer.to_canonical(), self.field.last_first(headers));
        match &self.trusted {
            Trusted::Hops(0) => peer,
            Trusted::Hops(proxies) => entries.nth(usize::from(*proxies) - 1).flatten().unwrap_or(peer),
            Trusted::Networks(networks) => first_outside(networks, peer, entries).unwrap_or(peer),
            Trusted::SingleAddress(field, networks) if is_inside(networks, peer) => {
                single_value(headers, field).and_then(node).unwrap_or(peer)
            }
            Trusted::SingleAddress(..) => peer,
        }
    }
}

fn first_outside(
    networks: &[IpNet],
    peer: IpAddr,
    mut entries: impl Iterator<Item = Option<IpAddr>>,
) -> Option<IpAddr> {
    let mut last = peer;
    for _ in 0..=MAX_PROXIES {
        if !is_inside(networks, last) {
            return Some(last);
        }
        let Some(entry) = entries.next() else { return Some(last) };
        last = entry?;
    }
    None
}

fn is_inside(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

fn parsed<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Vec<IpNet>, CidrError> {
    let networks = networks.into_iter().map(|text| network(text.as_ref())).collect::<Result<Vec<_>, _>>()?;
    if is_everybody(&networks) { Err(CidrError::Everybody) } else { Ok(networks) }
}

fn network(text: &str) -> Result<IpNet, CidrError> {
    let single = || text.parse().ok().map(|address: IpAddr| IpNet::from(address.to_canonical()));
    let network: Option<IpNet> = text.parse().ok().or_else(single);
    network.map(unmapped).ok_or_else(|| CidrError::NoNetwork { text: text.to_owned() })
}

/// Whether so many addresses are in these networks that strangers have some of them.
fn is_everybody(networks: &[IpNet]) -> bool {
    let is_public = |network: &IpNet| !PRIVATE.iter().any(|private| private.contains(network));
    let public = networks.iter().copied().map(embedded_network).filter(is_public).collect();
    let (mut ipv4, mut ipv6) = (0_u64, 0_u128);
    for network in IpNet::aggregate(&public) {
        match network {
            IpNet::V4(network) => ipv4 += 1 << (32 - network.prefix_len()),
            // This counts pairs of addresses, because the number of all addresses would not fit.
            IpNet::V6(network) => ipv6 += 1 << (127 - network.prefix_len().min(127)),
        }
    }
    ipv4 > MOST_IPV4 || ipv6 > MOST_IPV6
}

/// Turns an IPv4 network in IPv6 form into its IPv4 form, because addresses are compared in that form.
fn unmapped(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else { return network };
    let plain = mapped.prefix_len().checked_sub(96).zip(mapped.addr().to_ipv4_mapped());
    plain.and_then(|(length, address)| Ipv4Net::new(address, length).ok()).map_or(network, IpNet::V4)
}

/// Why a list of proxies is not valid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CidrError {
    /// The text is not a network of addresses.
    #[error("{text:?} is not a network (write it as 10.0.0.0/8, 2001:db8::/32, or a single address)")]
    #[non_exhaustive]
    NoNetwork {
        /// The text.
        text: String,
    },
    /// The networks hold so many addresses that strangers have some of them, and could claim any client.
    #[error(
        "the trusted networks hold strangers, who could claim any client (list the networks of the proxies alone, or \
         count the proxies by `TrustedProxies::hops`)"
    )]
    Everybody,
}

/// The bound of the work for a client whose own address is trusted. No real chain is so long.
const MAX_PROXIES: usize = 32;
/// Four networks of length 8. All content networks that publish their addresses have fewer addresses together.
const MOST_IPV4: u64 = 4 << 24;
/// One network of length 16. Whole continents have one of length 12.
const MOST_IPV6: u128 = 1 << (127 - 16);
/// No stranger on the internet has one of these.
const PRIVATE: [IpNet; 9] = [
    private_ipv4([10, 0, 0, 0], 8),
    private_ipv4([100, 64, 0, 0], 10),
    private_ipv4([127, 0, 0, 0], 8),
    private_ipv4([169, 254, 0, 0], 16),
    private_ipv4([172, 16, 0, 0], 12),
    private_ipv4([192, 168, 0, 0], 16),
    private_ipv4([240, 0, 0, 0], 4),
    private_ipv6(0xfc00, 7),
    private_ipv6(0xfe80, 10),
];

const fn private_ipv4([a, b, c, d]: [u8; 4], length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length))
}

const fn private_ipv6(first: u16, length: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0), length))
}
