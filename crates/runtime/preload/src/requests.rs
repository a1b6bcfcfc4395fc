//! Requests of the program's own userfaultfds (ioctl_userfaultfd(2)), which require its memory to be as without
//! this library.

use crate::mapping::disown;
use core::ffi::c_ulong;
use uncopy_engine::range::alteration::Alteration;
use uncopy_sys::readable::is_readable;

/// `UFFDIO_REGISTER`: refuses memory that is registered already, with EBUSY.
const REGISTER: c_ulong = 0xC020_AA00;
/// `UFFDIO_MOVE`: moves present pages from one mapping to another (Linux 6.8).
const MOVE: c_ulong = 0xC028_AA05;

/// Prepares for an ioctl: memory named by a userfaultfd request becomes ordinary memory permanently.
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
    // SAFETY: `argument` was found readable for `words` words, of which `index` is one.
    let word = |index: usize| unsafe { (argument as *const u64).add(index).read_unaligned() as usize };
    let len_bytes = word(words - 1);
    for start in (0..words - 1).map(word) {
        if start.checked_add(len_bytes).is_some() {
            disown(start, len_bytes, Alteration::Properties);
        }
    }
}
