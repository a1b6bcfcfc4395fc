//! What traffic costs the machine, all of it: measured by what is left of it for others (the mail of 2001,
//! sendfile-zerocopy-cpu-load).
//!
//! ```text
//!   soak       the hidden program: a thread on each processor that works whenever nobody else does
//!   soaker     that program, started and calibrated; the work it lost in a time
//!   traffic    files sent by each way at a fixed rate, and what that took: bench load
//!   command    the same for any command: bench load -- CMD
//! ```

pub mod command;
pub mod soak;
pub mod soaker;
pub mod traffic;
