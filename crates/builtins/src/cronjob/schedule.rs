//! Cron schedules as `CronJob` reads them: five fields, names, steps, `@daily` and `@every`.

use jiff::civil::{Date, Time as Clock};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use moorline_machinery::duration::GoDuration;

/// When something is to happen, again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// At moments whose parts are all in these sets.
    Fields(Fields),
    /// Every so often.
    Every(SignedDuration),
}

/// One bit for each value that fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// A day fits if it fits as a day of the month or of the week, unless one of the two says nothing.
    any_day: bool,
    any_weekday: bool,
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// A schedule that has not come up in so many years never does.
const YEARS: i16 = 5;
/// More moments that were missed than this are many.
const MANY: usize = 100;

impl Schedule {
    /// Reads a schedule, or says what is wrong with it.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        if let Some(every) = text.strip_prefix("@every ") {
            let every: GoDuration = every
                .parse()
                .map_err(|error| format!("failed to parse duration {text}: {error}"))?;
            let whole = SignedDuration::from_nanos(every.as_nanoseconds()).as_secs();
            return Ok(Self::Every(SignedDuration::from_secs(whole.max(1))));
        }
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            let (count, fields) = (fields.len(), fields.join(" "));
            return Err(format!("expected exactly 5 fields, found {count}: [{fields}]"));
        };
        let (days, any_day) = set(days, 1, 31, &[])?;
        let (weekdays, any_weekday) = set(weekdays, 0, 6, &WEEKDAYS)?;
        Ok(Self::Fields(Fields {
            minutes: set(minutes, 0, 59, &[])?.0,
            hours: set(hours, 0, 23, &[])?.0,
            days,
            months: set(months, 1, 12, &MONTHS)?.0,
            weekdays,
            any_day,
            any_weekday,
        }))
    }

    /// The first moment after this one; none if there is none in years. It is on a whole second.
    pub(crate) fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Self::Every(every) => {
                let fraction = SignedDuration::from_nanos(i64::from(after.subsec_nanosecond()));
                after.checked_add(*every).ok()?.checked_sub(fraction).ok()
            }
            Self::Fields(fields) => fields.next(after, zone),
        }
    }

    /// The first moment that has not come. It is counted from the last that has, not from now: a schedule by intervals
    /// would else be put off by whoever looks at it.
    pub(crate) fn next_since(&self, since: Timestamp, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let last = self.between(since, now, zone).last().unwrap_or(since);
        self.next(last, zone)
    }

    /// The moments after one time and up to another: how many they are, and the last of them.
    pub(crate) fn between(&self, since: Timestamp, now: Timestamp, zone: &TimeZone) -> Passed {
        let mut passed = Passed::Few(None);
        let mut at = since;
        for _ in 0..=MANY {
            let Some(next) = self.next(at, zone).filter(|next| *next <= now) else {
                return passed;
            };
            passed = Passed::Few(Some(next));
            at = next;
        }
        Passed::Many(self.last_up_to(at, now, zone))
    }

    /// The last moment of a schedule from one of its moments on, found without looking at those between.
    fn last_up_to(&self, first: Timestamp, now: Timestamp, zone: &TimeZone) -> Timestamp {
        if let Self::Every(every) = self {
            let rest = now.duration_since(first).as_secs() % every.as_secs().max(1);
            let last = now.as_second() - rest;
            return Timestamp::from_second(last).unwrap_or(first);
        }
        let (mut low, mut high) = (first.as_second(), now.as_second());
        let mut last = first;
        while low < high {
            let middle = low + (high - low) / 2;
            let next = Timestamp::from_second(middle).ok().and_then(|at| self.next(at, zone));
            match next.filter(|next| *next <= now) {
                Some(next) => {
                    last = last.max(next);
                    low = next.as_second().max(middle + 1);
                }
                None => high = middle,
            }
        }
        last
    }
}

/// Moments of a schedule that have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// So few that they can be told one by one; this is the last, if there is any.
    Few(Option<Timestamp>),
    /// So many that a clock may have gone astray; this is the last.
    Many(Timestamp),
}

impl Passed {
    /// The last of them.
    pub(crate) fn last(self) -> Option<Timestamp> {
        match self {
            Self::Few(last) => last,
            Self::Many(last) => Some(last),
        }
    }
}

