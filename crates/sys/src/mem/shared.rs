//! Memory that other processes of the same user may map: files in memory, sealed so that they keep their length, and, but for
//! [`Joint`] ones, nobody except their maker ever maps them writable.
//!
//! The descriptors belong to the thread that makes or gets them; the mappings to the process.

use super::mapping::map;
use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};

/// Seals of memory that is shared (fcntl(2)): its length stays, no mapping or write that comes later may change it.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
/// Those without which touching it could end this process.
const NEEDED_SEALS: i32 = libc::F_SEAL_SHRINK;
/// memfd_create(2), Linux 6.3.
const MFD_NOEXEC_SEAL: u32 = 8;

/// A mapping of shared memory that forked children do not get, and the file behind it while it is open.
#[derive(Debug, PartialEq, Eq)]
pub struct Shared {
    base: usize,
    len_bytes: usize,
    fd: i32,
}

fn close(fd: i32) {
    // SAFETY: callers pass descriptors that they made or were sent.
    unsafe { kernel!(Close, syscall!(libc::SYS_close, fd)) };
}

/// Makes an empty file in memory, which may be sealed.
fn make_file(name: &core::ffi::CStr) -> Result<i32, Errno> {
    let make = |flags: u32| {
        // SAFETY: the name is terminated.
        check(unsafe { kernel!(Open, syscall!(libc::SYS_memfd_create, name.as_ptr(), flags)) })
            .map(|fd| fd as i32)
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    match make(flags | MFD_NOEXEC_SEAL) {
        // An older kernel does not know that flag, and has nothing that it forbids.
        Err(Errno::EINVAL) => make(flags),
        made => made,
    }
}

/// Maps a file from its start, for this process alone.
fn map_alone(len_bytes: usize, protection: i32, fd: i32) -> Result<usize, Errno> {
    let base = map(len_bytes, protection, libc::MAP_SHARED, fd)?;
    // SAFETY: our own mapping, which nobody knows yet.
    let alone =
        check(unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, base, len_bytes, libc::MADV_DONTFORK)) });
    alone.map(|_| base).inspect_err(|_| {
        // SAFETY: as above.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, base, len_bytes)) };
    })
}

impl Shared {
    /// No memory.
    pub const NONE: Self = Self { base: 0, len_bytes: 0, fd: -1 };

    /// Makes `len_bytes` bytes (whole pages) of zeroes that only this process can write.
    ///
    /// # Errors
    /// What memfd_create, ftruncate, mmap and fcntl say.
    pub fn make(name: &core::ffi::CStr, len_bytes: usize) -> Result<Self, Errno> {
        let fd = make_file(name)?;
        // SAFETY: the descriptor is ours.
        unsafe {
            let sized = check(kernel!(Allocate, syscall!(libc::SYS_ftruncate, fd, len_bytes)));
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let mapped = sized.and_then(|_| map_alone(len_bytes, protection, fd));
            let shared = mapped.map(|base| Self { base, len_bytes, fd }).inspect_err(|_| close(fd))?;
            match check(kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, SEALS))) {
                Ok(_) => Ok(shared),
                Err(errno) => {
                    shared.unmap();
                    Err(errno)
                }
            }
        }
    }

    /// Maps memory that another process has made, to be read. Closes the descriptor.
    ///
    /// # Errors
    /// EPERM if it is not `len_bytes` long, or could become shorter; else what failed.
    pub fn map_others(fd: i32, len_bytes: usize) -> Result<Self, Errno> {
        // SAFETY: an all-zero stat is a valid buffer.
        let mapped = unsafe {
            let mut found: libc::stat = core::mem::zeroed();
            check(kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found))).and_then(|_| {
                let seals = check(kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GET_SEALS)))? as i32;
                let is_long = usize::try_from(found.st_size) == Ok(len_bytes);
                if !is_long || seals & NEEDED_SEALS != NEEDED_SEALS {
                    return Err(Errno(libc::EPERM));
                }
                map_alone(len_bytes, libc::PROT_READ, fd)
            })
        };
        close(fd);
        mapped.map(|base| Self { base, len_bytes, fd: -1 })
    }

    /// Forked children have it, too, which they had not.
    ///
    /// # Errors
    /// What madvise says.
    pub fn inherit(&self) -> Result<(), Errno> {
        let advice = libc::MADV_DOFORK;
        // SAFETY: our own mapping.
        check(unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, self.base, self.len_bytes, advice)) })
            .map(drop)
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn base(&self) -> usize {
        self.base
    }

    /// Length, bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The descriptor, for the thread that made it; -1: there is none.
    #[must_use]
    pub const fn fd(&self) -> i32 {
        self.fd
    }

    /// Leaves the mapping as it is and forgets the descriptor, which is another thread's, or another process's.
    pub const fn forget_descriptor(&mut self) {
        self.fd = -1;
    }

    /// Ends it.
    pub fn unmap(self) {
        if self.fd >= 0 {
            close(self.fd);
        }
        if self.len_bytes == 0 {
            return;
        }
        // SAFETY: our own mapping, which the caller gives up.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, self.base, self.len_bytes)) };
    }
}

