//! Parts of an input that are received into segments instead of the program's buffers.

use crate::arena::segment::{Draft, Open, SharedDraft};
use crate::range::block::BlockRef;
use uncopy_core::addr::ByteRange;
use uncopy_core::page_map::SiteId;

/// A part that is received into a segment.
pub(crate) struct Redirected {
    pub(super) at: BlockRef,
    pub(super) range: ByteRange,
    pub(super) target: Target,
    /// Offset in the target of the part's first byte: in a draft that of the buffer in its page.
    pub(super) lead_bytes: usize,
    /// What its views are made under.
    pub(super) site: SiteId,
    /// The site's account.
    pub(super) account: SiteId,
    pub(super) allowed: bool,
}

/// Where a part is received.
pub(super) enum Target {
    /// Into a fresh run.
    Draft(Draft),
    /// Into memory that other processes share.
    Shared(Box<dyn SharedDraft>),
    /// Behind the filled bytes of the segment that the last input into this buffer went to.
    Open(Open),
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
    /// Nothing arrived, and nothing will.
    pub(crate) fn give_back(self) {
        if let Target::Open(open) = self.target {
            open.close();
        }
    }
}
