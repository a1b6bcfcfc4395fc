//! Volatile summary of what the log holds of a file that the file does not yet.
//!
//! The kernel does not know these bytes: fstat(2), lseek(2) and positions of appends are answered with the
//! overlay, and calls that read the file digest it first if [`Overlay::overlaps`] says so.

use crate::layout::Lsn;
use std::collections::{BTreeMap, VecDeque};

/// Number of bytes of writes after which a generation is complete.
const GENERATION_BYTES: u64 = 4 << 20;
/// Number of runs after which a generation is complete.
const GENERATION_RUNS: usize = 4096;
/// Maximum number of runs of an overlay; see [`Overlay::is_overfull`].
pub const MAX_RUNS: usize = 1 << 16;

/// Ranges of a file that neither overlap nor touch: start to end, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    fn insert(&mut self, mut start: u64, mut end: u64) {
        while let Some((from, to)) = self.0.range(..=end).next_back().map(|(from, to)| (*from, *to)) {
            if to < start {
                break;
            }
            (start, end) = (start.min(from), end.max(to));
            self.0.remove(&from);
        }
        self.0.insert(start, end);
    }

    fn truncate(&mut self, size: u64) {
        self.0.split_off(&size);
        if let Some(mut last) = self.0.last_entry() {
            *last.get_mut() = size.min(*last.get());
        }
    }

    /// Returns the first range that ends behind `offset`.
    fn after(&self, offset: u64) -> Option<(u64, u64)> {
        let before = self.0.range(..=offset).next_back().filter(|(_, end)| **end > offset);
        before.or_else(|| self.0.range(offset..).next()).map(|(start, end)| (*start, *end))
    }
}

/// Consecutive records of a file.
#[derive(Clone, Debug, Default)]
struct Generation {
    runs: Runs,
    /// End of the last record.
    end: Lsn,
    /// Bytes of the writes, those written twice included.
    bytes: u64,
    /// Size before the first write behind the end of the file. From there on the kernel has nothing, not even the
    /// zeroes of a hole.
    grown_from: Option<u64>,
    /// Whether a record changes the size.
    has_resize: bool,
}

/// Summary of a file's records that are not retired.
#[derive(Clone, Debug)]
pub struct Overlay {
    size: u64,
    /// Records in groups, the oldest first: runs are joined within a group, and dropped with it.
    generations: VecDeque<Generation>,
}

impl Overlay {
    /// Returns the overlay of a file without records. `size` is the kernel's, bytes; from now on only records may
    /// change it.
    #[must_use]
    pub const fn new(size: u64) -> Self {
        Self { size, generations: VecDeque::new() }
    }

    fn generation(&mut self, end: Lsn) -> &mut Generation {
        let is_complete = self
            .generations
            .back()
            .is_none_or(|last| last.bytes >= GENERATION_BYTES || last.runs.0.len() >= GENERATION_RUNS);
        if is_complete {
            self.generations.push_back(Generation::default());
        }
        let index = self.generations.len() - 1;
        let last = &mut self.generations[index];
        last.end = end;
        last
    }

    /// Adds a write; `end` is what [`Log::append`](crate::log::Log::append) returned.
    pub fn write(&mut self, offset: u64, len_bytes: u64, end: Lsn) {
        let Some(end_of_write) = offset.checked_add(len_bytes).filter(|_| len_bytes > 0) else { return };
        let size = self.size;
        let generation = self.generation(end);
        generation.runs.insert(offset, end_of_write);
        generation.bytes += len_bytes;
        if end_of_write > size {
            generation.grown_from = Some(generation.grown_from.map_or(size, |from| from.min(size)));
        }
        self.size = size.max(end_of_write);
    }

    /// Adds a change of the size; `end` is what [`Log::resize`](crate::log::Log::resize) returned.
    pub fn resize(&mut self, size: u64, end: Lsn) {
        self.generation(end).has_resize = true;
        self.generations.iter_mut().for_each(|generation| generation.runs.truncate(size));
        self.size = size;
    }

    /// Drops what the file has got: records before `tail` are retired, or digested with the file. Records of one
    /// generation (4 MiB) are dropped together, with the last of them.
    pub fn retire(&mut self, tail: Lsn) {
        while self.generations.front().is_some_and(|generation| generation.end <= tail) {
            self.generations.pop_front();
        }
    }

