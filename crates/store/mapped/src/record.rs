//! Format of a record.
//!
//! ```text
//! 0             8       12        16    24       32            40      42     44        48 … 64
//! │ commit word │ lines │ CRC-32C │ lsn │ offset │ incarnation │ entry │ kind │ extents │ first extent │
//! ┌───────────────────────────────────────────────────────────────────────────────────────┘
//! │ further extents │ pad to a line │ inline bytes, back to back │ pad to a line │
//!   └ head ───────────────────────┘
//! extent (16 bytes)
//! │ chunk, or INLINE (4) │ length, bytes (4) │ offset in the chunk; inline: in the record (8) │
//! ```
//!
//! A record with one extent has a head of one line. The checksum covers the head without the commit word, and no
//! payload: that was persistent before the commit word was stored. The extents of a write are one run of the file,
//! from `offset` on.

use crate::layout::{Lsn, Sealed, Superblock, is_whole, keyed_word, u16_at, u32_at, u64_at};
use crate::memory::LINE_BYTES;
use crate::table::FileId;

/// Maximum number of extents of a record.
pub const MAX_EXTENTS: usize = 1024;

/// Maximum offset and size of a file, bytes (`off_t`).
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

const FIRST_EXTENT_AT: usize = 48;
const EXTENT_BYTES: usize = 16;
const INLINE: u32 = u32::MAX;

/// A run of bytes in a chunk of persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// Number of the chunk, not `u32::MAX`.
    pub chunk: u32,
    /// Offset in the chunk, bytes.
    pub at: u64,
    /// Length, bytes.
    pub len_bytes: u32,
}

/// Place where the bytes of an extent lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the log's memory, at this position.
    Inline(usize),
    /// In a chunk, at this offset.
    Chunk {
        /// Number of the chunk.
        chunk: u32,
        /// Offset in the chunk, bytes.
        at: u64,
    },
}

impl Source {
    /// Returns the place `bytes` behind this one.
    #[must_use]
    pub const fn skip(self, bytes: usize) -> Self {
        match self {
            Self::Inline(at) => Self::Inline(at + bytes),
            Self::Chunk { chunk, at } => Self::Chunk { chunk, at: at + bytes as u64 },
        }
    }
}

/// A run of a file's bytes in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Place of the bytes.
    pub source: Source,
    /// Length, bytes; not 0.
    pub len_bytes: usize,
}

/// Change of a file that a record describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The extents, back to back, are the file's bytes from `offset` on.
    Write {
        /// Offset in the file, bytes.
        offset: u64,
        /// Extents of the write, at least one.
        extents: Vec<Extent>,
    },
    /// The file gets this size, as by ftruncate(2). A digest truncates the file before its other writes.
    Resize(u64),
    /// No change: the record fills the end of the ring.
    Pad,
}

/// Whether a record must survive power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The write has returned: the record survives the death of the program.
    Written,
    /// This record and all before it are persistent.
    Committed,
}

/// A record, decoded and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Sequence number of the record.
    pub lsn: Lsn,
    /// State of the commit word.
    pub state: State,
    /// Length of the record, bytes: whole lines.
    pub len_bytes: usize,
    /// File that the record changes; meaningless for [`Change::Pad`].
    pub file: FileId,
    /// Change of the file.
    pub change: Change,
}

impl Record {
    /// Returns the sequence number of the next record.
    #[must_use]
    pub const fn end(&self) -> Lsn {
        Lsn(self.lsn.0 + self.len_bytes as u64)
    }
}

/// Returns the commit word of a record.
#[must_use]
pub const fn commit_word(of: &Superblock, lsn: Lsn, state: State) -> u64 {
    keyed_word(of.log, lsn.0, matches!(state, State::Committed))
}

/// Returns the state that a commit word gives to the record; `None`: the word is not this record's.
#[must_use]
pub const fn state_of(of: &Superblock, lsn: Lsn, word: u64) -> Option<State> {
    if word == commit_word(of, lsn, State::Committed) {
        return Some(State::Committed);
    }
    if word == commit_word(of, lsn, State::Written) { Some(State::Written) } else { None }
}

