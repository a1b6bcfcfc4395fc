//! `libuncopy_send`: the C interface to the twin allocator, and nothing in front of libc but the send family.
//!
//! For programs that allocate what they send from the twin allocator and want no more of uncopy. The names of
//! [`uncopy_capi`] are exported as they are. As a shared library it is linked or preloaded in front of libc; as an
//! archive it goes into a program that is linked dynamically or statically.
//!
//! | module | what |
//! |---|---|
//! | [`sending`] | send, sendto, sendmsg, sendmmsg, write, writev |
//! | [`start`] | what happens when the library is loaded |
//!
//! Exported functions have libc's contracts; their safety conditions are those of POSIX for the function of the
//! same name.
#![cfg(target_os = "linux")]
#![allow(
    clippy::missing_safety_doc,
    reason = "each hook has the contract of the libc function of the same name"
)]
#![allow(missing_docs, reason = "as above")]

mod sending;
mod start;

/// Links the C interface in, whose `uncopy_` functions nothing here calls.
pub use uncopy_capi as interface;

/// uncopy's own data never live in the program's heap.
#[global_allocator]
static PRIVATE: uncopy_sys::alloc::Private = uncopy_sys::alloc::Private::new();
