//! Memory: mappings of our own, residency of their pages, and mapped files.

#[cfg(not(loom))]
mod file_mapping;
mod files;
mod mapping;
mod residency;
#[cfg(not(loom))]
mod shared;

#[cfg(not(loom))]
pub use file_mapping::FileMapping;
pub use files::*;
pub use mapping::*;
pub use residency::*;
#[cfg(not(loom))]
pub use shared::*;
