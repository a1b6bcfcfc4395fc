//! Total cost of traffic to the machine, measured by the capacity left for others (sendfile-zerocopy-cpu-load,
//! 2001).
//!
//! ```text
//!   soak       the hidden program: a thread on each processor that works whenever the processor is idle
//!   soaker     starts and calibrates that program, and measures the work lost during an interval
//!   traffic    files sent by each way at a fixed rate, and the cost: uncopy-bench load
//!   command    the same for any command: uncopy-bench load -- CMD
//! ```

pub mod command;
pub mod soak;
pub mod soaker;
pub mod traffic;
