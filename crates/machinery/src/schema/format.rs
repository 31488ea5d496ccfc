//! Formats of strings that an API server enforces.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

/// Whether a string format is checked. Dashes do not count: `date-time` is `datetime`.
pub(crate) fn is_known(format: &str) -> bool {
    check(&normalized(format), "").is_some()
}

/// Whether `text` is of `format`. Unknown formats hold for everything.
pub(crate) fn holds(format: &str, text: &str) -> bool {
    check(&normalized(format), text).unwrap_or(true)
}

fn normalized(format: &str) -> String {
    if format.starts_with("k8s-") {
        format.to_owned()
    } else {
        format.replace('-', "")
    }
}

fn check(format: &str, text: &str) -> Option<bool> {
    Some(match format {
        "datetime" => date_time(text),
        "date" => date(text),
        "duration" => duration(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => cidr(text),
        "mac" => mac(text),
        "uri" => uri(text),
        "email" => email(text),
        "hostname" => hostname(text),
        "byte" => base64(text),
        "uuid" => UUID.is_match(text),
        "uuid3" => UUID3.is_match(text),
        "uuid4" => UUID4.is_match(text),
        "uuid5" => UUID5.is_match(text),
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "isbn" => isbn10(text) || isbn13(text),
        "isbn10" => isbn10(text),
        "isbn13" => isbn13(text),
        "creditcard" => credit_card(text),
        "ssn" => SSN.is_match(text),
        "hexcolor" => HEX_COLOR.is_match(text),
        "rgbcolor" => RGB_COLOR.is_match(text),
        "password" => true,
        "k8s-short-name" => text.len() <= 63 && label(text),
        "k8s-long-name" => text.len() <= 253 && text.split('.').all(label),
        _ => return None,
    })
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the patterns of this file compile")
}

static UUID: LazyLock<Regex> =
    LazyLock::new(|| regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"));
static UUID3: LazyLock<Regex> =
    LazyLock::new(|| regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"));
static UUID4: LazyLock<Regex> =
    LazyLock::new(|| regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"));
static UUID5: LazyLock<Regex> =
    LazyLock::new(|| regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"));
static SSN: LazyLock<Regex> = LazyLock::new(|| regex("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static HEX_COLOR: LazyLock<Regex> = LazyLock::new(|| regex("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static RGB_COLOR: LazyLock<Regex> = LazyLock::new(|| {
    let part = r"\s*(0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])\s*";
    regex(&format!(r"^rgb\({part},{part},{part}\)$"))
});
static GO_DURATION: LazyLock<Regex> =
    LazyLock::new(|| regex(r"^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"));
static WORDY_DURATION: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)^([0-9]+)\s*(ns|nano|nanosecond|us|µs|micro|microsecond|ms|milli|millisecond|s|sec|second|m|min|minute|h|hr|hour|d|day|w|wk|week)s?$",
    )
});

fn digits(text: &str, range: std::ops::Range<usize>) -> Option<u32> {
    let part = text.get(range)?;
    if part.bytes().all(|b| b.is_ascii_digit()) {
        part.parse().ok()
    } else {
        None
    }
}

fn date(text: &str) -> bool {
    let (Some(year), Some(month), Some(day)) = (digits(text, 0..4), digits(text, 5..7), digits(text, 8..10)) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    text.len() == 10 && text.as_bytes()[4] == b'-' && text.as_bytes()[7] == b'-' && (1..=days).contains(&day)
}

fn date_time(text: &str) -> bool {
    let (Some(day), Some(time)) = (text.get(..10), text.get(11..)) else {
        return false;
    };
    let separated = matches!(text.as_bytes()[10], b'T' | b't' | b' ');
    let (Some(hour), Some(minute), Some(second)) = (digits(time, 0..2), digits(time, 3..5), digits(time, 6..8)) else {
        return false;
    };
    let colons = time.as_bytes()[2] == b':' && time.as_bytes()[5] == b':';
    let rest = &time[8..];
    let zone = match rest.strip_prefix('.') {
        None => rest,
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if zone.len() == fraction.len() {
                return false;
            }
            zone
        }
    };
    let zoned = match zone.as_bytes() {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', _, _, b':', _, _] => {
            digits(zone, 1..3).is_some_and(|h| h < 24) && digits(zone, 4..6).is_some_and(|m| m < 60)
        }
        _ => false,
    };
    separated && date(day) && colons && hour < 24 && minute < 60 && second < 61 && zoned
}

fn duration(text: &str) -> bool {
    GO_DURATION.is_match(text) || WORDY_DURATION.is_match(text)
}

fn cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let plain = length == "0" || (!length.starts_with('0') && length.bytes().all(|b| b.is_ascii_digit()));
    let Some(length) = length.parse::<u8>().ok().filter(|_| plain) else {
        return false;
    };
    (address.parse::<Ipv4Addr>().is_ok() && length <= 32) || (address.parse::<Ipv6Addr>().is_ok() && length <= 128)
}

