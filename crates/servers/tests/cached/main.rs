//! `uncopy-cached`, run as its users run it.

mod conformance;
mod hostile;
mod in_flight;
mod support;
