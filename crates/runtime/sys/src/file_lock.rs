//! Locks and leases of open files: flock(2), and leases and open file description locks of fcntl(2).

use crate::call::{kernel, syscall};
use crate::descriptor::Descriptor;
use crate::errno::{Errno, check};

/// Takes a write lease on an open file (fcntl(2)): a conflicting open waits until the lease ends,
/// and the calling process gets SIGIO.
///
/// # Errors
/// EAGAIN if the file is open elsewhere, EACCES if it is another user's; else errors of fcntl(2).
pub fn take_lease(fd: impl Descriptor) -> Result<(), Errno> {
    // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_SETLEASE, libc::F_WRLCK)) }).map(drop)
}

/// Whether a write lease is held and no conflicting open waits for its end.
#[must_use]
pub fn has_unbroken_lease(fd: impl Descriptor) -> bool {
    // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
    let lease = unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GETLEASE)) };
    lease == i64::from(libc::F_WRLCK)
}

/// Ends a lease, which cannot fail.
pub fn release_lease(fd: impl Descriptor) {
    // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
    unsafe { kernel!(Close, syscall!(libc::SYS_fcntl, fd, libc::F_SETLEASE, libc::F_UNLCK)) };
}

/// Releases the locks of an open file, taken by flock(2) and `F_OFD_SETLK`, as its last close does.
pub fn release_locks(fd: impl Descriptor) {
    // SAFETY: an all-zero `flock` covers the whole file; fcntl(2) reads it, and flock(2) takes integers.
    unsafe {
        let mut lock: libc::flock = core::mem::zeroed();
        lock.l_type = libc::F_UNLCK as _;
        kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_OFD_SETLK, &raw const lock));
        kernel!(Fcntl, syscall!(libc::SYS_flock, fd, libc::LOCK_UN));
    }
}

/// Takes an exclusive lock on an open file (flock(2)), without waiting.
///
/// # Errors
/// EAGAIN if another open file holds a lock.
pub fn lock_exclusive(fd: impl Descriptor) -> Result<(), Errno> {
    // SAFETY: flock(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_flock, fd, libc::LOCK_EX | libc::LOCK_NB)) }).map(drop)
}

/// Takes a shared lock on an open file (flock(2)); waits for an exclusive one.
///
/// # Errors
/// Errors of flock(2).
pub fn lock_shared(fd: impl Descriptor) -> Result<(), Errno> {
    // SAFETY: flock(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_flock, fd, libc::LOCK_SH)) }).map(drop)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_lease_is_refused_while_a_file_is_open_otherwise() {
        let path = std::env::temp_dir().join(format!("uncopy-lease-{}", std::process::id()));
        let file = std::fs::File::create(&path).expect("a file");
        let other = std::fs::File::open(&path).expect("a file");
        assert_eq!(take_lease(file.as_fd()), Err(Errno::EAGAIN));
        drop(other);
        assert!(!has_unbroken_lease(file.as_fd()));
        take_lease(file.as_fd()).expect("nobody else has it open");
        assert!(has_unbroken_lease(file.as_fd()));
        release_lease(file.as_fd());
        assert!(!has_unbroken_lease(file.as_fd()));
        std::fs::remove_file(&path).expect("removed");
    }
}
