//! Who called: stacks of the running program, taken inside it.
//!
//! ```no_run
//! use uncopy_unwind::{FRAMES, Registers, capture};
//! let mut frames = [0; FRAMES];
//! let count = capture(Registers::here(), &mut frames);
//! let stack = &frames[..count]; // return addresses, innermost first
//! ```
//!
//! For hooks: any thread, any signal handler, any stack that a program may run on, at any moment between [`begin`]
//! and the end of the process, in a forked child as well. No frame pointers are needed: frames are found by the tables
//! that every object brings along for exceptions (`.eh_frame`), which are read once for each return address and kept as
//! one word (`cache`, `rule`). Without tables, or with wrong ones, a stack ends early; it is never a reason to fault.
//!
//! Why not a crate for the whole of it: framehop keeps a cache for one thread at a time and is told of objects
//! beforehand, by code that allocates; the unwinders of libgcc and LLVM take locks or allocate, and all of them read tables
//! that `dlclose` may take away at that moment. gimli, which needs none of that, reads the tables.
#![cfg(target_os = "linux")]

mod cache;
mod list;
mod memory;
mod module;
mod objects;
mod registers;
mod rule;
mod tables;
mod trace;
mod walk;

pub use module::{Module, module_at};
pub use registers::Registers;
pub use trace::{FRAMES, Trace};

/// Looks up what the loader offers. Takes its locks: for when the library is loaded. Before it, every stack is empty.
pub fn begin() {
    objects::begin();
}

/// The stack of the calling thread from `start` on, innermost frame first, into `frames`; how many there are, [`FRAMES`]
/// at most. `start` itself is not part of it, nor are frames that are hidden ([`hide`]). Each is an address in the code
/// of a caller: the instruction behind the call, or, where a signal came in between, the one that it interrupted.
///
/// 0 if not even the first caller can be found.
///
/// Cost: some 10 ns a frame once its address is known, some 10 µs for each that is not. Never allocates from the
/// program's heap, never waits, never faults; `errno` is kept. Reads the program's stacks: not under a lock of the engine's.
#[must_use]
pub fn capture(start: Registers, frames: &mut [usize]) -> usize {
    walk::capture(start, frames)
}

/// The same, with what it depended on in `trace`: 5 to 15 ns tell whether the stack from there is still that one
/// ([`Trace::holds`]).
#[must_use]
pub fn capture_traced(start: Registers, frames: &mut [usize], trace: &mut Trace) -> usize {
    walk::capture_traced(start, frames, trace)
}

/// Frames whose code lies in `start..end` are not part of any stack from here on: this library's own.
pub fn hide(start: usize, end: usize) {
    walk::hide(start, end);
}

/// Forgets what is known of addresses: an object was unloaded, and another may come to lie in its place.
///
/// Objects that libc unloads by itself (converters of character sets) are not noticed. Where another object then has a
/// return address at the same place, a stack may end early or hold a wrong frame.
pub fn forget() {
    trace::forget();
}

/// No system calls from here on: the program is about to have them forbidden. Stacks then end at the first frame that is
/// not known yet.
pub fn confine() {
    walk::confine();
}
