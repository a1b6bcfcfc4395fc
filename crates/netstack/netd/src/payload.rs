//! Bytes by reference: in shared memory of this process or of a program, or on the heap.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_lanes::message::{SendPart, SharedBuf};
use uncopy_lanes::peers::HeldBytes;
use uncopy_sys::iovec::Part;
use uncopy_tcp::payload::Payload;

const MAX_HEAP_BYTES: usize = 16 << 20;

static HEAP_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Maximum ratio of the buffer that a part keeps alive to the part's length.
const MAX_KEPT_TIMES: usize = 8;

/// Overhead of a copy, in bytes: two heap allocations, and an entry among the received pieces.
const COPY_BYTES: usize = 128;

/// Total size of copied received bytes, with [`COPY_BYTES`] each: all that peers can hold beyond
/// shared memory.
static COPIED_BYTES: AtomicUsize = AtomicUsize::new(0);

struct Copied(Box<[u8]>);

impl Drop for Copied {
    fn drop(&mut self) {
        COPIED_BYTES.fetch_sub(self.0.len() + COPY_BYTES, Relaxed);
    }
}

/// A buffer on the heap.
pub struct HeapBuffer(Box<[u8]>);

impl HeapBuffer {
    /// Returns `len_bytes` zeroes, or `None` beyond [`MAX_HEAP_BYTES`].
    pub(crate) fn new(len_bytes: usize) -> Option<Self> {
        if HEAP_BYTES.fetch_add(len_bytes, Relaxed) + len_bytes > MAX_HEAP_BYTES {
            HEAP_BYTES.fetch_sub(len_bytes, Relaxed);
            return None;
        }
        Some(Self(vec![0; len_bytes].into_boxed_slice()))
    }

    /// Returns the whole buffer.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the whole buffer, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for HeapBuffer {
    fn drop(&mut self) {
        HEAP_BYTES.fetch_sub(self.0.len(), Relaxed);
    }
}

#[derive(Clone)]
#[allow(dead_code, reason = "what is kept is found by its address")]
enum Keeper {
    Shared(Arc<SharedBuf>),
    Buffer(Arc<HeapBuffer>),
    Small(Arc<[u8]>),
    Copied(Arc<Copied>),
}

/// Bytes that remain valid for the lifetime of this value.
#[derive(Clone)]
pub struct Bytes {
    keeper: Keeper,
    address: usize,
    len_bytes: usize,
}

impl Bytes {
    /// Returns bytes of kept shared memory.
    ///
    /// # Panics
    /// If `part` is not within `kept`.
    #[must_use]
    pub fn shared(kept: Arc<SharedBuf>, part: Part) -> Self {
        let held = kept.held().expect("it keeps something");
        let (start, end) = (held.address(), held.address() + held.len_bytes());
        assert!(part.address >= start && part.address + part.len_bytes <= end, "bytes of what is kept");
        Self { keeper: Keeper::Shared(kept), address: part.address, len_bytes: part.len_bytes }
    }

    /// Returns bytes of a heap buffer.
    #[must_use]
    pub fn of_heap_buffer(buffer: Arc<HeapBuffer>, range: Range<usize>) -> Self {
        let bytes = &buffer.bytes()[range];
        let (address, len_bytes) = (bytes.as_ptr() as usize, bytes.len());
        Self { keeper: Keeper::Buffer(buffer), address, len_bytes }
    }