/// Returns the length of the head of a record, bytes: whole lines.
#[must_use]
pub const fn head_bytes(extents: usize) -> usize {
    (FIRST_EXTENT_AT + extents * EXTENT_BYTES).next_multiple_of(LINE_BYTES)
}

/// Encodes the head of a record, without its commit word, into `head`. Positions of inline extents are relative to
/// the record here. The record has at most [`MAX_EXTENTS`] extents of at most `u32::MAX` bytes.
pub(crate) fn encode(record: &Record, of: &Superblock, head: &mut Vec<u8>) {
    let (kind, offset, extents) = match &record.change {
        Change::Write { offset, extents } => (1, *offset, extents.as_slice()),
        Change::Resize(size) => (2, *size, &[][..]),
        Change::Pad => (3, 0, &[][..]),
    };
    head.clear();
    head.resize(head_bytes(extents.len()), 0);
    let mut sealed = Sealed(head);
    sealed.put_u32(8, (record.len_bytes / LINE_BYTES) as u32);
    sealed.put_u64(16, record.lsn.0);
    sealed.put_u64(24, offset);
    sealed.put_u64(32, record.file.incarnation.0);
    sealed.put_u16(40, record.file.entry);
    sealed.put_u16(42, kind);
    sealed.put_u32(44, extents.len() as u32);
    for (index, extent) in extents.iter().enumerate() {
        let (chunk, from) = match extent.source {
            Source::Inline(at) => (INLINE, at as u64),
            Source::Chunk { chunk, at } => (chunk, at),
        };
        let at = FIRST_EXTENT_AT + index * EXTENT_BYTES;
        sealed.put_u32(at, chunk);
        sealed.put_u32(at + 4, extent.len_bytes as u32);
        sealed.put_u64(at + 8, from);
    }
    sealed.seal(of.log);
}

/// Returns the length of the head, bytes, from the first line of the record with this sequence number; `None`: the
/// line is not that record's. The head lies within the record, and the record within the ring.
pub(crate) fn measure(line: &[u8; LINE_BYTES], lsn: Lsn, of: &Superblock) -> Option<usize> {
    let (len_bytes, extents) =
        ((u32_at(line, 8) as usize).checked_mul(LINE_BYTES)?, u32_at(line, 44) as usize);
    // Padding may be as long as a record.
    let max_bytes = of.bytes_before_wrap(lsn).min(of.max_record_bytes());
    let is_possible = u64_at(line, 16) == lsn.0 && extents <= MAX_EXTENTS && len_bytes <= max_bytes;
    (is_possible && head_bytes(extents) <= len_bytes).then(|| head_bytes(extents))
}

/// Decodes the head of a record whose length [`measure`] returned; `None`: it is damaged.
pub(crate) fn decode(head: &[u8], lsn: Lsn, state: State, of: &Superblock) -> Option<Record> {
    if !is_whole(head, of.log) {
        return None;
    }
    let len_bytes = u32_at(head, 8) as usize * LINE_BYTES;
    let (offset, count) = (u64_at(head, 24), u32_at(head, 44) as usize);
    let change = match (u16_at(head, 42), count) {
        (1, 1..) => {
            let extents = decode_extents(head, count, offset, of.position(lsn), len_bytes)?;
            Change::Write { offset, extents }
        }
        (2, 0) if offset <= MAX_FILE_BYTES => Change::Resize(offset),
        (3, 0) => Change::Pad,
        _ => return None,
    };
    let file = FileId { entry: u16_at(head, 40), incarnation: Lsn(u64_at(head, 32)) };
    Some(Record { lsn, state, len_bytes, file, change })
}

