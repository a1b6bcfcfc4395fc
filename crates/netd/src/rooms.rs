//! Rooms: memory that a packet, or what a program has written, is read into. Shared memory, so that what comes can be handed on by
//! reference; where there is none just now, the heap, of which a bounded amount is used.

use crate::payload::{Bytes, HeapRoom};
use std::ops::Range;
use std::sync::Arc;
use uncopy_lanes::message::Kept;
use uncopy_lanes::process::Process;
use uncopy_sys::iovec::Part;

/// Payload below this is copied out, bytes: it would keep a whole page.
pub const MAX_FEW_BYTES: usize = 2048;
/// Memory that nobody else knows.
pub enum Room {
    /// Of shared memory; it begins at a page.
    Shared(Kept),
    /// Of the heap.
    Heap(HeapRoom),
}

impl Room {
    /// Room for `len_bytes` bytes. `None`: there is none just now.
    #[must_use]
    pub fn take(process: &'static Process, len_bytes: usize) -> Option<Self> {
        process.take(len_bytes).map(Self::Shared).or_else(|| HeapRoom::new(len_bytes).map(Self::Heap))
    }

    /// All of it, to be filled.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Shared(kept) => {
                let held = kept.held().expect("it keeps something");
                // SAFETY: a mapped run of that length, of which nobody else knows.
                unsafe { std::slice::from_raw_parts_mut(held.address() as *mut u8, held.len_bytes()) }
            }
            Self::Heap(room) => room.bytes_mut(),
        }
    }

    /// Address of its first byte, and its length.
    pub fn part(&mut self) -> Part {
        let bytes = self.bytes();
        Part { address: bytes.as_ptr() as usize, len_bytes: bytes.len() }
    }

    /// Keeps only the first `pages`, of which nobody else knows, and what lies behind them as a room of its own. `None`: there is nothing
    /// behind them, or it is one of the heap.
    #[must_use]
    pub fn split_off(&mut self, pages: u32) -> Option<Self> {
        match self {
            Self::Shared(kept) => kept.split_off(pages).map(Self::Shared),
            Self::Heap(_) => None,
        }
    }

    /// What of it was filled; what is behind that is given back.
    #[must_use]
    pub fn filled(self, len_bytes: usize) -> Filled {
        match self {
            Self::Shared(mut kept) => {
                let address = kept.held().expect("it keeps something").address();
                kept.shorten(len_bytes);
                Filled::Shared(Arc::new(kept), address)
            }
            Self::Heap(room) => Filled::Heap(Arc::new(room)),
        }
    }
}

/// A room that was filled.
pub enum Filled {
    /// Of shared memory, and its address.
    Shared(Arc<Kept>, usize),
    /// Of the heap.
    Heap(Arc<HeapRoom>),
}

impl Filled {
    /// Some of its bytes.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Bytes {
        match self {
            Self::Shared(kept, address) => {
                let part = Part { address: address + range.start, len_bytes: range.len() };
                Bytes::shared(Arc::clone(kept), part)
            }
            Self::Heap(room) => Bytes::of_room(Arc::clone(room), range),
        }
    }
}

/// A copy of these bytes in a room of its own, as an API copy is; the same bytes where there is no room.
#[must_use]
pub fn copied(process: &'static Process, bytes: &Bytes) -> Bytes {
    let source = bytes.as_slice();
    if source.len() < MAX_FEW_BYTES {
        return Bytes::copy_of(source);
    }
    let Some(mut room) = Room::take(process, source.len()) else { return bytes.clone() };
    room.bytes()[..source.len()].copy_from_slice(source);
    room.filled(source.len()).part(0..source.len())
}
