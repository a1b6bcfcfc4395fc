//! The echo server of zIO §5.1, and the command that is it.

pub mod client;
pub mod command;
pub mod echoing;
pub mod server;
