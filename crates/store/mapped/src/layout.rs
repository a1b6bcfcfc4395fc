//! Format of a log in memory: superblock, checkpoints, and where everything else lies.
//!
//! ```text
//! 0              256            512            768        4 KiB           ring_at                   len_bytes
//! │ superblock │ checkpoint 0 │ checkpoint 1 │ released │ entry │ entry │ record │ record │ … free … │ record │
//!                                                       └ table of files ┘└ ring ───────────────────────────┘
//!                                                                          ▲ head            tail ▲
//! ```
//!
//! A sequence number ([`Lsn`]) is a position in the endless sequence of all bytes that the ring ever held: the
//! record with that number begins at `ring_at + lsn % ring_bytes`. It never repeats, so leftovers of earlier laps
//! never look current. Integers are little-endian. Every structure has a CRC-32C, which begins with the log's
//! identifier. The words outside of it (state of an entry, commit word of a record) change after the structure was
//! written; they are a hash of identifier and sequence number, with the state in the lowest bit.

use crate::memory::LINE_BYTES;
use core::fmt;
use crc32c::crc32c_append;
use uncopy_core::random::splitmix64;

/// Version of the format.
pub const VERSION: u32 = 1;
/// Positions of the two checkpoints, bytes. They lie in different 256-byte blocks of the media.
pub const CHECKPOINTS_AT: [usize; 2] = [256, 512];
/// Position of the word by which the digester tells the writer which room is free, bytes.
pub const RELEASED_AT: usize = 768;
/// Position of the table of files, bytes.
pub const TABLE_AT: usize = 4 << 10;
/// Length of an entry of the table of files, bytes.
pub const ENTRY_BYTES: usize = LINE_BYTES + (4 << 10);
/// Maximum number of entries in the table of files.
pub const MAX_ENTRIES: u32 = 1024;
/// Minimum length of the ring, bytes.
pub const MIN_RING_BYTES: usize = 4 << 10;
/// Maximum length of a record, bytes.
pub const MAX_RECORD_BYTES: usize = 32 << 20;

const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"uncopymp");
const CHECKPOINT_MAGIC: u64 = u64::from_le_bytes(*b"uncopymc");

/// Sequence number of a record: its position in the endless sequence of the ring's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Returns the number `bytes` later; `None`: numbers are exhausted.
    #[must_use]
    pub const fn after(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(lsn) => Some(Self(lsn)),
            None => None,
        }
    }

    /// Returns the number of bytes from `earlier` to this number; 0 if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Contents of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Random identifier of the log, not 0.
    pub log: u64,
    /// Machine on which the log was made (a hash of `/etc/machine-id`).
    pub machine: u64,
    /// Length of the log, bytes.
    pub len_bytes: u64,
    /// Number of entries in the table of files.
    pub entries: u32,
}

/// Contents of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Serial number; the valid checkpoint with the higher one counts.
    pub serial: u64,
    /// First record that is not retired.
    pub tail: Lsn,
    /// Boot during which the owner attached (a hash of the kernel's `boot_id`). While the same kernel runs, every
    /// store to the memory is still there.
    pub boot: u64,
    /// Process that owns the log; 0: none.
    pub process: u64,
    /// Time of this checkpoint, nanoseconds since 1970. Files modified later were modified by others, or by a
    /// digester that has written no checkpoint since.
    pub time_ns: u64,
    /// Error number of a file that could not be digested and was left to a recovery; 0: none.
    pub failure: u32,
}

/// Reason why memory does not hold a usable log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The memory has no superblock of any version.
    Foreign,
    /// The superblock has this other version.
    Version(u32),
    /// The superblock has a wrong checksum or impossible values, or the memory is shorter than the log.
    Superblock,
    /// Neither checkpoint is valid.
    Checkpoints,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("not a mapped log"),
            Self::Version(version) => write!(f, "format version {version}, expected {VERSION}"),
            Self::Superblock => f.write_str("damaged superblock"),
            Self::Checkpoints => f.write_str("no valid checkpoint"),
        }
    }
}

impl core::error::Error for Unreadable {}

