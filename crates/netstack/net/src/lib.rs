//! Protocol between programs and a user-level TCP service (`uncopy net`).
//!
//! A connection is a UNIX stream socket between program and service, so the kernel implements everything that
//! descriptors can do. The socket's own name identifies the connection if the program connected, and the peer's
//! name if it accepted.
//!
//! ```text
//! program                                   service: a directory that only its user can enter
//!   connect ─────► CONNECT, with a stream ►   control    requests, each on a connection of its own
//!   listen  ─────► LISTEN ────────────────►
//!   accept  ◄───── stream, named ─────────    l/…        listeners of programs
//!                                             lanes/     sockets of lanes
//! ```
//!
//! | module | what it owns |
//! |---|---|
//! | [`address`] | socket addresses in the kernel's format and as words |
//! | [`name`] | names of sockets that identify connections and listeners |
//! | [`message`] | requests and responses |
//! | [`state_table`] | states of connections, which programs read |
//! | [`paths`] | paths in the service's directory |
//! | [`client`] | the program's side |
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

pub mod address;
pub mod client;
pub mod message;
pub mod name;
pub mod paths;
pub mod state_table;
