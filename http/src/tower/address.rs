use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::request::Parts;
use tollgate::Key;

use super::key::ExtractKey;
use crate::embedded::{embedded, is_local_use};
use crate::{NoKey, TrustedProxies};

/// The client's address, the default key: the peer's, or the one that trusted proxies report.
///
/// Keys are `ip|192.0.2.1` for IPv4. IPv6 addresses are cut to their /64, which is what one subscriber gets:
/// `ip|2001:db8:1:2::/64`. An IPv6 address that stands for an IPv4 address has the key of the IPv4 address: a mapped,
/// compatible or translated address, or one of NAT64 (`64:ff9b::/96`, `64:ff9b:1::/48`), 6to4 or Teredo. If your
/// translator has a prefix of your own, put the IPv4 address into the [`PeerAddr`], from which the peer's address is
/// read.
#[derive(Clone, Debug)]
pub struct ClientAddress {
    proxies: TrustedProxies,
    ipv6_prefix: u8,
}

impl ClientAddress {
    /// The peer's own address.
    #[must_use]
    pub const fn peer() -> Self {
        Self::behind(TrustedProxies::hops(0))
    }

    /// The address that trusted proxies report.
    #[must_use]
    pub const fn behind(proxies: TrustedProxies) -> Self {
        Self { proxies, ipv6_prefix: 64 }
    }

    /// Cuts IPv6 addresses to so many bits instead of 64, at most 128. With 48 bits a whole site counts as one client.
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits;
        self
    }

    fn key(&self, address: IpAddr) -> Result<Key, NoKey> {
        let address = match address.to_canonical() {
            IpAddr::V6(address) => embedded(address).map_or(IpAddr::V6(address), IpAddr::V4),
            ipv4 @ IpAddr::V4(_) => ipv4,
        };
        Ok(match address {
            IpAddr::V4(address) => Key::new(("ip", address))?,
            IpAddr::V6(address) => {
                let bits = if is_local_use(address) { 128 } else { self.ipv6_prefix.min(128) };
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                Key::new(("ip", format!("{}/{bits}", Ipv6Addr::from(u128::from(address) & mask))))?
            }
        })
    }
}

impl ExtractKey for ClientAddress {
    fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
        let PeerAddr(peer) = PeerAddr::of(request).ok_or(NoKey(NO_PEER.into()))?;
        self.key(self.proxies.client(peer.ip(), &request.headers))
    }
}

/// The address that a request came from. The program that accepts connections puts it into the request's extensions.
///
/// With the feature `axum`, axum's `ConnectInfo<SocketAddr>` serves as well. tonic has an extension of its own,
/// `TcpConnectInfo`; a layer before this one can copy the address from there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerAddr(pub SocketAddr);

impl PeerAddr {
    fn of(request: &Parts) -> Option<Self> {
        let peer = request.extensions.get().copied();
        #[cfg(feature = "axum")]
        let peer = peer.or_else(|| {
            let axum::extract::ConnectInfo(peer) = request.extensions.get().copied()?;
            Some(Self(peer))
        });
        peer
    }
}

const NO_PEER: &str = "the request does not tell its peer's address (serve with \
     `into_make_service_with_connect_info::<SocketAddr>()` and the feature `axum` of tollgate-http, or insert a \
     `tollgate_http::tower::PeerAddr` into its extensions)";
