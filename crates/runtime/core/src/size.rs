//! Parsing and printing of sizes in bytes: `65536`, `64K`, `64KiB`, `1M`, `1GiB`.

use core::ops::RangeInclusive;

extern crate std;
use std::format;
use std::string::{String, ToString as _};

/// The accepted forms, for messages.
pub const FORMS: &str = "as 65536, 64K or 1GiB";

/// Unit letters, and the power of two that each stands for.
const UNITS: [(&[u8], u32); 4] = [(b"k", 10), (b"m", 20), (b"g", 30), (b"t", 40)];

/// Parses a size: digits, optionally followed by K, M, G or T in either case, which are powers of 1024, and
/// by `iB`. `None` if the text is anything else or the size does not fit. `KB` is refused because some read
/// it as 1000.
#[must_use]
pub fn parse(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = text.split_at(digits);
    let bytes = decimal(number)?;
    if unit.is_empty() {
        return Some(bytes);
    }
    let (letter, rest) = unit.split_at(1);
    if !rest.is_empty() && !rest.eq_ignore_ascii_case(b"ib") {
        return None;
    }
    let (_, shift) = UNITS.into_iter().find(|(name, _)| letter.eq_ignore_ascii_case(name))?;
    bytes.checked_mul(1 << shift)
}

/// Parses a size that must lie in `legal`.
///
/// # Errors
/// A message with the legal range.
pub fn parse_within<T>(text: &str, legal: RangeInclusive<T>) -> Result<T, String>
where
    T: TryFrom<u64> + TryInto<u64> + PartialOrd + Copy,
{
    parse(text.as_bytes())
        .and_then(|bytes| T::try_from(bytes).ok())
        .filter(|bytes| legal.contains(bytes))
        .ok_or_else(|| {
            format!(
                "it must be a size from {} to {}, {FORMS}",
                format_size(*legal.start()),
                format_size(*legal.end())
            )
        })
}

fn format_size(bytes: impl TryInto<u64>) -> String {
    let bytes = bytes.try_into().unwrap_or(u64::MAX);
    let unit = UNITS.into_iter().rev().find(|(_, shift)| bytes != 0 && bytes % (1 << shift) == 0);
    unit.map_or_else(
        || format!("{bytes}"),
        |(name, shift)| format!("{}{}", bytes >> shift, name.escape_ascii().to_string().to_ascii_uppercase()),
    )
}

/// Parses a decimal number that consists of digits only.
#[must_use]
pub fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("64K", 65_536),
            ("64k", 65_536),
            ("64KiB", 65_536),
            ("64kib", 65_536),
            ("1M", 1 << 20),
            ("3MiB", 3 << 20),
            ("1GiB", 1 << 30),
            ("2t", 2 << 40),
            ("16777215T", 16_777_215 << 40),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(bytes), "{text}");
        }
    }

    #[test]
    fn the_legal_range_is_shown_in_short_units() {
        let told = parse_within::<usize>("3", 1 << 10..=1 << 30).expect_err("too small");
        assert!(told.contains("from 1K to 1G"), "{told}");
        assert!(parse_within("x", 0..=1025u64).expect_err("no size").contains("from 0 to 1025"));
        assert_eq!(parse_within("64K", 1..=65536u64), Ok(65536));
    }

    #[test]
    fn text_that_is_not_a_size_is_refused() {
        let wrong = [
            "",
            "K",
            "-1",
            "+1",
            " 1",
            "1 K",
            "1.5M",
            "64KB",
            "64B",
            "64Ki",
            "64KiBs",
            "1e6",
            "0x10",
            "16777216T",
            "18446744073709551616",
            "1\u{212a}",
        ];
        for text in wrong {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
