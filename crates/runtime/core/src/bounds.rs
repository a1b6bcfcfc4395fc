//! Limits on the memory that uncopy keeps, and the pages of a segment that must be kept.
//!
//! ```text
//! segments  ≤ P + S          P: the program's blocks
//! reservoir ≤ 2/8 of S       S: max(64 MiB, P / 8)
//! waste     ≤ 1/8 of S       waste: bytes of segments that no view needs
//! free      ≤ 5/8 of F       F: max(64 MiB, P); free: pages of free blocks, which upkeep gives back when unused
//! ```
//!
//! `S`, the *spare* memory, and `F` are at most half of the cap and a sixteenth of the process's memory
//! limit. Segments, reservoir and free blocks together are at most the cap.
//!
//! Segments hold bytes that the program would hold itself without uncopy, so they count as the program's
//! use as far as views need them.

use crate::addr::{PAGE_BYTES, SegmentPages};
use smallvec::SmallVec;

/// Minimum of the spare memory where nothing limits it, bytes.
pub const MIN_SPARE_BYTES: usize = 64 << 20;
/// Divisor of the program's use that gives the spare memory.
const SPARE_SHARE: usize = 8;
/// Divisor of the memory limit (of the process or its control group) that gives the maximum spare memory.
const SPARE_SHARE_OF_LIMIT: usize = 16;
/// Divisor of the limit that gives the cap on everything that uncopy keeps.
const CAP_SHARE: usize = 2;
/// Shares of the spare memory, in eighths.
const RESERVOIR_EIGHTHS: usize = 2;
const RETAINED_EIGHTHS: usize = 5;
const WASTE_EIGHTHS: usize = 1;

/// Gaps of up to this many pages between needed pages of a segment are kept: they hold the seam that the
/// next input is compared with.
pub const SEAM_PAGES: u32 = 2;

/// Limits that do not depend on the program's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum of segments, reservoir and free blocks together, bytes.
    pub cap_bytes: usize,
    /// Maximum of the spare memory, bytes.
    pub spare_bytes: usize,
}

impl Bounds {
    /// No limit at all.
    pub const NONE: Self = Self { cap_bytes: usize::MAX, spare_bytes: usize::MAX };

    /// Returns the limits that follow from `--memory` and from those on the process; `None` stands for no
    /// limit.
    #[must_use]
    pub fn new(option_bytes: Option<usize>, limits_bytes: &[Option<u64>]) -> Self {
        let limit = limits_bytes.iter().flatten().copied().min();
        let limit = limit.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let share = |share: usize| if limit == usize::MAX { limit } else { limit / share };
        let cap_bytes = option_bytes.unwrap_or(usize::MAX).min(share(CAP_SHARE));
        Self { cap_bytes, spare_bytes: share(SPARE_SHARE_OF_LIMIT).min(cap_bytes / 2) }
    }

    /// Returns the spare memory of a program that uses `program_bytes`.
    #[must_use]
    pub fn max_spare_bytes(&self, program_bytes: usize) -> usize {
        MIN_SPARE_BYTES.max(program_bytes / SPARE_SHARE).min(self.spare_bytes)
    }

    /// Returns the maximum of segments, bytes.
    #[must_use]
    pub fn max_segments_bytes(&self, program_bytes: usize) -> usize {
        let spare = self.max_spare_bytes(program_bytes);
        program_bytes.saturating_add(spare).min(self.cap_bytes - spare.min(self.cap_bytes))
    }

    /// Returns the maximum of the reservoir, bytes.
    #[must_use]
    pub fn max_reservoir_bytes(&self, program_bytes: usize) -> usize {
        self.max_spare_bytes(program_bytes) / 8 * RESERVOIR_EIGHTHS
    }

    /// Returns the maximum of free blocks, bytes. Upkeep gives back what is not used for a second or two.
    /// With `P / 8` instead of `P`, Redis SET of 16 KiB to 4 MiB faulted on every page of every value and
    /// took 2.6 times the processor time.
    #[must_use]
    pub fn max_free_blocks_bytes(&self, program_bytes: usize) -> usize {
        let others_bytes =
            self.max_segments_bytes(program_bytes).saturating_add(self.max_reservoir_bytes(program_bytes));
        let retained_bytes = MIN_SPARE_BYTES.max(program_bytes).min(self.spare_bytes) / 8 * RETAINED_EIGHTHS;
        retained_bytes.min(self.cap_bytes.saturating_sub(others_bytes))
    }

