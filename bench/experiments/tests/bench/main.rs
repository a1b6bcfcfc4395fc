//! Tests that drive the built `uncopy-bench` as a user would, as briefly as possible. Figures are not checked.

mod command;
mod experiments;
mod figures;
mod harness;
mod load;
mod network;
mod report;
mod servers;
mod stores;
mod trials;
