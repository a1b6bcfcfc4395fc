//! Files sent over one connection, the way and the rate chosen, every byte verified by the receiver: the traffic of
//! `load` and `lab`.
//!
//! ```text
//!   corpus     the files: what is in them follows from a seed
//!   sender     a server in a process of its own that sends them: ways, pace
//!   receiver   compares all that comes with the files
//! ```

pub mod corpus;
pub mod pace;
pub mod receiver;
pub mod sender;
pub mod server;
pub mod ways;