    /// Returns a copy of a few bytes.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let copy: Arc<[u8]> = bytes.into();
        Self { address: copy.as_ptr() as usize, len_bytes: copy.len(), keeper: Keeper::Small(copy) }
    }

    /// Returns a copy of received bytes, or `None` if all such copies would exceed `max_bytes`.
    #[must_use]
    pub fn copy_received(bytes: &[u8], max_bytes: usize) -> Option<Self> {
        let taken = bytes.len() + COPY_BYTES;
        if COPIED_BYTES.fetch_add(taken, Relaxed) + taken > max_bytes {
            COPIED_BYTES.fetch_sub(taken, Relaxed);
            return None;
        }
        let copy = Arc::new(Copied(bytes.into()));
        Some(Self {
            address: copy.0.as_ptr() as usize,
            len_bytes: copy.0.len(),
            keeper: Keeper::Copied(copy),
        })
    }

    /// Appends bytes that directly follow in the same shared memory. Returns whether `next` was appended.
    pub fn try_append(&mut self, next: &Self) -> bool {
        let are_kept_together = match (&self.keeper, &next.keeper) {
            (Keeper::Shared(kept), Keeper::Shared(other)) => Arc::ptr_eq(kept, other),
            _ => false,
        };
        let are_joined = are_kept_together && self.address + self.len_bytes == next.address;
        if are_joined {
            self.len_bytes += next.len_bytes;
        }
        are_joined
    }

    /// Returns the address and length.
    #[must_use]
    pub const fn part(&self) -> Part {
        Part { address: self.address, len_bytes: self.len_bytes }
    }

    /// Returns the bytes. A program can change its own while they are read; only its user's data is affected.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `keeper` keeps the range mapped. Senders promise not to write to shared memory,
        // and no decision depends on the contents.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len_bytes) }
    }

    /// Returns the bytes as a part to send on a lane.
    #[must_use]
    pub fn send_part(&self) -> SendPart<'_> {
        match &self.keeper {
            Keeper::Shared(kept) => SendPart::Shared(self.part(), kept),
            Keeper::Buffer(_) | Keeper::Small(_) | Keeper::Copied(_) => SendPart::Plain(self.part()),
        }
    }
}

impl Payload for Bytes {
    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len_bytes);
        Self { keeper: self.keeper.clone(), address: self.address + range.start, len_bytes: range.len() }
    }

    fn new_part(&self, range: Range<usize>) -> Self {
        let part = self.slice(range);
        let kept_bytes = match &self.keeper {
            Keeper::Shared(kept) => kept.held().map_or(0, HeldBytes::len_bytes),
            Keeper::Buffer(buffer) => buffer.bytes().len(),
            Keeper::Small(_) | Keeper::Copied(_) => 0,
        };
        if part.len_bytes == self.len_bytes || part.len_bytes * MAX_KEPT_TIMES >= kept_bytes {
            return part;
        }
        // Otherwise a long segment, retransmitted again and again, would be kept whole for a few new bytes.
        let Some(mut buffer) = HeapBuffer::new(part.len_bytes) else { return part };
        buffer.bytes_mut().copy_from_slice(part.as_slice());
        Self::of_heap_buffer(Arc::new(buffer), 0..part.len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_part_is_the_same_bytes() {
        let bytes = Bytes::copy_of(b"0123456789");
        let part = bytes.slice(2..9).slice(1..4);
        drop(bytes);
        assert_eq!(part.as_slice(), b"345");
        assert_eq!(part.len_bytes(), 3);
        assert!(part.slice(3..3).as_slice().is_empty());
    }

    #[test]
    fn received_bytes_are_copied_up_to_a_bound_and_again_once_they_are_gone() {
        const MAX_BYTES: usize = 1 << 20;
        let copies: Vec<Bytes> = std::iter::from_fn(|| Bytes::copy_received(&[7; 1000], MAX_BYTES)).collect();
        assert_eq!(copies.len(), MAX_BYTES / (1000 + COPY_BYTES));
        assert!(copies.iter().all(|copy| copy.as_slice() == [7; 1000]));
        let part = copies[0].slice(1..3);
        drop(copies);
        assert_eq!(part.as_slice(), [7, 7]);
        let again: Vec<Bytes> = std::iter::from_fn(|| Bytes::copy_received(&[7; 1000], MAX_BYTES)).collect();
        assert_eq!(again.len(), MAX_BYTES / (1000 + COPY_BYTES) - 1, "one is still there");
    }

    #[test]
    fn small_new_part_of_a_long_segment_is_copied_out() {
        let buffer = Arc::new(HeapBuffer::new(1 << 16).expect("room"));
        let long = Bytes::of_heap_buffer(Arc::clone(&buffer), 0..1 << 16);
        let half = long.new_part(1 << 15..1 << 16);
        assert_eq!(half.part().address, long.part().address + (1 << 15));
        let little = long.new_part(100..4196);
        assert_eq!(little.as_slice(), &buffer.bytes()[100..4196]);
        let whole = long.slice(0..4096).new_part(0..4096);
        assert_eq!(whole.part().address, long.part().address);
        drop((long, half, whole));
        assert_eq!(Arc::strong_count(&buffer), 1, "the part keeps it");
    }

    #[test]
    #[should_panic(expected = "range.end")]
    fn slice_beyond_the_end_panics() {
        let _ = Bytes::copy_of(b"012").slice(1..4);
    }
}
