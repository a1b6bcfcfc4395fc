//! A command line, cut at blanks.

/// Words of a line that are looked at; further ones are only known to be there.
pub const WORDS_LIMIT: usize = 24;

/// The words of a line.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    words: [&'a [u8]; WORDS_LIMIT],
    len: usize,
}

impl<'a> Tokens<'a> {
    /// The words of `line`, which has no line end.
    pub fn of(line: &'a [u8]) -> Self {
        let mut tokens = Self { words: [&[]; WORDS_LIMIT], len: 0 };
        for word in line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).take(WORDS_LIMIT) {
            tokens.words[tokens.len] = word;
            tokens.len += 1;
        }
        tokens
    }

    /// How many there are, at most [`WORDS_LIMIT`].
    pub fn len(&self) -> usize {
        self.len
    }

    /// The word at `at`, empty if there is none.
    pub fn get(&self, at: usize) -> &'a [u8] {
        self.words.get(at).copied().unwrap_or_default()
    }

    /// The words from `at` on.
    pub fn from(&self, at: usize) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.words[..self.len].iter().copied().skip(at)
    }

    /// The last word.
    pub fn last(&self) -> &'a [u8] {
        self.get(self.len.wrapping_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_separate_and_nothing_else_does() {
        let tokens = Tokens::of(b"  set  a\tb 0 \r");
        assert_eq!(tokens.from(0).collect::<Vec<_>>(), [&b"set"[..], b"a\tb", b"0", b"\r"]);
        assert_eq!((tokens.len(), tokens.last(), tokens.get(9)), (4, &b"\r"[..], &b""[..]));
        assert_eq!((Tokens::of(b"").len(), Tokens::of(b"   ").last()), (0, &b""[..]));
        assert_eq!(Tokens::of(&b"a ".repeat(1000)).len(), WORDS_LIMIT);
    }
}
