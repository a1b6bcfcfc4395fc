//! Memory that other processes of the same user may map: sealed memory files of fixed length, which
//! only their creator maps writable, except for [`JointMemory`] ones; or files to which logs can refer
//! ([`memory_file`]), which cannot be sealed.
//!
//! The descriptors belong to the thread that creates or receives them; the mappings to the process.

use super::file_mapping::FileMapping;
use super::mapping::{map, replace};
use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd};
use crate::errno::{Errno, check};
use crate::memory_file::{self, MemoryFile};

/// Seals of shared memory (fcntl(2)): fixed length, no later writable mapping, no later write.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
/// Seals without which an access could kill this process with SIGBUS.
const NEEDED_SEALS: i32 = libc::F_SEAL_SHRINK;
/// MFD_NOEXEC_SEAL of memfd_create(2), Linux 6.3.
const MFD_NOEXEC_SEAL: u32 = 8;

/// A mapping of shared memory that forked children do not get, with its file while that is open.
#[derive(Debug, PartialEq, Eq)]
pub struct SharedMemory {
    base: usize,
    len_bytes: usize,
    fd: Option<OwnFd>,
    /// Number of the inode if it is a file to which logs can refer.
    inode: Option<u64>,
    /// The file as its maker has it, locked.
    locked: Option<OwnFd>,
}

/// Creates an empty memory file that can be sealed.
fn make_file(name: &core::ffi::CStr) -> Result<OwnFd, Errno> {
    let make = |flags: u32| {
        // SAFETY: `name` is NUL-terminated and lives through the call; memfd_create(2) only reads it.
        OwnFd::from_result(unsafe { kernel!(Open, syscall!(libc::SYS_memfd_create, name.as_ptr(), flags)) })
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    match make(flags | MFD_NOEXEC_SEAL) {
        // Kernels before 6.3 do not know MFD_NOEXEC_SEAL and need no such flag.
        Err(Errno::EINVAL) => make(flags),
        made => made,
    }
}

/// Maps a file from its start, not inherited by forked children.
fn map_alone(len_bytes: usize, protection: i32, fd: &OwnFd) -> Result<usize, Errno> {
    let base = map(len_bytes, protection, libc::MAP_SHARED, fd.number())?;
    // SAFETY: the range was just mapped and is not used yet; MADV_DONTFORK changes no byte.
    let alone =
        check(unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, base, len_bytes, libc::MADV_DONTFORK)) });
    alone.map(|_| base).inspect_err(|_| {
        // SAFETY: the mapping was made above, and no reference to it exists.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, base, len_bytes)) };
    })
}

/// Checks that a file is `len_bytes` long and cannot become shorter.
fn check_sealed(fd: &OwnFd, len_bytes: usize) -> Result<(), Errno> {
    // SAFETY: an all-zero stat is valid and fstat(2) fills it; F_GET_SEALS takes only integers.
    let (found, seals) = unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        check(kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)))?;
        (found, check(kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GET_SEALS)))? as i32)
    };
    let is_long = usize::try_from(found.st_size) == Ok(len_bytes);
    if is_long && seals & NEEDED_SEALS == NEEDED_SEALS { Ok(()) } else { Err(Errno::EPERM) }
}

impl SharedMemory {
    /// No memory: base and length are 0.
    pub const NONE: Self = Self::new(0, 0, None);

    const fn new(base: usize, len_bytes: usize, fd: Option<OwnFd>) -> Self {
        Self { base, len_bytes, fd, inode: None, locked: None }
    }

    /// Creates `len_bytes` bytes (whole pages) of zeroes that only this process can write.
    ///
    /// # Errors
    /// Errors of memfd_create(2), ftruncate(2), mmap(2) and fcntl(2).
    pub fn make(name: &core::ffi::CStr, len_bytes: usize) -> Result<Self, Errno> {
        let fd = make_file(name)?;
        // SAFETY: the calls take only integers, except for `map_alone`, which replaces no mapping.
        unsafe {
            check(kernel!(Allocate, syscall!(libc::SYS_ftruncate, &fd, len_bytes)))?;
            let base = map_alone(len_bytes, libc::PROT_READ | libc::PROT_WRITE, &fd)?;
            let sealed = check(kernel!(Fcntl, syscall!(libc::SYS_fcntl, &fd, libc::F_ADD_SEALS, SEALS)));
            let shared = Self::new(base, len_bytes, Some(fd));
            match sealed {
                Ok(_) => Ok(shared),
                Err(errno) => {
                    shared.unmap();
                    Err(errno)
                }
            }
        }
    }

