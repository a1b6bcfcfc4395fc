//! Hooks of functions that copy or allocate memory. Each tries the engine first, then the function after this
//! library's.
//!
//! | module | hooks |
//! |---|---|
//! | [`memcpy`] | memcpy, memmove, mempcpy, bcopy and their FORTIFY variants |
//! | [`malloc`] | malloc and its family |
//! | [`families`] | functions of other allocators beside it; free_sized, `__libc_free` and their like |
//! | [`first`] | none: functions of malloc's family ahead of this library's, and alternative names |
//!
//! Exported functions have libc's contracts; their safety conditions are those of the C standard and of POSIX for
//! the function of the same name.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "each hook has the contract of the libc function of the same name"
)]
#![allow(missing_docs, reason = "as above")]

pub mod families;
mod first;
mod malloc;
pub mod memcpy;

pub use malloc::fill_all as fill;
