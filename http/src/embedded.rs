use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// IPv6 addresses that stand for IPv4 addresses. A server without IPv4 sees all clients of IPv4 in one such network.
struct Form {
    network: Ipv6Net,
    /// How many bits precede the IPv4 address.
    before: u8,
    /// Whether its bits are inverted.
    is_inverted: bool,
}

/// The IPv4 address of the client that has this IPv6 address; `None` if the address does not stand for an IPv4 address.
#[cfg(feature = "tower")]
pub(crate) fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let form = FORMS.iter().find(|form| form.network.contains(&address))?;
    let found = form.embedded(address);
    let is_host = found.octets()[0] != 0;
    // If the operator uses a shorter prefix, the IPv4 address lies further left, and zeros follow.
    let is_last = !is_local_use(address) || found.octets()[1..] != [0; 3];
    (is_host && is_last).then_some(found)
}

/// Whether an address has the prefix that operators of NAT64 divide as they like (RFC 8215).
#[cfg(feature = "tower")]
pub(crate) fn is_local_use(address: Ipv6Addr) -> bool {
    LOCAL_USE.contains(&address)
}

/// A network, or the IPv4 network whose addresses it stands for.
pub(crate) fn embedded_network(network: IpNet) -> IpNet {
    let IpNet::V6(outer) = network else { return network };
    let whole = || FORMS.iter().any(|form| outer.contains(&form.network)).then_some(EVERY_IPV4);
    let part = || {
        let form = FORMS.iter().find(|form| form.network.contains(&outer))?;
        let length = outer.prefix_len().saturating_sub(form.before).min(32);
        Ipv4Net::new(form.embedded(outer.network()), length).ok()
    };
    whole().or_else(part).map_or(network, IpNet::V4)
}

impl Form {
    const fn new(network: Ipv6Addr, length: u8, before: u8) -> Self {
        Self { network: Ipv6Net::new_assert(network, length), before, is_inverted: false }
    }

    fn embedded(&self, address: Ipv6Addr) -> Ipv4Addr {
        let shifted = u128::from(address) >> (96 - self.before);
        let [.., a, b, c, d] = shifted.to_be_bytes();
        let bits = u32::from_be_bytes([a, b, c, d]);
        Ipv4Addr::from(if self.is_inverted { !bits } else { bits })
    }
}

const EVERY_IPV4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0);
const LOCAL_USE: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48);
/// Answers to an address of these forms go to the IPv4 address inside, so no client can choose it freely.
const FORMS: [Form; 7] = [
    // NAT64 (RFC 6052, RFC 8215), by which a network without IPv4 is reached, too (RFC 7755).
    Form::new(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, 96),
    Form::new(LOCAL_USE.addr(), LOCAL_USE.prefix_len(), 96),
    // IPv4-mapped and IPv4-compatible (RFC 4291), and IPv4-translated (RFC 2765).
    Form::new(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, 96),
    Form::new(Ipv6Addr::UNSPECIFIED, 96, 96),
    Form::new(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96, 96),
    // 6to4 (RFC 3056): a site of each IPv4 address.
    Form::new(Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, 16),
    // Teredo (RFC 4380): the server comes first, and last the client's address behind its NAT.
    Form { is_inverted: true, ..Form::new(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, 96) },
];