    /// Returns the maximum of waste in segments, bytes: none once segments are at 7/8 of their maximum.
    #[must_use]
    pub fn max_waste_bytes(&self, program_bytes: usize, segments_bytes: usize) -> usize {
        if segments_bytes > self.max_segments_bytes(program_bytes) / 8 * 7 {
            return 0;
        }
        self.max_spare_bytes(program_bytes) / 8 * WASTE_EIGHTHS
    }
}

/// Maximum of memory shared with other programs where nothing else limits it, bytes.
pub const MAX_SHARED_BYTES: usize = 64 << 20;

/// Returns the maximum of memory shared with other programs, bytes, given that of the option and the limit
/// of the control group. A process over the latter is killed.
#[must_use]
pub fn shared_bytes(option_bytes: Option<usize>, limit_bytes: Option<u64>) -> usize {
    let limit = limit_bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
    option_bytes.unwrap_or(MAX_SHARED_BYTES).min(limit / SPARE_SHARE_OF_LIMIT)
}

/// Pages of a segment that views need, with the seams between them: sorted, more than [`SEAM_PAGES`] apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeededPages(SmallVec<[SegmentPages; 2]>);

impl NeededPages {
    /// Returns an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the pages that a view of `len_bytes` bytes at `offset_bytes` needs.
    pub fn add(&mut self, offset_bytes: usize, len_bytes: usize) {
        if len_bytes == 0 {
            return;
        }
        let page = |bytes: usize| u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX);
        let mut added =
            SegmentPages::new(page(offset_bytes), page(offset_bytes + len_bytes + PAGE_BYTES - 1));
        let first = self.0.partition_point(|range| range.end.saturating_add(SEAM_PAGES) < added.start);
        let mut last = first;
        while let Some(range) =
            self.0.get(last).filter(|range| range.start <= added.end.saturating_add(SEAM_PAGES))
        {
            added = SegmentPages::new(added.start.min(range.start), added.end.max(range.end));
            last += 1;
        }
        self.0.drain(first..last);
        self.0.insert(first, added);
    }

    /// Returns the number of pages in the set.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.0.iter().map(|range| range.len()).sum()
    }

    /// Returns the runs of pages below `pages` that are not in the set, in order.
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
        assert_eq!(bounds.max_spare_bytes(0), MIN_SPARE_BYTES);
        assert_eq!(bounds.max_spare_bytes(1024 * MIB), 128 * MIB);
        assert_eq!(bounds.max_segments_bytes(1024 * MIB), 1152 * MIB);
        assert_eq!((bounds.max_reservoir_bytes(0), bounds.max_free_blocks_bytes(0)), (16 * MIB, 40 * MIB));
        assert_eq!(bounds.max_waste_bytes(0, 0), 8 * MIB);
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
        assert_eq!(bounds.max_segments_bytes(usize::MAX / 2), 8 * MIB);
        assert_eq!(bounds.max_waste_bytes(64 * MIB, 8 * MIB), 0);
        assert!(bounds.max_waste_bytes(64 * MIB, MIB) > 0);
    }

    proptest! {
        #[test]
        fn everything_together_stays_within_the_cap(option in prop::option::of(1usize << 20..1 << 40), limit in prop::option::of(1u64 << 20..1 << 42), program in 0usize..1 << 42) {
            let bounds = Bounds::new(option, &[limit]);
            prop_assert!(bounds.max_reservoir_bytes(program) + bounds.max_waste_bytes(program, 0) <= bounds.max_spare_bytes(program));
            prop_assert!(bounds.max_free_blocks_bytes(program) >= bounds.max_spare_bytes(program) / 8 * RETAINED_EIGHTHS);
            let all = bounds.max_segments_bytes(program) + bounds.max_reservoir_bytes(program) + bounds.max_free_blocks_bytes(program);
            prop_assert!(all <= bounds.cap_bytes);
            prop_assert!(option.is_none_or(|option| bounds.cap_bytes <= option));
        }

        #[test]
        fn kept_pages_are_those_of_views_and_seams(views in prop::collection::vec((0usize..40, 0usize..5000, 1usize..30_000), 0..12)) {
            const PAGES: u32 = 64;
            let mut kept = NeededPages::new();
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
