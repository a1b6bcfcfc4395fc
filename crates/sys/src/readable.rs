//! Whether memory that the program points to can be read: its vectors and message headers, which the
//! kernel answers with EFAULT where they are bad and which a hook must not die of.

use crate::PAGE_BYTES;
use crate::call::syscall;
use crate::errno::Keep;

/// What the kernel's own copy from user memory takes at once here, bytes.
const WORD_BYTES: usize = core::mem::size_of::<u64>();

/// Whether the kernel can read the word at `address`.
///
/// `rt_sigprocmask` copies the mask in before it looks at what to do with it, which is nothing here. It is
/// the cheapest call that does so, 0.05 µs, and one that no filter forbids which lets tracked copies work.
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
/// `len_bytes` must not be less than 8, unless it is 0. `errno` is kept.
#[must_use]
pub fn is_readable(address: usize, len_bytes: usize) -> bool {
    if len_bytes == 0 {
        return true;
    }
    let _errno = Keep::new();
    let Some(last) = address.checked_add(len_bytes - WORD_BYTES) else { return false };
    // The smallest page there is: a larger one is only looked at more often.
    let mut at = address;
    while at < last {
        if !is_word_readable(at) {
            return false;
        }
        // The first word of the next page.
        at = at / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES;
    }
    is_word_readable(last)
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
}