fn mac(text: &str) -> bool {
    let hex = |part: &str, length: usize| part.len() == length && part.bytes().all(|b| b.is_ascii_hexdigit());
    let octets = |count: usize| matches!(count, 6 | 8 | 20);
    [':', '-'].iter().any(|separator| {
        let parts: Vec<_> = text.split(*separator).collect();
        octets(parts.len()) && parts.iter().all(|part| hex(part, 2))
    }) || {
        let parts: Vec<_> = text.split('.').collect();
        octets(parts.len() * 2) && parts.iter().all(|part| hex(part, 4))
    }
}

/// An absolute address or an absolute path, as a request line may carry it.
fn uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b <= b' ' || b == 0x7f) {
        return false;
    }
    if text.starts_with('/') {
        return percent_encoded(text);
    }
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        && percent_encoded(rest)
}

fn percent_encoded(text: &str) -> bool {
    text.split('%')
        .skip(1)
        .all(|after| after.len() >= 2 && after.bytes().take(2).all(|b| b.is_ascii_hexdigit()))
}

fn email(text: &str) -> bool {
    let address = match text.split_once('<') {
        Some((_, rest)) => match rest.strip_suffix('>') {
            Some(address) => address,
            None => return false,
        },
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else {
        return false;
    };
    let atom = |b: u8| b.is_ascii_alphanumeric() || b >= 0x80 || b"!#$%&'*+-/=?^_`{|}~".contains(&b);
    let atoms = |text: &str| text.split('.').all(|part| !part.is_empty() && part.bytes().all(atom));
    let quoted = local.len() >= 2 && local.starts_with('"') && local.ends_with('"');
    (quoted || atoms(local)) && (atoms(domain) || (domain.starts_with('[') && domain.ends_with(']')))
}

fn hostname(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    !name.is_empty()
        && text.len() <= 255
        && name.split('.').all(|part| {
            (1..=63).contains(&part.len())
                && !part.starts_with('-')
                && !part.ends_with('-')
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        })
}

fn base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let padding = text.len() - body.len();
    text.len().is_multiple_of(4)
        && padding <= 2
        && body
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
}

fn label(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn isbn10(text: &str) -> bool {
    let plain: Vec<u8> = text.bytes().filter(|b| !b" -".contains(b)).collect();
    if plain.len() != 10 {
        return false;
    }
    let mut sum = 0;
    for (index, byte) in plain.iter().enumerate() {
        let digit = match byte {
            b'0'..=b'9' => usize::from(byte - b'0'),
            b'X' if index == 9 => 10,
            _ => return false,
        };
        sum += (index + 1) * digit;
    }
    sum % 11 == 0
}

fn isbn13(text: &str) -> bool {
    let plain: Vec<u8> = text.bytes().filter(|b| !b" -".contains(b)).collect();
    plain.len() == 13
        && plain.iter().all(u8::is_ascii_digit)
        && plain
            .iter()
            .enumerate()
            .map(|(i, b)| u32::from(b - b'0') * if i % 2 == 0 { 1 } else { 3 })
            .sum::<u32>()
            % 10
            == 0
}

fn credit_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let doubled = |digit: u32| if digit > 4 { digit * 2 - 9 } else { digit * 2 };
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, d)| if i % 2 == 1 { doubled(*d) } else { *d })
        .sum();
    (13..=16).contains(&digits.len()) && sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::{holds, is_known};

    #[test]
    fn formats_accept_and_refuse() {
        for (format, good, bad) in [
            ("date-time", "2026-02-28T10:20:30.5+01:00", "2026-02-30T10:20:30Z"),
            ("date-time", "2026-02-28T10:20:30Z", "2026-02-28"),
            ("date", "2024-02-29", "2023-02-29"),
            ("duration", "1h30m", "1 parsec"),
            ("duration", "3 days", "h"),
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "fe80::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("cidr", "fe80::/64", "fe80::"),
            ("mac", "00:11:22:33:44:55", "00:11:22:33:44"),
            ("uri", "https://a.b/c?d=%20", "a b"),
            ("uri", "/path", "path"),
            ("email", "a.b@c.org", "a@"),
            ("hostname", "a-b.example", "-a"),
            ("byte", "aGk=", "aGk"),
            ("uuid", "123E4567-e89b-12d3-a456-426614174000", "123e4567"),
            (
                "uuid4",
                "123e4567-e89b-42d3-a456-426614174000",
                "123e4567-e89b-12d3-a456-426614174000",
            ),
            ("isbn", "978-0321751041", "978-0321751042"),
            ("isbn10", "0321751043", "0321751044"),
            ("creditcard", "4111-1111-1111-1111", "4111-1111-1111-1112"),
            ("ssn", "111-22-3333", "11-22"),
            ("hexcolor", "#FFF", "#FFFF"),
            ("rgbcolor", "rgb(0, 255, 1)", "rgb(0,256,0)"),
            ("bsonobjectid", "0123456789abcdef01234567", "xyz"),
            ("k8s-short-name", "a-1", "a.b"),
            ("k8s-long-name", "a.b-1", "A.b"),
        ] {
            assert!(is_known(format), "{format}");
            assert!(holds(format, good), "{format}: {good}");
            assert!(!holds(format, bad), "{format}: {bad}");
        }
        assert!(!is_known("int-or-string") && holds("whatever", "x"));
    }
}
