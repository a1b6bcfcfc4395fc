//! Size classes of small objects, chosen so that a pageblock wastes less than 6.25 % (ZCopy §3.2.1).
//!
//! ```text
//! pageblock   | object | object | … | object | rest |      waste = (B - slots x requested) / B
//! ```
//!
//! With `n` slots in a pageblock of `B` bytes, an object has `B / n` bytes, rounded down to the alignment.
//! The next smaller class is the one with the most slots for which the smallest size served by the current
//! class still wastes less than a sixteenth. With 16 pages there are 73 classes up to 4,096 bytes; below 256
//! bytes every multiple of the alignment is a class.

use crate::options::{ALIGNMENT, Options};
use uncopy_sys::PAGE_BYTES;

pub(crate) const MAX_CLASSES: usize = 128;
/// Maximum threshold of large objects, in bytes.
pub(crate) const MAX_SMALL_BYTES: usize = 32 << 10;
/// Maximum wasted fraction of a pageblock: one sixteenth.
const WASTE_SHARE: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(pub(crate) u8);

/// Size classes for one pageblock size and one threshold.
pub(crate) struct Classes {
    /// Object size of each class in bytes, ascending.
    size_bytes: [u32; MAX_CLASSES],
    count: usize,
    /// Maximum size of a small object in bytes.
    max_bytes: usize,
    /// Class by size in multiples of the alignment.
    of_units: [u8; MAX_SMALL_BYTES / ALIGNMENT + 1],
}

impl Classes {
    /// Returns an empty set of classes, for which all objects are large.
    pub(crate) const fn none() -> Self {
        Self {
            size_bytes: [0; MAX_CLASSES],
            count: 0,
            max_bytes: 0,
            of_units: [0; MAX_SMALL_BYTES / ALIGNMENT + 1],
        }
    }

    pub(crate) fn fill(&mut self, options: &Options) {
        let block_bytes = options.pageblock_pages * PAGE_BYTES;
        let max_bytes = options.large_threshold.next_multiple_of(ALIGNMENT);
        let round = |slots: usize| block_bytes / slots / ALIGNMENT * ALIGNMENT;
        // Computed in descending order, then reversed.
        let mut slots = block_bytes / max_bytes;
        let mut count = 0;
        loop {
            let size = round(slots);
            self.size_bytes[count] = size as u32;
            count += 1;
            if size <= ALIGNMENT || count == MAX_CLASSES {
                break;
            }
            // Minimum size that this class serves without wasting too much.
            let least = (block_bytes - block_bytes / WASTE_SHARE) / slots;
            let mut next = slots + 1;
            while round(next) == size || (round(next + 1) >= least && round(next + 1) >= ALIGNMENT) {
                next += 1;
            }
            slots = next;
        }
        self.size_bytes[..count].reverse();
        // If there were too many classes, the smallest objects share the smallest class.
        self.count = count;
        let mut class = 0;
        for units in 0..=max_bytes / ALIGNMENT {
            while (self.size_bytes[class] as usize) < units * ALIGNMENT {
                class += 1;
            }
            self.of_units[units] = class as u8;
        }
        self.max_bytes = options.large_threshold;
    }

    /// Returns the class for a size; `None` for large objects.
    #[inline]
    pub(crate) fn for_size(&self, size_bytes: usize) -> Option<Class> {
        if size_bytes > self.max_bytes {
            return None;
        }
        Some(Class(self.of_units[size_bytes.div_ceil(ALIGNMENT)]))
    }

    /// Returns the class for a size at a multiple of `align`, a power of two up to a page; `None` for large.
    pub(crate) fn for_aligned(&self, size_bytes: usize, align: usize) -> Option<Class> {
        let first = self.for_size(size_bytes.max(1))?;
        (usize::from(first.0)..self.count)
            .find(|class| (self.size_bytes[*class] as usize).is_multiple_of(align))
            .map(|class| Class(class as u8))
    }

    /// Returns the object size of a class in bytes.
    #[inline]
    pub(crate) const fn bytes(&self, class: Class) -> u32 {
        self.size_bytes[class.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(options: &Options) -> Box<Classes> {
        let mut classes = Box::new(Classes::none());
        classes.fill(options);
        classes
    }

    /// Returns the wasted fraction of a pageblock full of objects of one requested size.
    fn waste(classes: &Classes, block_bytes: usize, requested: usize) -> f64 {
        let class = classes.for_size(requested).expect("small");
        let slots = block_bytes / classes.bytes(class) as usize;
        1.0 - (slots * requested) as f64 / block_bytes as f64
    }

    #[test]
    fn less_than_a_sixteenth_is_wasted_for_every_size_below_a_page() {
        let options = Options::default();
        let classes = classes(&options);
        let block_bytes = options.pageblock_pages * PAGE_BYTES;
        for size in 1..=PAGE_BYTES {
            // The alignment of 16 bytes is required by C; below 241 bytes it alone may waste more.
            let requested = if size > 240 { size } else { size.next_multiple_of(ALIGNMENT) };
            let waste = waste(&classes, block_bytes, requested);
            assert!(waste < 0.0625, "{size} bytes: {waste}");
        }
        assert!(classes.count <= 80, "{} classes", classes.count);
    }

    #[test]
    fn every_size_fits_its_class_and_no_smaller_one() {
        for pageblock_pages in [1, 2, 3, 4, 8, 16, 31, 64] {
            for large_threshold in [16, 17, 100, 1024, 2048, 4096, 8192, 32 << 10] {
                let options = Options { pageblock_pages, large_threshold, ..Options::default() };
                if large_threshold * 2 > pageblock_pages * PAGE_BYTES {
                    continue;
                }
                let classes = classes(&options);
                for size in 0..=large_threshold {
                    let class = classes.for_size(size).expect("small");
                    assert!(classes.bytes(class) as usize >= size);
                    assert!((classes.bytes(class) as usize).is_multiple_of(ALIGNMENT));
                    if class.0 > 0 {
                        let below = classes.bytes(Class(class.0 - 1)) as usize;
                        assert!(below < size.next_multiple_of(ALIGNMENT), "{size}");
                    }
                }
                assert!(classes.for_size(large_threshold + 1).is_none());
            }
        }
    }

    #[test]
    fn aligned_sizes_get_a_class_of_that_alignment_or_none() {
        let classes = classes(&Options::default());
        for align in [16usize, 32, 64, 128, 256, 512, 1024, 2048, PAGE_BYTES] {
            for size in 1..=PAGE_BYTES {
                if let Some(class) = classes.for_aligned(size, align) {
                    let bytes = classes.bytes(class) as usize;
                    assert!(bytes >= size && bytes.is_multiple_of(align));
                }
            }
            assert!(classes.for_aligned(align, align).is_some());
        }
    }
}
