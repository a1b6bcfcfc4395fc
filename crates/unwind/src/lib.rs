//! Who called: stacks of the running program, taken inside it.
//!
//! ```no_run
//! use uncopy_unwind::{FRAMES, Registers, capture};
//! let mut frames = [0; FRAMES];
//! let count = capture(Registers::here(), &mut frames);
//! let stack = &frames[..count]; // return addresses, innermost first
//! ```
//!
//! For hooks: any thread, any signal handler, any stack that a program may run on, at any moment between the
//! loading of the library and the end of the process, in a forked child as well.
#![cfg(target_os = "linux")]

mod registers;

pub use registers::Registers;

/// Frames of a stack at most.
pub const FRAMES: usize = 64;

/// A loaded object, as the names of functions are looked up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// First address.
    pub start: usize,
    /// One past its last address.
    pub end: usize,
    /// What an address of the object's own tables is off by in this process.
    pub bias: usize,
    /// The first bytes of its build ID; as many as [`Module::build_id_len_bytes`] says.
    pub build_id: [u8; 32],
    /// 0: it has none.
    pub build_id_len_bytes: usize,
}

/// The stack of the calling thread from `start` on, innermost frame first, into `frames`; how many there are, [`FRAMES`]
/// at most. Frames of this library ([`hide`]) are left out. Each is an address in the code of the caller: the
/// instruction behind the call, or, where a signal came in between, the one that it interrupted.
///
/// 0 if not even the first caller can be found.
///
/// Cost: some 10 ns a frame once its return address is known, some 10 µs for each that is not. Never allocates from the
/// program's heap, never waits, never faults; `errno` is kept.
pub fn capture(start: Registers, frames: &mut [usize]) -> usize {
    let _ = (start, frames);
    0
}

/// Frames whose code lies in `start..end` are not part of any stack from here on: this library's own.
pub fn hide(start: usize, end: usize) {
    let _ = (start, end);
}

/// Forgets what is known of return addresses: an object was unloaded, so that others may come to lie in its place.
pub fn forget() {}

/// No system calls from here on: the program is about to have them forbidden. Stacks then end at the first frame that is
/// not known yet.
pub fn confine() {}

/// The object that `address` lies in; its path, cut to what fits, into `path`, whose length is returned as well.
/// `None`: generated code, or no code at all.
///
/// Takes no lock of the loader's. Some 20 µs: for the first time that an address appears.
pub fn module_at(address: usize, path: &mut [u8]) -> Option<(Module, usize)> {
    let _ = (address, path);
    None
}
