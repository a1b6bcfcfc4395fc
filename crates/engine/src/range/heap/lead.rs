//! Where in its first page a block begins for the program.
//!
//! Not at the page's start, where the kernel's own buffers begin: a string move whose destination is up to 63 bytes ahead of its
//! source modulo 4096 takes 1.7 times as long on AMD's processors (docs/decisions/045).

use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::classes::Class;
use uncopy_core::random::splitmix64;

const LINE_BYTES: usize = 64;
/// Where blocks begin that would fill their class, buffers of whole pages above all.
const MIDDLE_BYTES: usize = PAGE_BYTES / 2;

/// How a block's begin is chosen.
#[derive(Clone, Copy)]
pub(super) enum Lead {
    /// At a page's start.
    None,
    /// In the middle of the page: the same for all, so that a copy from one to another is one of whole pages.
    Middle,
    /// At a cache line that differs from block to block, but is the same for all requests of one length.
    Line,
}

impl Lead {
    /// The class whose blocks hold `len_bytes` behind a lead, and which lead.
    pub(super) fn for_len(len_bytes: usize) -> Option<(Class, Self)> {
        let class = Class::for_len(len_bytes)?;
        if class.bytes() - len_bytes >= MIDDLE_BYTES {
            return Some((class, Self::Line));
        }
        let larger = Class::for_len(len_bytes + MIDDLE_BYTES);
        Some(larger.map_or((class, Self::None), |larger| (larger, Self::Middle)))
    }

    /// Bytes before the first one that the program gets, of which it asked for `len_bytes`, in the block at `base`.
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
