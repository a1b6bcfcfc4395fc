//! The pure core of uncopy: page arithmetic, block size classes, the map of a block's pages,
//! extents of the arena, copy plans, the policy's accounts, options, the scope of lanes, counters, the
//! ledger of what each call site did, the recording of what a program copies, and versions of JSON documents.
//!
//! Nothing here makes a system call, touches the program's memory or needs userfaultfd, so all of
//! it is tested on any machine.
//!
//! Offsets and page numbers are relative to a block or to the arena; both are smaller than
//! 16 TiB, so a page number fits 32 bits.
#![forbid(unsafe_code)]
#![allow(clippy::cast_possible_truncation, reason = "see above: page numbers fit 32 bits")]

pub mod addr;
pub mod allocators;
pub mod bounds;
pub mod classes;
pub mod extents;
pub mod ledger;
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