    /// Creates `len_bytes` bytes (whole pages) of zeroes in a file of a private directory, to which logs can refer. Its
    /// name is removed by [`memory_file::remove`].
    ///
    /// # Errors
    /// Those of [`memory_file::create`]; errors of mmap(2).
    pub fn make_in(directory: &core::ffi::CStr, len_bytes: usize) -> Result<Self, Errno> {
        let MemoryFile { locked, readable, inode } = memory_file::create(directory, len_bytes as u64)?;
        // With DAX, a fault waits until the file system can find the page again; elsewhere this emulates it.
        let map = |is_persistent| FileMapping::new(locked.reference(), len_bytes, is_persistent);
        let mapped = match map(true) {
            Err(Errno(libc::EOPNOTSUPP | libc::EINVAL)) => map(false),
            mapped => mapped,
        };
        let base = mapped.inspect_err(|_| memory_file::remove(directory, inode))?.address();
        let shared = Self::new(base, len_bytes, Some(readable));
        Ok(Self { inode: Some(inode), locked: Some(locked), ..shared })
    }

    /// Maps memory that another process has created, read-only.
    ///
    /// # Errors
    /// EPERM if the file is not `len_bytes` long or could become shorter; else the error of the failed call.
    pub fn map_others(fd: OwnFd, len_bytes: usize) -> Result<Self, Errno> {
        check_sealed(&fd, len_bytes)?;
        map_alone(len_bytes, libc::PROT_READ, &fd).map(|base| Self::new(base, len_bytes, None))
    }

    /// Maps memory as [`SharedMemory::map_others`] does, or a file to which logs can refer. Such a file cannot be sealed:
    /// its maker, a process of the same user, could truncate it, and then an access here would raise SIGBUS.
    ///
    /// # Errors
    /// EPERM if the file is neither; else the error of the failed call.
    pub fn map_others_or_file(fd: OwnFd, len_bytes: usize) -> Result<Self, Errno> {
        let inode = match check_sealed(&fd, len_bytes) {
            Ok(()) => None,
            Err(_) => Some(memory_file::check(&fd, len_bytes as u64)?),
        };
        let base = map_alone(len_bytes, libc::PROT_READ, &fd)?;
        Ok(Self { inode, ..Self::new(base, len_bytes, None) })
    }

    /// Makes memory that this process has created private: later writes of this process are not
    /// seen by others, and no write is lost. Must be called by the thread that has the descriptor.
    ///
    /// # Errors
    /// Errors of mmap(2) and madvise(2).
    pub fn make_private(&self) -> Result<(), Errno> {
        let (base, len_bytes) = (self.base, self.len_bytes);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let fd = self.fd.as_ref().map_or(-1, Descriptor::number);
        // SAFETY: the range is our own mapping, and the private mapping of the same file that
        // replaces it holds the same bytes.
        check(unsafe { kernel!(Map, syscall!(libc::SYS_mmap, base, len_bytes, protection, flags, fd, 0)) })?;
        self.keep_from_children()
    }

    /// Replaces memory that another process has created by private memory: the `kept` ranges
    /// (offset and length, within the mapping) with their bytes, zeroes elsewhere. Concurrent
    /// readers of the kept ranges find their bytes throughout.
    ///
    /// # Errors
    /// Errors of mmap(2), mremap(2) and madvise(2).
    pub fn detach(&self, kept: impl Iterator<Item = (usize, usize)>) -> Result<(), Errno> {
        let len_bytes = self.len_bytes;
        let fill = |to: usize| {
            for (offset_bytes, kept_bytes) in kept {
                debug_assert!(offset_bytes + kept_bytes <= len_bytes);
                // SAFETY: both mappings are `len_bytes` long, and no other code knows the new one.
                // Bytes that their owner changes during the copy are no longer needed.
                unsafe {
                    crate::bytes::copy(
                        (to + offset_bytes) as *mut u8,
                        (self.base + offset_bytes) as *const u8,
                        kept_bytes,
                    );
                }
            }
        };
        // SAFETY: our own mapping of whole pages, of which only the kept ranges are still needed.
        unsafe { replace(self.base, len_bytes, fill) }?;
        self.keep_from_children()
    }

