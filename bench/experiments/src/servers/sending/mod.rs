//! Traffic of `load` and `lab`: files sent over one connection, by any way and rate, every byte verified.
//!
//! ```text
//!   corpus     the files, whose contents follow from a seed
//!   sender     a server in a process of its own that sends them: ways, pace
//!   receiver   compares all received bytes with the files
//! ```

pub mod corpus;
pub mod pace;
pub mod receiver;
pub mod sender;
pub mod server;
pub mod ways;
