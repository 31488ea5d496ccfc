//! Where services lead: endpoints and endpoint slices.

use std::{collections::HashSet, net::IpAddr};

use moorline_machinery::names;
use serde_json::Value;

use super::{
    at::{At, Errors, dig},
    text,
};

const ENDPOINTS_MAX: usize = 1000;
const PORTS_MAX: usize = 20_000;
const ADDRESSES_MAX: usize = 100;

/// Endpoints.
pub(super) fn endpoints(object: &At<'_>, errors: &mut Errors) {
    object.at("subsets").each(|subset| {
        let (ready, other) = (subset.at("addresses"), subset.at("notReadyAddresses"));
        if ready.items().is_empty() && other.items().is_empty() {
            subset.missing(errors, "must specify `addresses` or `notReadyAddresses`");
        }
        for list in [&ready, &other] {
            list.each(|address| self::address(address, errors));
        }
        let ports = subset.at("ports");
        let several = ports.len() > 1;
        ports.each(|port| {
            let name = port.at("name");
            if several && name.text().is_empty() {
                name.missing(errors, "");
            }
            name.follow_if_set(errors, names::dns_label);
            port.at("port").port(errors);
            port.at("protocol").require_one_of(errors, &["SCTP", "TCP", "UDP"]);
            port.at("appProtocol").follow_if_set(errors, names::qualified_name);
        });
    });
}

fn address(address: &At<'_>, errors: &mut Errors) {
    let ip = address.at("ip");
    ip.follow(errors, text::address);
    address.at("hostname").follow_if_set(errors, names::dns_label);
    address.at("nodeName").follow_if_set(errors, names::dns_subdomain);
    routable(&ip, errors);
}

/// An address that other hosts can reach.
pub(super) fn routable(at: &At<'_>, errors: &mut Errors) {
    let Ok(address) = at.text().parse::<IpAddr>() else {
        at.invalid_as(errors, at.text(), "must be a valid IP address");
        return;
    };
    let link_local_unicast = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let link_local_multicast = match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    };
    let mut refuse = |is: bool, why: &str| {
        if is {
            at.invalid(errors, why);
        }
    };
    refuse(address.is_unspecified(), &format!("may not be unspecified ({address})"));
    refuse(
        address.is_loopback(),
        "may not be in the loopback range (127.0.0.0/8, ::1/128)",
    );
    refuse(
        link_local_unicast,
        "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
    );
    refuse(
        link_local_multicast,
        "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
    );
}

/// An endpoint slice.
pub(super) fn slice(object: &At<'_>, errors: &mut Errors) {
    let kind = object.at("addressType");
    if kind.text().is_empty() {
        kind.missing(errors, "");
    } else {
        kind.one_of(errors, &["FQDN", "IPv4", "IPv6"]);
    }
    slice_ports(&object.at("ports"), errors);
    let endpoints = object.at("endpoints");
    if endpoints.len() > ENDPOINTS_MAX {
        errors.push(moorline_machinery::field::FieldError::too_many(
            &endpoints.path,
            endpoints.len(),
            ENDPOINTS_MAX,
        ));
        return;
    }
    endpoints.each(|endpoint| self::endpoint(endpoint, kind.text(), errors));
}

fn endpoint(endpoint: &At<'_>, kind: &str, errors: &mut Errors) {
    let addresses = endpoint.at("addresses");
    if addresses.items().is_empty() {
        addresses.missing(errors, "must contain at least 1 address");
    } else if addresses.len() > ADDRESSES_MAX {
        errors.push(moorline_machinery::field::FieldError::too_many(
            &addresses.path,
            addresses.len(),
            ADDRESSES_MAX,
        ));
    }
    addresses.each(|address| match kind {
        "IPv4" | "IPv6" => {
            let complaints = text::address(address.text());
            let is_v6 = address.text().contains(':');
            if complaints.is_empty() && (kind == "IPv6") != is_v6 {
                let article = format!("must be an {kind} address");
                addresses.with(address.value).invalid(errors, article);
            } else if complaints.is_empty() {
                routable(address, errors);
            }
            for complaint in complaints {
                address.invalid(errors, complaint);
            }
        }
        "FQDN" => address.follow(errors, names::dns_subdomain),
        _ => {}
    });
    endpoint.at("nodeName").follow_if_set(errors, names::dns_subdomain);
    endpoint.at("hostname").follow_if_set(errors, names::dns_label);
    let hints = endpoint.at("hints");
    for list in ["forZones", "forNodes"] {
        let mut seen = HashSet::new();
        hints.at(list).each(|hint| {
            let name = hint.at("name");
            if !seen.insert(name.text().to_owned()) {
                name.duplicate(errors, name.text());
            }
            if list == "forZones" {
                name.follow(errors, names::label_value);
            } else {
                name.follow(errors, names::dns_subdomain);
            }
        });
    }
}

fn slice_ports(ports: &At<'_>, errors: &mut Errors) {
    if ports.len() > PORTS_MAX {
        errors.push(moorline_machinery::field::FieldError::too_many(
            &ports.path,
            ports.len(),
            PORTS_MAX,
        ));
        return;
    }
    let mut seen = HashSet::new();
    ports.each(|port| {
        let name = port.at("name");
        name.follow_if_set(errors, names::dns_label);
        if !seen.insert(name.text().to_owned()) {
            name.duplicate(errors, name.text());
        }
        let protocol = port.at("protocol");
        protocol.require_one_of(errors, &["SCTP", "TCP", "UDP"]);
        port.at("appProtocol").follow_if_set(errors, names::qualified_name);
    });
}

/// A change of an endpoint slice: its addresses stay of one kind.
pub(super) fn slice_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    new.at("addressType").unchanged(errors, dig(old, &["addressType"]));
}
