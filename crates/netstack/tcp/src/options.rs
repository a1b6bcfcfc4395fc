//! TCP options (RFC 9293, section 3.1; RFC 7323; RFC 2018).

use smallvec::SmallVec;

/// Maximum length of the options.
pub const MAX_OPTIONS_BYTES: usize = 40;
/// Maximum number of SACK blocks in a header without other options.
pub const MAX_SACK_BLOCKS: usize = 4;
/// Maximum window shift (RFC 7323, section 2.3).
pub const MAX_WINDOW_SHIFT: u8 = 14;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAXIMUM_SEGMENT_SIZE: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The timestamps option (RFC 7323, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval, the sender's clock.
    pub value: u32,
    /// TSecr, the echoed clock of the peer.
    pub echo: u32,
}

/// Options of a header; unknown kinds are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// MSS: largest segment that the sender takes, in bytes of payload and options.
    pub max_segment_size: Option<u16>,
    /// Window shift, at most [`MAX_WINDOW_SHIFT`].
    pub window_shift: Option<u8>,
    /// Whether the sender supports SACK.
    pub sack_permitted: bool,
    /// SACK blocks: first sequence number, and the one after the last.
    pub sack: SmallVec<[(u32, u32); MAX_SACK_BLOCKS]>,
    /// The timestamps option, if present.
    pub timestamps: Option<Timestamps>,
}

impl Options {
    /// Parses options. An option with an invalid length ends the list; earlier ones are kept.
    pub fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => break,
                NO_OPERATION => bytes = rest,
                kind => {
                    let Some(len) = rest.first().map(|&len| usize::from(len)) else { break };
                    let Some(value) = bytes.get(2..len) else { break };
                    options.read(kind, value);
                    bytes = &bytes[len..];
                }
            }
        }
        options
    }

    fn read(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MAXIMUM_SEGMENT_SIZE, &[high, low]) => {
                self.max_segment_size = Some(u16::from_be_bytes([high, low]))
            }
            (WINDOW_SCALE, &[shift]) => self.window_shift = Some(shift.min(MAX_WINDOW_SHIFT)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (SACK, blocks) if blocks.len() % 8 == 0 => {
                self.sack = blocks.chunks_exact(8).map(|block| (word(block, 0), word(block, 4))).collect();
            }
            (TIMESTAMPS, both) if both.len() == 8 => {
                self.timestamps = Some(Timestamps { value: word(both, 0), echo: word(both, 4) });
            }
            _ => {}
        }
    }

    /// Writes the options to the front of `buffer`, in Linux's order, each padded to four bytes.
    /// Returns the length, a multiple of 4. SACK blocks that do not fit are left out.
    pub fn write(&self, buffer: &mut [u8; MAX_OPTIONS_BYTES]) -> usize {
        let mut to = Writer { buffer, len: 0 };
        if let Some(size) = self.max_segment_size {
            to.put(&[MAXIMUM_SEGMENT_SIZE, 4]);
            to.put(&size.to_be_bytes());
        }
        if self.sack_permitted {
            to.put(&[NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2]);
        }
        if let Some(stamps) = self.timestamps {
            to.put(&[NO_OPERATION, NO_OPERATION, TIMESTAMPS, 10]);
            to.put(&stamps.value.to_be_bytes());
            to.put(&stamps.echo.to_be_bytes());
        }
        if let Some(shift) = self.window_shift {
            to.put(&[NO_OPERATION, WINDOW_SCALE, 3, shift]);
        }
        let blocks = self.sack.len().min((MAX_OPTIONS_BYTES - to.len).saturating_sub(4) / 8);
        if blocks > 0 {
            to.put(&[NO_OPERATION, NO_OPERATION, SACK, 2 + 8 * blocks as u8]);
            for (start, end) in &self.sack[..blocks] {
                to.put(&start.to_be_bytes());
                to.put(&end.to_be_bytes());
            }
        }
        to.len
    }

    /// Returns the length that [`Options::write`] produces.
    pub fn len_bytes(&self) -> usize {
        self.write(&mut [0; MAX_OPTIONS_BYTES])
    }

    /// Returns the maximum number of SACK blocks, with or without timestamps.
    pub fn max_sack_blocks(has_timestamps: bool) -> usize {
        if has_timestamps { 3 } else { MAX_SACK_BLOCKS }
    }
}

struct Writer<'a> {
    buffer: &'a mut [u8; MAX_OPTIONS_BYTES],
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unknown_options_are_skipped_by_their_length() {
        let bytes = [
            30,
            4,
            9,
            9,
            NO_OPERATION,
            MAXIMUM_SEGMENT_SIZE,
            4,
            5,
            180,
            34,
            2,
            SACK_PERMITTED,
            2,
            END,
            8,
            10,
        ];
        let options = Options::parse(&bytes);
        assert_eq!(options.max_segment_size, Some(1460));
        assert!(options.sack_permitted);
        assert_eq!(options.timestamps, None);
    }

    #[test]
    fn invalid_length_ends_the_options() {
        for bad in [&[2, 0][..], &[2, 1], &[2], &[2, 4, 1], &[8, 200, 1, 1]] {
            let bytes = [&[SACK_PERMITTED, 2], bad].concat();
            assert_eq!(Options::parse(&bytes), Options { sack_permitted: true, ..Options::default() });
        }
    }

    proptest! {
        #[test]
        fn written_options_parse_back(
            max_segment_size: Option<u16>, shift in prop::option::of(0u8..15), sack_permitted: bool,
            sack in prop::collection::vec(any::<(u32, u32)>(), 0..=2), stamps: Option<(u32, u32)>,
        ) {
            let timestamps = stamps.map(|(value, echo)| Timestamps { value, echo });
            let mut options =
                Options { max_segment_size, window_shift: shift, sack_permitted, sack: sack.into(), timestamps };
            let mut buffer = [0; MAX_OPTIONS_BYTES];
            let len = options.write(&mut buffer);
            prop_assert_eq!(len % 4, 0);
            prop_assert_eq!(len, options.len_bytes());
            let read = Options::parse(&buffer[..len]);
            options.sack.truncate(read.sack.len());
            prop_assert_eq!(read, options);
        }

        #[test]
        fn arbitrary_bytes_parse_within_bounds(bytes in prop::collection::vec(any::<u8>(), 0..=40)) {
            let options = Options::parse(&bytes);
            prop_assert!(options.sack.len() <= MAX_SACK_BLOCKS);
            options.len_bytes();
        }
    }
}
