//! `uncopy-files`, run as its users run it.

mod changes;
mod conformance;
mod hostile;
mod support;
mod ways;
