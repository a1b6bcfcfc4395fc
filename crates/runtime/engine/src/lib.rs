//! The engine of uncopy: joins the pure core with the system layer.
//!
//! The engine is built in layers. A layer imports only those below it, and the files of a layer do not
//! import one another in a circle (`scripts/check-layers`):
//!
//! | layer | what it owns |
//! |---|---|
//! | [`life`] | the process as a whole: forks, calls that only a single-threaded process may make |
//! | [`call`] | the calls that hooks make: copies, inputs, outputs |
//! | [`background`] | background work: faults, upkeep, requests, activation, release |
//! | [`range`] | the program's memory: blocks of the heap, foreign ranges, the states of their pages |
//! | [`account`] | the books: savings and costs of calls and faults |
//! | [`arena`] | uncopy's own memory, and the segments that live there |
//! | [`state`] | process-wide state: phase, policy, gates, counters, limits |
//!
//! Rules against deadlock:
//! 1. Engine work runs inside a `Critical`, which defers the program's signal handlers; the program's own
//!    system calls do not.
//! 2. Order of locks: activation, classes, the heap's blocks by address, the registry of foreign ranges, their
//!    blocks by slot, the lists of calls in progress, the arena, the private allocator. Only a fork holds a
//!    class's lock and a block's together.
//! 3. Under a block's lock only pages known to be present are touched. If such a page is absent all the
//!    same, because the program gave it back to the kernel, the handler sees that the faulting thread owns
//!    the lock and places a page of zeroes.
//! 4. The handler never waits for a lock; it retries a fault that it cannot serve yet.
//! 5. A hook first enters a `Section` (or a `Presence`, where signals may come). A fork in progress refuses
//!    entry, and the hook continues without the engine. So no thread that holds one of libc's locks, for
//!    which the fork waits, waits for a lock that the forking thread holds.
#![allow(clippy::cast_possible_truncation, reason = "page numbers of a block or of the arena fit 32 bits")]
// With the upper layers left out, some items of the lower ones are unused.
#![cfg_attr(not(feature = "life"), allow(dead_code))]

pub mod state;

#[cfg(feature = "arena")]
pub mod arena;

#[cfg(feature = "account")]
pub mod account;

#[cfg(feature = "range")]
pub mod range;

#[cfg(feature = "background")]
pub mod background;

#[cfg(feature = "call")]
pub mod call;

#[cfg(feature = "life")]
pub mod life;

#[cfg(test)]
mod tests;
