//! Numbers of bytes as people type them: `65536`, `64K`, `64KiB`, `1M`, `1GiB`.

use core::ops::RangeInclusive;

extern crate std;
use std::format;
use std::string::{String, ToString as _};

/// How a size may be written, for messages.
pub const FORMS: &str = "as 65536, 64K or 1GiB";

/// What may follow the digits, and the power of two that it stands for.
const UNITS: [(&[u8], u32); 4] = [(b"k", 10), (b"m", 20), (b"g", 30), (b"t", 40)];

/// Bytes that `text` stands for: digits alone, or with K, M, G or T behind them, which are powers of 1024 in either
/// case and may be followed by `iB`. `None` if it is anything else, or does not fit; also for `KB`, which some read
/// as 1000.
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

/// Bytes that `text` stands for, if they lie in `legal`.
///
/// # Errors
/// What is legal.
pub fn parse_within<T>(text: &str, legal: RangeInclusive<T>) -> Result<T, String>
where
    T: TryFrom<u64> + TryInto<u64> + PartialOrd + Copy,
{
    parse(text.as_bytes())
        .and_then(|bytes| T::try_from(bytes).ok())
        .filter(|bytes| legal.contains(bytes))
        .ok_or_else(|| {
            format!("it must be a size from {} to {}, {FORMS}", short(*legal.start()), short(*legal.end()))
        })
}

/// A size in the largest unit that divides it.
fn short(bytes: impl TryInto<u64>) -> String {
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
    fn what_is_legal_is_told_shortly() {
        let told = parse_within::<usize>("3", 1 << 10..=1 << 30).expect_err("too small");
        assert!(told.contains("from 1K to 1G"), "{told}");
        assert!(parse_within("x", 0..=1025u64).expect_err("no size").contains("from 0 to 1025"));
        assert_eq!(parse_within("64K", 1..=65536u64), Ok(65536));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
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
