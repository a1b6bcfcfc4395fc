//! `uncopy-files`: an HTTP/1.1 server of static files that sends each of them by one of several ways, from
//! read and send to memory that is passed to the kernel by reference; an example of what the twin
//! allocator is for, and the subject of `uncopy bench files`.
//!
//! ```text
//!   arguments                     the command line
//!   server, worker, connection    threads, epoll, one connection's course
//!   request, target, ranges, validators
//!                                 what a client asks for; no system call
//!   root                          where the file is, found by the kernel below the root
//!   answer, transmission          what is sent, step by step
//!   ways, cache, memory           how: the eight ways, files in twin memory
//!   os, clock, status, content_type
//! ```
//!
//! Not for: anything that changes files, HTTPS, HTTP/2, directory listings, compression.

pub mod answer;
pub mod arguments;
pub mod cache;
pub mod clock;
pub mod connection;
pub mod content_type;
pub mod memory;
pub mod os;
pub mod ranges;
pub mod request;
pub mod root;
pub mod server;
pub mod status;
pub mod target;
pub mod transmission;
pub mod validators;
pub mod ways;
pub mod worker;