/// Decodes `count` extents of a write to `offset`, in a record of `len_bytes` at `position`.
fn decode_extents(
    head: &[u8],
    count: usize,
    offset: u64,
    position: usize,
    len_bytes: usize,
) -> Option<Vec<Extent>> {
    let mut extents = Vec::with_capacity(count);
    let (mut inline_at, mut end) = (head.len(), offset);
    for fields in head.get(FIRST_EXTENT_AT..)?.chunks_exact(EXTENT_BYTES).take(count) {
        let (chunk, len, at) = (u32_at(fields, 0), u32_at(fields, 4) as usize, u64_at(fields, 8));
        end = end.checked_add(len as u64).filter(|end| *end <= MAX_FILE_BYTES)?;
        let source = if chunk == INLINE {
            if at != inline_at as u64 {
                return None;
            }
            inline_at = inline_at.checked_add(len).filter(|end| *end <= len_bytes)?;
            Source::Inline(position + at as usize)
        } else {
            at.checked_add(len as u64)?;
            Source::Chunk { chunk, at }
        };
        if len == 0 {
            return None;
        }
        extents.push(Extent { source, len_bytes: len });
    }
    (extents.len() == count).then_some(extents)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: Superblock = Superblock { log: 5, machine: 6, len_bytes: 1 << 20, entries: 8 };

    fn write(extents: Vec<Extent>) -> Record {
        Record {
            lsn: Lsn(LOG.ring_bytes() as u64 + 640),
            state: State::Written,
            len_bytes: 4096,
            file: FileId { entry: 3, incarnation: Lsn(64) },
            change: Change::Write { offset: 5 << 30, extents },
        }
    }

    fn decoded(head: &[u8], record: &Record) -> Option<Record> {
        let line = head.first_chunk().expect("a line");
        assert_eq!(measure(line, record.lsn, &LOG)?, head.len());
        decode(head, record.lsn, record.state, &LOG)
    }

    #[test]
    fn records_are_decoded_again() {
        let mut head = Vec::new();
        for count in [1, 2, 3, 5, 200] {
            let chunk = Extent { source: Source::Chunk { chunk: 7, at: 1 << 33 }, len_bytes: 900 };
            let inline = Extent { source: Source::Inline(head_bytes(count)), len_bytes: 100 };
            let mut extents = vec![chunk; count - 1];
            extents.push(inline);
            let mut record = write(extents);
            encode(&record, &LOG, &mut head);
            let Change::Write { extents, .. } = &mut record.change else { unreachable!("a write") };
            extents[count - 1].source = Source::Inline(LOG.position(record.lsn) + head_bytes(count));
            assert_eq!(decoded(&head, &record), Some(record));
        }
        for change in [Change::Pad, Change::Resize(MAX_FILE_BYTES)] {
            let record = Record { change, ..write(Vec::new()) };
            encode(&record, &LOG, &mut head);
            assert_eq!((head.len(), decoded(&head, &record)), (LINE_BYTES, Some(record)));
        }
    }

    #[test]
    fn impossible_extents_are_refused_though_their_checksum_is_right() {
        let inline = |at, len_bytes| Extent { source: Source::Inline(at), len_bytes };
        let chunk = |at, len_bytes| Extent { source: Source::Chunk { chunk: 0, at }, len_bytes };
        let head_len = head_bytes(1);
        let impossible = [
            vec![],
            vec![inline(head_len + 64, 64)],
            vec![inline(head_len, 4096)],
            vec![inline(head_len, 0)],
            vec![chunk(u64::MAX, 2)],
            vec![inline(head_bytes(2), 64), inline(head_bytes(2), 64)],
        ];
        for extents in impossible {
            let record = write(extents);
            let mut head = Vec::new();
            encode(&record, &LOG, &mut head);
            assert_eq!(decoded(&head, &record), None, "{record:?}");
        }
        let mut record = write(vec![inline(head_len, 64)]);
        let Change::Write { offset, .. } = &mut record.change else { unreachable!("a write") };
        *offset = MAX_FILE_BYTES - 63;
        let mut head = Vec::new();
        encode(&record, &LOG, &mut head);
        assert_eq!(decoded(&head, &record), None);
    }

    #[test]
    fn a_record_of_another_lap_or_beyond_the_ring_is_none() {
        let mut head = Vec::new();
        let record = write(vec![Extent { source: Source::Inline(64), len_bytes: 64 }]);
        encode(&record, &LOG, &mut head);
        let line = head.first_chunk().expect("a line");
        assert_eq!(measure(line, record.lsn, &LOG), Some(64));
        assert_eq!(measure(line, Lsn(640), &LOG), None, "an earlier lap");
        let last = Record { lsn: Lsn(LOG.ring_bytes() as u64 - 64), ..record };
        encode(&last, &LOG, &mut head);
        assert_eq!(measure(head.first_chunk().expect("a line"), last.lsn, &LOG), None, "no room at the end");
    }
}
