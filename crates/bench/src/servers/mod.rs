//! Servers that several experiments and applications start, and the servers of our own.

pub mod bad_network;
pub mod cache;
pub mod echo;
pub mod idle_loop;
pub mod log_trimmer;
pub mod net;
pub mod peer;
pub mod redis;
pub mod sending;
