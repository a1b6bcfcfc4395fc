//! Tests whether memory that the program points to can be read or written: vectors, message
//! headers, and buffers that a hook accesses in the kernel's place. The kernel would fail with
//! EFAULT at a bad address; a hook must not crash there.

use crate::PAGE_BYTES;
use crate::call::syscall;
use crate::errno::{Errno, SavedErrno};
#[cfg(all(target_arch = "x86_64", not(loom)))]
use crate::thread_words::{stack_pointer, thread_words};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Number of bytes that one test copies from user memory.
const WORD_BYTES: usize = core::mem::size_of::<u64>();
/// Number of bytes that one test changes.
const FUTEX_BYTES: usize = core::mem::size_of::<u32>();

/// Whether the kernel is no longer queried.
static IS_DISABLED: AtomicBool = AtomicBool::new(false);

/// Makes all tests fail from here on, without a system call: a filter may kill the process for the calls.
pub fn disable() {
    IS_DISABLED.store(true, Relaxed);
}

/// Whether the kernel can read the word at `address`.
///
/// `rt_sigprocmask` copies the mask in before it validates the action, which is invalid here. It is
/// the cheapest call that does so, 0.05 µs.
fn is_word_readable(address: usize) -> bool {
    const NO_SUCH_ACTION: i32 = -1;
    // SAFETY: the kernel reads the word if it can, refuses the action and changes nothing.
    let result = unsafe {
        syscall!(libc::SYS_rt_sigprocmask, NO_SUCH_ACTION, address, core::ptr::null_mut::<u64>(), WORD_BYTES,)
    };
    result == -1 && crate::errno::get() == libc::EINVAL
}

/// Whether the bytes are in the used part of the calling thread's stack, and so readable. False
/// beyond the current page if the stack's bounds have not been queried yet (`stack_room`).
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[inline]
fn is_on_stack(address: usize, len_bytes: usize) -> bool {
    let sp = stack_pointer();
    let own = thread_words();
    let (low, high) = (own.room_low.load(Relaxed) as usize, own.room_high.load(Relaxed) as usize);
    let end = if low <= sp && sp < high { high } else { sp / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES };
    sp <= address && address < end && len_bytes <= end - address
}

/// Always false: the bounds of stacks are unknown on this target.
#[cfg(not(all(target_arch = "x86_64", not(loom))))]
const fn is_on_stack(_address: usize, _len_bytes: usize) -> bool {
    false
}

/// Whether all pages of the `len_bytes` bytes at `address` can be read at this moment.
///
/// `errno` is kept. False under a seccomp filter that forbids the test: the memory must not be used then.
#[must_use]
pub fn is_readable(address: usize, len_bytes: usize) -> bool {
    if len_bytes == 0 {
        return true;
    }
    if IS_DISABLED.load(Relaxed) {
        return false;
    }
    if is_on_stack(address, len_bytes) {
        return true;
    }
    let Some(last_byte) = address.checked_add(len_bytes - 1) else { return false };
    let page_of = |address: usize| address / PAGE_BYTES * PAGE_BYTES;
    let _errno = SavedErrno::new();
    // One aligned word of each page, which crosses no page. Larger pages are tested repeatedly.
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
/// `FUTEX_WAKE_OP` sets bits of a word, here none, and wakes the waiters of another, which has none
/// (futex(2)). This takes 0.1 µs.
fn is_word_writable(address: usize) -> bool {
    // `oldval | 0`; no thread waits for the word, whatever the comparison gives.
    const OR_NOTHING: u32 = libc::FUTEX_OP_OR.cast_unsigned() << 28;
    let unused_word = 0u32;
    let word = address / FUTEX_BYTES * FUTEX_BYTES;
    let wake = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel sets no bit of the word, and fails with EFAULT if it cannot write there.
    let result =
        unsafe { syscall!(libc::SYS_futex, core::ptr::from_ref(&unused_word), wake, 0, 0, word, OR_NOTHING) };
    if result >= 0 || crate::errno::get() != libc::EFAULT {
        return true;
    }
    // FUTEX_WAKE_OP does not wait for a page that a userfaultfd handler has to place (mm/gup.c,
    // fixup_user_fault).
    let populate = |address: usize| crate::mem::populate(address / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES);
    match populate(address) {
        Err(Errno(libc::EFAULT | libc::ENOMEM)) => false,
        // The page is not writable, or the kernel lacks this advice (before Linux 5.14), which
        // leaves the question open.
        Err(Errno(libc::EINVAL)) => populate(core::ptr::from_ref(&unused_word) as usize).is_err(),
        _ => true,
    }
}

/// Returns how many of `len_bytes` bytes at `address` can be written at this moment, up to the
/// first page that cannot. `errno` is kept. Returns 0 if a filter forbids the test.
#[must_use]
pub fn writable_bytes(address: usize, len_bytes: usize) -> usize {
    if IS_DISABLED.load(Relaxed) {
        return 0;
    }
    let _errno = SavedErrno::new();
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
        // SAFETY: without MAP_FIXED the mapping replaces nothing.
        let start =
            unsafe { libc::mmap(core::ptr::null_mut(), count * PAGE_BYTES, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start as usize
    }

    #[cfg(all(target_arch = "x86_64", not(loom)))]
    #[test]
    fn what_lies_between_the_stack_pointer_and_the_end_of_the_stack_is_of_stack() {
        let check = || {
            let array = core::hint::black_box([0u64; 8192]);
            let start = array.as_ptr() as usize;
            assert!(crate::stack_room::is_available(1), "asks where the stack ends");
            assert!(is_on_stack(start, size_of_val(&array)) && is_on_stack(start, 0));
            let own = thread_words();
            let (low, high) = (own.room_low.load(Relaxed) as usize, own.room_high.load(Relaxed) as usize);
            assert!(is_on_stack(high - 8, 8) && !is_on_stack(high - 8, 9) && !is_on_stack(high, 0));
            assert!(!is_on_stack(low, 8) && !is_on_stack(start, usize::MAX) && !is_on_stack(0, 8));
        };
        std::thread::spawn(check).join().expect("the checks hold");
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
        // SAFETY: `start` is the first word of a writable mapping.
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
        // SAFETY: `start` is the first word of a readable mapping.
        assert_eq!(unsafe { (start as *const u64).read() }, 0x8877_6655_4433_2211, "nothing was changed");
        assert!(is_readable(start + PAGE_BYTES - 1, 2) && is_readable(start + 5, 0));
        assert!(is_readable(start + 4 * PAGE_BYTES - 3, 3));
        assert!(!is_readable(start + 4 * PAGE_BYTES - 3, 4) && !is_readable(16, 1));
    }
}
