//! Held ranges of a peer's memory, which may overlap: these are copied when the lanes of a process end while it
//! lives. Adding and removing take a few instructions and allocate only for a new maximum.

/// Held ranges, by numbers that are reused.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// Chunk, offset and length in bytes; length 0 marks a free number.
    all: Vec<(u32, usize, usize)>,
    free: Vec<u32>,
}

impl Ranges {
    /// Returns an empty set.
    pub(crate) const fn new() -> Self {
        Self { all: Vec::new(), free: Vec::new() }
    }

    /// Adds a range, which may be held already; returns its number.
    pub(crate) fn add(&mut self, chunk: u32, offset_bytes: usize, len_bytes: usize) -> u32 {
        let range = (chunk, offset_bytes, len_bytes);
        match self.free.pop() {
            Some(number) => {
                self.all[number as usize] = range;
                number
            }
            None => {
                self.all.push(range);
                self.all.len() as u32 - 1
            }
        }
    }

    /// Removes the range with this number.
    pub(crate) fn remove(&mut self, number: u32) {
        self.all[number as usize].2 = 0;
        self.free.push(number);
    }

    /// Returns the offsets and lengths of the ranges in a chunk.
    pub(crate) fn of_chunk(&self, chunk: u32) -> impl Iterator<Item = (usize, usize)> {
        let held = self.all.iter().filter(move |(of, _, len_bytes)| *of == chunk && *len_bytes > 0);
        held.map(|(_, offset_bytes, len_bytes)| (*offset_bytes, *len_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_there_as_often_as_it_was_added_and_not_removed() {
        let mut ranges = Ranges::new();
        let numbers = [(0, 5, 10), (1, 5, 10), (0, 5, 10), (0, 50, 1)].map(|(a, b, c)| ranges.add(a, b, c));
        assert_eq!(ranges.of_chunk(0).collect::<Vec<_>>(), [(5, 10), (5, 10), (50, 1)]);
        ranges.remove(numbers[0]);
        assert_eq!(ranges.of_chunk(0).collect::<Vec<_>>(), [(5, 10), (50, 1)]);
        assert_eq!(ranges.add(2, 7, 7), numbers[0], "a number that is used again");
        ranges.remove(numbers[2]);
        ranges.remove(numbers[3]);
        assert_eq!(
            (ranges.of_chunk(0).count(), ranges.of_chunk(1).count(), ranges.of_chunk(2).count()),
            (0, 1, 1)
        );
    }
}