    fn keep_from_children(&self) -> Result<(), Errno> {
        let advice = libc::MADV_DONTFORK;
        // SAFETY: MADV_DONTFORK changes no byte of this process.
        check(unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, self.base, self.len_bytes, advice)) })
            .map(drop)
    }

    /// Includes the mapping in forked children again.
    ///
    /// # Errors
    /// Errors of madvise(2).
    pub fn inherit(&self) -> Result<(), Errno> {
        let advice = libc::MADV_DOFORK;
        // SAFETY: MADV_DOFORK changes no byte of this process.
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

    /// Number of the inode if this is a file to which logs can refer.
    #[must_use]
    pub const fn inode(&self) -> Option<u64> {
        self.inode
    }

    /// The file's descriptor, for others; for the thread that created it.
    #[must_use]
    pub const fn fd(&self) -> Option<&OwnFd> {
        self.fd.as_ref()
    }

    /// Unmaps the memory and closes the descriptor.
    pub fn unmap(self) {
        if self.len_bytes == 0 {
            return;
        }
        // SAFETY: the caller gives up the mapping with `self`.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, self.base, self.len_bytes)) };
    }
}

/// Seals of memory that two processes write: fixed length.
const JOINT_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Memory that processes of one user write together and forked children share; mapped until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct JointMemory {
    base: usize,
    len_bytes: usize,
}

impl JointMemory {
    /// Creates `len_bytes` bytes (whole pages) of zeroes, and a descriptor by which other processes map them.
    ///
    /// # Errors
    /// Errors of memfd_create(2), ftruncate(2), fcntl(2) and mmap(2).
    pub fn make(name: &core::ffi::CStr, len_bytes: usize) -> Result<(Self, OwnFd), Errno> {
        let fd = make_file(name)?;
        // SAFETY: the calls take only integers; the new mapping replaces none.
        unsafe {
            check(kernel!(Allocate, syscall!(libc::SYS_ftruncate, &fd, len_bytes)))?;
            check(kernel!(Fcntl, syscall!(libc::SYS_fcntl, &fd, libc::F_ADD_SEALS, JOINT_SEALS)))?;
        }
        Ok((Self::map(&fd, len_bytes)?, fd))
    }

    /// Maps memory that another process has created.
    ///
    /// # Errors
    /// EPERM if the file is not `len_bytes` long or could become shorter; else the error of the failed call.
    pub fn map(fd: &OwnFd, len_bytes: usize) -> Result<Self, Errno> {
        check_sealed(fd, len_bytes)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        map(len_bytes, protection, libc::MAP_SHARED, fd.number()).map(|base| Self { base, len_bytes })
    }

