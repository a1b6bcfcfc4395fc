//! Finds out, in some twenty microseconds, whether this kernel and this user can use userfaultfd
//! as the library needs it: serving faults from inside system calls too.

use crate::os::{self, uffd};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::mem;

/// The device that gives out userfaultfds by its file permissions (Linux 6.1 and later).
pub const DEVICE: &str = "/dev/userfaultfd";
/// The descriptor left to CMD gets at least this number, out of the way of programs that expect
/// small ones.
const LOWEST_INHERITED: RawFd = 200;
/// Tried where the limit of open files is below [`LOWEST_INHERITED`].
const LOWEST_INHERITED_FALLBACK: RawFd = 10;

/// An open `/dev/userfaultfd`.
pub enum Device {
    /// Inherited from an outer `uncopy run`, under this number.
    Inherited(RawFd, BorrowedFd<'static>),
    /// Opened here.
    Opened(File),
}

impl Device {
    /// The inherited device if it is one, else a newly opened one.
    pub fn open(inherited: Option<RawFd>) -> io::Result<Self> {
        if let Some((number, fd)) = inherited.zip(Self::inherited(inherited)) {
            return Ok(Self::Inherited(number, fd));
        }
        // Write permission is what the device's mode is about; the descriptor itself is only
        // asked for new ones.
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(DEVICE).map(Self::Opened)
    }

    /// A new userfaultfd.
    pub fn userfaultfd(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Inherited(_, fd) => uffd::by_device(*fd),
            Self::Opened(file) => uffd::by_device(file.as_fd()),
        }
    }

    /// Keeps the device from everything that CMD starts (`--no-follow`), and returns its number if CMD has no other way to it:
    /// the library closes it then when CMD executes something. A device that was opened here CMD can open itself.
    pub fn leave_to_one_program(self) -> Option<RawFd> {
        match self {
            Self::Inherited(number, _) => Some(number),
            Self::Opened(_) => None,
        }
    }

    /// The device that was inherited under this number.
    pub fn inherited(number: Option<RawFd>) -> Option<BorrowedFd<'static>> {
        let number = number?;
        let fd = os::inherited_descriptor(number)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        (path == Path::new(DEVICE)).then_some(fd)
    }

    /// Leaves the device open for CMD and everything it starts, and returns its number.
    ///
    /// `None` if no descriptor is free; CMD then opens its own as far as it may.
    pub fn leave_to_programs(self) -> Option<RawFd> {
        match self {
            Self::Inherited(number, _) => Some(number),
            Self::Opened(file) => [LOWEST_INHERITED, LOWEST_INHERITED_FALLBACK]
                .into_iter()
                .find_map(|lowest| os::leave_to_programs(file.as_fd(), lowest).ok()),
        }
    }
}

/// Why userfaultfd cannot be used. `Display` is part of a sentence.
#[derive(Debug)]
pub enum Unusable {
    /// Neither the device nor the system call is permitted.
    NotPermitted,
    /// The kernel was built without userfaultfd.
    NotInKernel,
    /// The kernel does not have every one of [`uffd::NEEDED_FEATURES`].
    NoFeature,
    /// Pages are not of the size that the library is written for.
    PageSize(usize),
    /// Something else failed.
    Failed(io::Error),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => f.write_str("no permission to use userfaultfd"),
            Self::NotInKernel => f.write_str("this kernel has no userfaultfd"),
            Self::NoFeature => {
                write!(f, "userfaultfd of Linux {} does not tell threads apart (Linux 4.14)", os::kernel().0)
            }
            Self::PageSize(bytes) => write!(f, "pages are {bytes} bytes, not {}", PAGE_BYTES),
            Self::Failed(error) => write!(f, "userfaultfd failed: {error}"),
        }
    }
}

/// What a successful probe leaves open.
pub struct Usable {
    /// The device, if it can be opened and gives out descriptors.
    pub device: Option<Device>,
}

/// Opens a userfaultfd, agrees on the features and closes it again.
///
/// # Errors
/// Why that is not possible.
pub fn probe(inherited: Option<RawFd>) -> Result<Usable, Unusable> {
    match mem::page_size() {
        PAGE_BYTES => {}
        other => return Err(Unusable::PageSize(other)),
    }
    let by_device = Device::open(inherited).and_then(|device| Ok((device.userfaultfd()?, device)));
    let (uffd, device) = match by_device {
        Ok((uffd, device)) => (uffd, Some(device)),
        Err(device_error) => {
            let uffd =
                uffd::by_syscall(false).map_err(|syscall_error| classify(&device_error, syscall_error))?;
            (uffd, None)
        }
    };
    match uffd::enable_features(uffd.as_fd(), uffd::NEEDED_FEATURES) {
        Ok(_) => Ok(Usable { device }),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(Unusable::NoFeature),
        Err(error) => Err(Unusable::Failed(error)),
    }
}

/// Whether an error says that a privilege is missing.
pub fn is_denial(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

fn classify(device: &io::Error, syscall: io::Error) -> Unusable {
    if is_denial(&syscall) {
        return Unusable::NotPermitted;
    }
    match syscall.raw_os_error() {
        // A seccomp filter may claim that the system call does not exist; the device then shows
        // that the kernel has it.
        Some(libc::ENOSYS) if is_denial(device) => Unusable::NotPermitted,
        Some(libc::ENOSYS) => Unusable::NotInKernel,
        _ => Unusable::Failed(syscall),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(device: i32, syscall: i32) -> Unusable {
        classify(&io::Error::from_raw_os_error(device), io::Error::from_raw_os_error(syscall))
    }

    #[test]
    fn errors_of_both_ways_together_name_the_cause() {
        assert!(matches!(errors(libc::EACCES, libc::EPERM), Unusable::NotPermitted));
        assert!(matches!(errors(libc::ENOENT, libc::EPERM), Unusable::NotPermitted));
        assert!(matches!(errors(libc::EACCES, libc::ENOSYS), Unusable::NotPermitted));
        assert!(matches!(errors(libc::ENOENT, libc::ENOSYS), Unusable::NotInKernel));
        assert!(matches!(errors(libc::ENOENT, libc::EMFILE), Unusable::Failed(_)));
    }

    #[test]
    fn descriptors_that_are_not_the_device_are_not_taken_for_it() {
        let file = File::open("/dev/null").expect("/dev/null");
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        // Opening the device itself may succeed or not; the inherited one must not be used.
        if let Ok(device) = Device::open(Some(number)) {
            assert!(matches!(device, Device::Opened(_)));
        }
    }
}
