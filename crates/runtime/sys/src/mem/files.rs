//! Mapped files that only their owner can read, and a few operations on paths.

use super::mapping::{map, map_at};
use crate::call::{kernel, syscall};
use crate::descriptor::Descriptor;
use crate::errno::{Errno, check};
use crate::file;
use crate::private_directory::{FILE_MODE, PrivateDirectory};
use std::ffi::CStr;

/// Creates a file that only its owner can read, in a directory that only its owner can enter, and
/// maps it shared: at `address` if given, replacing what is mapped there.
///
/// An existing file of that name is replaced, never opened.
///
/// # Errors
/// ENOTDIR or EPERM if the directory is not a real directory of ours with mode 0700; else the error
/// of the failed call.
///
/// # Safety
/// `address`, if given, must be a mapping of ours of at least `len_bytes` that may be replaced.
pub unsafe fn map_private_file(
    directory: &CStr,
    name: &CStr,
    len_bytes: usize,
    address: Option<usize>,
) -> Result<usize, Errno> {
    let directory = PrivateDirectory::make(directory)?;
    let fd = directory.create(name)?;
    // Allocated, because access to a page without room on the file system would kill the program with SIGBUS.
    let sized = file::allocate(&fd, len_bytes as u64);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller vouches that the mapping at `address` may be replaced; `map` replaces none.
    let mapped = unsafe {
        match (sized, address) {
            (Err(errno), _) => Err(errno),
            (Ok(()), None) => map(len_bytes, protection, libc::MAP_SHARED, fd.number()),
            (Ok(()), Some(address)) => {
                map_at(address, len_bytes, protection, libc::MAP_SHARED, fd.number()).map(|()| address)
            }
        }
    };
    mapped.inspect_err(|_| directory.remove(name))
}

/// Maps the first `len_bytes` of a file shared, readable and writable. Access behind the end of the file, or to a page
/// for which the file system has no room, is SIGBUS.
///
/// # Errors
/// Errors of mmap(2).
pub fn map_shared(fd: impl Descriptor, len_bytes: usize) -> Result<usize, Errno> {
    map_shared_as(fd, len_bytes, libc::PROT_READ | libc::PROT_WRITE, false)
}

/// Maps the first `len_bytes` of a file as [`map_shared`] does, so that flushed lines survive power loss (`MAP_SYNC`,
/// Linux 4.15): the memory is persistent, and the file system has what it needs to find it again.
///
/// # Errors
/// Errors of mmap(2): EOPNOTSUPP if the file is not on a DAX file system.
pub fn map_sync(fd: impl Descriptor, len_bytes: usize) -> Result<usize, Errno> {
    map_shared_as(fd, len_bytes, libc::PROT_READ | libc::PROT_WRITE, true)
}

/// Maps the first `len_bytes` of a file with a protection of its own, as [`map_sync`] does if it `is_persistent`, else as
/// [`map_shared`].
pub(super) fn map_shared_as(
    fd: impl Descriptor,
    len_bytes: usize,
    protection: i32,
    is_persistent: bool,
) -> Result<usize, Errno> {
    let flags = if is_persistent { libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC } else { libc::MAP_SHARED };
    map(len_bytes, protection, flags, fd.number())
}

/// Unmaps a mapping of [`map_shared`] or [`map_sync`].
///
/// # Safety
/// Nothing may use the mapping any more.
pub unsafe fn unmap_shared(base: usize, len_bytes: usize) {
    // SAFETY: the caller vouches that nothing uses the mapping.
    unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, base, len_bytes)) };
}

/// Maps an existing file, shared, if it is a regular file of ours with this length.
///
/// # Errors
/// EPERM if it is something else; else the error of the failed call.
pub fn map_file(path: &CStr, len_bytes: usize) -> Result<usize, Errno> {
    let fd = file::open(path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOCTTY, 0)?;
    // SAFETY: an all-zero stat is valid and fstat(2) fills it; geteuid(2) takes no arguments.
    let is_ours = unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        check(kernel!(Stat, syscall!(libc::SYS_fstat, &fd, &raw mut found)))?;
        found.st_mode & libc::S_IFMT == libc::S_IFREG
            && found.st_uid == libc::geteuid()
            && usize::try_from(found.st_size) == Ok(len_bytes)
    };
    if !is_ours {
        return Err(Errno::EPERM);
    }
    map(len_bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.number())
}

/// Creates a sparse file that only its owner can read, in an existing directory, and maps it shared at
/// `address`, replacing what is mapped there. [`populate`](super::populate) must precede the first write.
///
/// # Errors
/// ENOTDIR or EPERM if the directory is not a real directory of ours with mode 0700, EEXIST if the
/// name is taken; else the error of the failed call.
///
/// # Safety
/// `address` must be a mapping of ours of at least `len_bytes` that may be replaced.
pub unsafe fn map_new_file(
    directory: &CStr,
    name: &CStr,
    len_bytes: usize,
    address: usize,
) -> Result<(), Errno> {
    let directory = PrivateDirectory::open(directory, crate::ids::effective_user())?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let fd = file::open_at(directory.fd(), name, flags, FILE_MODE)?;
    // SAFETY: ftruncate(2) takes only integers here, and accesses no memory of the process.
    let sized = check(unsafe { kernel!(Allocate, syscall!(libc::SYS_ftruncate, &fd, len_bytes)) });
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller vouches that the mapping at `address` may be replaced.
    let mapped =
        sized.and_then(|_| unsafe { map_at(address, len_bytes, protection, libc::MAP_SHARED, fd.number()) });
    mapped.inspect_err(|_| directory.remove(name))
}

