//! Human units, parsed and printed in this one place.
//!
//! Every quantity prints in a form that parses back to exactly the same value. All size units are binary:
//! `512m` is 512 MiB, in every spelling (`m`, `mb`, `MiB`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A quantity that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not {expected}")]
pub struct UnitError {
    given: String,
    expected: &'static str,
}

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A length of time, in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

/// A share of processor time: 1000 is one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millicores(pub u32);

impl Bytes {
    /// Mebibytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
}

impl Span {
    /// Whole seconds.
    pub const fn secs(n: u64) -> Self {
        Self(n * 1000)
    }

    /// Milliseconds.
    pub const fn millis(n: u64) -> Self {
        Self(n)
    }

    /// The span in milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Duration::from_millis(span.0)
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

const EXPECTED_SIZE: &str =
    "a size: a whole number with an optional unit b, k, m, g or t, such as `512m`";
const EXPECTED_SPAN: &str =
    "a length of time: a whole number with a unit ms, s, m, h or d, such as `30s`";
const EXPECTED_CPU: &str = "a share of CPU time: cores such as `1.5`, or millicores such as `500m`";

const SIZE_UNITS: [(&str, u64); 5] =
    [("t", 1 << 40), ("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10), ("b", 1)];
const SPAN_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Splits `512m` into 512 and `m`. Only plain ASCII digits count: no sign, no blanks, no fraction.
fn split_unit(given: &str) -> Option<(u64, &str)> {
    let digits = given.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = given.split_at(digits);
    Some((number.parse().ok()?, unit))
}

fn find_unit_factor(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor)
}

/// Prints with the largest unit that divides the value exactly.
fn write_with_unit(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let exact = units.iter().find(|(_, factor)| value != 0 && value.is_multiple_of(*factor));
    let (unit, factor) = exact.or(units.last()).copied().unwrap_or(("", 1));
    write!(f, "{}{unit}", value / factor)
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(given: &str) -> Result<Self, UnitError> {
        let lower = given.to_ascii_lowercase();
        let parse = || {
            let (number, unit) = split_unit(&lower)?;
            let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(unit);
            let factor = if unit.is_empty() { 1 } else { find_unit_factor(&SIZE_UNITS, unit)? };
            number.checked_mul(factor)
        };
        parse().map(Self).ok_or_else(|| UnitError { given: given.into(), expected: EXPECTED_SIZE })
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_unit(f, self.0, &SIZE_UNITS)
    }
}

impl Bytes {
    /// Rounded to a tenth of its unit, for people: `5.0g`. [`fmt::Display`] is exact.
    pub fn rounded(self) -> String {
        let unit = SIZE_UNITS.iter().find(|(_, factor)| self.0 >= *factor);
        match unit.copied() {
            Some((unit, factor)) if factor > 1 => {
                let tenths =
                    (u128::from(self.0) * 10 + u128::from(factor) / 2) / u128::from(factor);
                format!("{}.{}{unit}", tenths / 10, tenths % 10)
            }
            Some(_) | None => self.to_string(),
        }
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(given: &str) -> Result<Self, UnitError> {
        let parse = || {
            let (number, unit) = split_unit(given)?;
            number.checked_mul(find_unit_factor(&SPAN_UNITS, unit)?)
        };
        parse().map(Self).ok_or_else(|| UnitError { given: given.into(), expected: EXPECTED_SPAN })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_unit(f, self.0, &SPAN_UNITS)
    }
}

impl FromStr for Millicores {
    type Err = UnitError;

    fn from_str(given: &str) -> Result<Self, UnitError> {
        parse_cpu(given)
            .map(Self)
            .ok_or_else(|| UnitError { given: given.into(), expected: EXPECTED_CPU })
    }
}

/// `500m`, `2` or `1.5`: up to three digits after the point, since a millicore is the smallest share.
fn parse_cpu(given: &str) -> Option<u32> {
    if let Some(milli) = given.strip_suffix('m') {
        return split_unit(milli).filter(|(_, rest)| rest.is_empty())?.0.try_into().ok();
    }
    let (whole, rest) = split_unit(given)?;
    let fraction = match rest.strip_prefix('.') {
        None if rest.is_empty() => 0,
        Some(digits) if (1..=3).contains(&digits.len()) => {
            let (number, left) = split_unit(digits)?;
            let missing = u32::try_from(3 - digits.len()).ok()?;
            left.is_empty().then_some(number * 10u64.pow(missing))?
        }
        _ => return None,
    };
    whole.checked_mul(1000)?.checked_add(fraction)?.try_into().ok()
}

impl fmt::Display for Millicores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}m", self.0)
    }
}

struct Quantity<T> {
    expected: &'static str,
    from_number: Option<fn(u64) -> T>,
}

impl<T: FromStr<Err = UnitError>> Visitor<'_> for Quantity<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, given: &str) -> Result<T, E> {
        given.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, given: u64) -> Result<T, E> {
        let from_number = self.from_number;
        from_number
            .map(|make| make(given))
            .ok_or_else(|| E::invalid_type(de::Unexpected::Unsigned(given), &self))
    }
}

macro_rules! as_human_text {
    ($type:ty, $expected:expr, $from_number:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(Quantity::<$type> {
                    expected: $expected,
                    from_number: $from_number,
                })
            }
        }
    };
}

// A bare number is a size in bytes and nothing else: `30` could be seconds or milliseconds.
as_human_text!(Bytes, EXPECTED_SIZE, Some(Bytes));
as_human_text!(Span, EXPECTED_SPAN, None);
as_human_text!(Millicores, EXPECTED_CPU, None);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_for_people_has_one_digit_after_the_point() {
        for (bytes, text) in [
            (0, "0b"),
            (1023, "1023b"),
            (1024, "1.0k"),
            (5_376_940_321, "5.0g"),
            (1_600_000, "1.5m"),
            (u64::MAX, "16777216.0t"),
        ] {
            assert_eq!(Bytes(bytes).rounded(), text);
        }
    }

    #[test]
    fn sizes_parse_in_the_usual_spellings() {
        for given in ["512m", "512M", "512mb", "512MiB", "524288k", "536870912", "536870912b"] {
            assert_eq!(given.parse(), Ok(Bytes::mib(512)), "{given}");
        }
    }

    #[test]
    fn nonsense_sizes_are_refused_with_what_was_given() {
        for given in ["", "m", "-1", "1.5g", "5x", "1 g", "99999999999t", "٣"] {
            let error = given.parse::<Bytes>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{given}`")), "{error}");
        }
    }

    #[test]
    fn spans_need_a_unit() {
        assert_eq!("30s".parse(), Ok(Span::secs(30)));
        assert_eq!("2m".parse(), Ok(Span::secs(120)));
        assert_eq!("250ms".parse(), Ok(Span::millis(250)));
        assert!("30".parse::<Span>().is_err());
        assert!(serde_json::from_str::<Span>("30").is_err());
    }

    #[test]
    fn processor_shares_parse_as_cores_and_millicores() {
        for (given, milli) in [("500m", 500), ("2", 2000), ("1.5", 1500), ("0.125", 125)] {
            assert_eq!(given.parse(), Ok(Millicores(milli)), "{given}");
        }
        for given in ["", ".5", "1.", "1.2345", "-1", "1.5m", "5000000"] {
            assert!(given.parse::<Millicores>().is_err(), "{given}");
        }
    }

    #[test]
    fn what_is_printed_parses_back() {
        for value in [0, 1, 1023, 1024, 1 << 20, (1 << 30) + 1, u64::MAX] {
            assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
            assert_eq!(Span(value).to_string().parse(), Ok(Span(value)));
        }
    }
}
