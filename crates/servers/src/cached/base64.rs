//! Base 64 with padding (RFC 4648 §4), for keys of meta commands that are not text.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The bytes in base 64.
#[must_use]
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(*group.get(at).unwrap_or(&0)));
        for at in 0..4 {
            let symbol = ALPHABET[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { symbol } else { b'=' });
        }
    }
    text
}

/// The bytes that `text` stands for; `None` if it is not base 64, or empty.
#[must_use]
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|symbol| **symbol == b'=').count();
    if padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.chunks(4) {
        let mut bits = 0_u32;
        for symbol in group {
            let value = match symbol {
                b'A'..=b'Z' => symbol - b'A',
                b'a'..=b'z' => symbol - b'a' + 26,
                b'0'..=b'9' => symbol - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' => 0,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    bytes.truncate(bytes.len() - padding);
    // A padding sign may be nowhere else.
    (!text[..text.len() - padding].contains(&b'=') && encode(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_comes_back_and_anything_else_is_refused() {
        assert_eq!(encode(b"foobar"), b"Zm9vYmFy");
        assert_eq!(encode(b"fooba"), b"Zm9vYmE=");
        for len in 1..70_u8 {
            let bytes: Vec<u8> = (0..len).map(|at| at.wrapping_mul(211).wrapping_add(len)).collect();
            assert_eq!(decode(&encode(&bytes)).as_deref(), Some(&bytes[..]));
        }
        for text in
            ["", "A", "AA", "AAA", "A===", "====", "AA=A", "AAAA=", "Zm9v!mFy", "Zm9vYm==A", "Zm9=YmFy"]
        {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }
}
