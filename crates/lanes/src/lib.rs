//! Lanes: between two programs on one host, large parts of a stream socket's bytes pass by reference.
//!
//! The program's descriptor stays the kernel's socket, and small parts stay in it as they are. For a large part, the sender
//! puts its bytes into memory that its peers map read-only, announces in its *board* at which offset of the stream they
//! belong, and sends a single byte there, the *token*. The receiver finds the token announced, and takes the bytes from where
//! they are. So whatever a socket can do, the kernel does.
//!
//! | module | what it owns |
//! |---|---|
//! | [`board`] | the words that processes share |
//! | [`runs`], [`pool`] | this process's shared memory, and who holds what of it |
//! | [`peers`], `ranges` | linked processes, and what this process holds of their memory |
//! | [`protocol`] | what linked processes say to each other |
//! | [`ends`] | the ends of streams, by descriptor |
//! | [`copies`] | what was sent before and has not changed |
//! | [`descriptors`] | who receives plainly |
//! | `kernel` | the sockets |
//! | [`message`] | the parts of what is received and sent |
//! | [`receive`], [`send`] | tokens and references in a stream |
//! | [`service`] | the thread that links |
//! | [`process`] | all of it, for the hooks |
//! | [`mod@begin`] | how it begins |
//! | `detach` | how it ends where the process lives on |
//! | [`forks`] | what a fork means for it |
//! | [`handed`] | streams that somebody else may have, too |
//! | [`handover`] | what is done when one comes into others' hands |
//! | `oracles` | hostile peers, for tests and fuzzing |
//! | [`outcome`] | what became of streams, for whoever keeps account |
//!
//! Built with `--cfg loom`, only the board is there, for the models of its words.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

#[cfg(not(loom))]
pub mod begin;
pub mod board;
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
pub mod handed;
#[cfg(not(loom))]
pub mod handover;
#[cfg(not(loom))]
mod kernel;
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
pub mod service;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
