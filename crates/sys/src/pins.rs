//! Pages that the kernel or a device goes on using whatever the page table says: *pinned* ones
//! (Documentation/core-api/pin_user_pages.rst).
//!
//! `UFFDIO_MOVE` refuses to move such a page. A page that is dropped is replaced for the program, but not for the ring or
//! the device that it was registered with, and the two no longer see the same bytes. So where pages cannot be moved, none is
//! dropped while the process may have pinned any: the kernel counts what io_uring and RDMA pin (`VmPin`) and what VFIO does
//! (`VmLck`), and who pins without counting is asked by `ioctl`, or by `setsockopt` for a ring of packets.

use crate::call::{kernel, syscall};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of `/proc/self/status` that are read. Both counts come after a list of groups, which may be long; what is not found is
/// not zero.
const MAX_TEXT_BYTES: usize = 4096;
/// Types of requests, the second byte of their number, that are known to pin nothing
/// (Documentation/userspace-api/ioctl/ioctl-number.rst): terminals and `FIONREAD`, sockets, files and their systems, disks,
/// random numbers, perf events, namespaces, userfaultfd; and virtual machines, which are told of pages that are replaced.
const HARMLESS: &[u8] = b"T\x89fvX\x12\x94R$\xB7\xAA\xAE";

static MAY_BE_UNCOUNTED: AtomicBool = AtomicBool::new(false);

/// To be told before the program makes such a request of a descriptor (ioctl(2)).
pub fn before_request(request: u64) {
    if !HARMLESS.contains(&((request >> 8) as u8)) {
        MAY_BE_UNCOUNTED.store(true, Relaxed);
    }
}

/// To be told before the program sets such an option of a socket (setsockopt(2)).
pub fn before_option(level: i32) {
    if level == libc::SOL_XDP {
        MAY_BE_UNCOUNTED.store(true, Relaxed);
    }
}

/// Whether this process has no pinned page, and no locked one: what is dropped is then seen by nobody but the program. Takes
/// some 20 µs. A page that another thread pins meanwhile is missed.
#[must_use]
pub fn are_none() -> bool {
    if MAY_BE_UNCOUNTED.load(Relaxed) {
        return false;
    }
    let path = c"/proc/self/status";
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let mut text = [0u8; MAX_TEXT_BYTES];
    // SAFETY: the path is terminated, the text is valid for its length, and the descriptor is opened here.
    let got = unsafe {
        let fd = kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0));
        if fd < 0 {
            return false;
        }
        let got = kernel!(Read, syscall!(libc::SYS_read, fd, text.as_mut_ptr(), text.len()));
        kernel!(Close, syscall!(libc::SYS_close, fd));
        got
    };
    let text = &text[..usize::try_from(got).unwrap_or(0)];
    is_zero(text, b"\nVmLck:") && is_zero(text, b"\nVmPin:")
}

/// Whether the line of `text` that begins with `key` says `0 kB`.
fn is_zero(text: &[u8], key: &[u8]) -> bool {
    let value = text.windows(key.len()).position(|window| window == key).map(|at| &text[at + key.len()..]);
    value.is_some_and(|value| value.trim_ascii_start().starts_with(b"0 kB\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_to_be_none_may_be_some() {
        let text = b"VmSize:\t 10 kB\nVmLck:\t       0 kB\nVmPin:\t       8 kB\nVmHWM:\t 3 kB\n";
        assert!(is_zero(text, b"\nVmLck:"));
        assert!(!is_zero(text, b"\nVmPin:"));
        assert!(!is_zero(text, b"\nVmSwap:"));
        assert!(!is_zero(b"\nVmLck:\t 0", b"\nVmLck:"), "cut off");
        assert!(!is_zero(b"\nVmLck:\t 10 kB\n", b"\nVmLck:"));
    }

    #[test]
    fn locked_memory_counts_and_so_does_a_request_that_may_pin() {
        // One test: both change what the whole process says.
        assert!(are_none());
        let page = crate::mem::map_zeroes(crate::PAGE_BYTES).expect("memory");
        // SAFETY: a page of ours.
        assert_eq!(unsafe { libc::mlock(page as *const libc::c_void, crate::PAGE_BYTES) }, 0);
        assert!(!are_none());
        // SAFETY: as above.
        unsafe { libc::munlock(page as *const libc::c_void, crate::PAGE_BYTES) };
        assert!(are_none());
        before_request(libc::FIONREAD);
        before_request(0xC028_AA05);
        before_option(libc::SOL_SOCKET);
        assert!(are_none());
        // VIDIOC_QBUF.
        before_request(0xC058_560F);
        assert!(!are_none());
    }
}
