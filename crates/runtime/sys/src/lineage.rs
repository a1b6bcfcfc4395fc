//! Tells a process from those forked from it.
//!
//! The kernel clears one page in every child (`MADV_WIPEONFORK`, Linux 4.14), however it was
//! forked. A process that shares its parent's memory (vfork) counts as its parent.

use crate::PAGE_BYTES;
use crate::call::{kernel, syscall};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Address of the page; 0 if not mapped yet, 1 if it cannot be mapped.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// Returns a number that this process has and none of its ancestors had; `None` if the kernel does
/// not support that. `errno` is changed.
#[inline]
#[must_use]
pub fn number() -> Option<u32> {
    let word = match PAGE.load(Relaxed) {
        0 => make()?,
        1 => return None,
        // SAFETY: the address is that of a page that `make` has mapped and that is never unmapped.
        address => unsafe { &*(address as *const AtomicU32) },
    };
    match word.load(Relaxed) {
        0 => Some(choose(word)),
        number => Some(number),
    }
}

/// Sets the number at the first call in a process: the time, which was earlier in its ancestors.
#[cold]
fn choose(word: &AtomicU32) -> u32 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one value of the type of `time`, which lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    // Steps of 0.26 µs are shorter than a fork takes. The number wraps after 18 minutes, and then
    // equals an ancestor's only if both were chosen in the same step.
    let number = (nanos >> 8) as u32 | 1;
    word.compare_exchange(0, number, Relaxed, Relaxed).err().unwrap_or(number)
}

#[cold]
fn make() -> Option<&'static AtomicU32> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: without MAP_FIXED the mapping replaces nothing.
    let page = unsafe {
        kernel!(Map, libc::mmap(core::ptr::null_mut(), PAGE_BYTES, protection, flags, -1, 0)) as usize
    };
    let is_mapped = page != libc::MAP_FAILED as usize;
    // SAFETY: MADV_WIPEONFORK changes no byte of this process.
    let is_wiped = is_mapped
        && unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, page, PAGE_BYTES, libc::MADV_WIPEONFORK)) }
            == 0;
    let found = if is_wiped { page } else { 1 };
    let kept = PAGE.compare_exchange(0, found, Relaxed, Relaxed).err().unwrap_or(found);
    if is_mapped && kept != page {
        // SAFETY: the page was mapped above, and its address has not been published.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, page, PAGE_BYTES)) };
    }
    // SAFETY: the address is that of a page that is never unmapped.
    (kept != 1).then(|| unsafe { &*(kept as *const AtomicU32) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_a_number_of_its_own() {
        let own = number().expect("a page");
        assert_eq!(number(), Some(own));
        // SAFETY: the child only compares numbers and exits; the parent waits for it.
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
