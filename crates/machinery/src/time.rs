//! Time stamps as Kubernetes writes them: `metav1.Time` in whole seconds, `metav1.MicroTime` with six decimals.

use jiff::{SignedDuration, Timestamp, fmt::strtime};

use crate::field::quote;

/// Text that is not an RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parsing time {} as \"2006-01-02T15:04:05Z07:00\": cannot parse it as a date with time and offset", quote(.0))]
pub struct ParseTimeError(String);

/// As `metav1.Time` prints: `2026-11-15T17:37:25Z`. Fractions are cut off.
pub fn format(time: Timestamp) -> String {
    print("%Y-%m-%dT%H:%M:%SZ", time)
}

/// As `metav1.MicroTime` prints: `2026-11-15T17:37:25.000001Z`.
pub fn format_micro(time: Timestamp) -> String {
    print("%Y-%m-%dT%H:%M:%S.%6fZ", time)
}

/// Reads RFC 3339 with any offset and any fraction, and nothing looser.
pub fn parse(text: &str) -> Result<Timestamp, ParseTimeError> {
    let wrong = || ParseTimeError(text.to_owned());
    if !has_rfc3339_shape(text.as_bytes()) {
        return Err(wrong());
    }
    text.parse().map_err(|_| wrong())
}

/// From Unix seconds and nanoseconds, which protobuf carries. `None` outside of the years 1 to 9999.
pub fn from_parts(seconds: i64, nanoseconds: i32) -> Option<Timestamp> {
    let time = Timestamp::new(seconds, nanoseconds).ok()?;
    (time >= Timestamp::constant(-62_135_596_800, 0)).then_some(time)
}

/// How long ago `then` was, as `kubectl get` shows it: `5d3h`, `47s`. A time in the near future is `0s`.
pub fn age(then: Timestamp, now: Timestamp) -> String {
    human_duration(now.duration_since(then))
}

/// A duration in at most two units and two or three digits, as `kubectl get` shows it.
pub fn human_duration(duration: SignedDuration) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let seconds = duration.as_secs();
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{large_unit}")
        } else {
            format!("{large}{large_unit}{small}{small_unit}")
        }
    };
    match seconds {
        // Clocks differ by a little; by more, something is wrong and is not to look like an age.
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(seconds / HOUR, "h", seconds / MINUTE % 60, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(seconds / DAY, "d", seconds / HOUR % 24, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(seconds / YEAR, "y", seconds / DAY % 365, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

fn print(pattern: &str, time: Timestamp) -> String {
    strtime::format(pattern, time).expect("the pattern is fixed and every time stamp has its parts")
}

/// `2006-01-02T15:04:05[.999]Z` or with `±07:00` at the end.
fn has_rfc3339_shape(text: &[u8]) -> bool {
    let matches = |bytes: &[u8], shape: &[u8]| {
        bytes.len() == shape.len()
            && bytes.iter().zip(shape).all(|(byte, expected)| {
                if *expected == b'0' {
                    byte.is_ascii_digit()
                } else {
                    byte == expected
                }
            })
    };
    let Some((date_time, mut rest)) = text.split_at_checked(19) else {
        return false;
    };
    if !matches(date_time, b"0000-00-00T00:00:00") || &date_time[17..] > b"59".as_slice() {
        return false;
    }
    if let Some(fraction) = rest.strip_prefix(b".").or_else(|| rest.strip_prefix(b",")) {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return false;
        }
        rest = &fraction[digits..];
    }
    rest == b"Z" || matches(rest, b"+00:00") || matches(rest, b"-00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_in_seconds_or_microseconds() {
        let time = parse("2026-11-15T17:37:25.123456789+02:00").unwrap();
        assert_eq!(format(time), "2026-11-15T15:37:25Z");
        assert_eq!(format_micro(time), "2026-11-15T15:37:25.123456Z");
        assert_eq!(format(parse("0001-01-01T00:00:00Z").unwrap()), "0001-01-01T00:00:00Z");
        assert_eq!(
            format_micro(parse("2026-01-01T00:00:00Z").unwrap()),
            "2026-01-01T00:00:00.000000Z"
        );
    }

    #[test]
    fn looser_forms_are_refused() {
        for text in [
            "",
            "2026-11-15",
            "2026-11-15T17:37Z",
            "2026-11-15 17:37:25Z",
            "2026-11-15t17:37:25z",
            "2026-11-15T17:37:25",
            "2026-11-15T17:37:60Z",
            "2026-11-15T25:37:25Z",
            "2026-02-30T00:00:00Z",
            "2026-11-15T17:37:25.Z",
            "2026-11-15T17:37:25+0200",
            "2026-11-15T17:37:25Z[UTC]",
            "yesterday",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ages_read_as_kubectl_shows_them() {
        const HOUR: i64 = 3600;
        const DAY: i64 = 24 * HOUR;
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 60, "3h1m"),
            (8 * HOUR, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (5 * DAY + 3 * HOUR, "5d3h"),
            (8 * DAY, "8d"),
            (2 * 365 * DAY - 1, "729d"),
            (2 * 365 * DAY, "2y"),
            (3 * 365 * DAY + 5 * DAY, "3y5d"),
            (8 * 365 * DAY, "8y"),
        ] {
            assert_eq!(human_duration(SignedDuration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn parts_outside_of_the_calendar_are_no_time() {
        assert_eq!(from_parts(-62_135_596_801, 0), None);
        assert_eq!(from_parts(i64::MAX, 0), None);
        assert_eq!(from_parts(0, 0).map(format).as_deref(), Some("1970-01-01T00:00:00Z"));
    }
}
