//! The echo server of zIO §5.1, and commands for the server alone and for both ends.

pub mod client;
pub mod command;
pub mod drain;
pub mod loaded_echo;
pub mod pair;
pub mod server;