/// A structure of one line or more whose bytes 12 to 15 are its checksum.
pub(crate) struct Sealed<'a>(pub &'a mut [u8]);

impl Sealed<'_> {
    pub(crate) fn put_u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn put_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn put_u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes the checksum of everything behind the first word.
    pub(crate) fn seal(&mut self, log: u64) {
        let sum = checksum(self.0, log);
        self.put_u32(12, sum);
    }
}

/// Returns the checksum of a structure without its first word and without the checksum.
pub(crate) fn checksum(bytes: &[u8], log: u64) -> u32 {
    let sum = crc32c_append(0, &log.to_le_bytes());
    crc32c_append(crc32c_append(sum, &bytes[8..12]), &bytes[16..])
}

pub(crate) fn is_whole(bytes: &[u8], log: u64) -> bool {
    u32_at(bytes, 12) == checksum(bytes, log)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]))
}

/// Returns a word that only this log stores for this purpose, with a flag in its lowest bit.
pub(crate) const fn keyed_word(log: u64, key: u64, flag: bool) -> u64 {
    splitmix64(log ^ splitmix64(key)) & !1 | flag as u64
}

impl Superblock {
    /// Returns the minimum length of a log with this number of entries, bytes.
    #[must_use]
    pub const fn min_len_bytes(entries: u32) -> u64 {
        (TABLE_AT + entries as usize * ENTRY_BYTES).next_multiple_of(4 << 10) as u64 + MIN_RING_BYTES as u64
    }

    /// Whether the values describe a log that can exist.
    #[must_use]
    pub const fn is_possible(&self) -> bool {
        self.log != 0
            && 0 < self.entries
            && self.entries <= MAX_ENTRIES
            && self.len_bytes <= i64::MAX as u64
            && self.len_bytes >= Self::min_len_bytes(self.entries)
    }

    /// Returns the position of the ring of records, bytes.
    #[must_use]
    pub const fn ring_at(&self) -> usize {
        (TABLE_AT + self.entries as usize * ENTRY_BYTES).next_multiple_of(4 << 10)
    }

    /// Returns the length of the ring, bytes: whole lines.
    #[must_use]
    pub const fn ring_bytes(&self) -> usize {
        (self.len_bytes as usize - self.ring_at()) / LINE_BYTES * LINE_BYTES
    }

    /// Returns the maximum length of a record, bytes. Half of the ring: a record does not wrap around, and fits
    /// into an empty ring wherever its head is.
    #[must_use]
    pub const fn max_record_bytes(&self) -> usize {
        let half = self.ring_bytes() / 2 / LINE_BYTES * LINE_BYTES;
        if half < MAX_RECORD_BYTES { half } else { MAX_RECORD_BYTES }
    }

    /// Returns the position of a record, bytes.
    #[must_use]
    pub const fn position(&self, lsn: Lsn) -> usize {
        self.ring_at() + (lsn.0 % self.ring_bytes() as u64) as usize
    }

    /// Returns the number of bytes from a record's beginning to the end of the ring.
    #[must_use]
    pub const fn bytes_before_wrap(&self, lsn: Lsn) -> usize {
        self.ring_bytes() - (lsn.0 % self.ring_bytes() as u64) as usize
    }

    /// Encodes the superblock as a line.
    #[must_use]
    pub fn encode(&self) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        let mut sealed = Sealed(&mut line);
        sealed.put_u64(0, SUPERBLOCK_MAGIC);
        sealed.put_u32(8, VERSION);
        sealed.put_u64(16, self.log);
        sealed.put_u64(24, self.machine);
        sealed.put_u64(32, self.len_bytes);
        sealed.put_u32(40, self.entries);
        sealed.seal(0);
        line
    }

    /// Decodes a superblock.
    ///
    /// # Errors
    /// The reason why it is not usable.
    pub fn decode(line: &[u8; LINE_BYTES]) -> Result<Self, Unreadable> {
        if u64_at(line, 0) != SUPERBLOCK_MAGIC {
            return Err(Unreadable::Foreign);
        }
        // Every version has the checksum there: a torn superblock is not one of another version.
        if !is_whole(line, 0) {
            return Err(Unreadable::Superblock);
        }
        let version = u32_at(line, 8);
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        let found = Self {
            log: u64_at(line, 16),
            machine: u64_at(line, 24),
            len_bytes: u64_at(line, 32),
            entries: u32_at(line, 40),
        };
        found.is_possible().then_some(found).ok_or(Unreadable::Superblock)
    }
}

