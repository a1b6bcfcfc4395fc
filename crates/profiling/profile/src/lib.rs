//! Analyses recordings for `uncopy profile`: where a program copies the data that it receives and sends, and
//! the predicted effect of eliding these copies.
//!
//! | module | contents |
//! |---|---|
//! | [`model`] | the result, as the command writes it to a file |
//! | [`memory`] | interval map of the recorded bytes in memory |
//! | [`operation`] | operations in progress: the steps that one message takes |
//! | [`flow`] | replay of a process's events |
//! | [`sites`], [`classes`] | sums by call site and by class of operation |
//! | [`elision`] | effect of uncopy on a call |
//! | [`assemble`], [`chains`] | combining all processes into a profile |
//! | [`prediction`] | predicted effect of eliding |
//! | [`symbols`] | names of code locations |
//! | [`diff`] | comparison of two profiles |
//! | [`text`], [`folded`], [`pprof`] | terminal report; folded stacks for flame graphs; pprof's format |
//! | [`verdict`] | one-sentence verdict |
//! | [`format`](mod@format) | formatting of numbers and names |
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "tests use small numbers"))]

pub mod assemble;
pub mod chains;
pub mod classes;
pub mod diff;
pub mod elision;
pub mod flow;
pub mod folded;
pub mod format;
pub mod memory;
pub mod model;
pub mod operation;
pub mod pprof;
pub mod prediction;
pub mod sites;
pub mod symbols;
pub mod text;
pub mod verdict;

pub use model::Profile;
