//! Numbers read from arbitrary bytes.

/// Unread bytes, followed by endless zeroes.
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Returns a reader of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all bytes have been read.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u32 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        u32::from(*first)
    }

    /// Returns a number in `0..limit`, not uniform; `limit` is at most 65,536.
    pub fn below(&mut self, limit: u32) -> u32 {
        let number = if limit > 256 { self.byte() << 8 | self.byte() } else { self.byte() };
        number % limit.max(1)
    }
}
