//! Numbers from arbitrary bytes.

/// Bytes that are still to be read; zeroes follow them.
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// All of them.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether none are left.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u32 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        u32::from(*first)
    }

    /// A number in `0..limit` (at most 65,536), not evenly spread.
    pub fn below(&mut self, limit: u32) -> u32 {
        let number = if limit > 256 { self.byte() << 8 | self.byte() } else { self.byte() };
        number % limit.max(1)
    }
}
