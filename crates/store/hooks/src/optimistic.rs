//! Optimistic receiver persistence (zIO, OSDI 2022, section 3.3): input whose bytes usually reach the log is received
//! straight into memory that a record can refer to, so that the log needs no copy. That memory is the log's, or the
//! service's, which receives everything there (`uncopy net --memory-dir`).

use smallvec::SmallVec;
use uncopy_core::policy::sites::Exit;
use uncopy_engine::arena::segment::{Segment, SharedBytes, SharedDraft, set_shared_allocator};
use uncopy_engine::call::output::Output;
use uncopy_lanes::process::Process;
use uncopy_store::program::chunk_pool::{ChunkRun, MIN_REFERENCE_BYTES};
use uncopy_store::program::received::{Hold, Received};
use uncopy_store::program::{self as store};
use uncopy_sys::iovec::Part;

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

/// Has the lanes' thread release what records refer to in the service's memory, also while the program writes nothing.
pub(super) fn release_regularly() {
    uncopy_lanes::chunks::set_each_round(store::release_received);
}

/// Segments of a write that lie in memory of other processes.
pub(super) struct ReceivedSegments {
    segments: SmallVec<[Segment; 4]>,
    process: &'static Process,
}

impl ReceivedSegments {
    /// Returns those of a write, if there are any that records could refer to.
    pub(super) fn of(output: &Output) -> Option<Self> {
        let process = uncopy_lanes::process::process().filter(|process| process.peers().has_files())?;
        let segments = output.shared_segments();
        (!segments.is_empty()).then_some(Self { segments, process })
    }
}

impl Received for ReceivedSegments {
    fn locate(&self, part: Part) -> Option<(u64, u64)> {
        self.process.peers().file_of(part.address, part.len_bytes)
    }

    fn hold(&self, part: Part) -> Option<Hold> {
        let end = part.address + part.len_bytes;
        let has = |segment: &&Segment| {
            let shared = segment.shared();
            shared.is_some_and(|shared| {
                shared.address() <= part.address && end <= shared.address() + shared.len_bytes()
            })
        };
        let segment = self.segments.iter().find(has)?;
        Some(Box::new(segment.clone()))
    }

    fn holder(&self) -> u64 {
        self.process.peers().id()
    }
}

/// Notes that the first `len_bytes` bytes of an output were logged.
pub(super) fn note_logged(output: &Output, len_bytes: usize) {
    output.record_leaving(Exit::Log, len_bytes, MIN_REFERENCE_BYTES);
}
