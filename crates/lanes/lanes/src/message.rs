//! The parts of a message: memory of the program, and bytes kept in shared memory.

use crate::lane_thread::Lanes;
use crate::peers::{HeldBytes, Peers};
use crate::send::{MAX_REFERENCE_BYTES, Piece};
use smallvec::SmallVec;
use uncopy_sys::bytes;
use uncopy_sys::iovec::Part;
use uncopy_sys::sync::Arc;

/// Minimum length of a part sent by reference, bytes. Below it, the kernel's two copies cost less than the token
/// and a copy into shared memory.
pub const MIN_REFERENCE_BYTES: usize = 32 << 10;

/// Shared memory that stays mapped and unchanged until this value is dropped.
pub struct SharedBuf {
    held: Option<Arc<HeldBytes>>,
    lanes: &'static Lanes,
}

impl SharedBuf {
    /// Wraps held memory in a handle.
    #[must_use]
    pub const fn of(held: Option<Arc<HeldBytes>>, lanes: &'static Lanes) -> Self {
        Self { held, lanes }
    }

    /// Returns another handle to the same bytes.
    #[must_use]
    pub fn clone_handle(&self) -> Self {
        Self { held: self.held.clone(), lanes: self.lanes }
    }

    /// Returns the held memory.
    #[must_use]
    pub fn held(&self) -> Option<&HeldBytes> {
        self.held.as_deref()
    }

    /// Releases everything beyond the first `len_bytes` bytes. Does nothing if there is another handle.
    pub fn shorten(&mut self, len_bytes: usize) {
        if let Some(held) = self.held.as_mut().and_then(Arc::get_mut) {
            self.lanes.peers.shorten(held, len_bytes);
        }
    }

    /// Keeps the first `pages` and returns the rest. `None` if there is no rest, or another handle.
    #[must_use]
    pub fn split_off(&mut self, pages: u32) -> Option<Self> {
        let held = self.held.as_mut().and_then(Arc::get_mut)?;
        let rest = self.lanes.peers.split(held, pages)?;
        Some(Self { held: Some(Arc::new(rest)), lanes: self.lanes })
    }
}

impl Drop for SharedBuf {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        if self.lanes.is_abandoned() {
            // In a forked child the memory belongs to the parent.
            core::mem::forget(held);
        } else if let Some(held) = Arc::into_inner(held) {
            self.lanes.peers.release(held);
        }
    }
}

/// A part to be sent.
#[derive(Clone, Copy)]
pub enum SendPart<'a> {
    /// Memory of the program.
    Plain(Part),
    /// Bytes kept in shared memory.
    Shared(Part, &'a SharedBuf),
}

/// Maximum length of a plain part that is compared with the bytes adjacent to a kept part, bytes.
const MAX_EDGE_BYTES: usize = 4 * uncopy_core::addr::PAGE_BYTES;

/// Extends kept parts over adjacent plain parts that hold the same bytes as the shared memory there. A view has
/// whole pages only, so the bytes at its edges were copied.
///
/// # Safety
/// Plain parts must be readable.
pub unsafe fn extend_shared<'a>(parts: &mut SmallVec<[SendPart<'a>; 16]>) {
    let is_same = |at: usize, part: Part| {
        // SAFETY: `at` and the following `len_bytes` lie within a held range, which stays mapped and unchanged;
        // `part` is a plain part, readable as the caller guarantees.
        unsafe { bytes::equal(at as *const u8, part.address as *const u8, part.len_bytes) }
    };
    let mut at = 0;
    while at < parts.len() {
        if let SendPart::Shared(mut part, kept) = parts[at]
            && let Some(held) = kept.held()
        {
            let end = held.address() + held.len_bytes();
            if let Some(SendPart::Plain(next)) = parts.get(at + 1)
                && next.len_bytes <= MAX_EDGE_BYTES.min(end - (part.address + part.len_bytes))
                && is_same(part.address + part.len_bytes, *next)
            {
                part.len_bytes += next.len_bytes;
                parts.remove(at + 1);
            }
            if at > 0
                && let SendPart::Plain(before) = parts[at - 1]
                && before.len_bytes <= MAX_EDGE_BYTES.min(part.address - held.address())
                && is_same(part.address - before.len_bytes, before)
            {
                part.address -= before.len_bytes;
                part.len_bytes += before.len_bytes;
                parts.remove(at - 1);
                at -= 1;
            }
            parts[at] = SendPart::Shared(part, kept);
        }
        at += 1;
    }
}

impl SendPart<'_> {
    const fn part(&self) -> Part {
        match self {
            Self::Plain(part) | Self::Shared(part, _) => *part,
        }
    }
}

/// A part to be sent, after large plain parts were copied into shared memory.
pub(crate) enum Prepared<'a> {
    Literal(Part),
    Copied(HeldBytes),
    Shared(Part, &'a HeldBytes),
}

impl Prepared<'_> {
    pub(crate) fn piece(&self) -> Piece<'_> {
        match self {
            Self::Literal(part) => Piece::Literal(*part),
            Self::Copied(held) => Piece::Shared { held, offset_bytes: 0, len_bytes: held.len_bytes() },
            Self::Shared(part, held) => {
                let offset_bytes = part.address - held.address();
                Piece::Shared { held, offset_bytes, len_bytes: part.len_bytes }
            }
        }
    }
}

