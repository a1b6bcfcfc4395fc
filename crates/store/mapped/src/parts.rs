//! Parts of a write, and reasons why it is not appended.

use crate::chunks::Chunks;
use crate::layout::MAX_RECORD_BYTES;
use crate::record::{Extent, MAX_EXTENTS, MAX_FILE_BYTES, Reference, Source, head_bytes};
use crate::table::MAX_PATH_BYTES;
use core::fmt;

/// Part of a write.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Bytes that the record gets a copy of.
    Bytes(&'a [u8]),
    /// Bytes in a chunk, which the record refers to. They must not change before the record is retired.
    Reference(Reference),
}

impl Part<'_> {
    pub(crate) const fn len_bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Reference(reference) => reference.len_bytes as usize,
        }
    }
}

/// Reason why a record was not appended. The log is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// No room until a digest has retired records.
    Full,
    /// The record would be longer than [`max_record_bytes`](crate::layout::Superblock::max_record_bytes), or have more than [`MAX_EXTENTS`] extents.
    TooLong,
    /// The write or the new size ends behind [`MAX_FILE_BYTES`].
    FileTooLarge,
    /// A reference is not within a chunk.
    NoSuchChunk,
    /// The file is not registered.
    NotRegistered,
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the log is full",
            Self::TooLong => "the write is too long for one record",
            Self::FileTooLarge => "the file would exceed the maximum size",
            Self::NoSuchChunk => "a reference is not within a chunk",
            Self::NotRegistered => "the file is not registered",
        })
    }
}

impl core::error::Error for AppendError {}

/// Reason why a file was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// All entries of the table belong to files with records that are not retired.
    TableFull,
    /// The path is longer than [`MAX_PATH_BYTES`].
    PathTooLong,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TableFull => f.write_str("the log's table of files is full"),
            Self::PathTooLong => write!(f, "the path is longer than {MAX_PATH_BYTES} bytes"),
        }
    }
}

impl core::error::Error for RegisterError {}

/// Checks the parts of a write to `offset`. Returns its extents, with positions relative to the record, and the
/// number of inline bytes.
pub(crate) fn measure<C: Chunks + ?Sized>(
    chunks: &C,
    offset: u64,
    parts: &[Part<'_>],
) -> Result<(Vec<Extent>, usize), AppendError> {
    let mut extents: Vec<Extent> = Vec::new();
    let (mut inline_bytes, mut end) = (0usize, offset);
    for part in parts.iter().filter(|part| part.len_bytes() > 0) {
        let len_bytes = part.len_bytes();
        end = end
            .checked_add(len_bytes as u64)
            .filter(|end| *end <= MAX_FILE_BYTES)
            .ok_or(AppendError::FileTooLarge)?;
        let source = match part {
            Part::Bytes(_) => {
                inline_bytes = inline_bytes.checked_add(len_bytes).ok_or(AppendError::TooLong)?;
                Source::Inline(inline_bytes - len_bytes)
            }
            Part::Reference(Reference { chunk, at, .. }) => {
                if !chunks.has(*chunk, *at, len_bytes) {
                    return Err(AppendError::NoSuchChunk);
                }
                Source::Chunk { chunk: *chunk, at: *at }
            }
        };
        // Neighbours become one extent if that is not too long for the format.
        let merged = extents.last_mut().filter(|last| {
            last.source.skip(last.len_bytes) == source && u32::try_from(last.len_bytes + len_bytes).is_ok()
        });
        match merged {
            Some(last) => last.len_bytes += len_bytes,
            None => extents.push(Extent { source, len_bytes }),
        }
        if extents.len() > MAX_EXTENTS || inline_bytes > MAX_RECORD_BYTES {
            return Err(AppendError::TooLong);
        }
    }
    let head_len = head_bytes(extents.len());
    for extent in &mut extents {
        if let Source::Inline(at) = &mut extent.source {
            *at += head_len;
        }
    }
    Ok((extents, inline_bytes))
}
