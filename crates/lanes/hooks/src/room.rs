//! Memory for input: shared memory to fill, and the writable length of the program's buffers.

use uncopy_engine::arena::segment::{Shared, SharedDraft};
use uncopy_engine::call::placed::is_in_block;
use uncopy_lanes::message::Kept;
use uncopy_lanes::peers::Held;
use uncopy_lanes::process::process;
use uncopy_sys::iovec::Part;
use uncopy_sys::readable::writable_bytes;

struct Room(Kept);

impl SharedDraft for Room {
    fn address(&self) -> usize {
        self.0.held().map_or(0, Held::address)
    }

    fn freeze(mut self: Box<Self>, len_bytes: usize) -> Shared {
        let address = self.address();
        self.0.shorten(len_bytes);
        // SAFETY: nobody else knows the run, and its filler is done, so the bytes stay unchanged.
        unsafe { Shared::new(address, len_bytes, Box::new(self.0)) }
    }
}

/// Takes shared memory for an input that is likely to be sent on a lane.
pub(super) fn take_shared(len_bytes: usize) -> Option<Box<dyn SharedDraft>> {
    let kept = process()?.take(len_bytes)?;
    Some(Box::new(Room(kept)))
}

/// Returns the number of bytes before the first that is not writable, where the kernel would stop too.
pub(super) fn room_of(parts: &[Part]) -> usize {
    let mut room_bytes = 0;
    for part in parts {
        let part_bytes =
            if is_in_block(*part) { part.len_bytes } else { writable_bytes(part.address, part.len_bytes) };
        room_bytes += part_bytes;
        if part_bytes < part.len_bytes {
            break;
        }
    }
    room_bytes
}
