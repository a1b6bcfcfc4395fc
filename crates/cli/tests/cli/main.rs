//! Drives the built command as a user would. None of it needs `libuncopy.so`: where a test wants
//! one, it builds an empty library of that name beside a copy of the command.

mod doctor;
mod inactive;
mod metrics;
mod pages;
mod run;
mod service;
mod stage;
mod stats;
mod top;
