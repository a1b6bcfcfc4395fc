//! What programs and the service of a user-level TCP (`uncopy net`) say to each other.
//!
//! A connection is a UNIX stream socket between the program and the service, so whatever a descriptor can do, the kernel does. Which
//! connection it is stands in a name of the socket: of its own if the program has connected, of its peer if it has accepted.
//!
//! ```text
//! program                                   service: a directory that only its user can enter
//!   connect ─────► CONNECT, with a stream ►   control    questions, each on a link of its own
//!   listen  ─────► LISTEN ────────────────►
//!   accept  ◄───── stream, named ─────────    l/…        listeners of programs
//!                                             lanes/     where lanes meet
//! ```
//!
//! | module | what it owns |
//! |---|---|
//! | [`address`] | socket addresses as the kernel writes them, and as words |
//! | [`name`] | connections and listeners in names of sockets |
//! | [`message`] | questions and answers |
//! | [`board`] | how connections ended, for programs to look at |
//! | [`places`] | where in the service's directory what is |
//! | [`client`] | the program's side |
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

pub mod address;
pub mod board;
pub mod client;
pub mod message;
pub mod name;
pub mod places;
