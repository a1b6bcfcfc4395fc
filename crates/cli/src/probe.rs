//! Finds out, in some 20 µs, whether kernel and user permit userfaultfd as the library needs it:
//! serving faults inside system calls too.

use crate::os::{self, uffd};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::mem;

/// Device that creates userfaultfds, guarded by its file permissions (Linux 6.1 and later).
pub const DEVICE: &str = "/dev/userfaultfd";
/// Minimum number of the descriptor left to CMD, because some programs expect small ones.
const LOWEST_INHERITED: RawFd = 200;
/// Minimum where the limit on open files is below [`LOWEST_INHERITED`].
const LOWEST_INHERITED_FALLBACK: RawFd = 10;

/// Open descriptor of `/dev/userfaultfd`.
pub enum Device {
    /// Inherited from an outer `uncopy run`, under this number.
    Inherited(RawFd, BorrowedFd<'static>),
    /// Opened by this process.
    Opened(File),
}

impl Device {
    /// Returns the inherited device if there is one, else opens it.
    pub fn open(inherited: Option<RawFd>) -> io::Result<Self> {
        if let Some((number, fd)) = inherited.zip(Self::inherited(inherited)) {
            return Ok(Self::Inherited(number, fd));
        }
        // The device's mode grants write permission; the descriptor is only used to create others.
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(DEVICE).map(Self::Opened)
    }

    /// Creates a userfaultfd from the device.
    pub fn userfaultfd(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Inherited(_, fd) => uffd::open_by_device(*fd),
            Self::Opened(file) => uffd::open_by_device(file.as_fd()),
        }
    }

    /// Keeps the device from programs that CMD starts (`--no-follow`). Returns the number of an
    /// inherited device, which CMD could not open itself; the library closes it when CMD executes
    /// something.
    pub fn pass_to_program(self) -> Option<RawFd> {
        match self {
            Self::Inherited(number, _) => Some(number),
            Self::Opened(_) => None,
        }
    }

    /// Returns the device that was inherited under this number, if it is one.
    pub fn inherited(number: Option<RawFd>) -> Option<BorrowedFd<'static>> {
        let number = number?;
        let fd = os::inherited_descriptor(number)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        (path == Path::new(DEVICE)).then_some(fd)
    }

    /// Leaves the device open for CMD and everything that CMD starts, and returns its number.
    ///
    /// `None` if no descriptor is free; CMD then opens the device itself, if permitted.
    pub fn pass_to_descendants(self) -> Option<RawFd> {
        match self {
            Self::Inherited(number, _) => Some(number),
            Self::Opened(file) => [LOWEST_INHERITED, LOWEST_INHERITED_FALLBACK]
                .into_iter()
                .find_map(|lowest| os::dup_inheritable(file.as_fd(), lowest).ok()),
        }
    }
}

/// Reason why userfaultfd cannot be used. `Display` is part of a sentence.
#[derive(Debug)]
pub enum ProbeError {
    /// Neither the device nor the system call is permitted.
    NotPermitted,
    /// The kernel was built without userfaultfd.
    NotInKernel,
    /// The kernel lacks one of [`uffd::NEEDED_FEATURES`].
    NoFeature,
    /// The page size differs from the one that the library requires.
    PageSize(usize),
    Failed(io::Error),
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => f.write_str("no permission to use userfaultfd"),
            Self::NotInKernel => f.write_str("this kernel has no userfaultfd"),
            Self::NoFeature => {
                write!(
                    f,
                    "userfaultfd of Linux {} does not report threads, as Linux 4.14 and later do",
                    os::kernel().0
                )
            }
            Self::PageSize(bytes) => write!(f, "the page size is {bytes} bytes, not {}", PAGE_BYTES),
            Self::Failed(error) => write!(f, "userfaultfd failed: {error}"),
        }
    }
}

/// Result of a successful probe.
pub struct ProbeOutcome {
    /// Device, if it can be opened and creates descriptors.
    pub device: Option<Device>,
}

/// Opens a userfaultfd, enables the features and closes it again.
pub fn probe(inherited: Option<RawFd>) -> Result<ProbeOutcome, ProbeError> {
    match mem::page_size() {
        PAGE_BYTES => {}
        other => return Err(ProbeError::PageSize(other)),
    }
    let by_device = Device::open(inherited).and_then(|device| Ok((device.userfaultfd()?, device)));
    let (uffd, device) = match by_device {
        Ok((uffd, device)) => (uffd, Some(device)),
        Err(device_error) => {
            let uffd = uffd::open_by_syscall(false)
                .map_err(|syscall_error| classify(&device_error, syscall_error))?;
            (uffd, None)
        }
    };
    match uffd::enable_features(uffd.as_fd(), uffd::NEEDED_FEATURES) {
        Ok(_) => Ok(ProbeOutcome { device }),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(ProbeError::NoFeature),
        Err(error) => Err(ProbeError::Failed(error)),
    }
}

/// Whether an error means that a privilege is missing.
pub fn is_denial(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

fn classify(device: &io::Error, syscall: io::Error) -> ProbeError {
    if is_denial(&syscall) {
        return ProbeError::NotPermitted;
    }
    match syscall.raw_os_error() {
        // A seccomp filter may return ENOSYS. A denial by the device then shows that the kernel has
        // userfaultfd.
        Some(libc::ENOSYS) if is_denial(device) => ProbeError::NotPermitted,
        Some(libc::ENOSYS) => ProbeError::NotInKernel,
        _ => ProbeError::Failed(syscall),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(device: i32, syscall: i32) -> ProbeError {
        classify(&io::Error::from_raw_os_error(device), io::Error::from_raw_os_error(syscall))
    }

    #[test]
    fn errors_of_both_ways_together_name_the_cause() {
        assert!(matches!(errors(libc::EACCES, libc::EPERM), ProbeError::NotPermitted));
        assert!(matches!(errors(libc::ENOENT, libc::EPERM), ProbeError::NotPermitted));
        assert!(matches!(errors(libc::EACCES, libc::ENOSYS), ProbeError::NotPermitted));
        assert!(matches!(errors(libc::ENOENT, libc::ENOSYS), ProbeError::NotInKernel));
        assert!(matches!(errors(libc::ENOENT, libc::EMFILE), ProbeError::Failed(_)));
    }

    #[test]
    fn descriptors_that_are_not_the_device_are_not_taken_for_it() {
        let file = File::open("/dev/null").expect("/dev/null");
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        // Opening the device may fail; the other descriptor must not be used in any case.
        if let Ok(device) = Device::open(Some(number)) {
            assert!(matches!(device, Device::Opened(_)));
        }
    }
}
