//! The schedules of cron jobs.

use moorline_machinery::{duration::GoDuration, field::quote};

/// The answer to a schedule that names a time zone.
pub(super) const NO_ZONE: &str = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";

const FIELDS: [Bounds; 5] = [
    Bounds {
        low: 0,
        high: 59,
        names: &[],
    },
    Bounds {
        low: 0,
        high: 23,
        names: &[],
    },
    Bounds {
        low: 1,
        high: 31,
        names: &[],
    },
    Bounds {
        low: 1,
        high: 12,
        names: &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    },
    Bounds {
        low: 0,
        high: 6,
        names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    },
];

/// What a field of a schedule may hold.
struct Bounds {
    low: u32,
    high: u32,
    /// Names of the values, from the lowest on.
    names: &'static [&'static str],
}

/// Whether a schedule can be read, or why not.
pub(super) fn check(schedule: &str) -> Result<(), String> {
    if schedule.starts_with("TZ=") || schedule.starts_with("CRON_TZ=") {
        return Err(NO_ZONE.to_owned());
    }
    if schedule.starts_with('@') {
        return descriptor(schedule);
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!(
            "expected exactly 5 fields, found {}: [{}]",
            fields.len(),
            fields.join(" ")
        ));
    }
    fields.iter().zip(&FIELDS).try_for_each(|(field, bounds)| {
        field
            .split(',')
            .filter(|range| !range.is_empty())
            .try_for_each(|range| self::range(range, bounds))
    })
}

fn descriptor(text: &str) -> Result<(), String> {
    const KNOWN: [&str; 7] = [
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@daily",
        "@midnight",
        "@hourly",
    ];
    if KNOWN.contains(&text) {
        return Ok(());
    }
    if let Some(duration) = text.strip_prefix("@every ") {
        return match duration.parse::<GoDuration>() {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("failed to parse duration {text}: {error}")),
        };
    }
    Err(format!("unrecognized descriptor: {text}"))
}

fn range(text: &str, bounds: &Bounds) -> Result<(), String> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let single = ends.len() == 1;
    let (start, mut end) = if matches!(ends[0], "*" | "?") {
        (bounds.low, bounds.high)
    } else {
        let start = value(ends[0], bounds)?;
        match ends.len() {
            1 => (start, start),
            2 => (start, value(ends[1], bounds)?),
            _ => return Err(format!("too many hyphens: {text}")),
        }
    };
    let step = match parts.len() {
        1 => 1,
        2 => {
            let step = number(parts[1])?;
            if single {
                end = bounds.high;
            }
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if start < bounds.low {
        return Err(format!(
            "beginning of range ({start}) below minimum ({}): {text}",
            bounds.low
        ));
    }
    if end > bounds.high {
        return Err(format!("end of range ({end}) above maximum ({}): {text}", bounds.high));
    }
    if start > end {
        return Err(format!(
            "beginning of range ({start}) beyond end of range ({end}): {text}"
        ));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(())
}

fn value(text: &str, bounds: &Bounds) -> Result<u32, String> {
    let named = bounds.names.iter().position(|name| name.eq_ignore_ascii_case(text));
    match named.and_then(|position| u32::try_from(position).ok()) {
        Some(position) => Ok(bounds.low + position),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(negative) if negative < 0 => Err(format!("negative number ({negative}) not allowed: {text}")),
        Ok(number) => Ok(u32::try_from(number).unwrap_or(u32::MAX)),
        Err(_) => Err(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {}: invalid syntax",
            quote(text)
        )),
    }
}

/// Whether this machine knows a time zone by that name.
pub(super) fn is_time_zone(name: &str) -> bool {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'-' | b'+'));
    if name == "UTC" {
        return true;
    }
    plain && !name.starts_with('/') && jiff::tz::TimeZone::get(name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_has_five_fields_within_their_bounds() {
        for schedule in [
            "*/5 * * * *",
            "0 0 1,15 JAN-mar MON",
            "@every 90s",
            "@daily",
            "? * * * *",
            "1/2 * * * *",
        ] {
            assert_eq!(check(schedule), Ok(()), "{schedule}");
        }
        for (schedule, why) in [
            ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
            ("* 24 * * *", "end of range (24) above maximum (23): 24"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("@often", "unrecognized descriptor: @often"),
        ] {
            assert_eq!(check(schedule), Err(why.to_owned()));
        }
    }
}
