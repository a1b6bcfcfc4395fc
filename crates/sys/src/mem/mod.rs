//! Memory: mappings of our own, which of their pages are there, and files that are mapped.

mod files;
mod mapping;
mod residency;
#[cfg(not(loom))]
mod shared;

pub use files::*;
pub use mapping::*;
pub use residency::*;
#[cfg(not(loom))]
pub use shared::*;
