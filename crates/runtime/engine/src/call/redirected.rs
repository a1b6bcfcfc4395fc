//! Parts of an input that are received into segments instead of the program's buffers.

use crate::arena::segment::{Draft, OpenEnd, SharedDraft};
use crate::range::block::BlockRef;
use uncopy_core::addr::ByteRange;
use uncopy_core::page_map::SiteId;

pub(crate) struct Redirected {
    pub(super) at: BlockRef,
    pub(super) range: ByteRange,
    pub(super) target: Target,
    /// Offset of the part's first byte in the target; in a draft, the buffer's offset in its page.
    pub(super) lead_bytes: usize,
    /// Site id of the part's views.
    pub(super) site: SiteId,
    /// Site whose account is used.
    pub(super) account: SiteId,
    pub(super) allowed: bool,
}

/// Segment or memory that a part is received into.
pub(super) enum Target {
    /// A fresh run of the arena.
    Draft(Draft),
    /// Memory that other processes share.
    Shared(Box<dyn SharedDraft>),
    /// The open end of the segment that received the last input into this buffer.
    Open(OpenEnd),
}

impl Target {
    pub(super) fn address(&self) -> usize {
        match self {
            Self::Draft(draft) => draft.address(),
            Self::Shared(draft) => draft.address(),
            Self::Open(open) => open.segment.address(),
        }
    }
}

impl Redirected {
    /// Gives the target back, when no more bytes will arrive.
    pub(crate) fn give_back(self) {
        if let Target::Open(open) = self.target {
            open.close();
        }
    }
}
