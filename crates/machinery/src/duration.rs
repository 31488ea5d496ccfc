//! `metav1.Duration`: Go's way of writing durations, such as `1h2m3.5s` and `300ms`.

use std::{fmt, str::FromStr};

use crate::field::quote;

/// A signed number of nanoseconds that prints as Go prints it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration {
    nanoseconds: i64,
}

/// Text that is no duration. The words are Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// It does not look like one, or is too long.
    #[error("time: invalid duration {}", quote(.0))]
    Invalid(String),
    /// A number stands alone.
    #[error("time: missing unit in duration {}", quote(.0))]
    MissingUnit(String),
    /// There is no such unit.
    #[error("time: unknown unit {} in duration {}", quote(.unit), quote(.text))]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

impl GoDuration {
    /// So many nanoseconds.
    pub const fn from_nanoseconds(nanoseconds: i64) -> Self {
        GoDuration { nanoseconds }
    }

    /// In nanoseconds.
    pub const fn as_nanoseconds(self) -> i64 {
        self.nanoseconds
    }

    /// As an unsigned duration; `None` below zero.
    pub fn to_std(self) -> Option<std::time::Duration> {
        u64::try_from(self.nanoseconds)
            .ok()
            .map(std::time::Duration::from_nanos)
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseDurationError::Invalid(text.to_owned());
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        if unsigned == "0" {
            return Ok(GoDuration::default());
        }
        if unsigned.is_empty() {
            return Err(invalid());
        }
        let (mut rest, mut total) = (unsigned, 0_u64);
        while !rest.is_empty() {
            let (whole, after) = split_digits(rest);
            let (fraction, after) = match after.strip_prefix('.') {
                Some(after) => split_digits(after),
                None => ("", after),
            };
            if whole.is_empty() && fraction.is_empty() {
                return Err(invalid());
            }
            let (unit_name, after) = after.split_at(
                after
                    .find(|character: char| character == '.' || character.is_ascii_digit())
                    .unwrap_or(after.len()),
            );
            let unit = match unit_name {
                "" => return Err(ParseDurationError::MissingUnit(text.to_owned())),
                "ns" => 1,
                "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
                "ms" => MILLISECOND,
                "s" => SECOND,
                "m" => MINUTE,
                "h" => HOUR,
                other => {
                    return Err(ParseDurationError::UnknownUnit {
                        unit: other.to_owned(),
                        text: text.to_owned(),
                    });
                }
            };
            let number: u64 = if whole.is_empty() {
                0
            } else {
                whole.parse().map_err(|_| invalid())?
            };
            total = number
                .checked_mul(unit)
                .and_then(|amount| total.checked_add(amount)?.checked_add(fraction_of(fraction, unit)))
                .filter(|total| *total <= 1 << 63)
                .ok_or_else(invalid)?;
            rest = after;
        }
        let nanoseconds = match text.strip_prefix('-') {
            Some(_) => 0_i64.checked_sub_unsigned(total),
            None => i64::try_from(total).ok(),
        };
        Ok(GoDuration {
            nanoseconds: nanoseconds.ok_or_else(invalid)?,
        })
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.nanoseconds.unsigned_abs();
        if amount == 0 {
            return f.write_str("0s");
        }
        if self.nanoseconds < 0 {
            f.write_str("-")?;
        }
        match amount {
            0..MICROSECOND => return write!(f, "{amount}ns"),
            MICROSECOND..MILLISECOND => return write_decimal(f, amount, MICROSECOND, "µs"),
            MILLISECOND..SECOND => return write_decimal(f, amount, MILLISECOND, "ms"),
            _ => {}
        }
        if amount >= HOUR {
            write!(f, "{}h", amount / HOUR)?;
        }
        if amount >= MINUTE {
            write!(f, "{}m", amount / MINUTE % 60)?;
        }
        write_decimal(f, amount % MINUTE, SECOND, "s")
    }
}

fn write_decimal(f: &mut fmt::Formatter<'_>, amount: u64, unit: u64, name: &str) -> fmt::Result {
    let width = unit.ilog10() as usize;
    write!(f, "{}", amount / unit)?;
    let fraction = format!("{:0width$}", amount % unit);
    match fraction.trim_end_matches('0') {
        "" => f.write_str(name),
        fraction => write!(f, ".{fraction}{name}"),
    }
}

/// The part of a unit that decimals stand for, rounded down as Go does.
fn fraction_of(digits: &str, unit: u64) -> u64 {
    let (mut value, mut scale) = (0_u64, 1_u64);
    for digit in digits.bytes() {
        let Some(longer) = value
            .checked_mul(10)
            .and_then(|value| value.checked_add(u64::from(digit - b'0')))
        else {
            break;
        };
        let Some(finer) = scale.checked_mul(10) else { break };
        (value, scale) = (longer, finer);
    }
    let amount = u128::from(value) * u128::from(unit) / u128::from(scale);
    u64::try_from(amount).expect("a fraction of a unit is less than the unit")
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_and_printed_as_in_go() {
        for (text, printed) in [
            ("0", "0s"),
            ("0s", "0s"),
            ("-0", "0s"),
            ("1h2m3.5s", "1h2m3.5s"),
            ("300ms", "300ms"),
            ("90s", "1m30s"),
            ("1h", "1h0m0s"),
            ("60m", "1h0m0s"),
            ("1.5h", "1h30m0s"),
            (".5s", "500ms"),
            ("1.s", "1s"),
            ("-2m", "-2m0s"),
            ("+5s", "5s"),
            ("1500us", "1.5ms"),
            ("1\u{b5}s", "1µs"),
            ("1\u{3bc}s", "1µs"),
            ("7ns", "7ns"),
            ("1h1ns", "1h0m0.000000001s"),
            ("2540400h10m10s", "2540400h10m10s"),
            ("-9223372036854775808ns", "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap().to_string(), printed, "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_in_go_words() {
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("s", "time: invalid duration \"s\""),
            (".s", "time: invalid duration \".s\""),
            ("3", "time: missing unit in duration \"3\""),
            ("1h3", "time: missing unit in duration \"1h3\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("1 s", "time: unknown unit \" s\" in duration \"1 s\""),
            (
                "9223372036854775808ns",
                "time: invalid duration \"9223372036854775808ns\"",
            ),
            ("3000000h", "time: invalid duration \"3000000h\""),
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap_err().to_string(), error);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(nanoseconds in any::<i64>()) {
            let duration = GoDuration::from_nanoseconds(nanoseconds);
            prop_assert_eq!(duration.to_string().parse::<GoDuration>().unwrap(), duration);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[-+0-9.hmsnuµx]{0,30}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
