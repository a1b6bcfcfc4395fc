//! Tracks which bytes of a buffer have a known value: fresh memory from malloc does not.

/// Known ranges of offsets, half-open: sorted, disjoint, not adjacent, non-empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownRanges(Vec<(usize, usize)>);

impl KnownRanges {
    /// Returns a set without any known byte.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Marks `start..end` as unknown.
    pub fn remove(&mut self, start: usize, end: usize) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|range| range.1 <= start);
        let last = self.0.partition_point(|range| range.0 < end);
        if first >= last {
            return;
        }
        let head = (self.0[first].0, start.max(self.0[first].0));
        let tail = (end.min(self.0[last - 1].1), self.0[last - 1].1);
        let rest = [head, tail].into_iter().filter(|range| range.0 < range.1);
        self.0.splice(first..last, rest);
    }

    /// Marks `start..end` as known.
    pub fn insert(&mut self, start: usize, end: usize) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|range| range.1 < start);
        let last = self.0.partition_point(|range| range.0 <= end);
        let mut whole = (start, end);
        if first < last {
            whole = (start.min(self.0[first].0), end.max(self.0[last - 1].1));
        }
        self.0.splice(first..last, [whole]);
    }

    /// Returns the known ranges inside `start..end`.
    pub fn within(&self, start: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
        let first = self.0.partition_point(|range| range.1 <= start);
        self.0[first..]
            .iter()
            .take_while(move |range| range.0 < end)
            .map(move |range| (range.0.max(start), range.1.min(end)))
    }

    /// Marks `at..at + len` as known where `other` has the bytes from `from` on, as unknown elsewhere.
    pub fn copy(&mut self, at: usize, other: &[(usize, usize)], from: usize, len: usize) {
        self.remove(at, at + len);
        for (start, end) in other {
            self.insert(at + (start - from), at + (end - from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uncopy_tests::random::Random;

    #[test]
    fn known_ranges_match_a_flag_per_byte() {
        let mut random = Random::new(3);
        let mut known = KnownRanges::new();
        let mut bytes = [false; 200];
        for _ in 0..20_000 {
            let start = random.below(200);
            let end = random.between(start, 200);
            let insert = random.one_in(2);
            if insert {
                known.insert(start, end)
            } else {
                known.remove(start, end)
            }
            bytes[start..end].fill(insert);
            let mut found = [false; 200];
            let mut before = 0;
            for (start, end) in known.within(0, 200) {
                assert!(start < end && (start > before || start == 0), "{known:?}");
                before = end;
                found[start..end].fill(true);
            }
            assert_eq!(found, bytes, "{known:?}");
        }
    }
}
