//! The engine of uncopy: joins the pure core with the system layer.
//!
//! It is built in floors. A floor imports only those below it, and its files do not import one another in a circle
//! (`scripts/check-layers`):
//!
//! | floor | what it owns |
//! |---|---|
//! | [`life`] | what happens to the process as a whole: forks, calls that only a lone thread may make |
//! | [`call`] | the calls that hooks make: copies, inputs, outputs |
//! | [`service`] | what is done beside them: faults, upkeep, requests, activation, release |
//! | [`range`] | memory of the program: blocks of the heap, foreign ranges, the states of their pages |
//! | [`account`] | the books: what calls and faults saved and cost |
//! | [`arena`] | memory of our own, and the segments that live there |
//! | [`state`] | what is true of the process: phase, policy, gates, counters, limits |
//!
//! Rules that keep it from deadlock:
//! 1. Engine work runs inside a `Critical` (no handler of the program runs); the program's own system calls do not.
//! 2. Order of locks: classes, the heap's blocks by address, the registry of foreign ranges, their blocks
//!    by slot, then the arena, then the private allocator. No code path holds a class's lock and a block's.
//! 3. Under a block's lock only pages known to be present are touched. Should one be absent all the
//!    same (the program gave it back to the kernel behind our back), the fault service sees that
//!    the waiting thread owns the lock and puts a page of zeroes there.
//! 4. The fault service never waits for a lock; it comes back to a fault it cannot serve yet.
//! 5. A hook begins its work by entering a `Section` (or a `Presence`, where signals may come), which a fork
//!    that is under way refuses: it then goes on without the engine. So nobody who holds one of libc's locks,
//!    for which the fork waits, waits for a lock that the forking thread holds.
#![allow(clippy::cast_possible_truncation, reason = "page numbers of a block or of the arena fit 32 bits")]
// A floor built without those above it has items that only these use.
#![cfg_attr(not(feature = "life"), allow(dead_code))]

pub mod state;

#[cfg(feature = "arena")]
pub mod arena;

#[cfg(feature = "account")]
pub mod account;

#[cfg(feature = "range")]
pub mod range;

#[cfg(feature = "service")]
pub mod service;

#[cfg(feature = "call")]
pub mod call;

#[cfg(feature = "life")]
pub mod life;

#[cfg(test)]
mod tests;
