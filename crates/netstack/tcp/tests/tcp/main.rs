//! Tests of the user-level TCP without a kernel: states and rules, and both ends against models and smoltcp.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, missing_docs, reason = "tests")]

mod common;
mod ecn;
mod handshake;
mod hostile;
mod loss;
mod model;
mod path;
mod smoltcp;
mod states;
mod timeouts;