/// Creates a directory that only its owner can enter, or checks that an existing one is like that.
///
/// # Errors
/// EPERM if it is not a real directory of ours with mode 0700; else the error of the failed call.
pub fn make_private_directory(directory: &CStr) -> Result<(), Errno> {
    // SAFETY: `directory` is NUL-terminated; an all-zero stat is valid and lstat(2) fills it.
    unsafe {
        if kernel!(Name, libc::mkdir(directory.as_ptr(), 0o700)) == -1 && crate::errno::get() != libc::EEXIST
        {
            return Err(Errno(crate::errno::get()));
        }
        let mut found: libc::stat = core::mem::zeroed();
        let (here, no_follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_NOFOLLOW);
        let path = directory.as_ptr();
        check(kernel!(Stat, syscall!(libc::SYS_newfstatat, here, path, &raw mut found, no_follow)))?;
        let ours = found.st_mode & libc::S_IFMT == libc::S_IFDIR
            && found.st_uid == libc::geteuid()
            && found.st_mode & 0o777 == 0o700;
        if ours { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }
}

/// Writes a message to standard error with one system call, cut to 512 bytes, without allocating.
pub fn write_stderr(message: core::fmt::Arguments<'_>) {
    struct Buffer([u8; 512], usize);
    impl core::fmt::Write for Buffer {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            let len = text.len().min(self.0.len() - self.1);
            self.0[self.1..self.1 + len].copy_from_slice(&text.as_bytes()[..len]);
            self.1 += len;
            Ok(())
        }
    }
    let mut buffer = Buffer([0; 512], 0);
    // Writing to the buffer cannot fail.
    let _ = core::fmt::Write::write_fmt(&mut buffer, message);
    // A thread of the library has a table of descriptors of its own, where 2 may be anything.
    let of_program = crate::thread::is_of_library().then(|| crate::fd::duplicate_from_first(2));
    let fd = match &of_program {
        None => 2,
        Some(Ok(fd)) => fd.number(),
        Some(Err(_)) => return,
    };
    // SAFETY: write(2) reads the first `buffer.1` bytes, which is at most the buffer's length.
    unsafe { kernel!(Write, syscall!(libc::SYS_write, fd, buffer.0.as_ptr(), buffer.1)) };
}

/// Whether a path exists and can be reached.
#[must_use]
pub fn exists(path: &CStr) -> bool {
    // SAFETY: `path` is NUL-terminated and lives through the call; access(2) only reads it.
    unsafe { kernel!(Stat, libc::access(path.as_ptr(), libc::F_OK)) == 0 }
}

/// Removes a file of ours in a directory that only its owner can enter; a missing file is ignored.
pub fn unlink_in(directory: &CStr, name: &CStr) {
    if let Ok(directory) = PrivateDirectory::open(directory, crate::ids::effective_user()) {
        directory.remove(name);
    }
}

/// Removes a name, see unlink(2); errors are ignored.
pub fn unlink(path: &CStr) {
    // SAFETY: `path` is NUL-terminated and lives through the call; unlinkat(2) only reads it.
    unsafe { kernel!(Name, syscall!(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0)) };
}

/// Returns the kernel's limit on the number of a process's mappings (vm.max_map_count).
#[must_use]
pub fn mappings_limit() -> Option<u64> {
    let mut text = [0u8; 24];
    let len_bytes = file::read_start(c"/proc/sys/vm/max_map_count", &mut text)?;
    core::str::from_utf8(&text[..len_bytes]).ok()?.trim().parse().ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let directory = std::env::temp_dir().join(format!("uncopy-mem-test-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("temporary directory");
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("chmod");
        let c_directory = std::ffi::CString::new(directory.to_str().expect("UTF-8")).expect("no NUL");
        // SAFETY: without an address the mapping replaces none.
        let refused = unsafe { map_private_file(&c_directory, c"1", PAGE_BYTES, None) };
        assert_eq!(refused, Err(Errno(libc::EPERM)));
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .expect("chmod");
        // SAFETY: without an address the mapping replaces none.
        let address = unsafe { map_private_file(&c_directory, c"1", PAGE_BYTES, None) }.expect("mapped");
        // SAFETY: `address` is one writable page that was mapped above.
        unsafe { *(address as *mut u8) = 9 };
        assert_eq!(std::fs::read(directory.join("1")).expect("readable")[0], 9);
        std::fs::remove_dir_all(&directory).expect("cleaned up");
    }
}
