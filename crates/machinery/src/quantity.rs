//! `resource.Quantity`: amounts of processor time, memory and the like, such as `100m`, `1.5Gi` and `12e6`.
//!
//! A quantity is exact: a whole number times a power of ten, down to 10⁻⁹; what is finer is rounded away from zero, so
//! that whoever asks for a little gets something. It prints as Kubernetes prints it: in its canonical form, or, where
//! Kubernetes takes the text to be canonical already, as it was written.
//!
//! Bounded where Kubernetes is not: at most 36 significant digits and exponents of at most 1000.

mod parse;

use std::{cmp::Ordering, fmt, hash};

/// An amount with the style of suffix it prints with.
#[derive(Debug, Clone)]
pub struct Quantity {
    /// At most 36 digits.
    mantissa: i128,
    exponent: i32,
    style: Style,
    /// The text it was read from, where that is to be kept.
    written: Option<Box<str>>,
}

/// The family of suffixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Style {
    /// `Ki`, `Mi`, `Gi`: powers of 1024.
    Binary,
    /// `m`, `k`, `M`: powers of 1000.
    Decimal,
    /// `e3`, `e6`: the same, as exponents.
    Exponent,
}

/// Text that is no quantity. The words are Kubernetes'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// It does not look like one.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// There is no such suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
    /// The number is too large or too long.
    #[error("unable to parse numeric part of quantity")]
    Number,
}

const MANTISSA_MAX: i128 = 10_i128.pow(36) - 1;
/// The finest amount is 10 to this.
const NANO: i32 = -9;

impl Quantity {
    /// Nothing.
    pub const ZERO: Quantity = Quantity {
        mantissa: 0,
        exponent: 0,
        style: Style::Decimal,
        written: None,
    };

    /// A whole amount.
    pub fn new(value: i64, style: Style) -> Self {
        Quantity {
            mantissa: value.into(),
            exponent: 0,
            style,
            written: None,
        }
    }

    /// So many thousandths.
    pub fn from_milli(value: i64, style: Style) -> Self {
        Quantity {
            mantissa: value.into(),
            exponent: -3,
            style,
            written: None,
        }
    }

    /// The family of suffixes it prints with.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Whether it is nothing.
    pub fn is_zero(&self) -> bool {
        self.mantissa == 0
    }

    /// -1, 0 or 1.
    pub fn signum(&self) -> i8 {
        i8::try_from(self.mantissa.signum()).expect("a sign fits")
    }

    /// As a whole number, rounded away from zero and kept within bounds.
    pub fn value(&self) -> i64 {
        saturate(self.scaled(0))
    }

    /// In thousandths, rounded away from zero and kept within bounds.
    pub fn milli_value(&self) -> i64 {
        saturate(self.scaled(-3))
    }

    /// The nearest floating-point number.
    pub fn as_f64(&self) -> f64 {
        self.mantissa as f64 * 10_f64.powi(self.exponent)
    }

    /// The sum, in the style of the first unless that is nothing. `None` past 36 digits.
    #[must_use]
    pub fn checked_add(&self, other: &Quantity) -> Option<Quantity> {
        let style = if self.is_zero() { other.style } else { self.style };
        let exponent = self.exponent.min(other.exponent);
        let mantissa = self.mantissa_at(exponent)?.checked_add(other.mantissa_at(exponent)?)?;
        (mantissa.abs() <= MANTISSA_MAX).then_some(Quantity {
            mantissa,
            exponent,
            style,
            written: None,
        })
    }

    /// The difference, likewise.
    #[must_use]
    pub fn checked_sub(&self, other: &Quantity) -> Option<Quantity> {
        self.checked_add(&Quantity {
            mantissa: -other.mantissa,
            ..other.clone()
        })
    }

    /// The same amount at a lower exponent.
    fn mantissa_at(&self, exponent: i32) -> Option<i128> {
        if self.is_zero() {
            return Some(0);
        }
        let places = u32::try_from(self.exponent - exponent).ok()?;
        self.mantissa.checked_mul(10_i128.checked_pow(places)?)
    }

