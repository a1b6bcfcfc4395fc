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
//! | [`assemble`], [`chains`] | all processes put together |
//! | [`prediction`] | what eliding would give |
//! | [`symbols`] | names of places in programs and libraries |
//! | [`diff`] | two profiles beside each other |
//! | [`text`], [`folded`] | the report in the terminal, and stacks for flame graphs |
//! | [`verdict`] | what it comes to, in one sentence |
//! | [`words`] | numbers and names as tables show them |
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "tests use small numbers"))]

pub mod assemble;
pub mod chains;
pub mod classes;
pub mod diff;
pub mod elision;
pub mod flow;
pub mod folded;
mod hash;
pub mod memory;
pub mod model;
pub mod operation;
pub mod prediction;
pub mod sites;
pub mod symbols;
pub mod text;
pub mod verdict;
pub mod words;

pub use hash::FastMap;
pub use model::Profile;
