//! What `uncopy profile` found out about a program: where it copies what it receives and sends, and what
//! eliding those copies would give.
//!
//! | module | what it is |
//! |---|---|
//! | [`model`] | the result, which is the file that the command writes |
//! | [`memory`] | which recorded bytes lie where: an interval map |
//! | [`operation`] | operations under way: what happens to one message, step by step |
//! | [`flow`] | the replay of a process's events |
//! | [`sites`], [`classes`] | what is left of them: sums by call site, and by class of operation |
//! | [`elision`] | what uncopy would do with a call |
//! | [`symbols`] | names of places in programs and libraries |
//! | [`words`] | numbers as tables show them |
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "tests use small numbers"))]

pub mod classes;
pub mod elision;
pub mod flow;
mod hash;
pub mod memory;
pub mod model;
pub mod operation;
pub mod sites;
pub mod symbols;
pub mod words;

pub use hash::FastMap;
pub use model::Profile;
