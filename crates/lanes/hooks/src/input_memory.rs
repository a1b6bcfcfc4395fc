//! Memory for input: shared memory to fill, and the writable length of the program's buffers.

use uncopy_engine::arena::segment::{SharedBytes, SharedDraft};
use uncopy_engine::call::shared_input::is_in_block;
use uncopy_lanes::message::SharedBuf;
use uncopy_lanes::peers::HeldBytes;
use uncopy_lanes::process::process;
use uncopy_sys::iovec::Part;
use uncopy_sys::readable::writable_bytes;

struct SharedInput(SharedBuf);

impl SharedDraft for SharedInput {
    fn address(&self) -> usize {
        self.0.held().map_or(0, HeldBytes::address)
    }

    fn freeze(mut self: Box<Self>, len_bytes: usize) -> SharedBytes {
        let address = self.address();
        self.0.shorten(len_bytes);
        // SAFETY: nobody else knows the run, and its filler is done, so the bytes stay unchanged.
        unsafe { SharedBytes::new(address, len_bytes, Box::new(self.0)) }
    }
}

/// Takes shared memory for an input that is likely to be sent on a lane.
pub(super) fn alloc_shared(len_bytes: usize) -> Option<Box<dyn SharedDraft>> {
    let kept = process()?.alloc_shared(len_bytes)?;
    Some(Box::new(SharedInput(kept)))
}

/// Returns the number of bytes before the first that is not writable, where the kernel would stop too.
pub(super) fn writable_prefix_bytes(parts: &[Part]) -> usize {
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
