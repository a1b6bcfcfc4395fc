//! Memory: mappings of our own, which of their pages are there, and files that are mapped.

mod files;
mod mapping;
mod residency;

pub use files::*;
pub use mapping::*;
pub use residency::*;
