//! Unwind rule for one address: how to find a frame's caller, packed into one word.
//!
//! ```text
//! bit  63        32 31            8 7      6    5      4     3      2    0
//!     | CFA offset | rbp's offset  | unused | rbp's rule | base | deref | kind |
//! ```
//!
//! The return address is at CFA − 8 and the caller's stack pointer is the CFA, as x86-64 calls leave them.
//! Any other shape becomes [`Rule::End`], which ends the stack.

/// Location of the caller's rbp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BpLocation {
    /// Still in rbp, or undefined.
    Same,
    /// At CFA + offset.
    AtCfa(i32),
    /// At rbp + offset: functions that align their stack.
    AtBp(i32),
}

/// Register to which the canonical frame address (CFA) is relative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The stack pointer, rsp.
    Sp,
    /// The frame pointer, rbp.
    Bp,
}

/// How to get from a frame to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The frame has no caller, or the caller cannot be found.
    End,
    /// The caller's frame begins at the CFA.
    Frame {
        /// Register that the CFA is relative to.
        base: Base,
        /// True if the CFA is the word stored at base + offset; false if it is base + offset itself.
        is_stored: bool,
        /// Offset from the base register in bytes.
        offset: i32,
        /// Location of the caller's rbp.
        bp: BpLocation,
    },
    /// A signal trampoline: rsp points to the kernel's `struct rt_sigframe`, without the return address.
    Signal,
}

const END: u64 = 1;
const FRAME: u64 = 2;
const SIGNAL: u64 = 3;
const STORED: u64 = 1 << 3;
const FROM_BP: u64 = 1 << 4;
const SAVED_AT_CFA: u64 = 1 << 5;
const SAVED_AT_BP: u64 = 2 << 5;
/// Width of the field for rbp's offset, in bits.
const SAVED_BITS: u32 = 24;
const SAVED_SHIFT: u32 = 8;

impl Rule {
    /// Packs the rule into a nonzero word. A rule whose rbp offset does not fit becomes [`Rule::End`].
    #[must_use]
    pub fn pack(self) -> u64 {
        let Self::Frame { base, is_stored, offset, bp } = self else {
            return if self == Self::Signal { SIGNAL } else { END };
        };
        let (saved, at) = match bp {
            BpLocation::Same => (0, 0),
            BpLocation::AtCfa(at) => (SAVED_AT_CFA, at),
            BpLocation::AtBp(at) => (SAVED_AT_BP, at),
        };
        if at >> (SAVED_BITS - 1) != at >> 31 {
            return END;
        }
        let from = if base == Base::Bp { FROM_BP } else { 0 };
        let stored = if is_stored { STORED } else { 0 };
        let at = u64::from(at.cast_unsigned() & ((1 << SAVED_BITS) - 1)) << SAVED_SHIFT;
        u64::from(offset.cast_unsigned()) << 32 | at | saved | from | stored | FRAME
    }

    /// Unpacks a word made by [`Rule::pack`]. Any other word gives [`Rule::End`].
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "takes the words' halves apart")]
    pub fn unpack(word: u64) -> Self {
        match word & 7 {
            FRAME => {
                let at = ((word as u32).cast_signed()) >> (32 - SAVED_BITS);
                Self::Frame {
                    base: if word & FROM_BP == 0 { Base::Sp } else { Base::Bp },
                    is_stored: word & STORED != 0,
                    offset: ((word >> 32) as u32).cast_signed(),
                    bp: match word & (SAVED_AT_CFA | SAVED_AT_BP) {
                        SAVED_AT_CFA => BpLocation::AtCfa(at),
                        SAVED_AT_BP => BpLocation::AtBp(at),
                        _ => BpLocation::Same,
                    },
                }
            }
            SIGNAL => Self::Signal,
            _ => Self::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_rule_survives_its_word(
            offset in any::<i32>(),
            at in -(1 << 23)..(1 << 23),
            is_stored in any::<bool>(),
            from_bp in any::<bool>(),
            kind in 0..3usize,
        ) {
            let base = if from_bp { Base::Bp } else { Base::Sp };
            let bp = [BpLocation::Same, BpLocation::AtCfa(at), BpLocation::AtBp(at)][kind];
            let rule = Rule::Frame { base, is_stored, offset, bp };
            prop_assert_eq!(Rule::unpack(rule.pack()), rule);
            prop_assert_ne!(rule.pack(), 0);
        }
    }

    #[test]
    fn offsets_that_do_not_fit_end_the_stack() {
        let far = |bp| Rule::Frame { base: Base::Sp, is_stored: false, offset: 8, bp };
        assert_eq!(Rule::unpack(far(BpLocation::AtCfa(1 << 23)).pack()), Rule::End);
        assert_eq!(Rule::unpack(far(BpLocation::AtBp(-(1 << 23) - 1)).pack()), Rule::End);
        assert_eq!(Rule::unpack(Rule::Signal.pack()), Rule::Signal);
        assert_eq!(Rule::unpack(Rule::End.pack()), Rule::End);
        assert_eq!(Rule::unpack(0), Rule::End);
    }
}
