//! One block of the heap: its lock, its page map, its registration.

mod locked;
mod record;

pub use locked::Locked;
pub use record::{Block, BlockRef, Flag, Slot};
