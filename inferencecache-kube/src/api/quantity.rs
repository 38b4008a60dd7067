//! What a Kubernetes quantity is worth.
//!
//! The API keeps quantities as text (`1Gi`, `1500m`, `2e3`, a bare integer); comparing them needs their value. The smallest
//! unit that Kubernetes keeps is a thousand-millionth (`1n`), the largest magnitude 2^63-1; finer values are rounded away
//! from zero and larger ones are cut, as everywhere in Kubernetes.

use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The value of a quantity, in thousand-millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i128);

/// A text that is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// The number before the suffix is missing or no decimal number.
    #[error("a number is missing or malformed")]
    Number,
    /// The suffix is none of `n u m k M G T P E`, `Ki Mi Gi Ti Pi Ei`, or `e` with a whole exponent.
    #[error("an unknown suffix")]
    Suffix,
}

const ONE: i128 = 1_000_000_000;
const LARGEST: i128 = i64::MAX as i128 * ONE;
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i64); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// Digits of a number that are looked at; beyond them a value is cut to the largest one, or rounded to the smallest.
const DIGITS: usize = 40;

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// One gibibyte, in bytes.
    pub const GIB: Self = Self((1 << 30) * ONE);

    /// Parses the text of a quantity.
    ///
    /// # Errors
    /// The text is not a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, text.get(1..).unwrap_or_default()),
            Some(b'+') => (false, text.get(1..).unwrap_or_default()),
            _ => (false, text),
        };
        let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError::Number);
        }
        let (binary, decimal) = scale(suffix)?;
        let value = magnitude(whole.trim_start_matches('0'), fraction.trim_end_matches('0'), binary, decimal);
        Ok(Self(if negative { -value } else { value }))
    }

    /// The value of a quantity of the API.
    ///
    /// # Errors
    /// Its text is not a quantity.
    pub fn of(quantity: &Quantity) -> Result<Self, QuantityError> {
        Self::parse(&quantity.0)
    }

    /// So many whole units.
    #[must_use]
    pub fn whole(units: i64) -> Self {
        Self(i128::from(units) * ONE)
    }

    /// Whether this is more than nothing.
    #[must_use]
    pub fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// Whether this is less than nothing.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Whether there is no fraction.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.0 % ONE == 0
    }

    /// Whole units, a fraction rounded up.
    #[must_use]
    pub fn ceil(self) -> i64 {
        let up = i128::from(self.0 % ONE > 0);
        i64::try_from(self.0 / ONE + up).unwrap_or(if self.0 < 0 { i64::MIN } else { i64::MAX })
    }

    /// The sum, cut to the largest quantity.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self((self.0 + other.0).clamp(-LARGEST, LARGEST))
    }

    /// Whether this is a whole multiple of a positive `unit`.
    #[must_use]
    pub fn is_multiple_of(self, unit: Self) -> bool {
        unit.0 > 0 && self.0 % unit.0 == 0
    }
}

/// The shortest text with a binary suffix (`5Gi`, `1536Mi`), else the plain number, else thousandths and finer.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_whole() {
            let (per, suffix) = [(1_000_000, "m"), (1_000, "u"), (1, "n")]
                .into_iter()
                .find(|(per, _)| self.0 % per == 0)
                .unwrap_or((1, "n"));
            return write!(f, "{}{suffix}", self.0 / per);
        }
        let units = self.0 / ONE;
        let best = BINARY.iter().rev().find(|(_, shift)| units != 0 && units % (1_i128 << shift) == 0);
        match best {
            Some((suffix, shift)) => write!(f, "{}{suffix}", units >> shift),
            None => write!(f, "{units}"),
        }
    }
}

/// Powers of two and of ten that a suffix stands for.
fn scale(suffix: &str) -> Result<(u32, i64), QuantityError> {
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Ok((*shift, 0));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Ok((0, *power));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
    let power = exponent.parse::<i64>().map_err(|_| QuantityError::Suffix)?;
    // Beyond these every value is either cut or rounded.
    Ok((0, power.clamp(-100, 100)))
}

/// `WHOLE.FRACTION * 2^binary * 10^decimal` in thousand-millionths, rounded up and cut.
fn magnitude(whole: &str, fraction: &str, binary: u32, decimal: i64) -> i128 {
    let (whole, fraction) = if whole.is_empty() { ("", fraction) } else { (whole, fraction) };
    let digits = whole.len() + fraction.len();
    if digits == 0 {
        return 0;
    }
    // The number is `0.DIGITS * 10^point`; shifting by at most 2^60 < 10^19 leaves room for these two short cuts.
    let zeros = if whole.is_empty() { fraction.bytes().take_while(|b| *b == b'0').count() } else { 0 };
    let point = i64::try_from(whole.len()).unwrap_or(i64::MAX).saturating_add(decimal).saturating_add(9);
    if zeros == digits {
        return 0;
    }
    let point = point.saturating_sub(i64::try_from(zeros).unwrap_or(i64::MAX));
    if point > 30 {
        return LARGEST;
    }
    if point < -40 {
        return 1;
    }
    let significant: Vec<u8> =
        whole.bytes().chain(fraction.bytes()).skip(zeros).take(DIGITS + 1).map(|b| b - b'0').collect();
    let inexact = digits - zeros > DIGITS;
    scaled(significant.get(..DIGITS).unwrap_or(&significant), point, binary, inexact)
}

