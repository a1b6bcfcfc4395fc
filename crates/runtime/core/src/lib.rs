//! The pure core of uncopy: page arithmetic, page maps, copy plans, policy, options, counters, file formats.
//!
//! Nothing here makes a system call, touches the program's memory or needs userfaultfd, so every test runs
//! on any machine.
//!
//! Page numbers fit 32 bits: they are relative to a block or to the arena, each smaller than 16 TiB.
#![forbid(unsafe_code)]
#![allow(clippy::cast_possible_truncation, reason = "see above: page numbers fit 32 bits")]

pub mod addr;
pub mod allocators;
pub mod bounds;
pub mod classes;
pub mod extents;
pub mod ledger;
pub mod loader;
pub mod options;
#[cfg(any(test, feature = "oracles"))]
pub mod oracles;
pub mod page_map;
pub mod plan;
pub mod policy;
pub mod random;
pub mod recording;
pub mod schema;
pub mod scope;
pub mod size;
pub mod stats;
pub mod streams;
