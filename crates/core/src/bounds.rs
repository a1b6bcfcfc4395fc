//! How much memory uncopy may keep, and what of a segment is still worth keeping.
//!
//! What uncopy keeps beyond what the program itself uses is its *spare* memory:
//!
//! ```text
//! spare = reservoir + waste + pages of free blocks        waste: bytes of segments that no view needs
//!       ≤ max(64 MiB, an eighth of the program's blocks)  less under a cap or a limit; for the pages of free
//!                                                         blocks, which go once they are not needed, all of them
//! segments ≤ the program's blocks + spare                 and with the rest within the cap
//! ```
//!
//! A segment stands for bytes that the program would hold itself without uncopy, so segments count as the
//! program's use as far as views need them.

use crate::addr::{PAGE_BYTES, SegmentPages};
use smallvec::SmallVec;

/// Spare memory that is always allowed where nothing limits it, bytes.
pub const MIN_SPARE_BYTES: usize = 64 << 20;
/// Beyond that, one part in so many of what the program uses.
const SPARE_SHARE: usize = 8;
/// Of a limit on the process's memory (its control group's, or one of its own), spare memory is one part in
/// so many, and everything that uncopy keeps one part in [`CAP_SHARE`].
const SPARE_SHARE_OF_LIMIT: usize = 16;
/// See [`SPARE_SHARE_OF_LIMIT`].
const CAP_SHARE: usize = 2;
/// Of the spare memory, in eighths: the reservoir's, the free blocks', and what may be wasted in segments.
const RESERVOIR_EIGHTHS: usize = 2;
const RETAINED_EIGHTHS: usize = 5;
const WASTE_EIGHTHS: usize = 1;

/// Pages between two parts of a segment that are kept with them: what the seam of two inputs is compared with
/// lies there.
pub const SEAM_PAGES: u32 = 2;

/// What uncopy may keep, whatever the program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most bytes of segments, reservoir and free blocks together.
    pub cap_bytes: usize,
    /// Most spare bytes.
    pub spare_bytes: usize,
}

impl Bounds {
    /// Nothing limits it.
    pub const NONE: Self = Self { cap_bytes: usize::MAX, spare_bytes: usize::MAX };

    /// What the option and the limits of the process leave, each `None` if there is none.
    #[must_use]
    pub fn new(option_bytes: Option<usize>, limits_bytes: &[Option<u64>]) -> Self {
        let limit = limits_bytes.iter().flatten().copied().min();
        let limit = limit.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let share = |share: usize| if limit == usize::MAX { limit } else { limit / share };
        let cap_bytes = option_bytes.unwrap_or(usize::MAX).min(share(CAP_SHARE));
        Self { cap_bytes, spare_bytes: share(SPARE_SHARE_OF_LIMIT).min(cap_bytes / 2) }
    }

    /// Spare memory of a program that uses so much.
    #[must_use]
    pub fn spare(&self, program_bytes: usize) -> usize {
        MIN_SPARE_BYTES.max(program_bytes / SPARE_SHARE).min(self.spare_bytes)
    }

    /// What segments may take.
    #[must_use]
    pub fn segments(&self, program_bytes: usize) -> usize {
        let spare = self.spare(program_bytes);
        program_bytes.saturating_add(spare).min(self.cap_bytes - spare.min(self.cap_bytes))
    }

    /// What the reservoir may hold.
    #[must_use]
    pub fn reservoir(&self, program_bytes: usize) -> usize {
        self.spare(program_bytes) / 8 * RESERVOIR_EIGHTHS
    }

    /// What free blocks may retain: upkeep gives back what nobody has needed for a second or two. With an eighth of what the program
    /// uses, Redis SET of 16 KiB to 4 MiB faulted on every page of every value, and took 2.6 times the processor time.
    #[must_use]
    pub fn retained(&self, program_bytes: usize) -> usize {
        let others_bytes = self.segments(program_bytes).saturating_add(self.reservoir(program_bytes));
        let retained_bytes = MIN_SPARE_BYTES.max(program_bytes).min(self.spare_bytes) / 8 * RETAINED_EIGHTHS;
        retained_bytes.min(self.cap_bytes.saturating_sub(others_bytes))
    }

    /// What segments may hold that nobody needs; nothing, where they take nearly all that they may.
    #[must_use]
    pub fn waste(&self, program_bytes: usize, segments_bytes: usize) -> usize {
        if segments_bytes > self.segments(program_bytes) / 8 * 7 {
            return 0;
        }
        self.spare(program_bytes) / 8 * WASTE_EIGHTHS
    }
}

/// Memory shared with other programs that nothing else limits, bytes.
pub const MAX_SHARED_BYTES: usize = 64 << 20;

/// What memory shared with other programs may take, where the option leaves so much for it and the process's control group has this
/// limit: who is over it is killed.
#[must_use]
pub fn shared_bytes(option_bytes: Option<usize>, limit_bytes: Option<u64>) -> usize {
    let limit = limit_bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
    option_bytes.unwrap_or(MAX_SHARED_BYTES).min(limit / SPARE_SHARE_OF_LIMIT)
}

/// The pages of one segment that views need, and the seams between them: sorted, disjoint, and further apart
/// than [`SEAM_PAGES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept(SmallVec<[SegmentPages; 2]>);

