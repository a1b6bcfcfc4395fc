//! Two servers that send by reference what lies in twin memory: examples of what the twin allocator is for, and the
//! subjects of `uncopy bench cache` and `uncopy bench files`.
//!
//! ```text
//!   cached, files     the servers
//!   event_loop        their threads: epoll, connections in turn, deadlines, the end
//!   admission         accepting clients, as many as there may be
//!   sockets, signals, clock, transmit, command_line
//! ```
#![deny(unsafe_code)]

mod admission;
pub mod cached;
mod clock;
mod command_line;
mod event_loop;
pub mod files;
mod signals;
mod sockets;
mod transmit;

pub use command_line::{Program, main};
