//! Lists of a class's free blocks.

/// Free blocks of a class and kind: three lists, linked through the blocks' records. A number is an index plus one.
///
/// ```text
///  freed ──► recent ──► old ──► bare          the handler moves them on, once a second at most, and gives
///              │         │        │           the pages of those that become bare back to the kernel
///              └─────────┴────────┴──► allocated
/// ```
#[derive(Clone, Copy)]
pub(super) struct FreeBlocks {
    pub recent: u32,
    pub old: u32,
    pub bare: u32,
    /// Number of blocks in `recent`.
    pub recent_count: u32,
    pub old_count: u32,
}

impl FreeBlocks {
    pub const NONE: Self = Self { recent: 0, old: 0, bare: 0, recent_count: 0, old_count: 0 };

    /// Whether a block with present pages is listed.
    pub const fn has_pages(&self) -> bool {
        self.recent != 0 || self.old != 0
    }

    /// The list that the next block is taken from; its count is updated.
    pub const fn first(&mut self) -> &mut u32 {
        if self.recent != 0 {
            self.recent_count -= 1;
            &mut self.recent
        } else if self.old != 0 {
            self.old_count -= 1;
            &mut self.old
        } else {
            &mut self.bare
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Free {
    pub registered: FreeBlocks,
    pub plain: FreeBlocks,
}

impl Free {
    /// Lists of the registered blocks, or of the plain ones.
    pub const fn of_kind(&mut self, is_registered: bool) -> &mut FreeBlocks {
        if is_registered { &mut self.registered } else { &mut self.plain }
    }
}