/// Copies large plain parts into shared memory as far as there is room; other parts stay as they are. Calls
/// `want_room` where there is none.
pub(crate) fn prepare<'a>(
    parts: &[SendPart<'a>],
    peers: &Peers,
    mut want_room: impl FnMut(),
) -> SmallVec<[Prepared<'a>; 8]> {
    let mut prepared = SmallVec::new();
    for given in parts {
        let mut rest = given.part();
        if rest.len_bytes >= MIN_REFERENCE_BYTES
            && let SendPart::Shared(part, kept) = given
            && let Some(held) = kept.held()
        {
            prepared.push(Prepared::Shared(*part, held));
            continue;
        }
        while rest.len_bytes >= MIN_REFERENCE_BYTES {
            let len_bytes = rest.len_bytes.min(MAX_REFERENCE_BYTES);
            let Some(held) = peers.alloc(len_bytes) else {
                want_room();
                break;
            };
            // SAFETY: `held` is a new run of at least `len_bytes` bytes that nobody else knows; the program passed
            // the part to a send, so it is readable, and it does not overlap the run.
            unsafe { bytes::copy(held.address() as *mut u8, rest.address as *const u8, len_bytes) };
            prepared.push(Prepared::Copied(held));
            rest = Part { address: rest.address + len_bytes, len_bytes: rest.len_bytes - len_bytes };
        }
        if rest.len_bytes > 0 {
            prepared.push(Prepared::Literal(rest));
        }
    }
    prepared
}

/// Offered a part and the address of the bytes that belong there. Either takes the part, and keeps the bytes by
/// calling the third argument, or returns false: then they are copied.
pub trait PlaceByRef: FnMut(Part, usize, &dyn Fn() -> SharedBuf) -> bool {}
impl<F: FnMut(Part, usize, &dyn Fn() -> SharedBuf) -> bool> PlaceByRef for F {}

/// Delivers held bytes, from an offset on, into the parts. Returns the number of bytes delivered.
///
/// # Safety
/// The parts must be writable memory.
pub(crate) unsafe fn deliver(
    held: Arc<HeldBytes>,
    lanes: &'static Lanes,
    offset_bytes: usize,
    parts: &[Part],
    place: &mut impl PlaceByRef,
) -> usize {
    let kept = SharedBuf::of(Some(held), lanes);
    let Some(held) = &kept.held else { return 0 };
    let mut delivered = 0;
    for part in first_bytes(parts, held.len_bytes() - offset_bytes) {
        let from = held.address() + offset_bytes + delivered;
        if !place(part, from, &|| SharedBuf::of(Some(Arc::clone(held)), lanes)) {
            // SAFETY: `from` and the following `len_bytes` lie within a held range, which stays mapped; the caller
            // guarantees that the part is writable, and it is the program's, so the two do not overlap.
            unsafe { bytes::copy(part.address as *mut u8, from as *const u8, part.len_bytes) };
        }
        delivered += part.len_bytes;
    }
    delivered
}

/// Returns the first `len_bytes` bytes of the parts, or all if there are fewer.
pub(crate) fn first_bytes(parts: &[Part], len_bytes: usize) -> SmallVec<[Part; 8]> {
    bytes_from(parts, 0, len_bytes)
}

/// Returns the `len_bytes` bytes after the first `skipped_bytes` of the parts, or fewer at the end.
#[must_use]
pub fn bytes_from(parts: &[Part], mut skipped_bytes: usize, mut len_bytes: usize) -> SmallVec<[Part; 8]> {
    let mut some = SmallVec::new();
    for part in parts {
        let skipped = part.len_bytes.min(skipped_bytes);
        skipped_bytes -= skipped;
        let taken = (part.len_bytes - skipped).min(len_bytes);
        if len_bytes == 0 {
            break;
        }
        // Empty parts are dropped.
        if taken > 0 {
            some.push(Part { address: part.address + skipped, len_bytes: taken });
        }
        len_bytes -= taken;
    }
    some
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_parts_end_nothing() {
        let part = |address, len_bytes| Part { address, len_bytes };
        let parts = [part(1, 0), part(100, 7), part(2, 0), part(200, 9), part(3, 0)];
        let first = |len_bytes| {
            let first = first_bytes(&parts, len_bytes);
            first.iter().map(|part| (part.address, part.len_bytes)).collect::<Vec<_>>()
        };
        assert_eq!(first(0), []);
        assert_eq!(first(7), [(100, 7)]);
        assert_eq!(first(12), [(100, 7), (200, 5)]);
        assert_eq!(first(99), [(100, 7), (200, 9)]);
        let some = |skipped_bytes, len_bytes| {
            let some = bytes_from(&parts, skipped_bytes, len_bytes);
            some.iter().map(|part| (part.address, part.len_bytes)).collect::<Vec<_>>()
        };
        assert_eq!(some(3, 5), [(103, 4), (200, 1)]);
        assert_eq!(some(7, 9), [(200, 9)]);
        assert_eq!(some(10, 99), [(203, 6)]);
        assert_eq!(some(16, 1), []);
    }
}
