//! What `uncopy profile` found out about a program: where it copies what it receives and sends, and what
//! eliding those copies would give.
//!
//! | module | what it is |
//! |---|---|
//! | [`model`] | the result, which is the file that the command writes |
#![deny(unsafe_code)]

pub mod model;

pub use model::Profile;
