//! Whether memory that the program points to can be read or written: its vectors and message headers, and buffers where
//! a hook does the kernel's part, which the kernel answers with EFAULT where they are bad and which a hook must not die of.

use crate::PAGE_BYTES;
use crate::call::syscall;
use crate::errno::{Errno, Keep};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What the kernel's own copy from user memory takes at once here, bytes.
const WORD_BYTES: usize = core::mem::size_of::<u64>();
/// What it changes at once, bytes.
const FUTEX_BYTES: usize = core::mem::size_of::<u32>();

/// The kernel is not asked any more.
static HAS_LEFT: AtomicBool = AtomicBool::new(false);

/// From here on nothing is said to be readable or writable, without a system call: a filter may end the process for those that are
/// made here.
pub fn leave() {
    HAS_LEFT.store(true, Relaxed);
}

/// Whether the kernel can read the word at `address`.
///
/// `rt_sigprocmask` copies the mask in before it looks at what to do with it, which is nothing here. It is
/// the cheapest call that does so, 0.05 µs.
fn is_word_readable(address: usize) -> bool {
    const NO_SUCH_ACTION: i32 = -1;
    // SAFETY: the kernel reads the word if it can, refuses the action and changes nothing.
    let result = unsafe {
        syscall!(libc::SYS_rt_sigprocmask, NO_SUCH_ACTION, address, core::ptr::null_mut::<u64>(), WORD_BYTES,)
    };
    result == -1 && crate::errno::get() == libc::EINVAL
}

/// Whether `len_bytes` bytes at `address` can be read at this moment: each page that they lie in.
///
/// `errno` is kept. False where a filter of system calls does not let the kernel be asked: then nothing may be done that depends
/// on it.
#[must_use]
pub fn is_readable(address: usize, len_bytes: usize) -> bool {
    if len_bytes == 0 {
        return true;
    }
    if HAS_LEFT.load(Relaxed) {
        return false;
    }
    let Some(last_byte) = address.checked_add(len_bytes - 1) else { return false };
    let page_of = |address: usize| address / PAGE_BYTES * PAGE_BYTES;
    let _errno = Keep::new();
    // The smallest page there is: a larger one is only looked at more often. One word of each, aligned, so that it crosses none.
    let mut at = address / WORD_BYTES * WORD_BYTES;
    loop {
        if !is_word_readable(at) {
            return false;
        }
        if page_of(at) == page_of(last_byte) {
            return true;
        }
        at = page_of(at) + PAGE_BYTES;
    }
}

/// Whether the kernel can write the word around `address`.
///
/// `FUTEX_WAKE_OP` sets bits of a word, none of them here, and wakes those who wait for another one, of whom there are none
/// (futex(2)). That takes 0.1 µs.
fn is_word_writable(address: usize) -> bool {
    // `oldval | 0`; nobody waits for the word, whatever the comparison says.
    const OR_NOTHING: u32 = libc::FUTEX_OP_OR.cast_unsigned() << 28;
    let nobodys = 0u32;
    let word = address / FUTEX_BYTES * FUTEX_BYTES;
    let wake = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel sets no bit of the word; where it cannot write there it says so.
    let result =
        unsafe { syscall!(libc::SYS_futex, core::ptr::from_ref(&nobodys), wake, 0, 0, word, OR_NOTHING) };
    if result >= 0 || crate::errno::get() != libc::EFAULT {
        return true;
    }
    // That call does not wait for a page that a handler of userfaults has to put there (mm/gup.c, fixup_user_fault).
    let populate = |address: usize| crate::mem::populate(address / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES);
    match populate(address) {
        Err(Errno(libc::EFAULT | libc::ENOMEM)) => false,
        // It may not be written; or the kernel has no such advice (before Linux 5.14), and nobody knows better.
        Err(Errno(libc::EINVAL)) => populate(core::ptr::from_ref(&nobodys) as usize).is_err(),
        _ => true,
    }
}

