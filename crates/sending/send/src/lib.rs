//! `libuncopy_send`: the C interface to the twin allocator, and hooks for the send family only.
//!
//! For programs that allocate their send buffers from the twin allocator and use nothing else of uncopy. The
//! functions of [`uncopy_capi`] are exported unchanged. The shared library is linked, or preloaded in front
//! of libc; the archive is for programs that are linked dynamically or statically.
//!
//! | module | contents |
//! |---|---|
//! | [`sending`] | send, sendto, sendmsg, sendmmsg, write, writev |
//! | [`start`] | initialisation when the library is loaded |
//!
//! Exported functions have the contract and safety conditions of the libc function of the same name.
#![cfg(target_os = "linux")]
#![allow(
    clippy::missing_safety_doc,
    reason = "each hook has the contract of the libc function of the same name"
)]
#![allow(missing_docs, reason = "as above")]

mod sending;
mod start;

/// Links the C interface in: nothing in this crate calls its `uncopy_` functions.
pub use uncopy_capi as interface;

/// Keeps uncopy's own data out of the program's heap.
#[global_allocator]
static PRIVATE: uncopy_sys::alloc::PrivateHeap = uncopy_sys::alloc::PrivateHeap::new();
