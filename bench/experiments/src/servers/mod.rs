//! Servers that several experiments and applications start, and this project's own servers.

pub mod echo;
pub mod idle_loop;
pub mod impaired_network;
pub mod log_trimmer;
pub mod net;
pub mod own_programs;
pub mod peer;
pub mod redis;
pub mod sending;
