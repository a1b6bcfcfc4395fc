//! Captures call stacks of the running program from inside it.
//!
//! ```no_run
//! use uncopy_unwind::{MAX_FRAMES, Registers, capture};
//! let mut frames = [0; MAX_FRAMES];
//! let count = capture(Registers::here(), &mut frames);
//! let stack = &frames[..count]; // return addresses, innermost first
//! ```
//!
//! Works in hooks: in any thread and signal handler, on any stack that a program may use, at any time between
//! [`init`] and the end of the process, including in forked children. Frame pointers are not needed. Frames
//! are found with the exception tables of each object (`.eh_frame`), which are read once per return address
//! and cached as one word (`cache`, `rule`). If tables are missing or wrong, the stack ends early; no table
//! can cause a fault.
//!
//! Existing unwinders do not fit: framehop's cache serves one thread at a time and must be told of objects
//! beforehand by code that allocates; those of libgcc and LLVM take locks or allocate; and all of them read
//! tables that `dlclose` may unmap concurrently. gimli has none of these restrictions and parses the tables.
#![cfg(target_os = "linux")]

mod cache;
mod link_map;
mod memory;
mod module;
mod objects;
mod registers;
pub mod rule;
pub mod tables;
mod trace;
mod walk;

pub use module::{Module, module_at};
pub use registers::Registers;
pub use trace::{MAX_FRAMES, Trace};

/// Resolves the loader's functions. Takes the loader's locks, so this must run when the library is loaded.
/// Stacks captured earlier are empty.
pub fn init() {
    objects::init();
}

/// Captures the calling thread's stack from `start` on into `frames`, innermost frame first, and returns the
/// number of frames, at most [`MAX_FRAMES`]. Neither `start` itself nor hidden frames ([`exclude_range`]) are included.
/// Each frame is an address in the caller's code: the instruction after the call or, for a frame that a
/// signal interrupted, the interrupted instruction.
///
/// Returns 0 if not even the first caller can be found.
///
/// Costs about 10 ns per frame whose address is cached, and 10 µs per frame whose address is not. Never
/// allocates from the program's heap, waits or faults, and preserves `errno`. Must not be called under a lock
/// of the engine, because reading the program's stacks may raise a page fault.
#[must_use]
pub fn capture(start: Registers, frames: &mut [usize]) -> usize {
    walk::capture(start, frames)
}

/// Captures a stack like [`capture`], and records the unwind's inputs in `trace`. [`Trace::matches`] then tells
/// in 5 to 15 ns whether the stack from `start` is unchanged.
#[must_use]
pub fn capture_traced(start: Registers, frames: &mut [usize], trace: &mut Trace) -> usize {
    walk::capture_traced(start, frames, trace)
}

/// Excludes frames whose code lies in `start..end` from all later stacks. Meant for the library's own code; a
/// second call replaces the range.
pub fn exclude_range(start: usize, end: usize) {
    walk::exclude_range(start, end);
}

/// Invalidates all cached rules. Must be called when an object has been unloaded, because another may be
/// loaded at the same addresses.
///
/// Objects that libc unloads internally (character set converters) go unnoticed. If a later object has a
/// return address at the same place, a stack may end early or contain a wrong frame.
pub fn invalidate_cache() {
    trace::invalidate_cache();
}

/// Stops making system calls, because the program is about to forbid them (seccomp). Stacks then end at the
/// first frame whose address is not cached.
pub fn stop_system_calls() {
    walk::stop_system_calls();
}
