//! Lanes: between two programs on one host, large parts of a stream socket's bytes pass by reference.
//!
//! The program's descriptor remains the kernel's socket, and small parts go through it unchanged. For a large
//! part, the sender stores the bytes in memory that its peers map read-only, announces their stream offset on its
//! *board*, and sends a single byte at that offset, the *token*. The receiver finds the token's announcement and
//! reads the bytes where they are. Everything else that a socket does is left to the kernel.
//!
//! | module | contents |
//! |---|---|
//! | [`board`] | shared words: announcements, counts, returns |
//! | [`runs`], [`pool`] | this process's shared memory, and the holders of its runs |
//! | [`peers`], `ranges` | linked processes, and what this process holds of their memory |
//! | [`protocol`] | messages between linked processes |
//! | [`ends`] | the ends of streams, by descriptor |
//! | [`copies`] | cache of copies of unchanged memory |
//! | [`descriptors`] | state of descriptors: plain receives, duplicates |
//! | `kernel` | the sockets |
//! | [`message`] | parts of a message that is sent or received |
//! | [`receive`], [`send`] | tokens and references in a stream |
//! | [`lane_thread`] | the thread that makes links |
//! | [`process`] | the interface for hooks |
//! | [`mod@begin`] | start of a process's lanes |
//! | `detach` | end of all links of a process that lives on |
//! | [`forks`] | lanes across fork |
//! | [`shared_streams`] | streams that other processes may have too |
//! | [`handover`] | handing a stream over to another process |
//! | `oracles` | hostile peers, for tests and fuzzing |
//! | [`outcome`] | statistics of streams, by outcome |
//!
//! With `--cfg loom`, only the board is built, for model checking.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

#[cfg(not(loom))]
pub mod begin;
pub mod board;
#[cfg(not(loom))]
pub mod chunks;
#[cfg(not(loom))]
pub mod copies;
#[cfg(not(loom))]
pub mod descriptors;
#[cfg(not(loom))]
mod detach;
#[cfg(not(loom))]
pub mod ends;
#[cfg(not(loom))]
pub mod forks;
#[cfg(not(loom))]
pub mod handover;
#[cfg(not(loom))]
mod kernel;
#[cfg(not(loom))]
pub mod lane_thread;
#[cfg(not(loom))]
pub mod message;
#[cfg(all(not(loom), any(test, feature = "oracles")))]
pub mod oracles;
#[cfg(not(loom))]
pub mod outcome;
#[cfg(not(loom))]
pub mod peers;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod protocol;
#[cfg(not(loom))]
mod ranges;
#[cfg(not(loom))]
pub mod receive;
#[cfg(not(loom))]
pub mod runs;
#[cfg(not(loom))]
pub mod send;
#[cfg(not(loom))]
pub mod shared_streams;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
