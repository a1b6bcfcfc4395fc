//! Files: reading and writing at an offset, status, syncing, extended attributes, leases and locks.

mod attributes;
mod status;

pub use attributes::*;
pub use status::*;

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd, ProgramFd};
use crate::errno::{Errno, check};
use crate::iovec::{MAX_PARTS, Part};
use core::ffi::CStr;

/// `FS_IOC_GETVERSION` (linux/fs.h): the generation of an inode.
const GET_GENERATION: u64 = 0x8008_7601;

/// Returns device and inode of the file that a path names. `flags` are those of fstatat(2).
///
/// # Errors
/// Errors of newfstatat(2).
///
/// # Safety
/// The path must be NUL-terminated, or an address that the kernel refuses.
pub unsafe fn inode_at(
    directory: impl Descriptor,
    path: *const core::ffi::c_char,
    flags: i32,
) -> Result<(u64, u64), Errno> {
    // SAFETY: an all-zero stat is valid and fstatat(2) fills it; the caller vouches for `path`.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        check(kernel!(Stat, syscall!(libc::SYS_newfstatat, directory, path, &raw mut found, flags)))?;
        Ok((found.st_dev, found.st_ino))
    }
}

/// Opens the file that a path names with `O_PATH`, which waits for no lease and breaks none.
///
/// # Errors
/// Errors of openat(2).
///
/// # Safety
/// The path must be NUL-terminated, or an address that the kernel refuses.
pub unsafe fn open_path_at(
    directory: impl Descriptor,
    path: *const core::ffi::c_char,
) -> Result<OwnFd, Errno> {
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the caller vouches for `path`, which openat(2) only reads.
    OwnFd::from_result(unsafe { kernel!(Open, syscall!(libc::SYS_openat, directory, path, flags, 0)) })
}

/// Whether a path names a symbolic link.
///
/// # Safety
/// The path must be NUL-terminated, or an address that the kernel refuses.
#[must_use]
pub unsafe fn is_symlink_at(directory: impl Descriptor, path: *const core::ffi::c_char) -> bool {
    // SAFETY: an all-zero stat is valid and fstatat(2) fills it; the caller vouches for `path`.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        let known =
            kernel!(Stat, syscall!(libc::SYS_newfstatat, directory, path, &raw mut found, flags)) == 0;
        known && found.st_mode & libc::S_IFMT == libc::S_IFLNK
    }
}

/// Magic number of tmpfs (linux/magic.h).
pub const TMPFS: u32 = 0x0102_1994;

/// Returns the magic number of the file system that a file is on (linux/magic.h).
///
/// # Errors
/// Errors of fstatfs(2).
pub fn file_system(fd: impl Descriptor) -> Result<u32, Errno> {
    // SAFETY: `statfs` consists of integers, for which all-zero bytes are valid.
    let mut found: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: fstatfs(2) writes one `statfs` to `found`, which lives through the call.
    check(i64::from(unsafe { kernel!(Stat, libc::fstatfs(fd.number(), &mut found)) }))
        .map(|_| found.f_type as u32)
}

