//! Probes of userfaultfd for `run` and `doctor`: opening in both ways, and moving one page.
//! Constants and structures are those of `uncopy_sys`.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::Reservation;
use uncopy_sys::uffd::{self, Uffd};
pub use uncopy_sys::uffd::{FEATURE_MOVE as MOVE, NEEDED_FEATURES};

/// Opens a userfaultfd with the system call.
///
/// `user_mode_only` needs no privilege, but does not serve faults inside system calls. Trying it
/// tells a missing privilege from a seccomp filter.
pub fn open_by_syscall(user_mode_only: bool) -> io::Result<OwnedFd> {
    Ok(uffd::create_by_syscall(if user_mode_only { uffd::USER_MODE_ONLY } else { 0 })?.into())
}

/// Opens a userfaultfd through a descriptor of `/dev/userfaultfd` (Linux 6.1 and later).
pub fn open_by_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(uffd::create_by_device(device, 0)?.into())
}

/// Enables `features` and returns all features of the kernel.
///
/// # Errors
/// `EINVAL` if the kernel lacks one of `features`.
pub fn enable_features(uffd: BorrowedFd<'_>, features: u64) -> io::Result<u64> {
    Ok(Uffd::from_fd(uffd.as_raw_fd()).enable_features(features)?)
}

/// Moves one page with `UFFDIO_MOVE` into a registered range. Returns whether its bytes arrived.
///
/// [`MOVE`] must be enabled on the descriptor.
pub fn move_one_page(uffd: BorrowedFd<'_>) -> io::Result<bool> {
    let pages = Reservation::new(2 * PAGE_BYTES)?;
    let moved = move_within(Uffd::from_fd(uffd.as_raw_fd()), pages);
    // SAFETY: `shortened` needs pages that nothing refers to. Only `move_within` referred to them,
    // and has returned.
    let _ = unsafe { pages.shortened(0) };
    Ok(moved?)
}

/// Moves the first of two pages to the address of the second.
fn move_within(uffd: Uffd, pages: Reservation) -> Result<bool, Errno> {
    pages.commit(pages.base(), 2 * PAGE_BYTES)?;
    let (source, destination) = (pages.base(), pages.base() + PAGE_BYTES);
    // SAFETY: the page is committed, so it is writable for PAGE_BYTES, and nothing else refers to
    // it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(source as *mut u8, PAGE_BYTES) };
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern(index);
    }
    uffd.register(destination, PAGE_BYTES)?;
    // SAFETY: both pages belong to `pages`, which nothing else uses. `bytes` is not used after its
    // page has moved.
    if let Some(errno) = unsafe { uffd.move_pages(destination, source, PAGE_BYTES) }.error {
        return Err(errno);
    }
    // SAFETY: UFFDIO_MOVE succeeded, so the page is readable for PAGE_BYTES, and nothing else
    // refers to it.
    let moved = unsafe { std::slice::from_raw_parts(destination as *const u8, PAGE_BYTES) };
    Ok(moved.iter().enumerate().all(|(index, byte)| *byte == pattern(index)))
}

/// Returns the byte at `index` of the test page. The period, 251, is not a power of two.
fn pattern(index: usize) -> u8 {
    u8::try_from(index % 251).unwrap_or(0)
}
