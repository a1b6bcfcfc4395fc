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
//! | [`peers`] | linked processes, and what this process holds of their memory |
//! | [`protocol`] | what linked processes say to each other |
//! | [`ends`] | the ends of streams, by descriptor |
//! | [`descriptors`] | who receives plainly |
//! | `kernel` | the sockets |
//! | [`message`] | the parts of what is received and sent |
//! | [`receive`], [`send`] | tokens and references in a stream |
//! | [`service`] | the thread that links |
//! | [`process`] | all of it, for the hooks |
//! | [`forks`] | what a fork means for it |
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

pub mod board;
pub mod descriptors;
pub mod ends;
pub mod forks;
mod kernel;
pub mod message;
pub mod peers;
pub mod pool;
pub mod process;
pub mod protocol;
pub mod receive;
pub mod runs;
pub mod send;
pub mod service;

#[cfg(all(test, not(loom)))]
mod tests;