/// `0.DIGITS * 10^point * 2^binary`, rounded up and cut; long arithmetic on decimal digits.
fn scaled(digits: &[u8], point: i64, binary: u32, inexact: bool) -> i128 {
    // Doubling keeps the digits decimal, so the place of the point never moves: a carry only adds a digit in front.
    let mut number: Vec<u8> = digits.to_vec();
    let mut point = point;
    for _ in 0..binary {
        let mut carry = 0;
        for digit in number.iter_mut().rev() {
            let value = *digit * 2 + carry;
            *digit = value % 10;
            carry = value / 10;
        }
        if carry > 0 {
            number.insert(0, carry);
            point += 1;
        }
    }
    let mut value: i128 = 0;
    let places = usize::try_from(point.max(0)).unwrap_or(0);
    for place in 0..places {
        value = value.saturating_mul(10).saturating_add(i128::from(number.get(place).copied().unwrap_or(0)));
        if value > LARGEST {
            return LARGEST;
        }
    }
    let rest = if point < 0 { number.as_slice() } else { number.get(places..).unwrap_or(&[]) };
    let up = inexact || rest.iter().any(|digit| *digit != 0);
    (value + i128::from(up)).min(LARGEST)
}

#[cfg(test)]
mod tests {
    use super::{Amount, ONE, QuantityError};

    fn nanos(text: &str) -> i128 {
        Amount::parse(text).map_or_else(|e| panic!("{text}: {e}"), |amount| amount.0)
    }

    #[test]
    fn the_same_value_in_other_words_is_equal() {
        for (left, right) in [
            ("1Gi", "1073741824"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000m", "1"),
            ("1e3", "1k"),
            ("1E3", "1000"),
            ("1E", "1000000000000000000"),
            ("0.5", "500m"),
            (".5", "0.50"),
            ("5.", "5"),
            ("+2", "2"),
            ("2e-3", "2m"),
            ("007", "7"),
            ("0.1Ki", "102400m"),
            ("0", "-0"),
        ] {
            assert_eq!(nanos(left), nanos(right), "{left} {right}");
        }
        assert_eq!(nanos("-4Gi"), -(4 << 30) * ONE);
    }

    #[test]
    fn too_fine_is_rounded_away_from_zero_and_too_large_is_cut() {
        assert_eq!(nanos("0.1n"), 1);
        assert_eq!(nanos("-0.1n"), -1);
        assert_eq!(nanos("1.0000000001"), ONE + 1);
        assert_eq!(nanos(&format!("0.{}1", "0".repeat(300))), 1);
        assert_eq!(nanos(&format!("1.{}1", "0".repeat(300))), ONE + 1);
        assert_eq!(nanos(&"9".repeat(400)), i128::from(i64::MAX) * ONE);
        assert_eq!(nanos("8Ei"), i128::from(i64::MAX) * ONE);
        assert_eq!(nanos("7Ei"), (7_i128 << 60) * ONE);
        assert_eq!(nanos("1e99999"), i128::from(i64::MAX) * ONE);
        assert_eq!(nanos("0e99999"), 0);
        assert_eq!(nanos("1e-99999"), 1);
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for (text, why) in [
            ("", QuantityError::Number),
            ("Gi", QuantityError::Number),
            (".", QuantityError::Number),
            ("1.2.3", QuantityError::Number),
            ("--1", QuantityError::Number),
            ("1gi", QuantityError::Suffix),
            ("1 Gi", QuantityError::Suffix),
            ("1e", QuantityError::Suffix),
            ("1e1.5", QuantityError::Suffix),
            ("1K", QuantityError::Suffix),
            ("abc", QuantityError::Number),
        ] {
            assert_eq!(Amount::parse(text), Err(why), "{text}");
        }
    }

    #[test]
    fn it_is_written_with_the_largest_exact_suffix() {
        for (text, written) in [
            ("5Gi", "5Gi"),
            ("1.5Gi", "1536Mi"),
            ("0", "0"),
            ("3", "3"),
            ("-2Ki", "-2Ki"),
            ("1500m", "1500m"),
            ("1n", "1n"),
        ] {
            assert_eq!(Amount::parse(text).map(|a| a.to_string()), Ok(written.to_owned()));
        }
        assert_eq!(Amount::parse("4Gi").map(|a| a.plus(Amount::GIB).to_string()), Ok("5Gi".to_owned()));
        assert_eq!(Amount::parse("1500m").map(Amount::ceil), Ok(2));
        assert_eq!(Amount::parse("-1500m").map(Amount::ceil), Ok(-1));
    }
}
