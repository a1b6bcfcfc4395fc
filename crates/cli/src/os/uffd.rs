//! userfaultfd as `run` and `doctor` try it: opened both ways, and with one page moved. Numbers and structures
//! are those of `uncopy_sys`.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::Reservation;
use uncopy_sys::uffd::{self, Uffd};
pub use uncopy_sys::uffd::{FEATURE_MOVE as MOVE, NEEDED_FEATURES};

fn owned(made: Result<i32, Errno>) -> io::Result<OwnedFd> {
    // SAFETY: the kernel has just made this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(made?) })
}

/// Opens a userfaultfd with the system call.
///
/// `user_mode_only` needs no privilege, but does not serve faults taken inside system calls: it
/// tells a lack of privilege from a seccomp filter.
pub fn by_syscall(user_mode_only: bool) -> io::Result<OwnedFd> {
    owned(uffd::by_call(if user_mode_only { uffd::USER_MODE_ONLY } else { 0 }))
}

/// Opens a userfaultfd through a descriptor of `/dev/userfaultfd` (Linux 6.1 and later).
pub fn by_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    owned(uffd::by_device(device.as_raw_fd(), 0))
}

/// Agrees with the kernel on `features` and returns every feature that it has.
///
/// # Errors
/// `EINVAL` if the kernel lacks one of them.
pub fn enable_features(uffd: BorrowedFd<'_>, features: u64) -> io::Result<u64> {
    Ok(Uffd::from_fd(uffd.as_raw_fd()).agree(features)?)
}

/// Moves one page with `UFFDIO_MOVE` into a registered range and says whether its bytes arrived.
///
/// The descriptor must have been given [`MOVE`].
pub fn move_one_page(uffd: BorrowedFd<'_>) -> io::Result<bool> {
    let pages = Reservation::new(2 * PAGE_BYTES)?;
    let moved = move_within(Uffd::from_fd(uffd.as_raw_fd()), pages);
    // SAFETY: mapped above, and nothing refers to the pages any more.
    let _ = unsafe { pages.shortened(0) };
    Ok(moved?)
}

/// Moves the first of two pages to the place of the second.
fn move_within(uffd: Uffd, pages: Reservation) -> Result<bool, Errno> {
    pages.commit(pages.base(), 2 * PAGE_BYTES)?;
    let (source, destination) = (pages.base(), pages.base() + PAGE_BYTES);
    // SAFETY: the page is committed, PAGE_BYTES long, and nothing else refers to it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(source as *mut u8, PAGE_BYTES) };
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern(index);
    }
    uffd.register(destination, PAGE_BYTES)?;
    // SAFETY: both pages are ours alone, and `bytes` is not used after its page has moved away.
    if let Some(errno) = unsafe { uffd.move_pages(destination, source, PAGE_BYTES) }.error {
        return Err(errno);
    }
    // SAFETY: the kernel said that the whole page is there; nothing else refers to it.
    let moved = unsafe { std::slice::from_raw_parts(destination as *const u8, PAGE_BYTES) };
    Ok(moved.iter().enumerate().all(|(index, byte)| *byte == pattern(index)))
}

/// The byte at `index` of the test page; its period, 251, is not a power of two.
fn pattern(index: usize) -> u8 {
    u8::try_from(index % 251).unwrap_or(0)
}
