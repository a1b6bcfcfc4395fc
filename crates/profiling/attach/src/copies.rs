//! Sizes and positions of copies in progress, from the registers of samples.
//!
//! glibc's variants for x86-64 (sysdeps/x86_64/multiarch/memmove-vec-unaligned-erms.S, 2.33 to 2.42) return the
//! destination, so that rax holds it from the first instructions on. The length is
//!
//! - in rdx up to the choice of a loop, and in the loop that copies backwards: exact;
//! - `rdx - rax` in the loop that copies forwards, where rdx is four vectors before the end: short by 64 to 256
//!   bytes;
//! - `rdi - rax + rcx` at `rep movsb`, where rcx counts the bytes that remain: exact.
//!
//! mempcpy returns the end; its loops look like very short copies, which are left out. Other libraries and
//! languages keep the length elsewhere, so that their sizes are not known. A sample hits a copy in proportion to
//! its duration, so that sizes are weighted by time.

use crate::imports::StringInstruction;
use crate::walk::Registers;

/// Longest plausible copy, bytes.
const MAX_COPY_BYTES: u64 = 1 << 40;
/// Lowest address of user memory (vm.mmap_min_addr): smaller numbers are lengths.
const MIN_ADDRESS: u64 = 1 << 16;
/// Bytes of four vectors of AVX, by which the forward loop's end is short.
const LOOP_BYTES: u64 = 128;

/// A copy that a sample interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyInProgress {
    pub len_bytes: u64,
    /// Distance from source to destination, modulo 2⁶⁴.
    pub distance: u64,
}

impl CopyInProgress {
    /// Whether the copy moves bytes within one buffer: source and destination overlap.
    pub fn is_overlapping(&self) -> bool {
        let distance = self.distance.min(self.distance.wrapping_neg());
        distance < self.len_bytes && distance > 0
    }
}

/// Returns the copy that a sample in glibc's memmove or memcpy interrupted, if the registers tell.
pub fn copy_in_progress(
    registers: &Registers,
    instruction: Option<StringInstruction>,
) -> Option<CopyInProgress> {
    let Registers { ax: destination, cx, dx, si, di, .. } = *registers;
    let distance = di.wrapping_sub(si);
    let is_legal = |len_bytes: &u64| (1..MAX_COPY_BYTES).contains(len_bytes);
    if instruction == Some(StringInstruction::Copy) {
        let len_bytes = di.checked_sub(destination)?.checked_add(cx).filter(is_legal)?;
        return Some(CopyInProgress { len_bytes, distance });
    }
    let len_bytes = match dx.checked_sub(destination) {
        Some(before_end) if destination >= MIN_ADDRESS && before_end < MAX_COPY_BYTES => {
            before_end.checked_add(LOOP_BYTES)?
        }
        // A length that is no address of the same buffer.
        _ if dx < destination => dx,
        _ => return None,
    };
    Some(CopyInProgress { len_bytes: Some(len_bytes).filter(is_legal)?, distance })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: u64 = 0x7f00_0000_0000;
    const TO: u64 = 0x7f00_1000_0000;

    #[test]
    fn lengths_are_read_where_the_variants_keep_them() {
        let at_start = Registers { ax: TO, dx: 65536, si: FROM, di: TO, ..Registers::default() };
        let found = copy_in_progress(&at_start, None).expect("a copy");
        assert_eq!(found, CopyInProgress { len_bytes: 65536, distance: TO - FROM });
        let in_loop = Registers { dx: TO + 65536 - 128, si: FROM + 4096, di: TO + 4096, ..at_start };
        assert_eq!(copy_in_progress(&in_loop, None).expect("a copy").len_bytes, 65536);
        let string = Registers { cx: 60000, dx: 65536, di: TO + 5536, si: FROM + 5536, ..at_start };
        let copy = copy_in_progress(&string, Some(StringInstruction::Copy)).expect("a copy");
        assert_eq!(copy.len_bytes, 65536);
        assert!(!copy.is_overlapping());
        let nothing = Registers { ax: TO, dx: 0, ..Registers::default() };
        assert_eq!(copy_in_progress(&nothing, None), None);
        let wild = Registers { ax: 5, dx: u64::MAX, ..Registers::default() };
        assert_eq!(copy_in_progress(&wild, None), None);
    }

    #[test]
    fn a_move_within_a_buffer_overlaps() {
        let copy = |distance: i64| CopyInProgress { len_bytes: 4096, distance: distance.cast_unsigned() };
        assert!(copy(-45).is_overlapping() && copy(45).is_overlapping());
        assert!(!copy(4096).is_overlapping() && !copy(-4096).is_overlapping() && !copy(0).is_overlapping());
    }
}
