//! A block of the heap: its lock, its page map, its position.

mod locked;
mod record;

pub use locked::Locked;
pub use record::{Block, BlockRef, Flag, ForeignSlot};
