//! The arena (uncopy's own memory): its pages, and the segments that live in them.

pub mod descriptor;
mod loan;
pub mod pages;
pub mod segment;