    /// Returns the memory as a structure of atomics.
    ///
    /// # Panics
    /// Panics if `T` is longer than the memory.
    ///
    /// # Safety
    /// Any bytes must be a valid `T`, which other processes may change at any time.
    #[must_use]
    pub unsafe fn as_ref<T>(self) -> &'static T {
        assert!(size_of::<T>() <= self.len_bytes, "a structure that fits");
        // SAFETY: the mapping is page-aligned, at least as long as `T`, and never unmapped; the
        // caller vouches that any bytes are a valid `T`.
        unsafe { &*(self.base as *const T) }
    }

    /// Replaces the first `len_bytes` bytes (whole pages) of this process's mapping by private
    /// zeroes, so that neither side sees the other's writes. References from [`JointMemory::as_ref`] stay
    /// valid. If the kernel has no memory for this, the range becomes read-only.
    pub fn detach_start(&self, len_bytes: usize) {
        let len_bytes = len_bytes.min(self.len_bytes);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the pages are in our own mapping of atomics, for which zeroes are valid.
        unsafe {
            let base = self.base;
            if check(kernel!(Map, syscall!(libc::SYS_mmap, base, len_bytes, protection, flags, -1i32, 0)))
                .is_err()
            {
                kernel!(Protect, syscall!(libc::SYS_mprotect, base, len_bytes, libc::PROT_READ));
            }
        }
    }

    /// Replaces all of the mapping. See [`JointMemory::detach_start`].
    pub fn detach(&self) {
        self.detach_start(self.len_bytes);
    }

    /// Unmaps the memory.
    ///
    /// # Safety
    /// No reference from [`JointMemory::as_ref`] may be used any more.
    pub unsafe fn unmap(self) {
        // SAFETY: the caller vouches that no reference to the mapping is left.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, self.base, self.len_bytes)) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;

    fn duplicate(fd: Option<&OwnFd>) -> OwnFd {
        crate::fd::duplicate_high(fd.expect("its maker has it")).expect("a descriptor")
    }

    #[test]
    fn what_the_maker_writes_others_read_and_nobody_else_can_write() {
        let made = SharedMemory::make(c"test", 2 * PAGE_BYTES).expect("memory");
        let read = SharedMemory::map_others(duplicate(made.fd()), 2 * PAGE_BYTES).expect("a mapping");
        // SAFETY: offset 5000 is within the two pages of both mappings, which only this test uses.
        unsafe {
            (made.base() as *mut u8).add(5000).write_volatile(7);
            assert_eq!((read.base() as *const u8).add(5000).read_volatile(), 7);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let number = made.fd().expect("its maker has it").number();
        assert!(map(2 * PAGE_BYTES, protection, libc::MAP_SHARED, number).is_err());
        // SAFETY: ftruncate(2) takes integers, and pwrite(2) reads one byte of the array.
        unsafe {
            assert_eq!(libc::ftruncate(number, 0), -1);
            assert_eq!(libc::pwrite(number, [1u8].as_ptr().cast(), 1, 0), -1);
        }
        read.unmap();
        made.unmap();
    }

    #[test]
    fn what_is_detached_keeps_the_bytes_that_are_held_and_nothing_else() {
        let len_bytes = 3 * PAGE_BYTES;
        let made = SharedMemory::make(c"test", len_bytes).expect("memory");
        let read = SharedMemory::map_others(duplicate(made.fd()), len_bytes).expect("a mapping");
        let byte = |shared: &SharedMemory, at: usize| (shared.base() + at) as *mut u8;
        // SAFETY: all ranges are within the mappings, which only this test uses.
        unsafe {
            byte(&made, 0).write_bytes(7, len_bytes);
            read.detach([(PAGE_BYTES - 5, 10), (len_bytes - 1, 1)].into_iter()).expect("detached");
            byte(&made, 0).write_bytes(8, len_bytes);
            let bytes = core::slice::from_raw_parts(byte(&read, 0), len_bytes);
            let is_held = |at: usize| (PAGE_BYTES - 5..PAGE_BYTES + 5).contains(&at) || at == len_bytes - 1;
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if is_held(at) { 7 } else { 0 }));
        }
        read.unmap();
        made.unmap();
    }

    #[test]
    fn what_is_private_is_seen_by_nobody_and_has_what_was_shared() {
        let made = SharedMemory::make(c"test", 2 * PAGE_BYTES).expect("memory");
        let read = SharedMemory::map_others(duplicate(made.fd()), 2 * PAGE_BYTES).expect("a mapping");
        let byte = |shared: &SharedMemory, at: usize| (shared.base() + at) as *mut u8;
        // SAFETY: all ranges are within the mappings, which only this test uses.
        unsafe {
            byte(&made, 1).write_volatile(5);
            made.make_private().expect("private");
            byte(&made, 2).write_volatile(6);
            byte(&made, PAGE_BYTES).write_volatile(9);
            assert_eq!([1, 2].map(|at| byte(&made, at).read_volatile()), [5, 6]);
            assert_eq!([1, 2, PAGE_BYTES].map(|at| byte(&read, at).read_volatile()), [5, 0, 0]);
        }
        read.unmap();
        made.unmap();
    }

    #[test]
    fn memory_that_could_become_shorter_or_has_another_length_is_refused() {
        let made = SharedMemory::make(c"test", PAGE_BYTES).expect("memory");
        let other = SharedMemory::map_others(duplicate(made.fd()), 2 * PAGE_BYTES);
        assert_eq!(other, Err(Errno(libc::EPERM)));
        made.unmap();
        // SAFETY: the name is NUL-terminated, and the descriptor is the test's own.
        let unsealed = unsafe {
            let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(fd, PAGE_BYTES as libc::off_t), 0);
            OwnFd::new(fd)
        };
        assert_eq!(SharedMemory::map_others(unsealed, PAGE_BYTES), Err(Errno(libc::EPERM)));
    }
}
