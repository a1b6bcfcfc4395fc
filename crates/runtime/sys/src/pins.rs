//! Detection of pinned pages: pages that the kernel or a device keeps using whatever the page table
//! says (Documentation/core-api/pin_user_pages.rst).
//!
//! `UFFDIO_MOVE` refuses to move a pinned page. Dropping one replaces it for the program, but not
//! for the ring or device with which it was registered, and the two no longer see the same bytes.
//! So where pages cannot be moved, none is dropped while the process may have pinned some. The
//! kernel counts pages pinned by io_uring and RDMA (`VmPin`) and by VFIO (`VmLck`); drivers that
//! pin without counting are reached by `ioctl`, and packet rings by `setsockopt`.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of `/proc/self/status` that are read. Both counts come after a list of groups, which may
/// be long; a count that is not found is taken for nonzero.
const MAX_TEXT_BYTES: usize = 4096;
/// Types of ioctl requests, the second byte of their number, that are known to pin nothing
/// (Documentation/userspace-api/ioctl/ioctl-number.rst): terminals and `FIONREAD`, sockets, files
/// and file systems, disks, random numbers, perf events, namespaces, userfaultfd; and virtual
/// machines, which are notified of replaced pages.
const HARMLESS: &[u8] = b"T\x89fvX\x12\x94R$\xB7\xAA\xAE";

static MAY_BE_UNCOUNTED: AtomicBool = AtomicBool::new(false);

/// Notes a request that the program is about to make of a descriptor (ioctl(2)).
pub fn note_ioctl(request: u64) {
    if !HARMLESS.contains(&((request >> 8) as u8)) {
        MAY_BE_UNCOUNTED.store(true, Relaxed);
    }
}

/// Notes an option that the program is about to set on a socket (setsockopt(2)).
pub fn note_setsockopt(level: i32) {
    if level == libc::SOL_XDP {
        MAY_BE_UNCOUNTED.store(true, Relaxed);
    }
}

/// Whether this process has neither pinned nor locked pages, so that only the program would notice
/// a dropped page. Takes some 20 µs. A page that another thread pins meanwhile is missed.
#[must_use]
pub fn has_no_pins() -> bool {
    if MAY_BE_UNCOUNTED.load(Relaxed) {
        return false;
    }
    let path = c"/proc/self/status";
    let mut text = [0u8; MAX_TEXT_BYTES];
    let Some(got_bytes) = crate::file::read_start(path, &mut text) else { return false };
    let text = &text[..got_bytes];
    is_zero(text, b"\nVmLck:") && is_zero(text, b"\nVmPin:")
}

/// Whether the line of `text` that begins with `key` reads `0 kB`.
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
        // One test, because both parts change the state of the whole process.
        assert!(has_no_pins());
        let page = crate::mem::map_zeroes(crate::PAGE_BYTES).expect("memory");
        // SAFETY: mlock(2) is given one page that the test has mapped.
        assert_eq!(unsafe { libc::mlock(page as *const libc::c_void, crate::PAGE_BYTES) }, 0);
        assert!(!has_no_pins());
        // SAFETY: munlock(2) is given one page that the test has mapped.
        unsafe { libc::munlock(page as *const libc::c_void, crate::PAGE_BYTES) };
        assert!(has_no_pins());
        note_ioctl(libc::FIONREAD);
        note_ioctl(0xC028_AA05);
        note_setsockopt(libc::SOL_SOCKET);
        assert!(has_no_pins());
        // The request is VIDIOC_QBUF.
        note_ioctl(0xC058_560F);
        assert!(!has_no_pins());
    }
}