impl Fields {
    /// Walks by months, days, hours and minutes of the zone's clocks, in the order of real time: an hour that the clocks
    /// leave out is never met, and one that they repeat is met twice.
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        if [self.minutes, self.hours, self.days | self.weekdays, self.months].contains(&0) {
            return None;
        }
        let minute = SignedDuration::from_mins(1);
        let mut at = floor_to_minute(after)?.checked_add(minute).ok()?;
        let last_year = zone.to_datetime(after).year() + YEARS;
        loop {
            let wall = zone.to_datetime(at);
            if wall.year() > last_year {
                return None;
            }
            if !has(self.months, wall.month()) {
                let next = wall.date().first_of_month().saturating_add(jiff::Span::new().months(1));
                at = midnight(next, zone)?.max(at.checked_add(minute).ok()?);
            } else if !self.fits_day(wall.date()) {
                let next = wall.date().tomorrow().ok()?;
                at = midnight(next, zone)?.max(at.checked_add(minute).ok()?);
            } else if !has(self.hours, wall.hour()) {
                at = at
                    .checked_add(SignedDuration::from_mins(60 - i64::from(wall.minute())))
                    .ok()?;
            } else if !has(self.minutes, wall.minute()) {
                at = at.checked_add(minute).ok()?;
            } else {
                return Some(at);
            }
        }
    }

    fn fits_day(&self, date: Date) -> bool {
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        if self.any_day || self.any_weekday {
            day && weekday
        } else {
            day || weekday
        }
    }
}

fn floor_to_minute(at: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second(at.as_second() - at.as_second().rem_euclid(60)).ok()
}

fn midnight(date: Date, zone: &TimeZone) -> Option<Timestamp> {
    zone.to_ambiguous_zoned(date.to_datetime(Clock::midnight()))
        .compatible()
        .ok()
        .map(|zoned| zoned.timestamp())
}

fn has(set: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| set & (1 << value) != 0)
}

/// The set of a field: `*`, `a`, `a-b`, each with `/step`, separated by commas. With it, whether the field says nothing:
/// one of its parts is a star, and no step leaves anything out of that.
fn set(field: &str, least: u32, most: u32, names: &[&str]) -> Result<(u64, bool), String> {
    let (mut bits, mut says_nothing) = (0, false);
    for part in field.split(',').filter(|part| !part.is_empty()) {
        let (range, stride) = match part.split_once('/') {
            Some((range, stride)) => (range, Some(number(stride)?)),
            None => (part, None),
        };
        let (from, to) = range
            .split_once('-')
            .map_or((range, None), |(from, to)| (from, Some(to)));
        let is_star = from == "*" || from == "?";
        let (first, end) = if is_star {
            (least, most)
        } else {
            let first = value(from, least, names)?;
            match (to, stride) {
                (Some(to), _) => (first, value(to, least, names)?),
                // `5/15` means from 5 on.
                (None, Some(_)) => (first, most),
                (None, None) => (first, first),
            }
        };
        let stride = stride.unwrap_or(1);
        if first < least || end > most || first > end || stride == 0 {
            return Err(format!("{part:?} is not within {least} to {most}"));
        }
        says_nothing |= is_star && stride == 1;
        bits |= (first..=end)
            .step_by(stride as usize)
            .fold(0, |bits, value| bits | 1 << value);
    }
    Ok((bits, says_nothing))
}

