//! Sets of positions as sorted, non-adjacent ranges: bytes received out of order, or acknowledged by SACK.

use std::ops::Range;

use crate::sequence::Position;

/// A set of positions, kept as sorted ranges with a gap between any two.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    sorted: Vec<Range<Position>>,
    bytes: u64,
}

impl Ranges {
    /// Adds a range, merging overlapping and adjacent ones. Returns the number of positions added.
    pub fn insert(&mut self, range: Range<Position>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let first = self.sorted.partition_point(|other| other.end < range.start);
        let end = self.sorted.partition_point(|other| other.start <= range.end);
        let mut joined = range;
        let mut before = 0;
        for other in &self.sorted[first..end] {
            before += other.end - other.start;
            joined = joined.start.min(other.start)..joined.end.max(other.end);
        }
        let added = joined.end - joined.start - before;
        self.sorted.splice(first..end, [joined]);
        self.bytes += added;
        added
    }

    /// Removes all positions below `position` and returns their number.
    pub fn remove_below(&mut self, position: Position) -> u64 {
        let before = self.bytes;
        let whole = self.sorted.partition_point(|range| range.end <= position);
        self.bytes -= self.sorted.drain(..whole).map(|range| range.end - range.start).sum::<u64>();
        if let Some(first) = self.sorted.first_mut()
            && first.start < position
        {
            self.bytes -= position - first.start;
            first.start = position;
        }
        if self.sorted.is_empty() {
            self.sorted.shrink_to_fit();
        }
        before - self.bytes
    }

    /// Removes all positions from the set.
    pub fn clear(&mut self) {
        self.sorted.clear();
        self.bytes = 0;
    }

    /// Returns the range that contains `position`.
    pub fn find(&self, position: Position) -> Option<Range<Position>> {
        let at = self.sorted.partition_point(|range| range.end <= position);
        self.sorted.get(at).filter(|range| range.start <= position).cloned()
    }

    /// Returns the first part of `range` that is not in the set.
    pub fn first_gap(&self, range: Range<Position>) -> Option<Range<Position>> {
        let start = self.find(range.start).map_or(range.start, |known| known.end);
        if start >= range.end {
            return None;
        }
        let following = self.sorted.get(self.sorted.partition_point(|known| known.end <= start));
        Some(start..following.map_or(range.end, |known| known.start.min(range.end)))
    }

    /// Returns the number of positions of `range` in the set; linear in the stored ranges there.
    pub fn count_within(&self, range: Range<Position>) -> u64 {
        let first = self.sorted.partition_point(|known| known.end <= range.start);
        let within = self.sorted[first..].iter().take_while(|known| known.start < range.end);
        within.map(|known| known.end.min(range.end) - known.start.max(range.start)).sum()
    }

    /// Returns the ranges in ascending order.
    pub fn as_slice(&self) -> &[Range<Position>] {
        &self.sorted
    }

    /// Returns the number of positions in the set.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the end of the highest range.
    pub fn end(&self) -> Option<Position> {
        self.sorted.last().map(|range| range.end)
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// True if the ranges are sorted, non-adjacent, and match the count.
    pub fn is_valid(&self) -> bool {
        self.sorted.iter().all(|range| range.start < range.end)
            && self.sorted.is_sorted_by(|left, right| left.end < right.start)
            && self.bytes == self.sorted.iter().map(|range| range.end - range.start).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_behave_like_a_set_of_positions(steps in prop::collection::vec((0u64..60, 0u64..9, any::<bool>()), 0..40)) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (start, len, is_removal) in steps {
                if is_removal {
                    let before = model.len();
                    model.retain(|&position| position >= start / 2);
                    prop_assert_eq!(ranges.remove_below(start / 2), (before - model.len()) as u64);
                } else {
                    let before = model.len();
                    model.extend(start..start + len);
                    prop_assert_eq!(ranges.insert(start..start + len), (model.len() - before) as u64);
                }
                prop_assert!(ranges.is_valid());
                prop_assert_eq!(ranges.bytes(), model.len() as u64);
                prop_assert_eq!(ranges.count_within(start..start + 20), model.range(start..start + 20).count() as u64);
                for position in 0..70 {
                    prop_assert_eq!(ranges.find(position).is_some(), model.contains(&position));
                }
            }
        }
    }
}
