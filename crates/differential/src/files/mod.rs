//! Programs of files: run plain and with a log (`uncopy run --log`), every call gives the same, and the files hold the same.
//!
//! A program is data as any other ([`crate::program`]), from a [`generator`] of its own. The [`interpreter`] carries it out by calls
//! of libc and writes down what each of them gave; a [`trial`] runs it twice and compares.

mod calls;
pub mod generator;
pub mod interpreter;
mod mapped;
mod passing;
pub mod trial;

/// Descriptors that a program has at a time.
pub const SLOTS: usize = 8;
/// Names of files.
pub const NAMES: usize = 5;
/// Mappings that a program has at a time.
pub const MAPS: usize = 3;
/// Numbers from here on stand for negative ones.
pub const NEGATIVE: usize = 1 << 40;
/// Longest file, more or less, bytes.
pub const MAX_FILE: usize = 6 << 20;
