//! What text of several kinds may look like, beyond names and labels. Every rule returns its complaints.

use std::net::IpAddr;

/// A complaint that shows an expression and examples, in Kubernetes' layout.
pub(super) fn expression_complaint(rule: &str, expression: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    let examples = if examples.is_empty() {
        String::new()
    } else {
        format!("e.g. {}", examples.join(" or "))
    };
    format!("{rule} ({examples}regex used for validation is '{expression}')")
}

fn complaint_unless(holds: bool, complaint: &str) -> Vec<String> {
    if holds { Vec::new() } else { vec![complaint.to_owned()] }
}

/// The name of a port.
pub(super) fn port_name(name: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if name.len() > 15 {
        complaints.push("must be no more than 15 characters".to_owned());
    }
    if name.is_empty()
        || !name
            .bytes()
            .all(|byte| matches!(byte, b'-' | b'a'..=b'z' | b'0'..=b'9'))
    {
        complaints.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !name.bytes().any(|byte| byte.is_ascii_lowercase()) {
        complaints.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        complaints.push("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        complaints.push("must not begin or end with a hyphen".to_owned());
    }
    complaints
}

/// A key of a config map or secret.
pub(super) fn config_key(key: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if key.len() > 253 {
        complaints.push("must be no more than 253 characters".to_owned());
    }
    if key.is_empty()
        || !key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
    {
        complaints.push(expression_complaint(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match key {
        "." => complaints.push("must not be '.'".to_owned()),
        ".." => complaints.push("must not be '..'".to_owned()),
        _ if key.starts_with("..") => complaints.push("must not start with '..'".to_owned()),
        _ => {}
    }
    complaints
}

/// The name of an environment variable.
pub(super) fn variable_name(name: &str) -> Vec<String> {
    let holds = !name.is_empty() && name.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'=');
    complaint_unless(
        holds,
        "a valid environment variable name must consist only of printable ASCII characters other than '='",
    )
}

/// The name of an HTTP header.
pub(super) fn header_name(name: &str) -> Vec<String> {
    let holds = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if holds {
        return Vec::new();
    }
    vec![expression_complaint(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// An address.
pub(super) fn address(text: &str) -> Vec<String> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            vec!["must not be an IPv4-mapped IPv6 address".to_owned()]
        }
        Ok(_) => Vec::new(),
        Err(_) if has_leading_zeros(text) => vec!["must not have leading 0s".to_owned()],
        Err(_) => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()],
    }
}

fn has_leading_zeros(text: &str) -> bool {
    let octets: Vec<&str> = text.split('.').collect();
    octets.len() == 4
        && octets.iter().all(|octet| octet.parse::<u8>().is_ok())
        && octets.iter().any(|octet| octet.len() > 1 && octet.starts_with('0'))
}

/// An address range: its base address and prefix length.
pub(super) fn parse_range(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let digits = !bits.is_empty() && bits.len() <= 3 && bits.bytes().all(|byte| byte.is_ascii_digit());
    let bits = bits.parse().ok().filter(|bits| digits && *bits <= most)?;
    Some((address, bits))
}

/// An address range in CIDR form.
pub(super) fn range(text: &str) -> Vec<String> {
    complaint_unless(
        parse_range(text).is_some(),
        "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
    )
}

/// A share of something in percent.
pub(super) fn is_percentage(text: &str) -> bool {
    text.strip_suffix('%')
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A share in percent, as a rule.
pub(super) fn percentage(text: &str) -> Vec<String> {
    if is_percentage(text) {
        return Vec::new();
    }
    vec![expression_complaint(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

/// A path that does not lead out of where it starts.
pub(super) fn descending_path(path: &str) -> Vec<String> {
    if path.starts_with('/') {
        return vec!["must be a relative path".to_owned()];
    }
    backstepless_path(path)
}

/// A path without a step back.
pub(super) fn backstepless_path(path: &str) -> Vec<String> {
    complaint_unless(!path.split('/').any(|step| step == ".."), "must not contain '..'")
}

/// A subdomain whose labels may have underscores, as those of services in DNS do.
pub(super) fn underscored_subdomain(text: &str) -> Vec<String> {
    let is_label = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        let inner = label
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'));
        inner && !label.is_empty() && !label.starts_with(['-', '_']) && !label.ends_with(['-', '_'])
    };
    let mut complaints = Vec::new();
    if text.len() > 253 {
        complaints.push("must be no more than 253 characters".to_owned());
    }
    if !text.split('.').all(is_label) {
        complaints.push(expression_complaint(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must \
             start and end with an alphanumeric character",
            r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    complaints
}
