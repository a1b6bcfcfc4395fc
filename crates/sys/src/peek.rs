//! Reading memory of this process that may not be there: the kernel reads it, and says so where there is none.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, Keep, check};

/// Copies what can be read at `address` into `bytes`, and returns how much that is; less than asked for where the
/// memory ends. `errno` is kept.
///
/// 0.3 µs and more: for tables that another thread may unmap at any moment.
///
/// # Errors
/// EFAULT: nothing is there. Anything else (ENOSYS, EPERM): the kernel does not do this for us at all.
pub fn peek(address: usize, bytes: &mut [u8]) -> Result<usize, Errno> {
    let _errno = Keep::new();
    let local = [bytes.as_mut_ptr() as usize, bytes.len()];
    let remote = [address, bytes.len()];
    // Not a number that is kept: a child that shares this memory, or a copy of it, has another.
    // SAFETY: returns a number, touches no memory.
    let pid = unsafe { syscall!(libc::SYS_getpid) };
    // SAFETY: the kernel reads two vectors of one part each, and writes to memory that is borrowed for it.
    let result = unsafe {
        kernel!(Peek, syscall!(libc::SYS_process_vm_readv, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0))
    };
    check(result).map(|count| count as usize)
}

/// The word at `address`, which may be anywhere; `None` if it cannot be read.
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
        // SAFETY: new memory, at an address of the kernel's choice; the second page of it goes again.
        let start = unsafe {
            let start = crate::mem::map_private(2 * page, None).expect("memory");
            crate::mem::unmap(start + page, page).expect("ours");
            start
        };
        // SAFETY: inside the page that is left.
        unsafe { ((start + page - 8) as *mut u64).write(0x1122_3344_5566_7788) };
        crate::errno::set(77);
        let mut bytes = [0; 16];
        assert_eq!(peek(start + page - 8, &mut bytes), Ok(8));
        assert_eq!(bytes[..8], 0x1122_3344_5566_7788u64.to_ne_bytes());
        assert_eq!(peek(start + page, &mut bytes), Err(Errno(libc::EFAULT)));
        assert_eq!(word(8), None);
        assert_eq!(word(start + page - 8), Some(0x1122_3344_5566_7788));
        assert_eq!(crate::errno::get(), 77);
        // SAFETY: the page that is left, to which nothing refers any more.
        unsafe { crate::mem::unmap(start, page).expect("ours") };
    }
}
