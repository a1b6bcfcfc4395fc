//! Reads of files that may be in a mapped log.

use crate::cancellation;
use crate::leaving::settle;
use crate::writes::uninterrupted;
use libc::ssize_t;
use uncopy_store::program::{self as store, Place};
use uncopy_sys::descriptor::ProgramFd;

/// Whether a file's last bytes, or its offset, may be in a mapped log and not in the kernel.
#[inline(always)]
pub fn may_be_in_log(fd: ProgramFd) -> bool {
    store::has_mapped_files() && store::is_in_log(fd)
}

/// Reads from a file by `real`, once the kernel has what the program has written to it.
#[cold]
pub fn read(fd: ProgramFd, at: Place, real: &dyn Fn() -> ssize_t) -> ssize_t {
    cancellation::test();
    settle(fd);
    uninterrupted(|| store::read_mapped(fd, at, real))
}
