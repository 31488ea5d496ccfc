//! What names, label keys and label values may look like, and what Kubernetes says when they do not.
//!
//! Every check returns the complaints, none when the text is right. They are hand-written matchers rather than regular
//! expressions because they run for every label of every write; the expressions appear only in the complaints.

const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS_SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1035_LABEL: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED_NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

const DNS_LABEL_MAX: usize = 63;
const DNS_SUBDOMAIN_MAX: usize = 253;
const QUALIFIED_NAME_MAX: usize = 63;

/// How the names of a resource are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NameRule {
    /// Dot-separated labels, at most 253 characters. Most kinds.
    DnsSubdomain,
    /// One label, at most 63 characters. Namespaces, for one.
    DnsLabel,
    /// One label that starts with a letter. Services.
    Dns1035Label,
    /// Anything that fits into one segment of a URL path. RBAC kinds.
    PathSegment,
}

/// Whether a name is whole or to be completed by a random suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamePart {
    /// `metadata.name`.
    Whole,
    /// `metadata.generateName`: it may end in a dash.
    Prefix,
}

impl NameRule {
    /// What is wrong with a name under this rule.
    pub fn check(self, name: &str, part: NamePart) -> Vec<String> {
        if self == NameRule::PathSegment {
            return path_segment(name, part);
        }
        let masked;
        let name = match part {
            // A suffix follows, so a trailing dash will not be trailing.
            NamePart::Prefix if name.len() > 1 && name.ends_with('-') => {
                let mut kept = &name[..name.len() - 1];
                kept = &kept[..kept.char_indices().next_back().map_or(0, |(start, _)| start)];
                masked = format!("{kept}a");
                &masked
            }
            _ => name,
        };
        match self {
            NameRule::DnsSubdomain => dns_subdomain(name),
            NameRule::DnsLabel => dns_label(name),
            NameRule::Dns1035Label => dns1035_label(name),
            NameRule::PathSegment => unreachable!("handled above"),
        }
    }
}

/// A DNS-1123 subdomain: `example.com`.
pub fn dns_subdomain(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > DNS_SUBDOMAIN_MAX {
        complaints.push(format!("must be no more than {DNS_SUBDOMAIN_MAX} characters"));
    }
    if !is_dns_subdomain(value) {
        complaints.push(subdomain_complaint());
    }
    complaints
}

/// A DNS-1123 label: `my-name`.
pub fn dns_label(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > DNS_LABEL_MAX {
        complaints.push(format!("must be no more than {DNS_LABEL_MAX} characters"));
    }
    if !is_dns_label(value) {
        if is_dns_subdomain(value) {
            complaints.push("must not contain dots".to_owned());
        } else {
            complaints.push(expression_complaint(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                 and end with an alphanumeric character",
                DNS_LABEL,
                &["my-name", "123-abc"],
            ));
        }
    }
    complaints
}

/// A DNS-1035 label: a DNS-1123 label that starts with a letter.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > DNS_LABEL_MAX {
        complaints.push(format!("must be no more than {DNS_LABEL_MAX} characters"));
    }
    if !is_dns_label(value) || !value.starts_with(|first: char| first.is_ascii_lowercase()) {
        complaints.push(expression_complaint(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character",
            DNS1035_LABEL,
            &["my-name", "abc-123"],
        ));
    }
    complaints
}

/// A label key, an annotation key or a finalizer: a name with an optional subdomain before a slash.
pub fn qualified_name(value: &str) -> Vec<String> {
    const RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                        alphanumeric character";
    const EXAMPLES: &[&str] = &["MyName", "my.name", "123-abc"];
    let mut complaints = Vec::new();
    let name = match value.split_once('/') {
        None => value,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                expression_complaint(RULE, QUALIFIED_NAME, EXAMPLES)
            )];
        }
        Some(("", name)) => {
            complaints.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            if prefix.len() > DNS_SUBDOMAIN_MAX {
                complaints.push(format!("prefix part must be no more than {DNS_SUBDOMAIN_MAX} bytes"));
            }
            if !is_dns_subdomain(prefix) {
                complaints.push(format!("prefix part {}", subdomain_complaint()));
            }
            name
        }
    };
    if name.is_empty() {
        complaints.push("name part must be non-empty".to_owned());
    } else if name.len() > QUALIFIED_NAME_MAX {
        complaints.push(format!("name part must be no more than {QUALIFIED_NAME_MAX} bytes"));
    }
    if !is_qualified(name) {
        complaints.push(format!(
            "name part {}",
            expression_complaint(RULE, QUALIFIED_NAME, EXAMPLES)
        ));
    }
    complaints
}

/// A label value: as the name part of a key, or empty.
pub fn label_value(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > QUALIFIED_NAME_MAX {
        complaints.push(format!("must be no more than {QUALIFIED_NAME_MAX} bytes"));
    }
    if !value.is_empty() && !is_qualified(value) {
        complaints.push(expression_complaint(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character",
            LABEL_VALUE,
            &["MyValue", "my_value", "12345"],
        ));
    }
    complaints
}

