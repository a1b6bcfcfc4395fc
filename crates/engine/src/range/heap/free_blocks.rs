//! The lists that a class's free blocks are in.

/// Free blocks of a class and kind: three lists, linked by their records. A number is an index plus one.
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
    /// Blocks in `recent` and `old`.
    pub recents: u32,
    pub olds: u32,
}

impl FreeBlocks {
    pub const NONE: Self = Self { recent: 0, old: 0, bare: 0, recents: 0, olds: 0 };

    /// Whether there is one that has pages.
    pub const fn has_pages(&self) -> bool {
        self.recent != 0 || self.old != 0
    }

    /// The list from which the next block comes.
    pub const fn first(&mut self) -> &mut u32 {
        if self.recent != 0 {
            self.recents -= 1;
            &mut self.recent
        } else if self.old != 0 {
            self.olds -= 1;
            &mut self.old
        } else {
            &mut self.bare
        }
    }
}

/// The kinds of free blocks.
#[derive(Clone, Copy)]
pub(super) struct Free {
    pub registered: FreeBlocks,
    pub plain: FreeBlocks,
}

impl Free {
    /// Those that are registered, or those that are not.
    pub const fn of_kind(&mut self, is_registered: bool) -> &mut FreeBlocks {
        if is_registered { &mut self.registered } else { &mut self.plain }
    }
}
