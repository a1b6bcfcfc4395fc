//! Optimistic receiver persistence (zIO, OSDI 2022, section 3.3): input whose bytes usually reach the log is received
//! straight into memory that a record can refer to, so that the log needs no copy.

use uncopy_core::policy::sites::Exit;
use uncopy_engine::arena::segment::{SharedBytes, SharedDraft, set_shared_allocator};
use uncopy_engine::call::output::Output;
use uncopy_store::program::chunk_pool::{ChunkRun, MIN_REFERENCE_BYTES};
use uncopy_store::program::{self as store};

struct LogInput(ChunkRun);

impl SharedDraft for LogInput {
    fn address(&self) -> usize {
        self.0.address()
    }

    fn freeze(mut self: Box<Self>, len_bytes: usize) -> SharedBytes {
        let address = self.address();
        self.0.finish(len_bytes);
        // SAFETY: nobody else knows the run, and its filler is done, so the bytes stay unchanged while the run exists. They
        // stay readable when the log is detached.
        unsafe { SharedBytes::new(address, len_bytes, Box::new(self.0)) }
    }
}

fn alloc(len_bytes: usize) -> Option<Box<dyn SharedDraft>> {
    Some(Box::new(LogInput(store::alloc_chunk(len_bytes)?)))
}

/// Has inputs received into the log's memory from now on, at sites whose bytes usually reach the log.
pub(super) fn switch_on() {
    set_shared_allocator(Exit::Log, alloc);
}

/// Notes that the first `len_bytes` bytes of an output were logged.
pub(super) fn note_logged(output: &Output, len_bytes: usize) {
    output.record_leaving(Exit::Log, len_bytes, MIN_REFERENCE_BYTES);
}