/// Seals of memory that two processes write: its length stays.
const JOINT_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Memory that processes of one user write together, and that forked children share; mapped for the process's life.
#[derive(Clone, Copy, Debug)]
pub struct Joint {
    base: usize,
    len_bytes: usize,
}

impl Joint {
    /// Makes `len_bytes` bytes (whole pages) of zeroes, and the descriptor by which others map them, the caller's to close.
    ///
    /// # Errors
    /// What memfd_create, ftruncate, fcntl and mmap say.
    pub fn make(name: &core::ffi::CStr, len_bytes: usize) -> Result<(Self, i32), Errno> {
        let fd = make_file(name)?;
        // SAFETY: the descriptor is ours.
        let sealed = unsafe {
            check(kernel!(Allocate, syscall!(libc::SYS_ftruncate, fd, len_bytes))).and_then(|_| {
                check(kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, JOINT_SEALS)))
            })
        };
        let made = sealed.and_then(|_| Self::map(fd, len_bytes));
        made.map(|made| (made, fd)).inspect_err(|_| close(fd))
    }

    /// Maps what another process has made. The descriptor stays the caller's.
    ///
    /// # Errors
    /// EPERM if it is not `len_bytes` long, or could become shorter; else what failed.
    pub fn map(fd: i32, len_bytes: usize) -> Result<Self, Errno> {
        let is_long = crate::file::status(fd)?.len_bytes == len_bytes as u64;
        // SAFETY: touches no memory.
        let seals =
            check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GET_SEALS)) })? as i32;
        if !is_long || seals & NEEDED_SEALS != NEEDED_SEALS {
            return Err(Errno::EPERM);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        map(len_bytes, protection, libc::MAP_SHARED, fd).map(|base| Self { base, len_bytes })
    }

    /// What lies there, as a structure of atomics that is valid whatever others write.
    ///
    /// # Panics
    /// It is longer.
    ///
    /// # Safety
    /// Any bytes are a valid `T`, and it can be changed by others at any time.
    #[must_use]
    pub unsafe fn as_ref<T>(self) -> &'static T {
        assert!(size_of::<T>() <= self.len_bytes, "a structure that fits");
        // SAFETY: the mapping is never unmapped and page-aligned; the caller answers for the rest.
        unsafe { &*(self.base as *const T) }
    }

    /// Leaves the first `len_bytes` bytes (whole pages) of this process's mapping to itself: what [`Joint::as_ref`] gave stays valid
    /// there, zeroes at first, and neither side hears of what the other one writes. Where the kernel
    /// has no memory for that, this process can only read them from here on.
    pub fn part_with(&self, len_bytes: usize) {
        let len_bytes = len_bytes.min(self.len_bytes);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: pages of our own mapping; all that lies there is atomics, for which zeroes are valid.
        unsafe {
            let base = self.base;
            if check(kernel!(Map, syscall!(libc::SYS_mmap, base, len_bytes, protection, flags, -1i32, 0)))
                .is_err()
            {
                kernel!(Protect, syscall!(libc::SYS_mprotect, base, len_bytes, libc::PROT_READ));
            }
        }
    }

    /// The same of all of it.
    pub fn part(&self) {
        self.part_with(self.len_bytes);
    }

    /// Takes the mapping away.
    ///
    /// # Safety
    /// Nobody uses what [`Joint::as_ref`] gave.
    pub unsafe fn unmap(self) {
        // SAFETY: our own mapping, which nobody uses, says the caller.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, self.base, self.len_bytes)) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;

    fn duplicate(fd: i32) -> i32 {
        // SAFETY: a descriptor of the test's own.
        unsafe { libc::dup(fd) }
    }

    #[test]
    fn what_the_maker_writes_others_read_and_nobody_else_can_write() {
        let made = Shared::make(c"test", 2 * PAGE_BYTES).expect("memory");
        let read = Shared::map_others(duplicate(made.fd()), 2 * PAGE_BYTES).expect("a mapping");
        // SAFETY: both mappings are two pages of the same memory.
        unsafe {
            (made.base() as *mut u8).add(5000).write_volatile(7);
            assert_eq!((read.base() as *const u8).add(5000).read_volatile(), 7);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        assert!(map(2 * PAGE_BYTES, protection, libc::MAP_SHARED, made.fd()).is_err());
        // SAFETY: of a descriptor of the test's own; one byte that is readable.
        unsafe {
            assert_eq!(libc::ftruncate(made.fd(), 0), -1);
            assert_eq!(libc::pwrite(made.fd(), [1u8].as_ptr().cast(), 1, 0), -1);
        }
        read.unmap();
        made.unmap();
    }

    #[test]
    fn memory_that_could_become_shorter_or_has_another_length_is_refused() {
        let made = Shared::make(c"test", PAGE_BYTES).expect("memory");
        let other = Shared::map_others(duplicate(made.fd()), 2 * PAGE_BYTES);
        assert_eq!(other, Err(Errno(libc::EPERM)));
        made.unmap();
        // SAFETY: the name is terminated; descriptors of the test's own.
        let unsealed = unsafe {
            let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(fd, PAGE_BYTES as libc::off_t), 0);
            fd
        };
        assert_eq!(Shared::map_others(unsealed, PAGE_BYTES), Err(Errno(libc::EPERM)));
    }
}