/// Whether a range of a file lies on its device (`FS_IOC_FIEMAP`): in extents that are written, not
/// only allocated. True if the file system does not report extents.
///
/// # Errors
/// Errors of ioctl(2).
pub fn is_on_device(fd: impl Descriptor, offset: u64, len_bytes: u64) -> Result<bool, Errno> {
    /// `FS_IOC_FIEMAP` and `FIEMAP_EXTENT_*` (linux/fs.h, linux/fiemap.h).
    const GET_EXTENTS: u32 = 0xC020_660B;
    const NOT_WRITTEN: u32 = 0x2 | 0x4 | 0x800;
    const LAST: u32 = 1;
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Extent {
        logical: u64,
        physical: u64,
        len_bytes: u64,
        reserved: [u64; 2],
        flags: u32,
        reserved_too: [u32; 3],
    }
    #[repr(C)]
    #[derive(Default)]
    struct Request {
        offset: u64,
        len_bytes: u64,
        flags: u32,
        found: u32,
        room: u32,
        reserved: u32,
        extents: [Extent; 32],
    }
    let end = offset + len_bytes;
    let mut at = offset;
    while at < end {
        let mut request = Request { offset: at, len_bytes: end - at, room: 32, ..Request::default() };
        // SAFETY: `request` has the layout of `struct fiemap`, with room for 32 extents.
        match check(unsafe { kernel!(Ask, syscall!(libc::SYS_ioctl, fd, GET_EXTENTS, &raw mut request)) }) {
            // The file system does not report extents.
            Err(Errno(libc::EOPNOTSUPP | libc::ENOTTY)) => return Ok(true),
            result => result?,
        };
        let extents = &request.extents[..(request.found as usize).min(request.extents.len())];
        let before = at;
        for extent in extents {
            if extent.logical > at || extent.flags & NOT_WRITTEN != 0 {
                return Ok(at >= end);
            }
            at = at.max(extent.logical + extent.len_bytes);
            if extent.flags & LAST != 0 {
                return Ok(at >= end);
            }
        }
        if at == before {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the generation of a file's inode, which differs between files that reuse an inode
/// number; 0 if the file system has none.
#[must_use]
pub fn generation(fd: impl Descriptor) -> u64 {
    let mut generation = 0u64;
    // SAFETY: the ioctl writes an int or a long to `generation`, which has eight bytes.
    let got = unsafe { kernel!(Ask, syscall!(libc::SYS_ioctl, fd, GET_GENERATION, &raw mut generation)) };
    if got == 0 { generation } else { 0 }
}

/// Reads the start of a file; returns the number of bytes, or `None` if it cannot be opened or read.
pub(crate) fn read_start(path: &CStr, bytes: &mut [u8]) -> Option<usize> {
    let fd = open(path, libc::O_RDONLY, 0).ok()?;
    // SAFETY: read(2) writes at most `bytes.len()` bytes to `bytes`.
    let got = unsafe { kernel!(Read, syscall!(libc::SYS_read, &fd, bytes.as_mut_ptr(), bytes.len())) };
    usize::try_from(got).ok()
}

/// Opens a file, with permissions `mode` if it is created, closed on exec.
///
/// # Errors
/// Errors of openat(2).
pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<OwnFd, Errno> {
    open_at(ProgramFd::CURRENT_DIRECTORY, path, flags, mode)
}

/// Opens a file relative to an open directory. See [`open`].
///
/// # Errors
/// Errors of openat(2).
pub fn open_at(directory: impl Descriptor, path: &CStr, flags: i32, mode: u32) -> Result<OwnFd, Errno> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: `path` is NUL-terminated and lives through the call; openat(2) only reads it.
    OwnFd::from_result(unsafe {
        kernel!(Open, syscall!(libc::SYS_openat, directory, path.as_ptr(), flags, mode))
    })
}

/// Removes a name in an open directory (`AT_REMOVEDIR`: an empty directory). A missing name is no error.
pub fn unlink_at(directory: impl Descriptor, path: &CStr, flags: i32) {
    // SAFETY: `path` is NUL-terminated and lives through the call; unlinkat(2) only reads it.
    unsafe { kernel!(Name, syscall!(libc::SYS_unlinkat, directory, path.as_ptr(), flags)) };
}

/// Returns the flags of an open file: access mode, `O_APPEND` and so on.
///
/// # Errors
/// Errors of fcntl(2).
pub fn flags(fd: impl Descriptor) -> Result<i32, Errno> {
    // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GETFL)) }).map(|flags| flags as i32)
}

/// Sets those flags of an open file that can be changed, such as `O_APPEND`.
///
/// # Errors
/// Errors of fcntl(2).
pub fn set_flags(fd: impl Descriptor, flags: i32) -> Result<(), Errno> {
    // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_SETFL, flags)) }).map(drop)
}

/// Whether an open file can be written (`O_PATH` allows neither reading nor writing).
///
/// # Errors
/// Errors of fcntl(2).
pub fn is_writable(fd: impl Descriptor) -> Result<bool, Errno> {
    let flags = flags(fd)?;
    Ok(flags & libc::O_PATH == 0 && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR))
}

/// Gives a name to an unnamed open file (open(2), `O_TMPFILE`).
///
/// # Errors
/// Errors of linkat(2).
pub fn link_unnamed(fd: impl Descriptor, path: &CStr) -> Result<(), Errno> {
    link_into(fd, ProgramFd::CURRENT_DIRECTORY, path)
}

/// Gives a file, which may have been opened with `O_TMPFILE`, a name in an open directory.
///
/// # Errors
/// Errors of linkat(2).
pub fn link_into(fd: impl Descriptor, directory: impl Descriptor, name: &CStr) -> Result<(), Errno> {
    let link = link_of(fd)?;
    let (here, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: `link` and `name` are NUL-terminated and live through the call; linkat(2) only reads them.
    let named = unsafe {
        kernel!(Name, syscall!(libc::SYS_linkat, here, link.as_ptr(), directory, name.as_ptr(), flags))
    };
    check(named).map(drop)
}

/// Lets the kernel drop the clean cached pages of a file (`POSIX_FADV_DONTNEED`).
pub fn drop_cached(fd: impl Descriptor) {
    // SAFETY: posix_fadvise(2) takes only integers, and DONTNEED loses no data.
    unsafe { kernel!(Fcntl, syscall!(libc::SYS_fadvise64, fd, 0, 0, libc::POSIX_FADV_DONTNEED)) };
}

/// Lets the kernel drop the clean cached pages of a range of a file. See [`drop_cached`].
pub fn drop_cached_range(fd: impl Descriptor, offset: u64, len_bytes: u64) {
    // SAFETY: posix_fadvise(2) takes only integers, and DONTNEED loses no data.
    unsafe {
        kernel!(Fcntl, syscall!(libc::SYS_fadvise64, fd, offset, len_bytes, libc::POSIX_FADV_DONTNEED))
    };
}

/// Returns the file offset, bytes.
///
/// # Errors
/// Errors of lseek(2).
pub fn position(fd: impl Descriptor) -> Result<u64, Errno> {
    // SAFETY: lseek(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Stat, syscall!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR)) }).map(|at| at as u64)
}

/// Sets the file offset, bytes.
///
/// # Errors
/// Errors of lseek(2).
pub fn set_position(fd: impl Descriptor, at: u64) -> Result<(), Errno> {
    // SAFETY: lseek(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Stat, syscall!(libc::SYS_lseek, fd, at, libc::SEEK_SET)) }).map(drop)
}

/// Sets the length of a file. Also frees blocks that were allocated behind its end, except on btrfs.
///
/// # Errors
/// Errors of ftruncate(2).
pub fn truncate(fd: impl Descriptor, len_bytes: u64) -> Result<(), Errno> {
    // SAFETY: ftruncate(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Allocate, syscall!(libc::SYS_ftruncate, fd, len_bytes)) }).map(drop)
}

/// Reads at `offset`; returns the number of bytes, which is less than asked for only at the end of the file.
///
/// # Errors
/// Errors of pread(2).
pub fn read_at(fd: impl Descriptor, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let mut got_bytes = 0;
    while got_bytes < into.len() {
        let rest = &mut into[got_bytes..];
        let at = offset + got_bytes as u64;
        // SAFETY: pread(2) writes at most the length passed, into a buffer of that length.
        let got =
            unsafe { kernel!(Read, syscall!(libc::SYS_pread64, fd, rest.as_mut_ptr(), rest.len(), at)) };
        match check(got) {
            Ok(0) => break,
            Ok(got) => got_bytes += got as usize,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(got_bytes)
}

/// Reads into `parts`, without waiting for more than is there. Returns the number of bytes.
///
/// # Errors
/// Errors of readv(2), also in `errno`.
///
/// # Safety
/// The parts must be memory that the kernel may write to.
pub unsafe fn read_parts(fd: &OwnFd, parts: &[Part]) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for the memory that the parts name; `parts` itself is only read.
    let got = unsafe { kernel!(Read, syscall!(libc::SYS_readv, fd, parts.as_ptr(), parts.len())) };
    check(got).map(|got| got as usize)
}

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// Errors of pwrite(2); EIO if it writes nothing.
pub fn write_at(fd: impl Descriptor, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
    let mut put_bytes = 0;
    while put_bytes < bytes.len() {
        let rest = &bytes[put_bytes..];
        let at = offset + put_bytes as u64;
        // SAFETY: `rest` has `rest.len()` bytes, which pwrite(2) only reads.
        let put = unsafe { kernel!(Write, syscall!(libc::SYS_pwrite64, fd, rest.as_ptr(), rest.len(), at)) };
        match check(put) {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(put) => put_bytes += put as usize,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes all bytes of `parts`, back to back, at `offset`. The kernel only reads them, and refuses parts that are not
/// mapped. The contents of `parts` are unspecified afterwards.
///
/// # Errors
/// Errors of pwritev(2): EFAULT if a part cannot be read; EIO if it writes nothing.
pub fn write_parts_at(fd: impl Descriptor, mut offset: u64, mut parts: &mut [Part]) -> Result<(), Errno> {
    loop {
        while parts.first().is_some_and(|part| part.len_bytes == 0) {
            parts = &mut parts[1..];
        }
        if parts.is_empty() {
            return Ok(());
        }
        let count = parts.len().min(MAX_PARTS);
        // SAFETY: `parts` has at least `count` parts, which pwritev(2) only reads, like the bytes that they name;
        // an address that is not mapped is an error. On 64-bit machines the fifth argument is ignored.
        let put =
            unsafe { kernel!(Write, syscall!(libc::SYS_pwritev, fd, parts.as_ptr(), count, offset, 0)) };
        let mut put_bytes = match check(put) {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(put) => put as usize,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        };
        offset += put_bytes as u64;
        for part in parts.iter_mut() {
            let step = put_bytes.min(part.len_bytes);
            (part.address, part.len_bytes) = (part.address + step, part.len_bytes - step);
            put_bytes -= step;
            if put_bytes == 0 {
                break;
            }
        }
    }
}

/// Waits until a file's data and metadata survive power loss.
///
/// # Errors
/// Errors of fsync(2), each of which is reported once for each open file.
pub fn sync(fd: impl Descriptor) -> Result<(), Errno> {
    // SAFETY: fsync(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Sync, syscall!(libc::SYS_fsync, fd)) }).map(drop)
}

/// Waits until a file's data, and the metadata needed to read it, survive power loss.
///
/// # Errors
/// Errors of fdatasync(2).
pub fn sync_data(fd: impl Descriptor) -> Result<(), Errno> {
    // SAFETY: fdatasync(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Sync, syscall!(libc::SYS_fdatasync, fd)) }).map(drop)
}

/// Allocates `len_bytes` bytes for a file, from its start.
///
/// # Errors
/// Errors of fallocate(2): EOPNOTSUPP if the file system does not support it.
pub fn allocate(fd: impl Descriptor, len_bytes: u64) -> Result<(), Errno> {
    // SAFETY: fallocate(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Allocate, syscall!(libc::SYS_fallocate, fd, 0, 0, len_bytes)) }).map(drop)
}

/// Allocates blocks for a range of a file, so that writes to it need no more room. The file's size stays.
///
/// # Errors
/// Errors of fallocate(2): ENOSPC, or EOPNOTSUPP if the file system does not support it.
pub fn reserve(fd: impl Descriptor, offset: u64, len_bytes: u64) -> Result<(), Errno> {
    let mode = libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: fallocate(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Allocate, syscall!(libc::SYS_fallocate, fd, mode, offset, len_bytes)) }).map(drop)
}

/// Returns the path of an open file's link in `/proc`, NUL-terminated: in the calling thread's table, which is its own for
/// threads of the library.
fn link_of(fd: impl Descriptor) -> Result<[u8; 32], Errno> {
    let mut link = [0; 32];
    std::io::Write::write_fmt(&mut &mut link[..], format_args!("/proc/thread-self/fd/{}\0", fd.number()))
        .map_err(|_| Errno::EINVAL)?;
    Ok(link)
}

/// Reopens an open file, which may be open with `O_PATH`. The new descriptor is closed on exec.
///
/// # Errors
/// Errors of openat(2).
pub fn reopen(fd: impl Descriptor, flags: i32) -> Result<OwnFd, Errno> {
    let link = link_of(fd)?;
    let path = CStr::from_bytes_until_nul(&link).map_err(|_| Errno::EINVAL)?;
    open(path, flags, 0)
}

/// Writes the current path of an open file to `into`, cut to its length; a removed file's path ends
/// in ` (deleted)`. Returns the length, bytes.
///
/// # Errors
/// Errors of readlink(2).
pub fn path_of(fd: impl Descriptor, into: &mut [u8]) -> Result<usize, Errno> {
    let link = link_of(fd)?;
    let (to, room) = (into.as_mut_ptr(), into.len());
    // SAFETY: `link` is NUL-terminated, and readlinkat(2) writes at most `room` bytes to `into`.
    check(unsafe { kernel!(Stat, syscall!(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), to, room)) })
        .map(|len| len as usize)
}

/// Returns the alignment of memory and offsets that direct writes to an open file require, bytes;
/// 4096 if the kernel does not report it.
#[must_use]
pub fn direct_io_alignment_bytes(fd: impl Descriptor) -> u32 {
    const DIOALIGN: u32 = 0x2000;
    let found = statx(fd, DIOALIGN).ok().filter(|found| found.stx_mask & DIOALIGN != 0);
    let found = found.map(|found| found.stx_dio_offset_align.max(found.stx_dio_mem_align));
    found.filter(|granule| (512..=4096).contains(granule) && granule.is_power_of_two()).unwrap_or(4096)
}

/// Whether a path matches a pattern (fnmatch(3)), whose wildcards do not match `/`.
#[must_use]
pub fn matches(pattern: &CStr, path: &CStr) -> bool {
    // SAFETY: both strings are NUL-terminated, and fnmatch(3) only reads them.
    unsafe { libc::fnmatch(pattern.as_ptr(), path.as_ptr(), libc::FNM_PATHNAME) == 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn wildcards_stay_within_a_directory() {
        assert!(matches(c"/srv/*.wal", c"/srv/a.wal") && matches(c"/srv/[ab]", c"/srv/a"));
        assert!(!matches(c"/srv/*.wal", c"/srv/b/a.wal") && !matches(c"/srv/*.wal", c"/srv/a"));
    }

    #[test]
    fn what_is_only_allocated_is_not_on_the_device() {
        let path = std::env::temp_dir().join(format!("uncopy-extents-{}", std::process::id()));
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        let fd = open(&name, libc::O_RDWR | libc::O_CREAT, 0o600).expect("a file");
        write_at(&fd, 0, &[1; 8192]).expect("written");
        sync(&fd).expect("synced");
        assert_eq!(is_on_device(&fd, 0, 8192), Ok(true));
        assert_eq!(is_on_device(&fd, 100, 50), Ok(true));
        // On tmpfs, which has no extents, the result says nothing.
        if file_system(&fd) != Ok(TMPFS) {
            write_at(&fd, 65_536, &[1; 8192]).expect("written");
            sync(&fd).expect("synced");
            assert_eq!(is_on_device(&fd, 0, 73_728), Ok(false), "a hole");
            assert_eq!(is_on_device(&fd, 65_536, 8192), Ok(true));
            assert_eq!(is_on_device(&fd, 65_536, 1 << 20), Ok(false), "the end");
            allocate(&fd, 1 << 20).expect("allocated");
            assert_eq!(is_on_device(&fd, 65_536, 1 << 19), Ok(false), "allocated");
        }
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn parts_are_written_back_to_back_and_bad_ones_are_refused() {
        let path = std::env::temp_dir().join(format!("uncopy-parts-{}", std::process::id()));
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        let fd = open(&name, libc::O_RDWR | libc::O_CREAT, 0o600).expect("a file");
        let bytes: Vec<u8> = (0..3 * MAX_PARTS).map(|index| index as u8).collect();
        let part = |at: usize, len_bytes| Part { address: bytes.as_ptr() as usize + at, len_bytes };
        // More parts than one call takes, in reverse, and some without bytes.
        let mut parts: Vec<Part> = (0..bytes.len()).rev().map(|at| part(at, 1)).collect();
        parts.insert(5, part(0, 0));
        parts.push(part(0, 0));
        write_parts_at(&fd, 10, &mut parts).expect("written");
        let mut found = vec![0; bytes.len()];
        assert_eq!(read_at(&fd, 10, &mut found), Ok(bytes.len()));
        assert!(found.iter().eq(bytes.iter().rev()));
        let mut bad = [part(0, 3), Part { address: 16, len_bytes: 5 }];
        assert_eq!(write_parts_at(&fd, 0, &mut bad), Err(Errno(libc::EFAULT)));
        assert_eq!(write_parts_at(&fd, 0, &mut []), Ok(()));
        set_position(&fd, 7).expect("a position");
        truncate(&fd, 3).expect("truncated");
        assert_eq!((position(&fd), status(&fd).expect("known").len_bytes), (Ok(7), 3));
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn a_file_is_known_by_what_it_is() {
        let path = std::env::temp_dir().join(format!("uncopy-status-{}", std::process::id()));
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        let fd = open(&name, libc::O_RDWR | libc::O_CREAT | libc::O_APPEND, 0o600).expect("a file");
        write_at(&fd, 0, b"abc").expect("written");
        let found = status(&fd).expect("known");
        assert!(found.is_regular());
        assert_eq!((found.len_bytes, found.links, found.mode & 0o777), (3, 1, 0o600));
        let mut bytes = [0; 8];
        assert_eq!(read_at(&fd, 1, &mut bytes), Ok(2));
        assert_eq!(&bytes[..2], b"bc");
        let mut known = [0; 4096];
        let len = path_of(&fd, &mut known).expect("a path");
        assert_eq!(&known[..len], name.to_bytes());
        assert_eq!(flags(&fd).expect("flags") & libc::O_APPEND, libc::O_APPEND);
        std::fs::remove_file(&path).expect("removed");
        let len = path_of(&fd, &mut known).expect("a path");
        assert!(known[..len].ends_with(b" (deleted)"));
    }
}
