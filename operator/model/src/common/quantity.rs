//! Kubernetes quantities as integers.

use thiserror::Error;

/// Upper bound of amounts, to which larger amounts are cut. 2^48 is 256 TiB in bytes. The sum of
/// 32,000 such pods does not overflow.
pub const MAX_AMOUNT: i64 = 1 << 48;

/// Longest accepted text. The API server's canonical form is far shorter.
const MAX_LENGTH: usize = 64;

/// Significant digits; further digits round up.
const DIGITS: usize = 18;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a quantity")]
pub struct InvalidQuantity(String);

/// The quantity in whole units, rounded up, from 0 to [`MAX_AMOUNT`]. Negative quantities are zero.
///
/// Grammar of `apimachinery/pkg/api/resource`: a decimal number with a suffix `n u m k M G T P E`,
/// `Ki Mi Gi Ti Pi Ei`, or a decimal exponent.
pub fn units(text: &str) -> Result<i64, InvalidQuantity> {
    scaled(text, 0)
}

/// As [`units`], in thousandths. The unit of CPU.
pub fn milli(text: &str) -> Result<i64, InvalidQuantity> {
    scaled(text, 3)
}

fn scaled(text: &str, decimals: i32) -> Result<i64, InvalidQuantity> {
    parse(text, decimals).ok_or_else(|| InvalidQuantity(text.chars().take(MAX_LENGTH).collect()))
}

fn parse(text: &str, decimals: i32) -> Option<i64> {
    if text.len() > MAX_LENGTH {
        return None;
    }
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number_end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (binary, decimal) = exponents(suffix)?;
    if negative {
        return Some(0);
    }
    let digits = significant_digits(whole, fraction);
    let kept = digits.clone().take(DIGITS).fold(0u128, |n, c| {
        n * 10 + u128::from(c.to_digit(10).unwrap_or(0))
    });
    let dropped = digits.clone().count().saturating_sub(DIGITS) as i32;
    let up = u128::from(digits.skip(DIGITS).any(|c| c != '0'));
    let mantissa = (kept + up) << binary;
    Some(scale(
        mantissa,
        decimal + decimals + dropped - fraction.len() as i32,
    ))
}

fn significant_digits(whole: &str, fraction: &str) -> impl Iterator<Item = char> + Clone {
    let digits = whole.chars().chain(fraction.chars());
    digits.skip_while(|&c| c == '0')
}

/// Exponents of two and ten for a suffix.
fn exponents(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        _ => (
            0,
            suffix.strip_prefix(['e', 'E'])?.parse::<i16>().ok()?.into(),
        ),
    })
}

/// `mantissa * 10^decimal`, rounded up and bounded.
fn scale(mantissa: u128, decimal: i32) -> i64 {
    let value = match 10u128.checked_pow(decimal.unsigned_abs()) {
        Some(power) if decimal >= 0 => mantissa.checked_mul(power),
        Some(power) => Some(mantissa.div_ceil(power)),
        None if decimal >= 0 && mantissa > 0 => None,
        None => Some(u128::from(mantissa > 0)),
    };
    value.map_or(MAX_AMOUNT, |v| v.min(MAX_AMOUNT as u128) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn upstream_formats_have_upstream_values() {
        for (text, units_, milli_) in [
            ("0", 0, 0),
            ("1", 1, 1000),
            ("100m", 1, 100),
            ("0.5", 1, 500),
            (".5", 1, 500),
            ("5.", 5, 5000),
            ("1.5Gi", 1_610_612_736, 1_610_612_736_000),
            ("128Mi", 134_217_728, 134_217_728_000),
            ("1k", 1000, 1_000_000),
            ("1e3", 1000, 1_000_000),
            ("1E3", 1000, 1_000_000),
            ("12e-1", 2, 1200),
            ("1n", 1, 1),
            ("1500u", 1, 2),
            ("+3", 3, 3000),
            ("-3", 0, 0),
            ("1E", MAX_AMOUNT, MAX_AMOUNT),
            ("16Ei", MAX_AMOUNT, MAX_AMOUNT),
            ("0.000000000000000001Ei", 2, 1153),
            ("99999999999999999999999999", MAX_AMOUNT, MAX_AMOUNT),
            ("1e300", MAX_AMOUNT, MAX_AMOUNT),
            ("1e-300", 1, 1),
            ("000000000000000000000000000000000000008", 8, 8000),
        ] {
            assert_eq!(
                (units(text), milli(text)),
                (Ok(units_), Ok(milli_)),
                "{text}"
            );
        }
    }

    #[test]
    fn what_upstream_refuses_is_refused() {
        for text in [
            "", "-", ".", "1.2.3", "1 Gi", "Gi", "1ki", "1KI", "0x10", "1e", "1e99999", "eight",
            "1µ",
        ] {
            assert!(units(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_error_repeats_a_bounded_part_of_the_text() {
        let long = "x".repeat(10_000);
        assert!(units(&long).unwrap_err().to_string().len() < 100);
    }

    proptest! {
        #[test]
        fn any_text_gives_an_amount_in_bounds_or_an_error(text in "[-+]?[0-9]{0,24}\\.?[0-9]{0,12}(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9]{1,3})?") {
            if let Ok(v) = units(&text) {
                prop_assert!((0..=MAX_AMOUNT).contains(&v));
                prop_assert!(milli(&text).unwrap() >= v);
            }
        }

        #[test]
        fn whole_numbers_are_exact(n in 0..MAX_AMOUNT / 1000) {
            prop_assert_eq!(units(&n.to_string()), Ok(n));
            prop_assert_eq!(milli(&format!("{n}m")), Ok(n));
        }
    }
}
