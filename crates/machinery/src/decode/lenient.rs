//! What Go reads and a strict reader of JSON does not: half of a surrogate pair, bytes that are no text, numbers beyond
//! all that a float holds.

/// The text as Go understands it; nothing if that is the text itself.
pub(super) fn repaired(body: &[u8]) -> Option<Vec<u8>> {
    let mut repaired = Vec::with_capacity(body.len());
    let mut rest = body;
    let mut in_string = false;
    while let Some(byte) = rest.first() {
        let length = match byte {
            b'"' => {
                in_string = !in_string;
                1
            }
            b'\\' if in_string => {
                let (escape, length) = escape(rest);
                repaired.extend_from_slice(escape.unwrap_or(&rest[..length]));
                rest = &rest[length..];
                continue;
            }
            b'-' | b'0'..=b'9' if !in_string => {
                let length = rest
                    .iter()
                    .take_while(|byte| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'))
                    .count();
                repaired.extend_from_slice(bounded(&rest[..length]));
                rest = &rest[length..];
                continue;
            }
            0x80.. if in_string => {
                let Some(length) = character(rest) else {
                    repaired.extend_from_slice("\u{fffd}".as_bytes());
                    rest = &rest[1..];
                    continue;
                };
                length
            }
            _ => 1,
        };
        repaired.extend_from_slice(&rest[..length]);
        rest = &rest[length..];
    }
    (repaired != body).then_some(repaired)
}

/// How long the escape is that a text begins with, and what stands for it if it is half of a pair.
fn escape(text: &[u8]) -> (Option<&'static [u8]>, usize) {
    const UNKNOWN: &[u8] = b"\\ufffd";
    let Some(unit) = unit(text) else {
        return (None, text.len().min(2));
    };
    match unit {
        0xd800..=0xdbff => match self::unit(&text[6..]) {
            Some(0xdc00..=0xdfff) => (None, 12),
            _ => (Some(UNKNOWN), 6),
        },
        0xdc00..=0xdfff => (Some(UNKNOWN), 6),
        _ => (None, 6),
    }
}

/// The UTF-16 unit of an escape such as `\u00e9`.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// A number, or the greatest one where it is beyond.
fn bounded(number: &[u8]) -> &[u8] {
    let value = std::str::from_utf8(number)
        .ok()
        .and_then(|text| text.parse::<f64>().ok());
    match value {
        Some(f64::INFINITY) => b"1.7976931348623157e308",
        Some(f64::NEG_INFINITY) => b"-1.7976931348623157e308",
        _ => number,
    }
}

/// How many bytes the character takes that a text begins with, if they make one.
fn character(text: &[u8]) -> Option<usize> {
    let start = &text[..text.len().min(4)];
    let valid = match std::str::from_utf8(start) {
        Ok(valid) => valid,
        Err(error) => std::str::from_utf8(&start[..error.valid_up_to()]).ok()?,
    };
    valid.chars().next().map(char::len_utf8)
}