impl Checkpoint {
    /// Encodes the checkpoint of a log as a line.
    #[must_use]
    pub fn encode(&self, of: &Superblock) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        let mut sealed = Sealed(&mut line);
        sealed.put_u64(0, CHECKPOINT_MAGIC);
        sealed.put_u64(16, self.serial);
        sealed.put_u64(24, self.tail.0);
        sealed.put_u64(32, self.boot);
        sealed.put_u64(40, self.process);
        sealed.put_u64(48, self.time_ns);
        sealed.put_u32(56, self.failure);
        sealed.seal(of.log);
        line
    }

    /// Decodes a checkpoint of this log; `None`: it is damaged, or of another log.
    #[must_use]
    pub fn decode(line: &[u8; LINE_BYTES], of: &Superblock) -> Option<Self> {
        let is_ours = u64_at(line, 0) == CHECKPOINT_MAGIC && is_whole(line, of.log);
        let found = Self {
            serial: u64_at(line, 16),
            tail: Lsn(u64_at(line, 24)),
            boot: u64_at(line, 32),
            process: u64_at(line, 40),
            time_ns: u64_at(line, 48),
            failure: u32_at(line, 56),
        };
        // Arithmetic on sequence numbers near the tail does not overflow.
        let has_room = found.tail.after(4 * of.ring_bytes() as u64).is_some() && found.serial < u64::MAX;
        (is_ours && has_room && found.tail.0.is_multiple_of(LINE_BYTES as u64)).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: Superblock = Superblock { log: 5, machine: 6, len_bytes: 1 << 20, entries: 8 };

    #[test]
    fn structures_are_decoded_again_and_every_changed_bit_is_noticed() {
        assert_eq!(Superblock::decode(&LOG.encode()), Ok(LOG));
        let checkpoint =
            Checkpoint { serial: 7, tail: Lsn(640), boot: 9, process: 10, time_ns: 11, failure: 5 };
        assert_eq!(Checkpoint::decode(&checkpoint.encode(&LOG), &LOG), Some(checkpoint));
        assert_eq!(Checkpoint::decode(&checkpoint.encode(&LOG), &Superblock { log: 4, ..LOG }), None);
        for bit in 0..8 * LINE_BYTES {
            let flip = |mut line: [u8; LINE_BYTES]| {
                line[bit / 8] ^= 1 << (bit % 8);
                line
            };
            assert!(Superblock::decode(&flip(LOG.encode())).is_err(), "bit {bit}");
            assert_eq!(Checkpoint::decode(&flip(checkpoint.encode(&LOG)), &LOG), None, "bit {bit}");
        }
    }

    #[test]
    fn impossible_superblocks_are_refused() {
        let too_short = Superblock { len_bytes: Superblock::min_len_bytes(8) - 1, ..LOG };
        let no_entries = Superblock { entries: 0, ..LOG };
        let many_entries = Superblock { entries: MAX_ENTRIES + 1, len_bytes: 1 << 40, ..LOG };
        for impossible in [too_short, no_entries, many_entries, Superblock { len_bytes: u64::MAX, ..LOG }] {
            assert_eq!(Superblock::decode(&impossible.encode()), Err(Unreadable::Superblock));
        }
    }

    #[test]
    fn a_ring_is_whole_lines_and_holds_two_records_of_maximum_length() {
        let odd = Superblock { len_bytes: Superblock::min_len_bytes(8) + 100, ..LOG };
        assert_eq!(odd.ring_bytes(), MIN_RING_BYTES + 64);
        assert!(2 * odd.max_record_bytes() <= odd.ring_bytes());
        assert_eq!(odd.position(Lsn(odd.ring_bytes() as u64 * 3 + 128)), odd.ring_at() + 128);
    }
}