    /// Returns the size of the file with all records, bytes: the position of the next append.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whether the file has everything: the kernel's answers are right.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.generations.is_empty()
    }

    /// Whether the overlay takes much memory (some 2 MiB) and the file should be digested.
    #[must_use]
    pub fn is_overfull(&self) -> bool {
        self.generations.iter().map(|generation| generation.runs.0.len()).sum::<usize>() > MAX_RUNS
    }

    /// Whether a read of this range by the kernel could miss bytes or see stale ones.
    #[must_use]
    pub fn overlaps(&self, offset: u64, len_bytes: u64) -> bool {
        let end = offset.saturating_add(len_bytes);
        self.generations.iter().any(|generation| {
            let is_behind_end = generation.grown_from.is_some_and(|from| from < end && offset < self.size);
            let has_bytes = || generation.runs.after(offset).is_some_and(|(start, _)| start < end);
            generation.has_resize || is_behind_end || has_bytes()
        })
    }

    /// Returns the first offset from `offset` on whose byte the log holds. `SEEK_DATA` finds the lower one of this
    /// and the kernel's answer. Only exact while no resize is in the log ([`Overlay::has_resize`]).
    #[must_use]
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let runs = self.generations.iter().filter_map(|generation| generation.runs.after(offset));
        runs.map(|(start, _)| start.max(offset)).min()
    }

    /// Returns the first offset from `offset` on whose byte the log does not hold. `SEEK_HOLE` alternates between
    /// this and the kernel's answer until both agree, or the offset reaches [`Overlay::size`].
    #[must_use]
    pub fn next_hole(&self, offset: u64) -> u64 {
        let mut at = offset;
        // Each turn moves behind the end of a run, or ends.
        loop {
            let runs = self.generations.iter().filter_map(|generation| generation.runs.after(at));
            let Some((_, end)) = runs.filter(|(start, _)| *start <= at).max_by_key(|(_, end)| *end) else {
                return at;
            };
            at = end;
        }
    }

    /// Whether the log holds a change of the size.
    #[must_use]
    pub fn has_resize(&self) -> bool {
        self.generations.iter().any(|generation| generation.has_resize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uncopy_core::random::{STEP, splitmix64};

    #[test]
    fn sizes_and_holes_include_the_log() {
        const BASE: u64 = 5 << 30;
        let mut overlay = Overlay::new(100);
        assert_eq!((overlay.size(), overlay.is_empty(), overlay.next_data(0)), (100, true, None));
        overlay.write(BASE, 50, Lsn(64));
        overlay.write(50, 20, Lsn(128));
        assert_eq!((overlay.size(), overlay.next_data(0)), (BASE + 50, Some(50)));
        assert_eq!((overlay.next_data(60), overlay.next_data(70)), (Some(60), Some(BASE)));
        assert_eq!(
            (overlay.next_hole(50), overlay.next_hole(70), overlay.next_hole(BASE)),
            (70, 70, BASE + 50)
        );
        assert!(overlay.overlaps(0, 51) && !overlay.overlaps(0, 50) && !overlay.overlaps(70, 30));
        assert!(overlay.overlaps(70, 31), "a hole that the kernel does not have");
        overlay.resize(BASE + 10, Lsn(192));
        assert_eq!((overlay.size(), overlay.next_hole(BASE)), (BASE + 10, BASE + 10));
        assert!(overlay.overlaps(0, 1), "the kernel still has the old size");
        overlay.retire(Lsn(128));
        assert!(!overlay.is_empty(), "a generation is dropped as a whole");
        overlay.retire(Lsn(192));
        assert_eq!((overlay.is_empty(), overlay.size()), (true, BASE + 10));
    }

    #[test]
    fn generations_end_so_that_steady_appends_do_not_keep_old_ones() {
        let mut overlay = Overlay::new(0);
        for number in 0..16 {
            overlay.write(number << 20, 1 << 20, Lsn(64 * (number + 1)));
        }
        assert_eq!(overlay.next_hole(0), 16 << 20);
        overlay.retire(Lsn(64 * 4));
        assert_eq!(overlay.next_data(0), Some(4 << 20));
        overlay.retire(Lsn(64 * 16));
        assert!(overlay.is_empty());
    }

    #[test]
    fn runs_are_those_of_a_byte_map() {
        let mut state = 5u64;
        let mut random = |below: u64| {
            state = state.wrapping_add(STEP);
            splitmix64(state) % below
        };
        for _ in 0..2000 {
            let (mut overlay, mut map) = (Overlay::new(80), vec![false; 80]);
            for number in 0..random(12) {
                if random(6) == 0 {
                    let size = random(60);
                    overlay.resize(size, Lsn(number));
                    map[size as usize..].fill(false);
                } else {
                    let (offset, len) = (random(50), 1 + random(10));
                    overlay.write(offset, len, Lsn(number));
                    map[offset as usize..(offset + len) as usize].fill(true);
                }
            }
            for at in 0..80 {
                let data = (at..80).find(|at| map[*at]).map(|at| at as u64);
                assert_eq!(overlay.next_data(at as u64), data);
                let hole = (at..80).find(|at| !map[*at]).unwrap_or(80) as u64;
                assert_eq!(overlay.next_hole(at as u64), hole);
                assert!(overlay.has_resize() || overlay.overlaps(at as u64, 1) == map[at]);
            }
        }
    }
}
