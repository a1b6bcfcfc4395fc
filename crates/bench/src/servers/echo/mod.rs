//! The echo server of zIO §5.1, and the commands that are it and both of its ends.

pub mod client;
pub mod command;
pub mod echoing;
pub mod pair;
pub mod server;