    /// How many of 10^`exponent` it is, rounded away from zero, and saturated.
    fn scaled(&self, exponent: i32) -> i128 {
        if self.exponent >= exponent {
            let bound = if self.mantissa < 0 { i128::MIN } else { i128::MAX };
            return self.mantissa_at(exponent).unwrap_or(bound);
        }
        divide_away(self.mantissa, self.exponent.abs_diff(exponent))
    }

    fn is_whole(&self) -> bool {
        self.exponent >= 0
            || 10_i128
                .checked_pow(self.exponent.unsigned_abs())
                .is_some_and(|unit| self.mantissa % unit == 0)
    }

    /// The number of digits before the decimal point, below zero for small fractions.
    fn magnitude(&self) -> i64 {
        i64::from(
            self.mantissa
                .unsigned_abs()
                .checked_ilog10()
                .map_or(0, |digits| digits + 1),
        ) + i64::from(self.exponent)
    }

    fn write_decimal(&self, f: &mut fmt::Formatter<'_>, style: Style) -> fmt::Result {
        let (mut mantissa, mut exponent) = (self.mantissa, self.exponent);
        while mantissa % 10 == 0 {
            mantissa /= 10;
            exponent += 1;
        }
        let surplus = exponent.rem_euclid(3);
        mantissa *= if surplus == 2 {
            100
        } else if surplus == 1 {
            10
        } else {
            1
        };
        exponent -= surplus;
        write!(f, "{mantissa}")?;
        match (style, exponent) {
            (_, 0) => Ok(()),
            (Style::Exponent, _) => write!(f, "e{exponent}"),
            // Past the last suffix Kubernetes prints the bare number, which loses the amount.
            _ => match parse::decimal_suffix(exponent) {
                Some(suffix) => f.write_str(suffix),
                None => write!(f, "e{exponent}"),
            },
        }
    }

    fn write_binary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let (mut amount, mut power) = (self.scaled(0), 0);
        while amount % 1024 == 0 && power + 1 < SUFFIXES.len() {
            amount /= 1024;
            power += 1;
        }
        write!(f, "{amount}{}", SUFFIXES[power])
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(written) = &self.written {
            return f.write_str(written);
        }
        if self.is_zero() {
            return f.write_str("0");
        }
        let small = self.scaled(0).abs() < 1024 || (self.magnitude() < 5 && self.as_f64().abs() < 1024.0);
        match self.style {
            Style::Binary if !small && self.is_whole() => self.write_binary(f),
            Style::Binary => self.write_decimal(f, Style::Decimal),
            style => self.write_decimal(f, style),
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    /// By amount; the style and the spelling do not matter.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_sign = self.mantissa.signum().cmp(&other.mantissa.signum());
        if by_sign != Ordering::Equal || self.is_zero() {
            return by_sign;
        }
        let by_size = self.magnitude().cmp(&other.magnitude()).then_with(|| {
            let exponent = self.exponent.min(other.exponent);
            let at = |quantity: &Quantity| quantity.mantissa_at(exponent).unwrap_or(i128::MAX).unsigned_abs();
            at(self).cmp(&at(other))
        });
        if self.mantissa < 0 { by_size.reverse() } else { by_size }
    }
}

impl hash::Hash for Quantity {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        let (mut mantissa, mut exponent) = (self.mantissa, self.exponent);
        while mantissa != 0 && mantissa % 10 == 0 {
            mantissa /= 10;
            exponent += 1;
        }
        (mantissa, if mantissa == 0 { 0 } else { exponent }).hash(state);
    }
}

