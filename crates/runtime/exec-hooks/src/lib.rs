//! Hooks of exec and its family, and of functions that spawn a program in other ways. Before these, streams that the
//! other program inherits are noted, see [`uncopy_lanes_hooks`], and files that stay open there are synced; without
//! `--lanes` and `--log` this costs one load each. Programs that cannot be loaded with this library get an
//! environment without it: see [`successor`].
//!
//! Exported functions have libc's contracts.
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

mod exec;
mod successor;

pub use exec::{before_call, fill};
