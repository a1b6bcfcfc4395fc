//! The differential tester: random programs under `libuncopy.so`, checked against a byte-array model.
//!
//! A program is data ([`program`]), generated from a seed ([`generator`]). The interpreter executes it with
//! real libc calls and tracks every byte in memory that no interposed call touches ([`model`]). With mates,
//! the program's streams go to other processes under the library, and may be lanes ([`mate`]). Programs of
//! files are run plain and with a log instead ([`files`]). The driver runs many programs, each in its own
//! process under the library ([`drive`]), and shrinks those that fail ([`shrink`]).

pub mod buffer;
pub mod channel;
pub mod drive;
pub mod files;
pub mod generator;
pub mod handler_buffers;
pub mod interpreter;
pub mod known_ranges;
pub mod mate;
pub mod mates;
pub mod model;
pub mod program;
pub mod progress;
pub mod shrink;
pub mod test_run;
