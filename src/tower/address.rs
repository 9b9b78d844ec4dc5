use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::request::Parts;

use super::key::ExtractKey;
use crate::http::{NoKey, TrustedProxies};
use crate::key::{Key, Slash64};

/// The client's address: the peer's, or what trusted proxies say. The default of a [`Rule`](super::Rule).
///
/// Keys are `ip|192.0.2.1` and, IPv6 cut to its /64, which is what one subscriber gets, `ip|2001:db8:1:2::/64`.
///
/// The peer's address is a [`PeerAddr`] among the request's extensions, or, with the feature `axum`, axum's
/// `ConnectInfo<SocketAddr>`.
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

    /// The address that trusted proxies tell.
    #[must_use]
    pub const fn behind(proxies: TrustedProxies) -> Self {
        Self { proxies, ipv6_prefix: 64 }
    }

    /// Cuts IPv6 addresses to so many bits instead of 64, at most 128: 48 where whole sites count as one client.
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits;
        self
    }

    fn key(&self, address: IpAddr) -> Result<Key, NoKey> {
        let key = match address {
            IpAddr::V6(address) if self.ipv6_prefix != 64 => {
                let bits = self.ipv6_prefix.min(128);
                let cut = 128 - u32::from(bits);
                let network = u128::from(address).checked_shr(cut).and_then(|kept| kept.checked_shl(cut));
                Key::new(("ip", format!("{}/{bits}", Ipv6Addr::from(network.unwrap_or_default()))))
            }
            address => Key::new(("ip", Slash64(address))),
        };
        key.map_err(|error| NoKey(error.to_string().into()))
    }
}

impl ExtractKey for ClientAddress {
    fn extract(&self, request: &Parts) -> Result<Key, NoKey> {
        let PeerAddr(peer) = PeerAddr::of(request).ok_or(NoKey(NO_PEER.into()))?;
        self.key(self.proxies.client(peer.ip(), &request.headers))
    }
}

/// The address that a request came from, for the layer to read: put into the request's extensions by whoever accepts
/// connections.
///
/// axum's `into_make_service_with_connect_info::<SocketAddr>()` does the same, for the feature `axum`; tonic leaves it in an
/// extension of its own, `TcpConnectInfo`, from which a layer before this one can take it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerAddr(pub SocketAddr);

impl PeerAddr {
    fn of(request: &Parts) -> Option<Self> {
        let told = request.extensions.get().copied();
        #[cfg(feature = "axum")]
        let told = told.or_else(|| {
            let axum::extract::ConnectInfo(peer) = request.extensions.get().copied()?;
            Some(Self(peer))
        });
        told
    }
}

const NO_PEER: &str = "the request does not tell its peer's address (serve with \
     `into_make_service_with_connect_info::<SocketAddr>()` and tollgate's feature `axum`, or insert a \
     `tollgate::tower::PeerAddr` into its extensions)";
