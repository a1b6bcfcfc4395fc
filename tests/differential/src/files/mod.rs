//! Programs of files: run plain and with a log (`uncopy run --log`), where every call must return
//! the same, and the files must have the same contents.
//!
//! A program is data, as any other ([`crate::program`]), from a [`generator`] of its own. The
//! [`interpreter`] executes it with libc calls and records the results; a [`test_run`] runs it twice
//! and compares.

mod calls;
pub mod generator;
pub mod interpreter;
mod mapped;
mod passing;
pub mod test_run;

/// Maximum number of descriptors of a program.
pub const SLOTS: usize = 8;
/// Number of file names.
pub const NAMES: usize = 5;
/// Maximum number of mappings of a program.
pub const MAPS: usize = 3;
/// Numbers from this one on stand for negative numbers.
pub const NEGATIVE: usize = 1 << 40;
/// Approximate maximum file size, in bytes.
pub const MAX_FILE: usize = 6 << 20;