impl Kept {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the pages that a view of `len_bytes` bytes from `offset_bytes` on needs.
    pub fn add(&mut self, offset_bytes: usize, len_bytes: usize) {
        if len_bytes == 0 {
            return;
        }
        let page = |bytes: usize| u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX);
        let mut fresh =
            SegmentPages::new(page(offset_bytes), page(offset_bytes + len_bytes + PAGE_BYTES - 1));
        let first = self.0.partition_point(|range| range.end.saturating_add(SEAM_PAGES) < fresh.start);
        let mut last = first;
        while let Some(range) =
            self.0.get(last).filter(|range| range.start <= fresh.end.saturating_add(SEAM_PAGES))
        {
            fresh = SegmentPages::new(fresh.start.min(range.start), fresh.end.max(range.end));
            last += 1;
        }
        self.0.drain(first..last);
        self.0.insert(first, fresh);
    }

    /// How many they are.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.0.iter().map(|range| range.len()).sum()
    }

    /// The runs of pages among the first `pages` that are not kept, in order.
    pub fn gaps(&self, pages: u32) -> impl Iterator<Item = SegmentPages> {
        let starts = core::iter::once(0).chain(self.0.iter().map(|range| range.end));
        let ends = self.0.iter().map(|range| range.start).chain(core::iter::once(pages));
        starts
            .zip(ends)
            .filter(move |(start, end)| *start < (*end).min(pages))
            .map(move |(start, end)| SegmentPages::new(start, end.min(pages)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn shared_memory_is_a_small_part_of_what_the_control_group_may_have() {
        assert_eq!(shared_bytes(None, None), MAX_SHARED_BYTES);
        assert_eq!(shared_bytes(Some(8 << 20), None), 8 << 20);
        assert_eq!(shared_bytes(None, Some(128 << 20)), 8 << 20);
        assert_eq!(shared_bytes(Some(4 << 20), Some(1 << 40)), 4 << 20);
    }

    #[test]
    fn a_program_without_limits_has_the_spare_memory_of_its_size() {
        let bounds = Bounds::new(None, &[None]);
        assert_eq!(bounds.spare(0), MIN_SPARE_BYTES);
        assert_eq!(bounds.spare(1024 * MIB), 128 * MIB);
        assert_eq!(bounds.segments(1024 * MIB), 1152 * MIB);
        assert_eq!((bounds.reservoir(0), bounds.retained(0)), (16 * MIB, 40 * MIB));
        assert_eq!(bounds.waste(0, 0), 8 * MIB);
    }

    #[test]
    fn the_lowest_limit_counts() {
        let bounds = Bounds::new(Some(512 * MIB), &[Some(4096 << 20), None, Some(256 << 20)]);
        assert_eq!(bounds, Bounds { cap_bytes: 128 * MIB, spare_bytes: 16 * MIB });
        assert_eq!(Bounds::new(Some(MIB), &[]), Bounds { cap_bytes: MIB, spare_bytes: MIB / 2 });
        assert_eq!(Bounds::new(None, &[None, None]).cap_bytes, usize::MAX);
    }

    #[test]
    fn segments_that_take_nearly_all_they_may_must_not_waste_anything() {
        let bounds = Bounds::new(Some(16 * MIB), &[]);
        assert_eq!(bounds.segments(usize::MAX / 2), 8 * MIB);
        assert_eq!(bounds.waste(64 * MIB, 8 * MIB), 0);
        assert!(bounds.waste(64 * MIB, MIB) > 0);
    }

    proptest! {
        #[test]
        fn everything_together_stays_within_the_cap(option in prop::option::of(1usize << 20..1 << 40), limit in prop::option::of(1u64 << 20..1 << 42), program in 0usize..1 << 42) {
            let bounds = Bounds::new(option, &[limit]);
            prop_assert!(bounds.reservoir(program) + bounds.waste(program, 0) <= bounds.spare(program));
            prop_assert!(bounds.retained(program) >= bounds.spare(program) / 8 * RETAINED_EIGHTHS);
            let all = bounds.segments(program) + bounds.reservoir(program) + bounds.retained(program);
            prop_assert!(all <= bounds.cap_bytes);
            prop_assert!(option.is_none_or(|option| bounds.cap_bytes <= option));
        }

        #[test]
        fn what_is_kept_covers_every_view_and_its_seams_and_little_else(views in prop::collection::vec((0usize..40, 0usize..5000, 1usize..30_000), 0..12)) {
            const PAGES: u32 = 64;
            let mut kept = Kept::new();
            let mut model = [false; PAGES as usize];
            for (page, skip, len_bytes) in views {
                let offset_bytes = page * PAGE_BYTES + skip;
                kept.add(offset_bytes, len_bytes);
                let end = (offset_bytes + len_bytes).div_ceil(PAGE_BYTES);
                model[offset_bytes / PAGE_BYTES..end].fill(true);
            }
            // A gap of at most SEAM_PAGES between two needed pages is a seam.
            let needed: std::vec::Vec<usize> = (0..PAGES as usize).filter(|page| model[*page]).collect();
            for pair in needed.windows(2) {
                if pair[1] - pair[0] - 1 <= SEAM_PAGES as usize {
                    model[pair[0]..pair[1]].fill(true);
                }
            }
            let mut found = [true; PAGES as usize];
            for gap in kept.gaps(PAGES) {
                prop_assert!(!gap.is_empty());
                found[gap.start as usize..gap.end as usize].fill(false);
            }
            prop_assert_eq!(model, found);
            prop_assert_eq!(kept.pages() as usize, model.iter().filter(|needed| **needed).count());
        }
    }

    extern crate std;
}
