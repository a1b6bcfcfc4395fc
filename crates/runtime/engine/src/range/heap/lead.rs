//! The lead of a block: the distance from the start of its first page to the program's first byte.
//!
//! Blocks do not begin at the page's start, where the kernel's own buffers begin: a string move whose
//! destination is up to 63 bytes ahead of its source modulo 4096 takes 1.7 times as long on AMD's
//! processors (docs/design/memory.md#where-a-block-begins).

use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::classes::Class;
use uncopy_core::random::splitmix64;

const LINE_BYTES: usize = 64;
/// Lead of blocks that would fill their class, buffers of whole pages above all, bytes.
const MIDDLE_BYTES: usize = PAGE_BYTES / 2;

/// Choice of a block's lead.
#[derive(Clone, Copy)]
pub(super) enum Lead {
    /// At the start of a page.
    None,
    /// In the middle of a page, for all blocks alike, so that copies between them are copies of whole pages.
    Middle,
    /// At a cache line that depends on the block, but is the same for all requests of one length.
    Line,
}

impl Lead {
    /// The class whose blocks hold `len_bytes` after a lead, and the choice of that lead.
    pub(super) fn for_len(len_bytes: usize) -> Option<(Class, Self)> {
        let class = Class::for_len(len_bytes)?;
        if class.bytes() - len_bytes >= MIDDLE_BYTES {
            return Some((class, Self::Line));
        }
        let larger = Class::for_len(len_bytes + MIDDLE_BYTES);
        Some(larger.map_or((class, Self::None), |larger| (larger, Self::Middle)))
    }

    /// Lead of the block at `base` for a request of `len_bytes`, bytes.
    pub(super) fn bytes(self, base: usize, block_bytes: usize, len_bytes: usize) -> u16 {
        let bytes = match self {
            Self::None => 0,
            Self::Middle => MIDDLE_BYTES,
            Self::Line => {
                let lines = (block_bytes - len_bytes).min(PAGE_BYTES - 1) / LINE_BYTES + 1;
                splitmix64(base as u64) as usize % lines * LINE_BYTES
            }
        };
        bytes as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uncopy_core::classes::LARGEST_BYTES;

    #[test]
    fn every_length_has_room_behind_its_lead_in_its_class_or_the_next() {
        for len_bytes in (1..1 << 18).step_by(61).chain((1..=64).map(|pages| pages * PAGE_BYTES)) {
            let (class, lead) = Lead::for_len(len_bytes).expect("a class");
            assert!(class.bytes() - len_bytes >= MIDDLE_BYTES, "{len_bytes}");
            let tightest = Class::for_len(len_bytes).expect("a class");
            let is_next = matches!(lead, Lead::Middle) && class.index() == tightest.index() + 1;
            assert!(class == tightest || is_next, "{len_bytes}");
            for base in (0..64).map(|block| block * class.bytes()) {
                let lead_bytes = usize::from(lead.bytes(base, class.bytes(), len_bytes));
                assert!(lead_bytes < PAGE_BYTES && lead_bytes.is_multiple_of(LINE_BYTES), "{len_bytes}");
                assert!(lead_bytes + len_bytes <= class.bytes(), "{len_bytes} behind {lead_bytes}");
            }
        }
    }

    #[test]
    fn what_fills_the_largest_class_begins_at_a_page() {
        assert!(matches!(Lead::for_len(LARGEST_BYTES), Some((_, Lead::None))));
        assert!(Lead::for_len(LARGEST_BYTES + 1).is_none());
    }
}
