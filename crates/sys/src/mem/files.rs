//! Files that only their owner can read, mapped, and what little else is read and written by name.

use super::mapping::{map, map_at};
use crate::call::{kernel, syscall};
use crate::directory::{FILE_MODE, PrivateDirectory};
use crate::errno::{Errno, check};
use crate::file;
use std::ffi::CStr;

/// Creates a file that only its owner can read, in a directory that only its owner can enter, and
/// maps it shared at `address` if given (replacing what is there), else anywhere.
///
/// A file that exists under that name is replaced, never opened.
///
/// # Errors
/// ENOTDIR or EPERM if the directory is not a real directory of ours with mode 0700; else what failed.
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
    // Really allocated: touching a page for which there is no room would end the program.
    let sized = file::allocate(fd, len_bytes as u64);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's promise for the address; a mapping elsewhere replaces nothing.
    let mapped = unsafe {
        match (sized, address) {
            (Err(errno), _) => Err(errno),
            (Ok(()), None) => map(len_bytes, protection, libc::MAP_SHARED, fd),
            (Ok(()), Some(address)) => {
                map_at(address, len_bytes, protection, libc::MAP_SHARED, fd).map(|()| address)
            }
        }
    };
    file::close(fd);
    mapped.inspect_err(|_| directory.remove(name))
}

/// Maps a file that exists, shared, if it is an ordinary one of ours and as long.
///
/// # Errors
/// EPERM if it is something else; else what failed.
pub fn map_file(path: &CStr, len_bytes: usize) -> Result<usize, Errno> {
    // SAFETY: the path is terminated; an all-zero stat is a valid buffer; the fd is ours to close.
    unsafe {
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let fd = kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0)) as i32;
        check(i64::from(fd))?;
        let mut found: libc::stat = core::mem::zeroed();
        let known = check(kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)));
        let is_ours = found.st_mode & libc::S_IFMT == libc::S_IFREG
            && found.st_uid == libc::geteuid()
            && usize::try_from(found.st_size) == Ok(len_bytes);
        let mapped = match known {
            Err(errno) => Err(errno),
            Ok(_) if !is_ours => Err(Errno(libc::EPERM)),
            Ok(_) => map(len_bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd),
        };
        kernel!(Close, syscall!(libc::SYS_close, fd));
        mapped
    }
}

/// Makes a file that only its owner can read in a directory that exists, and maps it shared at `address`, in place of
/// what is there. It takes no memory yet: [`populate`](super::populate) before the first byte is written.
///
/// # Errors
/// ENOTDIR or EPERM if the directory is not a real one of ours with mode 0700, EEXIST if the name is taken; else what failed.
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
    // SAFETY: touches no memory.
    let sized = check(unsafe { kernel!(Allocate, syscall!(libc::SYS_ftruncate, fd, len_bytes)) });
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's promise for the address.
    let mapped = sized.and_then(|_| unsafe { map_at(address, len_bytes, protection, libc::MAP_SHARED, fd) });
    file::close(fd);
    mapped.inspect_err(|_| directory.remove(name))
}

/// Makes a directory that only its owner can enter, or finds that it is one.
///
/// # Errors
/// EPERM if it is not a real directory of ours with mode 0700; else what failed.
pub fn make_private_directory(directory: &CStr) -> Result<(), Errno> {
    // SAFETY: the string is terminated; an all-zero stat is a valid buffer.
    unsafe {
        if kernel!(Name, libc::mkdir(directory.as_ptr(), 0o700)) == -1 && crate::errno::get() != libc::EEXIST
        {
            return Err(Errno(crate::errno::get()));
        }
        let mut found: libc::stat = core::mem::zeroed();
        check(i64::from(kernel!(Stat, libc::lstat(directory.as_ptr(), &mut found))))?;
        let ours = found.st_mode & libc::S_IFMT == libc::S_IFDIR
            && found.st_uid == libc::geteuid()
            && found.st_mode & 0o777 == 0o700;
        if ours { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }
}

/// Reads the beginning of a file; how many bytes it got.
pub(crate) fn read_file(path: &CStr, text: &mut [u8]) -> Option<usize> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is terminated, the buffer valid, the descriptor ours to close.
    let got = unsafe {
        let fd = kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0));
        if fd < 0 {
            return None;
        }
        let got = kernel!(Read, syscall!(libc::SYS_read, fd, text.as_mut_ptr(), text.len()));
        kernel!(Close, syscall!(libc::SYS_close, fd));
        got
    };
    usize::try_from(got).ok()
}

/// Writes one message to standard error with one system call, cut to 512 bytes, without allocating.
pub fn say(message: core::fmt::Arguments<'_>) {
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
    // SAFETY: the buffer is valid for its length.
    unsafe { kernel!(Write, syscall!(libc::SYS_write, 2, buffer.0.as_ptr(), buffer.1)) };
}

/// Whether something exists under this path.
#[must_use]
pub fn exists(path: &CStr) -> bool {
    // SAFETY: the path is terminated.
    unsafe { kernel!(Stat, libc::access(path.as_ptr(), libc::F_OK)) == 0 }
}

/// Removes a file of a directory that only its owner can enter, if it is one of ours; it may be gone already.
pub fn unlink_in(directory: &CStr, name: &CStr) {
    if let Ok(directory) = PrivateDirectory::open(directory, crate::ids::effective_user()) {
        directory.remove(name);
    }
}

/// Removes a name.
pub fn unlink(path: &CStr) {
    // SAFETY: a terminated path.
    unsafe { kernel!(Name, syscall!(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0)) };
}

/// The kernel's limit on a process's mappings (vm.max_map_count).
#[must_use]
pub fn mappings_limit() -> Option<u64> {
    let mut text = [0u8; 24];
    let len_bytes = read_file(c"/proc/sys/vm/max_map_count", &mut text)?;
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
        // SAFETY: no address is given.
        let refused = unsafe { map_private_file(&c_directory, c"1", PAGE_BYTES, None) };
        assert_eq!(refused, Err(Errno(libc::EPERM)));
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .expect("chmod");
        // SAFETY: no address is given.
        let address = unsafe { map_private_file(&c_directory, c"1", PAGE_BYTES, None) }.expect("mapped");
        // SAFETY: just mapped, one page.
        unsafe { *(address as *mut u8) = 9 };
        assert_eq!(std::fs::read(directory.join("1")).expect("readable")[0], 9);
        std::fs::remove_dir_all(&directory).expect("cleaned up");
    }
}
