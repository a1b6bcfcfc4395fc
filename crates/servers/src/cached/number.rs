//! Numbers on the wire: decimal, as memcached reads and writes them.

/// An unsigned number, all of the token.
pub fn unsigned(token: &[u8]) -> Option<u64> {
    let digits = token.strip_prefix(b"+").unwrap_or(token);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// An unsigned number of 32 bits.
pub fn unsigned_32(token: &[u8]) -> Option<u32> {
    u32::try_from(unsigned(token)?).ok()
}

/// A signed number of 32 bits.
pub fn signed_32(token: &[u8]) -> Option<i32> {
    match token.strip_prefix(b"-") {
        Some(digits) if digits.first().is_some_and(u8::is_ascii_digit) => {
            i32::try_from(-i64::try_from(unsigned(digits)?).ok()?).ok()
        }
        Some(_) => None,
        None => i32::try_from(unsigned(token)?).ok(),
    }
}

/// The number that an item holds, with blanks before it, and behind it as decrementing leaves them.
pub fn stored(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii_start();
    unsigned(digits.split(u8::is_ascii_whitespace).next()?)
}

/// Writes `number` into `digits`; the part that it took.
pub fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        for number in [0, 1, 9, 10, 12345, u64::from(u32::MAX), u64::MAX] {
            let mut digits = [0; 20];
            let text = decimal(number, &mut digits).to_vec();
            assert_eq!(text, number.to_string().into_bytes());
            assert_eq!(unsigned(&text), Some(number));
        }
        for token in ["", "+", "-1", "1x", "x", " 1", "18446744073709551616", "99999999999999999999999"] {
            assert_eq!(unsigned(token.as_bytes()), None, "{token}");
        }
        assert_eq!((signed_32(b"-2147483648"), signed_32(b"2147483647")), (Some(i32::MIN), Some(i32::MAX)));
        for token in ["2147483648", "-2147483649", "-", "--1", "-+1", ""] {
            assert_eq!(signed_32(token.as_bytes()), None, "{token}");
        }
        assert_eq!((stored(b"12  "), stored(b" 12"), stored(b"1 2")), (Some(12), Some(12), Some(1)));
        assert_eq!((stored(b""), stored(b"  "), stored(b"12x"), stored(b"-1")), (None, None, None, None));
    }
}