/// A segment of a URL path.
pub fn path_segment(name: &str, part: NamePart) -> Vec<String> {
    if part == NamePart::Whole && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    ['/', '%']
        .iter()
        .filter(|illegal| name.contains(**illegal))
        .map(|illegal| format!("may not contain '{illegal}'"))
        .collect()
}

/// Whether text is a DNS-1123 label, its length aside.
pub fn is_dns_label(value: &str) -> bool {
    framed(
        value,
        |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(),
        |byte| byte == b'-',
    )
}

/// Whether text is a DNS-1123 subdomain, its length aside.
pub fn is_dns_subdomain(value: &str) -> bool {
    value.split('.').all(is_dns_label)
}

fn is_qualified(value: &str) -> bool {
    framed(
        value,
        |byte| byte.is_ascii_alphanumeric(),
        |byte| matches!(byte, b'-' | b'_' | b'.'),
    )
}

/// Whether text starts and ends with an outer character and has outer or inner ones between.
fn framed(value: &str, outer: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match value.as_bytes() {
        [] => false,
        [only] => outer(*only),
        [first, middle @ .., last] => {
            outer(*first) && outer(*last) && middle.iter().all(|byte| outer(*byte) || inner(*byte))
        }
    }
}

fn subdomain_complaint() -> String {
    expression_complaint(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
         and end with an alphanumeric character",
        DNS_SUBDOMAIN,
        &["example.com"],
    )
}

fn expression_complaint(rule: &str, expression: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!(
        "{rule} (e.g. {}regex used for validation is '{expression}')",
        examples.join(" or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_pass_and_bad_ones_do_not() {
        let long_label = "a".repeat(63);
        let long_name = "a".repeat(253);
        for good in ["a", "a-1", "0", "1--a", "a.b.c", "1.2", long_name.as_str()] {
            assert!(dns_subdomain(good).is_empty(), "{good}");
        }
        for bad in [
            "",
            "A",
            "-a",
            "a-",
            "a_b",
            ".a",
            "a.",
            "a..b",
            "a b",
            "é",
            &"a".repeat(254),
        ] {
            assert!(!dns_subdomain(bad).is_empty(), "{bad}");
        }
        for good in ["a", "1-a", long_label.as_str()] {
            assert!(dns_label(good).is_empty(), "{good}");
        }
        for bad in ["", "a.b", "A", &"a".repeat(64)] {
            assert!(!dns_label(bad).is_empty(), "{bad}");
        }
        assert!(dns1035_label("a1").is_empty());
        assert!(!dns1035_label("1a").is_empty());
    }

    #[test]
    fn keys_and_values_of_labels_follow_their_own_rules() {
        let longest = format!("{}/{}", "a".repeat(253), "b".repeat(63));
        for good in ["simple", "1234", "example.com/Upper_Is.Fine", longest.as_str()] {
            assert!(qualified_name(good).is_empty(), "{good}");
        }
        for bad in ["", "a/", "/a", "a/b/c", "Example.com/a", "a-", "a%", &"a".repeat(64)] {
            assert!(!qualified_name(bad).is_empty(), "{bad}");
        }
        for good in ["", "a", "a.b-c_d", &"a".repeat(63)] {
            assert!(label_value(good).is_empty(), "{good}");
        }
        for bad in ["-a", "a.", "ā", "a/b", &"a".repeat(64)] {
            assert!(!label_value(bad).is_empty(), "{bad}");
        }
    }

    #[test]
    fn a_prefix_may_end_in_a_dash_and_a_name_may_not() {
        for rule in [NameRule::DnsSubdomain, NameRule::DnsLabel, NameRule::Dns1035Label] {
            assert!(rule.check("db-", NamePart::Prefix).is_empty());
            assert!(!rule.check("db-", NamePart::Whole).is_empty());
        }
        assert!(!NameRule::DnsSubdomain.check("-", NamePart::Prefix).is_empty());
        assert!(NameRule::DnsSubdomain.check("é-", NamePart::Prefix).is_empty());
    }

    #[test]
    fn path_segments_are_nearly_free() {
        assert!(
            NameRule::PathSegment
                .check("system:node:a@b", NamePart::Whole)
                .is_empty()
        );
        assert_eq!(
            NameRule::PathSegment.check("a/b%", NamePart::Whole),
            ["may not contain '/'", "may not contain '%'"]
        );
        assert_eq!(NameRule::PathSegment.check("..", NamePart::Whole), ["may not be '..'"]);
        assert!(NameRule::PathSegment.check("..", NamePart::Prefix).is_empty());
    }

    #[test]
    fn complaints_are_worded_as_in_kubernetes() {
        assert_eq!(
            dns_subdomain("A"),
            [
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
              start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
              '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            label_value("-"),
            [
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
              start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
              validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ]
        );
    }
}
