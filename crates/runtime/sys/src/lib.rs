//! System layer of uncopy: the only place that talks to the kernel on behalf of the engine.
//!
//! Everything above it works with these typed contracts: userfaultfd ([`uffd`]), mappings ([`mem`]), what a
//! mapping is ([`procmap`]), whether the program's pointers can be followed ([`readable`]), locks that know
//! their owner and the signal mask ([`lock`]), the handler thread ([`thread`]), byte copies that bypass the
//! hooks ([`bytes`]) and the allocator for uncopy's own data ([`alloc`]).
//!
//! All calls that can fail go through `call`, so that tests can make them fail.
//!
//! Nothing here may call a function on which `libuncopy.so` interposes, except through [`bytes`].
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

#[cfg(not(loom))]
pub mod alloc;
/// Allocator under loom, where the engine's own data comes from the ordinary one.
#[cfg(loom)]
pub mod alloc {
    /// Whether the allocator's memory runs low: never under loom.
    #[must_use]
    pub const fn is_low() -> bool {
        false
    }
}
#[cfg(not(loom))]
pub mod area;
pub mod atomic_write;
#[cfg(not(loom))]
pub mod background;
pub mod bytes;
mod call;
pub mod cgroup;
pub mod clock;
pub mod control;
#[cfg(all(target_arch = "x86_64", not(loom)))]
pub mod deferral;
pub mod descriptor;
pub mod epoll;
pub mod errno;
pub mod fd;
pub mod features;
pub mod file;
pub mod file_lock;
pub mod filter;
pub mod guarded;
pub mod handler;
pub mod ids;
#[cfg(feature = "inject")]
pub mod inject;
pub mod iovec;
pub mod last_thread;
pub mod lifeline;
pub mod lineage;
pub mod lock;
mod maps;
pub mod mem;
#[cfg(not(loom))]
pub mod memory_file;
pub mod messages;
pub mod objects;
pub mod owner;
pub mod peek;
pub mod pins;
pub mod pipe;
pub mod presence;
pub mod private_directory;
pub mod probes;
pub mod procmap;
pub mod raw;
pub mod readable;
#[cfg(not(loom))]
pub mod rights;
#[cfg(not(loom))]
pub mod seqpacket;
mod signal_mask;
#[cfg(not(loom))]
pub mod sigpipe;
#[cfg(not(loom))]
pub mod sock_diag;
pub mod socket;
#[cfg(all(target_arch = "x86_64", not(loom)))]
pub mod stack;
#[cfg_attr(not(all(target_arch = "x86_64", not(loom))), path = "stack_room_unknown.rs")]
pub mod stack_room;
pub mod stream;
#[cfg(not(loom))]
pub mod symbols;
pub mod sync;
pub mod tcp;
pub mod thread;
#[cfg(all(target_arch = "x86_64", not(loom)))]
mod thread_words;
#[cfg_attr(loom, path = "simulated.rs")]
pub mod uffd;
#[cfg(not(loom))]
pub mod unix;
#[cfg(not(loom))]
pub mod wait;

/// Page size, bytes. On a kernel with another page size nothing is tracked and nothing is lent.
pub const PAGE_BYTES: usize = 4096;