/// How many of `len_bytes` bytes at `address` can be written at this moment: up to the first page that cannot. `errno` is kept. None
/// where a filter does not let the kernel be asked.
#[must_use]
pub fn writable_bytes(address: usize, len_bytes: usize) -> usize {
    if HAS_LEFT.load(Relaxed) {
        return 0;
    }
    let _errno = Keep::new();
    let end = address.saturating_add(len_bytes);
    let mut at = address;
    while at < end {
        if !is_word_writable(at) {
            return at - address;
        }
        at = (at / PAGE_BYTES * PAGE_BYTES).saturating_add(PAGE_BYTES);
    }
    end - address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(count: usize, protection: i32) -> usize {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping disturbs nothing.
        let start =
            unsafe { libc::mmap(core::ptr::null_mut(), count * PAGE_BYTES, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start as usize
    }

    #[test]
    fn memory_is_readable_where_every_page_of_it_is() {
        let start = pages(4, libc::PROT_READ);
        // SAFETY: the page is inside the mapping made above.
        let hidden =
            unsafe { libc::syscall(libc::SYS_mprotect, start + 2 * PAGE_BYTES, PAGE_BYTES, libc::PROT_NONE) };
        assert_eq!(hidden, 0);
        crate::errno::set(77);
        assert!(is_readable(start, 0) && is_readable(start, 8) && is_readable(start, 2 * PAGE_BYTES));
        assert!(is_readable(start + 2 * PAGE_BYTES - 8, 8));
        assert!(!is_readable(start + 2 * PAGE_BYTES - 7, 8));
        assert!(!is_readable(start + PAGE_BYTES + 100, PAGE_BYTES));
        assert!(!is_readable(start + PAGE_BYTES + 100, 2 * PAGE_BYTES));
        assert!(is_readable(start + 3 * PAGE_BYTES, PAGE_BYTES));
        assert_eq!(crate::errno::get(), 77);
    }

    #[test]
    fn addresses_that_no_program_has_are_not_readable() {
        for address in [0, 8, usize::MAX - 4, usize::MAX - 8, 1 << 47, 0xffff_8000_0000_0000] {
            assert!(!is_readable(address, 64), "{address:#x}");
        }
    }

    #[test]
    fn memory_is_writable_up_to_the_first_page_that_is_not() {
        let start = pages(5, libc::PROT_READ | libc::PROT_WRITE);
        for (page, protection) in [(2, libc::PROT_READ), (4, libc::PROT_NONE)] {
            // SAFETY: the page is inside the mapping made above.
            let fixed = unsafe {
                libc::syscall(libc::SYS_mprotect, start + page * PAGE_BYTES, PAGE_BYTES, protection)
            };
            assert_eq!(fixed, 0);
        }
        // SAFETY: inside the mapping.
        unsafe { (start as *mut u64).write(0x8877_6655_4433_2211) };
        crate::errno::set(77);
        assert_eq!(writable_bytes(start, 0), 0);
        assert_eq!(writable_bytes(start + 3, 1), 1);
        assert_eq!(writable_bytes(start + 1, 2 * PAGE_BYTES - 1), 2 * PAGE_BYTES - 1);
        assert_eq!(writable_bytes(start + 5, 3 * PAGE_BYTES), 2 * PAGE_BYTES - 5);
        assert_eq!(writable_bytes(start + 2 * PAGE_BYTES, 100), 0);
        assert_eq!(writable_bytes(start + 3 * PAGE_BYTES, usize::MAX), PAGE_BYTES);
        assert_eq!(writable_bytes(8, 100), 0);
        assert_eq!(crate::errno::get(), 77);
        // SAFETY: inside the mapping.
        assert_eq!(unsafe { (start as *const u64).read() }, 0x8877_6655_4433_2211, "nothing was changed");
        assert!(is_readable(start + PAGE_BYTES - 1, 2) && is_readable(start + 5, 0));
        assert!(is_readable(start + 4 * PAGE_BYTES - 3, 3));
        assert!(!is_readable(start + 4 * PAGE_BYTES - 3, 4) && !is_readable(16, 1));
    }
}
