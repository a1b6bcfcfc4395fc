//! The experiments.

pub mod apps;
pub mod cache;
pub mod demo;
pub mod echo;
pub mod files;
pub mod lab;
pub mod load;
pub mod memory;
pub mod redis;
pub mod small;
pub mod tracking;
pub mod transmit;
