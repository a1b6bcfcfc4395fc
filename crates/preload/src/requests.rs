//! Requests of a userfaultfd of the program's own (ioctl_userfaultfd(2)), to which its memory must look as it is without us.

use crate::mapping::disown;
use core::ffi::c_ulong;
use uncopy_engine::range::alteration::Alteration;
use uncopy_sys::readable::is_readable;

/// `UFFDIO_REGISTER`: memory that is registered already is refused with EBUSY.
const REGISTER: c_ulong = 0xC020_AA00;
/// `UFFDIO_MOVE`: takes pages that are present out of one mapping and puts them into another (Linux 6.8).
const MOVE: c_ulong = 0xC028_AA05;

/// Before the program makes a request of some descriptor: memory that the request needs as it is becomes ordinary memory
/// for good.
#[inline]
pub fn before_ioctl(request: c_ulong, argument: usize) {
    if matches!(request, REGISTER | MOVE) {
        before_userfaultfd(request, argument);
    }
}

#[cold]
fn before_userfaultfd(request: c_ulong, argument: usize) {
    // `uffdio_register` begins with start and length, `uffdio_move` with destination, source and length.
    let words: usize = if request == MOVE { 3 } else { 2 };
    if !is_readable(argument, words * size_of::<u64>()) {
        return;
    }
    // SAFETY: found to be readable just now; the kernel reads the structure there, too.
    let word = |index: usize| unsafe { (argument as *const u64).add(index).read_unaligned() as usize };
    let len_bytes = word(words - 1);
    for start in (0..words - 1).map(word) {
        if start.checked_add(len_bytes).is_some() {
            disown(start, len_bytes, Alteration::Properties);
        }
    }
}
