//! Engine of uncopy: joins the pure core with the system layer.
//!
//! | module | what it owns |
//! |---|---|
//! | [`engine`] | the one engine of a process: options, activation, the reason why it is inactive |
//! | [`gate`] | the words that hooks compare with first |
//! | [`heap`] | the block heap: the program's large allocations |
//! | [`block`] | one block: its lock, its page map, its registration |
//! | [`foreign`] | memory outside the heap that holds views |
//! | [`arena`] | the arena: where segments live, and the reservoir of resident pages |
//! | [`segment`] | refcounted immutable runs of the arena |
//! | [`apply`] | carrying out a copy plan on a block's pages |
//! | [`copy`] | memcpy and memmove |
//! | [`input`], [`output`] | what comes from and goes to the kernel |
//! | [`bounds`] | what may be kept in memory |
//! | `upkeep`, `compaction` | giving back what nobody needs: reservoir, free blocks, parts of segments |
//! | `calls` | what calls in progress hold, also those that never come back |
//! | [`fault`] | the handler thread |
//! | `requests` | what commands ask of the handler thread |
//! | [`sampling`] | what programs touch, while they are recorded |
//! | [`release`] | every view back into plain memory |
//! | [`alone`] | calls that a process with one thread only may make |
//! | [`fork`] | what a forked child needs before it runs |
//! | `window` | faults that are served while a fork holds every lock |
//! | [`live`] | the counters |
//! | `calibration` | what things cost on this machine |
//! | `spent` | what our own work took, by the clock |
//! | [`accounts`] | what each site did, for `--explain` |
//!
//! Rules that keep it from deadlock:
//! 1. Engine work runs inside a `Critical` (signals blocked); the program's own system calls do not.
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

pub mod account;
pub mod arena;
pub mod call;
pub mod life;
pub mod range;
pub mod service;
pub mod state;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom), feature = "inject"))]
mod tests;
