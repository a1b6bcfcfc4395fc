//! The payload of a stream, by reference, and a simple implementation on the heap.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

/// Immutable bytes owned elsewhere. The stack requires nothing else of a payload.
pub trait Payload: Clone {
    /// Returns the number of bytes.
    fn len_bytes(&self) -> usize;

    /// Returns a part by reference; `range` lies within `0..len_bytes()`.
    #[must_use]
    fn slice(&self, range: Range<usize>) -> Self;

    /// Returns the part of a received piece that is kept until read. An implementation that bounds
    /// memory may copy a part that is small compared to the buffer it keeps alive.
    #[must_use]
    fn new_part(&self, range: Range<usize>) -> Self {
        self.slice(range)
    }
}

/// Consecutive pieces of a segment's payload; a single piece needs no heap allocation.
pub type Pieces<P> = SmallVec<[P; 1]>;

/// Returns the total length of the pieces.
pub fn len_bytes<P: Payload>(pieces: &[P]) -> usize {
    pieces.iter().map(Payload::len_bytes).sum()
}

/// Removes `count` bytes from the front, or all if there are fewer.
pub fn trim_front<P: Payload>(pieces: &mut Pieces<P>, mut count: usize) {
    let whole = pieces.iter().take_while(|piece| drops_whole(*piece, &mut count)).count();
    pieces.drain(..whole);
    if count > 0
        && let Some(first) = pieces.first_mut()
    {
        *first = first.new_part(count..first.len_bytes());
    }
}

fn drops_whole<P: Payload>(piece: &P, count: &mut usize) -> bool {
    let is_whole = piece.len_bytes() <= *count;
    if is_whole {
        *count -= piece.len_bytes();
    }
    is_whole
}

/// Keeps at most the first `len_bytes` bytes.
pub fn truncate<P: Payload>(pieces: &mut Pieces<P>, len_bytes: usize) {
    let mut left = len_bytes;
    pieces.retain(|piece| {
        let part = left.min(piece.len_bytes());
        left -= part;
        if part > 0 && part < piece.len_bytes() {
            *piece = piece.new_part(0..part);
        }
        part > 0
    });
}

/// A range of a reference-counted buffer on the heap.
#[derive(Clone, Debug)]
pub struct SharedBytes {
    bytes: Arc<[u8]>,
    range: Range<usize>,
}

impl SharedBytes {
    /// Returns the bytes of the range.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl From<&[u8]> for SharedBytes {
    fn from(bytes: &[u8]) -> Self {
        Self { bytes: bytes.into(), range: 0..bytes.len() }
    }
}

impl Payload for SharedBytes {
    fn len_bytes(&self) -> usize {
        self.range.len()
    }

    fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.range.len());
        let start = self.range.start;
        Self { bytes: Arc::clone(&self.bytes), range: start + range.start..start + range.end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(pieces: &[SharedBytes]) -> Vec<u8> {
        pieces.iter().flat_map(|piece| piece.as_slice().to_vec()).collect()
    }

    #[test]
    fn pieces_are_trimmed_at_both_ends_as_one_string_is() {
        for front in 0..=8 {
            for keep in 0..=8 {
                let mut pieces: Pieces<SharedBytes> =
                    [&b"ab"[..], b"c", b"def"].into_iter().map(SharedBytes::from).collect();
                trim_front(&mut pieces, front);
                truncate(&mut pieces, keep);
                let wanted: Vec<u8> = b"abcdef".iter().copied().skip(front).take(keep).collect();
                assert_eq!(bytes(&pieces), wanted, "{front} {keep}");
                assert!(pieces.iter().all(|piece| piece.len_bytes() > 0));
            }
        }
    }
}