/// Divides by a power of ten, rounding away from zero.
fn divide_away(value: i128, places: u32) -> i128 {
    let Some(unit) = 10_i128.checked_pow(places) else {
        return value.signum();
    };
    value / unit + if value % unit == 0 { 0 } else { value.signum() }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn quantities_print_as_kubernetes_prints_them() {
        // The right-hand sides were printed by apimachinery 0.36, all but 10^21, for which it prints "1".
        for (text, printed) in [
            ("0", "0"),
            ("00", "0"),
            ("0m", "0"),
            ("-0", "0"),
            (".", "0"),
            ("1", "1"),
            ("+5", "+5"),
            ("001", "001"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("1.500", "1.500"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("5.", "5."),
            ("100n", "100n"),
            ("0.1n", "1n"),
            ("-0.1n", "-1n"),
            ("1234567890", "1234567890"),
            ("1000000", "1M"),
            ("1500000", "1500k"),
            ("1e3", "1e3"),
            ("1E3", "1E3"),
            ("1e4", "10e3"),
            ("12e6", "12e6"),
            ("1e-3", "1e-3"),
            ("1e-10", "1e-9"),
            ("1Ki", "1Ki"),
            ("1024", "1024"),
            ("1024Ki", "1Mi"),
            ("1025Ki", "1025Ki"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("0.1Ki", "102400m"),
            ("1.3Ki", "1331200m"),
            ("0.0001Ki", "102400u"),
            ("-1.5Gi", "-1536Mi"),
            ("1Ei", "1Ei"),
            ("9Ei", "9223372036854775807"),
            ("1E", "1E"),
            ("1000000000000000000000", "1e21"),
            ("8Ki", "8Ki"),
            ("16Ki", "16Ki"),
            ("0Ki", "0"),
        ] {
            assert_eq!(read(text).to_string(), printed, "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused_in_kubernetes_words() {
        for (text, error) in [
            ("", ParseQuantityError::Format),
            ("abc", ParseQuantityError::Format),
            ("1.2.3", ParseQuantityError::Format),
            ("5x", ParseQuantityError::Format),
            ("1 Gi", ParseQuantityError::Format),
            ("1e5e", ParseQuantityError::Format),
            ("é", ParseQuantityError::Format),
            ("5i", ParseQuantityError::Suffix),
            ("1e", ParseQuantityError::Suffix),
            ("1ee5", ParseQuantityError::Suffix),
            ("1Mi5", ParseQuantityError::Suffix),
            ("1K", ParseQuantityError::Suffix),
            ("1e99999", ParseQuantityError::Number),
            ("1234567890123456789012345678901234567890", ParseQuantityError::Number),
        ] {
            assert_eq!(text.parse::<Quantity>().unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn amounts_compare_whatever_their_spelling() {
        for (small, large) in [
            ("999m", "1"),
            ("1k", "1Ki"),
            ("-1", "0"),
            ("-2", "-1"),
            ("1n", "1u"),
            ("9Pi", "1e300"),
        ] {
            assert!(read(small) < read(large), "{small} {large}");
        }
        for (left, right) in [("1000m", "1"), ("1Ki", "1024"), ("0", "-0"), ("1e3", "1k")] {
            assert_eq!(read(left), read(right));
        }
    }

    #[test]
    fn sums_keep_the_style_of_the_first() {
        for (left, right, sum) in [
            ("1Gi", "1Gi", "2Gi"),
            ("100m", "1", "1100m"),
            ("0", "1Ki", "1Ki"),
            ("1Ki", "1", "1025"),
        ] {
            assert_eq!(read(left).checked_add(&read(right)).unwrap().to_string(), sum);
        }
        assert_eq!(read("1").checked_sub(&read("1500m")).unwrap().to_string(), "-500m");
        assert_eq!(read("1e300").checked_add(&read("1n")), None);
    }

    #[test]
    fn whole_values_round_away_from_zero_and_stay_in_bounds() {
        for (text, value, milli) in [
            ("1500m", 2, 1500),
            ("-1500m", -2, -1500),
            ("1n", 1, 1),
            ("1Gi", 1 << 30, 1000 << 30),
            ("1e30", i64::MAX, i64::MAX),
            ("-1e30", i64::MIN, i64::MIN),
        ] {
            assert_eq!((read(text).value(), read(text).milli_value()), (value, milli), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back_as_the_same_amount(
            text in "[+-]?[0-9]{1,8}(\\.[0-9]{0,6})?(n|u|m||k|M|G|T|P|E|Ki|Mi|Gi|Ti|e-?[0-9])"
        ) {
            let quantity = read(&text);
            prop_assert_eq!(&read(&quantity.to_string()), &quantity);
        }

        #[test]
        fn no_text_makes_the_reader_or_the_printer_panic(text in "[-+0-9.eEinumkKMGTP]{0,45}") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                let _ = (quantity.to_string(), quantity.value(), quantity.milli_value());
                let _ = quantity.checked_add(&Quantity::new(1, Style::Binary));
                prop_assert_eq!(quantity.cmp(&quantity), Ordering::Equal);
            }
        }
    }
}