fn value(text: &str, least: u32, names: &[&str]) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    match names.iter().position(|name| *name == lower) {
        Some(place) => Ok(least + u32::try_from(place).expect("there are at most twelve names")),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let number: i64 = text
        .parse()
        .map_err(|error| format!("failed to parse int from {text}: {error}"))?;
    let positive = u64::try_from(number).map_err(|_| format!("negative number ({number}) not allowed: {text}"))?;
    Ok(u32::try_from(positive).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str, zone: &str) -> String {
        let zone = if zone == "UTC" {
            TimeZone::UTC
        } else {
            TimeZone::get(zone).unwrap()
        };
        let next = Schedule::read(schedule).unwrap().next(after.parse().unwrap(), &zone);
        next.map_or_else(|| "never".to_owned(), |next| next.to_string())
    }

    #[test]
    fn fields_are_met_one_after_another() {
        for (schedule, after, expected) in [
            ("*/15 * * * *", "2026-01-01T00:00:01Z", "2026-01-01T00:15:00Z"),
            ("0 3 * * *", "2026-01-01T03:00:00Z", "2026-01-02T03:00:00Z"),
            ("30 6 1 jan *", "2026-01-02T00:00:00Z", "2027-01-01T06:30:00Z"),
            ("0 0 * * mon-fri", "2026-01-02T12:00:00Z", "2026-01-05T00:00:00Z"),
            ("0 0 13 * fri", "2026-01-03T00:00:00Z", "2026-01-09T00:00:00Z"),
            ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 30 2 *", "2026-01-01T00:00:00Z", "never"),
            ("@hourly", "2026-01-01T00:10:00Z", "2026-01-01T01:00:00Z"),
            ("@every 90s", "2026-01-01T00:10:00Z", "2026-01-01T00:11:30Z"),
            ("5/20 * * * *", "2026-01-01T00:26:00Z", "2026-01-01T00:45:00Z"),
            ("1,,5 * * * *", "2026-01-01T00:01:00Z", "2026-01-01T00:05:00Z"),
            ("*-5 * * * *", "2026-01-01T00:10:00Z", "2026-01-01T00:11:00Z"),
            (", * * * *", "2026-01-01T00:10:00Z", "never"),
        ] {
            assert_eq!(next(schedule, after, "UTC"), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn a_star_with_a_step_is_a_day_like_any_other() {
        // The first of January 2026 is a Thursday.
        for (schedule, after, expected) in [
            ("0 0 */2 * 1", "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"),
            ("0 0 */2 * 1", "2026-01-11T00:00:00Z", "2026-01-12T00:00:00Z"),
            ("0 0 1 * */2", "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"),
            ("0 0 */1 * 1", "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z"),
            ("0 0 1,* * 1", "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z"),
        ] {
            assert_eq!(next(schedule, after, "UTC"), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn every_so_often_is_any_duration_of_go_cut_to_seconds() {
        for (schedule, after, expected) in [
            ("@every 1.5h", "2026-01-01T00:00:00Z", "2026-01-01T01:30:00Z"),
            ("@every 0s", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
            ("@every 20us", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
            ("@every -5m", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
            ("@every 1500ms", "2026-01-01T00:00:00.25Z", "2026-01-01T00:00:01Z"),
        ] {
            assert_eq!(next(schedule, after, "UTC"), expected, "{schedule} after {after}");
        }
        assert!(Schedule::read("@every 99999999999999h").is_err());
    }

    #[test]
    fn what_has_passed_is_counted_from_where_it_began() {
        let passed = |schedule: &str, since: &str, now: &str| {
            let schedule = Schedule::read(schedule).unwrap();
            schedule.between(since.parse().unwrap(), now.parse().unwrap(), &TimeZone::UTC)
        };
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(
            passed("@every 1h", "2026-01-01T00:20:00Z", "2026-01-01T01:00:00Z"),
            Passed::Few(None)
        );
        assert_eq!(
            passed("@every 1h", "2026-01-01T00:20:00Z", "2026-01-01T03:00:00Z"),
            Passed::Few(Some(at("2026-01-01T02:20:00Z")))
        );
        assert_eq!(
            passed("@every 1h", "2026-01-01T00:20:00Z", "2026-02-01T03:00:00Z"),
            Passed::Many(at("2026-02-01T02:20:00Z"))
        );
        assert_eq!(
            passed("30 * * * *", "2026-01-01T00:20:00Z", "2026-02-01T03:00:00Z"),
            Passed::Many(at("2026-02-01T02:30:00Z"))
        );
    }

    #[test]
    fn looking_at_a_schedule_does_not_put_it_off() {
        let schedule = Schedule::read("@every 1h").unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let next = |now: &str| schedule.next_since(at("2026-01-01T00:20:00Z"), at(now), &TimeZone::UTC);
        assert_eq!(next("2026-01-01T00:50:00Z"), Some(at("2026-01-01T01:20:00Z")));
        assert_eq!(next("2026-01-01T02:40:00Z"), Some(at("2026-01-01T03:20:00Z")));
    }

    #[test]
    fn an_hour_that_the_clocks_leave_out_is_not_met() {
        assert_eq!(
            next("30 2 * * *", "2026-03-28T12:00:00Z", "Europe/Berlin"),
            "2026-03-30T00:30:00Z"
        );
    }

    #[test]
    fn clocks_of_another_zone_count() {
        assert_eq!(
            next("0 9 * * *", "2026-07-01T00:00:00Z", "America/New_York"),
            "2026-07-01T13:00:00Z"
        );
    }

    #[test]
    fn what_is_no_schedule_says_why() {
        for bad in [
            "",
            "* * * *",
            "60 * * * *",
            "* * * * mon-",
            "*/0 * * * *",
            "@every",
            "@every 5x",
            "@fortnightly",
        ] {
            assert!(Schedule::read(bad).is_err(), "{bad:?}");
        }
    }
}
