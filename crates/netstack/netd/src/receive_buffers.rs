//! Buffers for packets and for bytes written by programs. Buffers are shared memory, so that their
//! contents can be passed on by reference, or a bounded amount of heap if no shared memory is free.

use crate::payload::{Bytes, HeapBuffer};
use std::ops::Range;
use std::sync::Arc;
use uncopy_lanes::message::SharedBuf;
use uncopy_lanes::process::Process;
use uncopy_sys::iovec::Part;

/// Payload shorter than this, in bytes, is copied out, because it would keep a whole page.
pub const COPY_BELOW_BYTES: usize = 2048;
/// A buffer to fill, referenced by nobody else.
pub enum Buffer {
    /// Shared memory, aligned to a page.
    Shared(SharedBuf),
    /// Memory on the heap.
    Heap(HeapBuffer),
}

impl Buffer {
    /// Returns a buffer of `len_bytes`, or `None` if no memory is free.
    #[must_use]
    pub fn allocate(process: &'static Process, len_bytes: usize) -> Option<Self> {
        process
            .alloc_shared(len_bytes)
            .map(Self::Shared)
            .or_else(|| HeapBuffer::new(len_bytes).map(Self::Heap))
    }

    /// Returns the whole buffer, to be filled.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Shared(kept) => {
                let held = kept.held().expect("it keeps something");
                // SAFETY: `held` keeps its bytes mapped, and an unfilled buffer has no reference but `self`.
                unsafe { std::slice::from_raw_parts_mut(held.address() as *mut u8, held.len_bytes()) }
            }
            Self::Heap(buffer) => buffer.bytes_mut(),
        }
    }

    /// Returns the address and length of the buffer.
    pub fn part(&mut self) -> Part {
        let bytes = self.bytes();
        Part { address: bytes.as_ptr() as usize, len_bytes: bytes.len() }
    }

    /// Keeps the first `pages` and returns the rest as a buffer. `None` if there is no rest, or for
    /// heap memory.
    #[must_use]
    pub fn split_off(&mut self, pages: u32) -> Option<Self> {
        match self {
            Self::Shared(kept) => kept.split_off(pages).map(Self::Shared),
            Self::Heap(_) => None,
        }
    }

    /// Returns the first `len_bytes` as filled, and frees the rest.
    #[must_use]
    pub fn freeze(self, len_bytes: usize) -> FilledBuffer {
        match self {
            Self::Shared(mut kept) => {
                let address = kept.held().expect("it keeps something").address();
                kept.shorten(len_bytes);
                FilledBuffer::Shared(Arc::new(kept), address)
            }
            Self::Heap(buffer) => FilledBuffer::Heap(Arc::new(buffer)),
        }
    }
}

/// A filled buffer, shared and immutable.
pub enum FilledBuffer {
    /// Shared memory, and its address.
    Shared(Arc<SharedBuf>, usize),
    /// Memory on the heap.
    Heap(Arc<HeapBuffer>),
}

impl FilledBuffer {
    /// Returns a range of the bytes by reference.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        match self {
            Self::Shared(kept, address) => {
                let part = Part { address: address + range.start, len_bytes: range.len() };
                Bytes::shared(Arc::clone(kept), part)
            }
            Self::Heap(buffer) => Bytes::of_heap_buffer(Arc::clone(buffer), range),
        }
    }
}

/// Copies bytes to another buffer, as the socket API does. Returns the same bytes if no memory is free.
#[must_use]
pub fn copy_to_buffer(process: &'static Process, bytes: &Bytes) -> Bytes {
    let source = bytes.as_slice();
    if source.len() < COPY_BELOW_BYTES {
        return Bytes::copy_of(source);
    }
    let Some(mut buffer) = Buffer::allocate(process, source.len()) else { return bytes.clone() };
    buffer.bytes()[..source.len()].copy_from_slice(source);
    buffer.freeze(source.len()).slice(0..source.len())
}
