//! Times as Go reads them by a layout, with its errors.

use jiff::Timestamp;
use moorline_machinery::{field::quote, time};

/// Whole seconds; a fraction is taken and cut off.
pub(super) const SECONDS: Layout = Layout {
    text: "2006-01-02T15:04:05Z07:00",
    fraction: Fraction::Any,
};
/// Exactly six digits of a fraction.
pub(super) const MICROSECONDS: Layout = Layout {
    text: "2006-01-02T15:04:05.000000Z07:00",
    fraction: Fraction::Six,
};

/// A form of times, by Go's example of it.
pub(super) struct Layout {
    text: &'static str,
    fraction: Fraction,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fraction {
    Any,
    Six,
}

/// The parts up to the seconds: how Go names each, and how many digits it has. What has none stands for itself.
const PARTS: [(&str, usize); 11] = [
    ("2006", 4),
    ("-", 0),
    ("01", 2),
    ("-", 0),
    ("02", 2),
    ("T", 0),
    ("15", 2),
    (":", 0),
    ("04", 2),
    (":", 0),
    ("05", 2),
];

impl Layout {
    /// The time, or why it is none.
    pub(super) fn parse(&self, text: &str) -> Result<Timestamp, String> {
        let fail = |rest: &str, part: &str| {
            format!(
                "parsing time {} as {}: cannot parse {} as {}",
                quote(text),
                quote(self.text),
                quote(rest),
                quote(part)
            )
        };
        let mut rest = text;
        for (part, digits) in PARTS {
            let length = if digits == 0 { part.len() } else { digits };
            let fits = rest.as_bytes().get(..length).is_some_and(|given| {
                if digits == 0 {
                    given == part.as_bytes()
                } else {
                    given.iter().all(u8::is_ascii_digit)
                }
            });
            if !fits {
                return Err(fail(rest, part));
            }
            rest = &rest[length..];
        }
        if self.fraction == Fraction::Six {
            let digits = rest
                .strip_prefix('.')
                .map(|rest| rest.bytes().take_while(u8::is_ascii_digit).count());
            if digits != Some(6) {
                return Err(fail(rest, ".000000"));
            }
        }
        time::parse(text).map_err(|_| {
            let zone = rest.trim_start_matches(|character: char| character == '.' || character.is_ascii_digit());
            if matches!(zone, "Z") || zone.len() == 6 {
                format!("parsing time {}: day out of range", quote(text))
            } else {
                fail(zone, "Z07:00")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_that_does_not_fit_is_named() {
        for (text, why) in [
            (
                "x",
                "parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\"",
            ),
            (
                "2026-01-01",
                "parsing time \"2026-01-01\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"\" as \"T\"",
            ),
            (
                "2026-02-30T00:00:00Z",
                "parsing time \"2026-02-30T00:00:00Z\": day out of range",
            ),
        ] {
            assert_eq!(SECONDS.parse(text), Err(why.to_owned()));
        }
        assert!(SECONDS.parse("2026-01-01T00:00:00.25+02:00").is_ok());
        assert!(MICROSECONDS.parse("2026-01-01T00:00:00.250000Z").is_ok());
        assert!(MICROSECONDS.parse("2026-01-01T00:00:00.25Z").is_err());
    }
}
