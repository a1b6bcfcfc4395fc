//! The differential machine: random programs run under `libuncopy.so` next to a plain byte-array model.
//!
//! A program is data ([`program`]), made from a seed ([`generator`]). The interpreter carries it out by
//! real calls of libc and follows every byte in memory that no interposed call touches ([`model`]).
//! With mates, its streams go to other programs under the library, and may be lanes ([`mate`]).
//! Programs of files are run plain and with a log instead ([`files`]).
//! The driver runs many programs, each in a process of its own under the library ([`drive`]), and
//! makes small those that fail ([`shrink`]).

pub mod buffer;
pub mod drive;
pub mod files;
pub mod generator;
pub mod interpreter;
pub mod known;
pub mod link;
pub mod mate;
pub mod mates;
pub mod model;
pub mod program;
pub mod progress;
pub mod room;
pub mod shrink;
pub mod trial;
