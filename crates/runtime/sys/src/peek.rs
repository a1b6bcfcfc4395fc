//! Reading memory of this process that may be unmapped, by a system call that reports bad addresses.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, SavedErrno, check};

/// Copies the readable bytes at `address` to `bytes` and returns their number, which is smaller
/// than the length of `bytes` if the memory ends. `errno` is kept.
///
/// Takes 0.3 µs and more; meant for tables that another thread may unmap at any time.
///
/// # Errors
/// EFAULT if nothing is mapped there; ENOSYS, EPERM and so on if the call is not allowed at all.
pub fn peek(address: usize, bytes: &mut [u8]) -> Result<usize, Errno> {
    let _errno = SavedErrno::new();
    let local = [bytes.as_mut_ptr() as usize, bytes.len()];
    let remote = [address, bytes.len()];
    // Not a cached number, because a child that shares or copies this memory has another id.
    // SAFETY: getpid(2) takes no arguments and cannot fail.
    let pid = unsafe { syscall!(libc::SYS_getpid) };
    // SAFETY: both vectors have one part; the kernel writes at most `bytes.len()` bytes to `bytes`.
    let result = unsafe {
        kernel!(Peek, syscall!(libc::SYS_process_vm_readv, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0))
    };
    check(result).map(|count| count as usize)
}

/// Returns the word at `address`, which need not be mapped; `None` if it cannot be read.
#[must_use]
pub fn word(address: usize) -> Option<usize> {
    let mut bytes = [0; size_of::<usize>()];
    (peek(address, &mut bytes) == Ok(bytes.len())).then(|| usize::from_ne_bytes(bytes))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_read_and_what_is_before_it_is() {
        let page = crate::mem::page_size();
        // SAFETY: the new mapping replaces nothing, and nothing uses its second page.
        let start = unsafe {
            let start = crate::mem::map_private(2 * page, None).expect("memory");
            crate::mem::unmap(start + page, page).expect("ours");
            start
        };
        // SAFETY: the word is the last one of the page that is still mapped.
        unsafe { ((start + page - 8) as *mut u64).write(0x1122_3344_5566_7788) };
        crate::errno::set(77);
        let mut bytes = [0; 16];
        assert_eq!(peek(start + page - 8, &mut bytes), Ok(8));
        assert_eq!(bytes[..8], 0x1122_3344_5566_7788u64.to_ne_bytes());
        assert_eq!(peek(start + page, &mut bytes), Err(Errno(libc::EFAULT)));
        assert_eq!(word(8), None);
        assert_eq!(word(start + page - 8), Some(0x1122_3344_5566_7788));
        assert_eq!(crate::errno::get(), 77);
        // SAFETY: no reference to the remaining page exists.
        unsafe { crate::mem::unmap(start, page).expect("ours") };
    }
}
