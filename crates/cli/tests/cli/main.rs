//! Tests that run the built command as a user would. None needs `libuncopy.so`: a test that wants
//! one builds an empty library of that name beside a copy of the command.

mod doctor;
mod inactive;
mod metrics;
mod pages;
mod run;
mod service;
mod stage;
mod stats;
mod top;
