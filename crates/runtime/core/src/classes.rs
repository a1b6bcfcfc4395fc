//! Size classes of the block heap: eight classes of one to eight pages, then four per doubling. Rounding up
//! wastes at most a fifth of a block's addresses. Pages of a block that its owners never used stay absent.

use crate::addr::{PAGE_BYTES, pages_up};

/// Number of size classes.
pub const CLASSES: usize = 56;

/// A size class of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class(u8);

/// Number of pages in a block of each class.
const PAGES: [u32; CLASSES] = table();

const fn table() -> [u32; CLASSES] {
    let mut pages = [0; CLASSES];
    let mut index = 0;
    while index < CLASSES {
        pages[index] = if index < 8 {
            index as u32 + 1
        } else {
            // Class 7 has 8 pages; from there each group of four doubles: 10 12 14 16 20 24 …
            let group = (index - 8) / 4;
            let step = (index - 8) % 4;
            (5 + step as u32) << (group + 1)
        };
        index += 1;
    }
    pages
}

/// Size of the largest block, bytes.
pub const LARGEST_BYTES: usize = PAGES[CLASSES - 1] as usize * PAGE_BYTES;

impl Class {
    /// Returns the smallest class whose blocks hold `len_bytes`; `None` above [`LARGEST_BYTES`].
    #[must_use]
    pub fn for_len(len_bytes: usize) -> Option<Self> {
        if len_bytes > LARGEST_BYTES {
            return None;
        }
        let pages = pages_up(len_bytes).max(1);
        let index = if pages <= 8 {
            pages - 1
        } else {
            // 2^top < pages <= 2^(top+1); quarter steps of the lower power.
            let top = u32::BITS - 1 - (pages - 1).leading_zeros();
            let step = (pages - 1 - (1 << top)) >> (top - 2);
            8 + (top - 3) * 4 + step
        };
        u8::try_from(index).ok().filter(|index| usize::from(*index) < CLASSES).map(Self)
    }

    /// Returns the class with this index, if there is one.
    #[must_use]
    pub fn from_index(index: usize) -> Option<Self> {
        if index < CLASSES { u8::try_from(index).ok().map(Self) } else { None }
    }

    /// Returns the index in the table of classes.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the number of pages in a block.
    #[must_use]
    pub const fn pages(self) -> u32 {
        PAGES[self.0 as usize]
    }

    /// Returns the size of a block, bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.pages() as usize * PAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_gets_the_smallest_class_that_holds_it() {
        for pages in 1..=LARGEST_BYTES / PAGE_BYTES {
            let expected = PAGES.iter().position(|size| *size as usize >= pages).expect("fits");
            for len_bytes in [pages * PAGE_BYTES, pages * PAGE_BYTES - 1, (pages - 1) * PAGE_BYTES + 1] {
                assert_eq!(Class::for_len(len_bytes).expect("fits").index(), expected, "{len_bytes}");
            }
        }
        assert!(Class::for_len(LARGEST_BYTES + 1).is_none() && Class::for_len(usize::MAX).is_none());
        assert_eq!(Class::for_len(0).expect("fits").pages(), 1);
    }

    #[test]
    fn classes_rise_by_at_most_a_quarter() {
        assert!(PAGES.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(PAGES[7..].windows(2).all(|pair| pair[1] * 4 <= pair[0] * 5));
        const { assert!(LARGEST_BYTES >= 64 << 20) };
    }
}
