//! Samples processes that do not run under uncopy, for `uncopy profile --pid` and `-a`: which part of their
//! processor time copies memory, whose copies these are, and whether uncopy would help.
//!
//! The processes are not stopped, changed or restarted. The kernel takes samples (perf_event_open(2)); this crate
//! unwinds and names them outside of the processes.
//!
//! ```text
//! event → ring → sampler → session → resolve → summary → verdict → report
//!                           maps       names
//!                           images     symbols, imports, go, jvm
//!                           walk       classes, copies
//! ```
//!
//! A sampled process is hostile input: its mappings, files, unwind tables, symbols and memory may contain
//! anything. All are read through bounds ([`target`], [`image`]), and what makes no sense is left out.
//!
//! Not done here: eliding, recordings of what is copied where (`uncopy-profile`), and code of 32-bit programs,
//! whose samples have no stacks.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "tests use small numbers"))]

mod bounded;
mod classes;
mod copies;
mod event;
mod function;
mod go;
mod image;
mod images;
mod imports;
mod jvm;
mod maps;
mod names;
#[cfg(any(test, feature = "oracles"))]
pub mod oracles;
mod permission;
mod report;
mod resolve;
mod ring;
mod sampler;
#[cfg(test)]
mod samples;
mod session;
mod summary;
mod symbols;
mod target;
mod verdict;
mod walk;

pub use permission::{Permission, Refusal, try_sampling};
pub use report::Report;
pub use resolve::{Profile, resolve};
pub use sampler::Targets;
pub use session::{Ended, Session};
pub use target::{may_inspect, name as process_name, owner};
