//! Whether this process is the one that made something, or was forked from it since.
//!
//! One page that the kernel empties in every child (`MADV_WIPEONFORK`, Linux 4.14), however it was forked. A
//! process that shares its parent's memory (vfork) counts as its parent.

use crate::PAGE_BYTES;
use crate::call::{kernel, syscall};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Address of the page; 0: none yet; 1: there is none to be had.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// A number that is this process's and was none of its ancestors'. `None`: that cannot be told here. `errno` is
/// changed.
#[inline]
#[must_use]
pub fn number() -> Option<u32> {
    let word = match PAGE.load(Relaxed) {
        0 => make()?,
        1 => return None,
        // SAFETY: the page below, which is never unmapped.
        address => unsafe { &*(address as *const AtomicU32) },
    };
    match word.load(Relaxed) {
        0 => Some(choose(word)),
        number => Some(number),
    }
}

/// The first to ask in a process gives it a number: the time, which was earlier in its ancestors.
#[cold]
fn choose(word: &AtomicU32) -> u32 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    // In steps of 0.26 µs, less than a fork takes; comes back after 18 minutes, to a number that an ancestor
    // that chose in the very same quarter of a microsecond had.
    let number = (nanos >> 8) as u32 | 1;
    word.compare_exchange(0, number, Relaxed, Relaxed).err().unwrap_or(number)
}

#[cold]
fn make() -> Option<&'static AtomicU32> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let page = unsafe {
        kernel!(Map, libc::mmap(core::ptr::null_mut(), PAGE_BYTES, protection, flags, -1, 0)) as usize
    };
    let is_mapped = page != libc::MAP_FAILED as usize;
    // SAFETY: a page of our own.
    let is_wiped = is_mapped
        && unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, page, PAGE_BYTES, libc::MADV_WIPEONFORK)) }
            == 0;
    let found = if is_wiped { page } else { 1 };
    let kept = PAGE.compare_exchange(0, found, Relaxed, Relaxed).err().unwrap_or(found);
    if is_mapped && kept != page {
        // SAFETY: made just now and known to nobody.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, page, PAGE_BYTES)) };
    }
    // SAFETY: the page is never unmapped.
    (kept != 1).then(|| unsafe { &*(kept as *const AtomicU32) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_a_number_of_its_own() {
        let own = number().expect("a page");
        assert_eq!(number(), Some(own));
        // SAFETY: the child compares and ends; the parent waits for it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let other = number();
                libc::_exit(i32::from(other.is_none() || other == Some(own) || number() != other));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
        assert_eq!(number(), Some(own));
    }
}
