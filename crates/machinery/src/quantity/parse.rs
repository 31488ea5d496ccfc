//! Reading quantities.

use std::str::FromStr;

use super::{MANTISSA_MAX, NANO, ParseQuantityError, Quantity, Style, divide_away};

const EXPONENT_MAX: i32 = 1000;

const DECIMAL_SUFFIXES: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY_SUFFIXES: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// The suffix of a power of ten, where there is one.
pub(super) fn decimal_suffix(exponent: i32) -> Option<&'static str> {
    DECIMAL_SUFFIXES
        .iter()
        .find(|(_, power)| *power == exponent)
        .map(|(suffix, _)| *suffix)
}

/// The parts of the text, signs and leading zeros aside.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

enum Unit {
    /// Two to this.
    Binary(u32),
    /// Ten to this.
    Decimal(i32, Style),
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = split(text)?;
        let unit = unit(parts.suffix)?;
        let digits = format!("{}{}", parts.whole, parts.fraction);
        let places = i32::try_from(parts.fraction.len()).map_err(|_| ParseQuantityError::Number)?;
        let mut mantissa: i128 = digits.parse().map_err(|_| ParseQuantityError::Number)?;
        let written = is_kept(&parts, &unit, &digits, mantissa).then(|| text.into());
        let (mut exponent, mut style) = match unit {
            Unit::Decimal(power, style) => (power - places, style),
            Unit::Binary(power) => {
                mantissa = mantissa.checked_mul(1 << power).ok_or(ParseQuantityError::Number)?;
                (-places, Style::Binary)
            }
        };
        if mantissa > MANTISSA_MAX {
            return Err(ParseQuantityError::Number);
        }
        if exponent < NANO {
            mantissa = divide_away(mantissa, exponent.abs_diff(NANO));
            exponent = NANO;
        }
        if style == Style::Binary {
            let one = 10_i128.pow(exponent.unsigned_abs());
            if mantissa > i128::from(i64::MAX).saturating_mul(one) {
                (mantissa, exponent) = (i64::MAX.into(), 0);
            }
            if mantissa > 0 && mantissa < one {
                style = Style::Decimal;
            }
        }
        let mantissa = if parts.negative { -mantissa } else { mantissa };
        Ok(Quantity {
            mantissa,
            exponent,
            style,
            written,
        })
    }
}

/// Whether Kubernetes keeps the text because it takes it to be canonical. The guess is rough, and clients see it.
fn is_kept(parts: &Parts<'_>, unit: &Unit, digits: &str, mantissa: i128) -> bool {
    let length = digits.len();
    match unit {
        Unit::Binary(power) => {
            let room = 14_usize.saturating_sub((*power as usize) * 3 / 10);
            parts.fraction.is_empty() && length <= room && mantissa & 7 != 0
        }
        Unit::Decimal(power, _) => {
            let scale = power - i32::try_from(parts.fraction.len()).unwrap_or(i32::MAX);
            length <= 18 && scale >= NANO && scale % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0')
        }
    }
}

fn split(text: &str) -> Result<Parts<'_>, ParseQuantityError> {
    if text.is_empty() {
        return Err(ParseQuantityError::Format);
    }
    let (negative, rest) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (whole, rest) = rest.trim_start_matches('0').split_digits();
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_digits(),
        None => ("", rest),
    };
    let letters = suffix.trim_start_matches(['e', 'E', 'i', 'n', 'u', 'm', 'k', 'K', 'M', 'G', 'T', 'P']);
    let (_, rest) = letters.strip_prefix(['-', '+']).unwrap_or(letters).split_digits();
    if !rest.is_empty() {
        return Err(ParseQuantityError::Format);
    }
    Ok(Parts {
        negative,
        whole: if whole.is_empty() { "0" } else { whole },
        fraction,
        suffix,
    })
}

fn unit(suffix: &str) -> Result<Unit, ParseQuantityError> {
    if let Some((_, power)) = DECIMAL_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Ok(Unit::Decimal(*power, Style::Decimal));
    }
    if let Some((_, power)) = BINARY_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Ok(Unit::Binary(*power));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or(ParseQuantityError::Suffix)?;
    let exponent: i64 = exponent.parse().map_err(|_| ParseQuantityError::Suffix)?;
    match i32::try_from(exponent) {
        Ok(exponent) if exponent.abs() <= EXPONENT_MAX => Ok(Unit::Decimal(exponent, Style::Exponent)),
        _ => Err(ParseQuantityError::Number),
    }
}

trait SplitDigits {
    /// The digits in front, and the rest.
    fn split_digits(&self) -> (&str, &str);
}

impl SplitDigits for str {
    fn split_digits(&self) -> (&str, &str) {
        self.split_at(self.bytes().take_while(u8::is_ascii_digit).count())
    }
}
