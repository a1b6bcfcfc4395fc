//! Files: bytes at a place, what is known of them, waiting until they survive, attributes, leases.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use core::ffi::CStr;

/// `FS_IOC_GETVERSION` (linux/fs.h): the generation of an inode.
const GET_GENERATION: u64 = 0x8008_7601;

/// What fstat says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Kind and permissions.
    pub mode: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Names that it has.
    pub links: u64,
    /// Length, bytes.
    pub len_bytes: u64,
}

impl Status {
    /// Whether it is a regular file.
    #[must_use]
    pub const fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// What the kernel knows of an open file, of the members that `mask` names.
fn statx(fd: i32, mask: u32) -> Result<libc::statx, Errno> {
    // SAFETY: an all-zero statx is a valid buffer for statx to fill; the path is terminated and empty.
    unsafe {
        let mut found: libc::statx = core::mem::zeroed();
        let path = c"".as_ptr();
        check(kernel!(Stat, syscall!(libc::SYS_statx, fd, path, libc::AT_EMPTY_PATH, mask, &raw mut found)))?;
        Ok(found)
    }
}

/// What is known of a file, but when it was changed: who asks for that makes the kernel (from 6.13 on) give each change of any file a
/// time of its own, and then a sync of whatever is written to has an inode to write.
///
/// # Errors
/// What statx says.
pub fn status(fd: i32) -> Result<Status, Errno> {
    let found = statx(
        fd,
        libc::STATX_TYPE
            | libc::STATX_MODE
            | libc::STATX_NLINK
            | libc::STATX_UID
            | libc::STATX_GID
            | libc::STATX_INO
            | libc::STATX_SIZE,
    )?;
    Ok(Status {
        device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        mode: u32::from(found.stx_mode),
        user: found.stx_uid,
        group: found.stx_gid,
        links: u64::from(found.stx_nlink),
        len_bytes: found.stx_size,
    })
}

/// When a file's bytes were changed last, ns since 1970.
///
/// # Errors
/// What statx says.
pub fn modified_ns(fd: i32) -> Result<u64, Errno> {
    let time = statx(fd, libc::STATX_MTIME)?.stx_mtime;
    Ok((time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(time.tv_nsec)))
}

/// Device and inode of what a path names, itself if that is a link.
///
/// # Errors
/// What newfstatat says.
///
/// # Safety
/// The path is terminated, or the kernel cannot read it.
pub unsafe fn inode_at(directory: i32, path: *const core::ffi::c_char) -> Result<(u64, u64), Errno> {
    // SAFETY: an all-zero stat is a valid buffer; the kernel reads the path.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        check(kernel!(Stat, syscall!(libc::SYS_newfstatat, directory, path, &raw mut found, flags)))?;
        Ok((found.st_dev, found.st_ino))
    }
}

/// Whether a path names a symbolic link.
///
/// # Safety
/// The path is terminated, or the kernel cannot read it.
#[must_use]
pub unsafe fn is_link_at(directory: i32, path: *const core::ffi::c_char) -> bool {
    // SAFETY: an all-zero stat is a valid buffer; the kernel reads the path.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        let known =
            kernel!(Stat, syscall!(libc::SYS_newfstatat, directory, path, &raw mut found, flags)) == 0;
        known && found.st_mode & libc::S_IFMT == libc::S_IFLNK
    }
}

/// Magic number of its file system (linux/magic.h).
///
/// # Errors
/// What fstatfs says.
pub fn file_system(fd: i32) -> Result<u32, Errno> {
    // SAFETY: an all-zero statfs is a valid buffer for fstatfs to fill.
    let mut found: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the buffer is valid.
    check(i64::from(unsafe { kernel!(Stat, libc::fstatfs(fd, &mut found)) })).map(|_| found.f_type as u32)
}

/// Whether all of a run of a file's bytes lies on its device, as far as the file system tells (`FS_IOC_FIEMAP`): in extents that are
/// written, not only allocated.
///
/// # Errors
/// What ioctl says.
pub fn is_on_device(fd: i32, offset: u64, len_bytes: u64) -> Result<bool, Errno> {
    /// linux/fs.h, linux/fiemap.h.
    const GET_EXTENTS: u32 = 0xC020_660B;
    const NOT_THERE: u32 = 0x2 | 0x4 | 0x800;
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
        // SAFETY: room for as many extents as is said.
        match check(unsafe { kernel!(Ask, syscall!(libc::SYS_ioctl, fd, GET_EXTENTS, &raw mut request)) }) {
            // Nobody can say.
            Err(Errno(libc::EOPNOTSUPP | libc::ENOTTY)) => return Ok(true),
            said => said?,
        };
        let extents = &request.extents[..(request.found as usize).min(request.extents.len())];
        let before = at;
        for extent in extents {
            if extent.logical > at || extent.flags & NOT_THERE != 0 {
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

/// Generation of its inode, or 0 where its file system has none: numbers of inodes are used again.
#[must_use]
pub fn generation(fd: i32) -> u64 {
    let mut generation = 0u64;
    // SAFETY: room for what the kernel writes: an int or a long.
    let got = unsafe { kernel!(Ask, syscall!(libc::SYS_ioctl, fd, GET_GENERATION, &raw mut generation)) };
    if got == 0 { generation } else { 0 }
}

/// Opens a file; `mode` is for one that is made. The descriptor is closed on exec.
///
/// # Errors
/// What openat says.
pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<i32, Errno> {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

/// The same for a path below an open directory.
///
/// # Errors
/// What openat says.
pub fn open_at(directory: i32, path: &CStr, flags: i32, mode: u32) -> Result<i32, Errno> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: a terminated path.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_openat, directory, path.as_ptr(), flags, mode)) })
        .map(|fd| fd as i32)
}

/// Removes a name below an open directory (`AT_REMOVEDIR`: of an empty directory). There may be none.
pub fn unlink_at(directory: i32, path: &CStr, flags: i32) {
    // SAFETY: a terminated path.
    unsafe { kernel!(Name, syscall!(libc::SYS_unlinkat, directory, path.as_ptr(), flags)) };
}

/// Closes a descriptor of ours.
pub fn close(fd: i32) {
    // SAFETY: callers pass descriptors that are theirs.
    unsafe { kernel!(Close, syscall!(libc::SYS_close, fd)) };
}

/// Flags of its open file: access mode, `O_APPEND` and the like.
///
/// # Errors
/// What fcntl says.
pub fn flags(fd: i32) -> Result<i32, Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GETFL)) }).map(|flags| flags as i32)
}

/// Sets those flags of its open file that can be set: `O_APPEND` and the like.
///
/// # Errors
/// What fcntl says.
pub fn set_flags(fd: i32, flags: i32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_SETFL, flags)) }).map(drop)
}

/// Whether whoever has an open file can write to it (`O_PATH` opens for nothing).
///
/// # Errors
/// What fcntl says.
pub fn is_writable(fd: i32) -> Result<bool, Errno> {
    let flags = flags(fd)?;
    Ok(flags & libc::O_PATH == 0 && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR))
}

/// Names an open file that has no name (open(2), `O_TMPFILE`).
///
/// # Errors
/// What linkat says.
pub fn name(fd: i32, path: &CStr) -> Result<(), Errno> {
    let link = link_of(fd)?;
    let (here, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: terminated paths.
    let named =
        unsafe { kernel!(Name, syscall!(libc::SYS_linkat, here, link.as_ptr(), here, path.as_ptr(), flags)) };
    check(named).map(drop)
}

/// What the kernel has cached of a file and that is written it may forget (`POSIX_FADV_DONTNEED`).
pub fn forget_cached(fd: i32) {
    // SAFETY: touches no memory. What it says changes nothing.
    unsafe { kernel!(Fcntl, syscall!(libc::SYS_fadvise64, fd, 0, 0, libc::POSIX_FADV_DONTNEED)) };
}

/// The same of a run of its bytes.
pub fn forget_cached_run(fd: i32, offset: u64, len_bytes: u64) {
    // SAFETY: touches no memory. What it says changes nothing.
    unsafe {
        kernel!(Fcntl, syscall!(libc::SYS_fadvise64, fd, offset, len_bytes, libc::POSIX_FADV_DONTNEED))
    };
}

/// Where the next read or write begins, bytes.
///
/// # Errors
/// What lseek says.
pub fn position(fd: i32) -> Result<u64, Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Stat, syscall!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR)) }).map(|at| at as u64)
}

/// Reads from `offset` on; how many bytes, fewer only at the file's end.
///
/// # Errors
/// What pread says.
pub fn read_at(fd: i32, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let mut got_bytes = 0;
    while got_bytes < into.len() {
        let rest = &mut into[got_bytes..];
        let at = offset + got_bytes as u64;
        // SAFETY: room for as many bytes as is said.
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

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// What pwrite says; EIO where it takes nothing.
pub fn write_at(fd: i32, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
    let mut put_bytes = 0;
    while put_bytes < bytes.len() {
        let rest = &bytes[put_bytes..];
        let at = offset + put_bytes as u64;
        // SAFETY: as many bytes as is said.
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

/// Waits until all of a file survives power loss.
///
/// # Errors
/// What fsync says: each error once for each open file.
pub fn sync(fd: i32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Sync, syscall!(libc::SYS_fsync, fd)) }).map(drop)
}

/// The same for its bytes, and what is needed to find them.
///
/// # Errors
/// What fdatasync says.
pub fn sync_data(fd: i32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Sync, syscall!(libc::SYS_fdatasync, fd)) }).map(drop)
}

/// Gives a file of ours room of so many bytes.
///
/// # Errors
/// What fallocate says: EOPNOTSUPP where the file system has no such thing.
pub fn allocate(fd: i32, len_bytes: u64) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Allocate, syscall!(libc::SYS_fallocate, fd, 0, 0, len_bytes)) }).map(drop)
}

/// Sets an extended attribute (xattr(7)).
///
/// # Errors
/// What fsetxattr says.
pub fn set_attribute(fd: i32, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    let (from, len) = (value.as_ptr(), value.len());
    // SAFETY: a terminated name, and as many bytes as is said.
    check(unsafe { kernel!(Name, syscall!(libc::SYS_fsetxattr, fd, name.as_ptr(), from, len, 0)) }).map(drop)
}

/// An extended attribute's length, bytes; its value is in `into`.
///
/// # Errors
/// What fgetxattr says: ENODATA where there is none, ERANGE where it is longer.
pub fn attribute(fd: i32, name: &CStr, into: &mut [u8]) -> Result<usize, Errno> {
    let (to, room) = (into.as_mut_ptr(), into.len());
    // SAFETY: a terminated name, and room for as many bytes as is said.
    check(unsafe { kernel!(Stat, syscall!(libc::SYS_fgetxattr, fd, name.as_ptr(), to, room)) })
        .map(|len| len as usize)
}

/// Takes an extended attribute away; that there was none is no error.
///
/// # Errors
/// What fremovexattr says.
pub fn remove_attribute(fd: i32, name: &CStr) -> Result<(), Errno> {
    // SAFETY: a terminated name.
    match check(unsafe { kernel!(Name, syscall!(libc::SYS_fremovexattr, fd, name.as_ptr())) }) {
        Ok(_) | Err(Errno(libc::ENODATA)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Takes a lease on an open file (fcntl(2)): whoever opens it otherwise waits until that ends, and the calling process gets SIGIO.
///
/// # Errors
/// EAGAIN where it is open otherwise; EACCES where it is another user's; else what fcntl says.
pub fn take_lease(fd: i32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_SETLEASE, libc::F_WRLCK)) }).map(drop)
}

/// Whether a lease is there and nobody waits for its end.
#[must_use]
pub fn has_quiet_lease(fd: i32) -> bool {
    // SAFETY: touches no memory.
    let lease = unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GETLEASE)) };
    lease == i64::from(libc::F_WRLCK)
}

/// Ends a lease, which the kernel does not refuse.
pub fn end_lease(fd: i32) {
    // SAFETY: touches no memory.
    unsafe { kernel!(Close, syscall!(libc::SYS_fcntl, fd, libc::F_SETLEASE, libc::F_UNLCK)) };
}

/// Releases the locks that belong to an open file: those of flock, and of `F_OFD_SETLK`. What closing its last descriptor does.
pub fn release_locks(fd: i32) {
    // SAFETY: an all-zero lock is a valid one, of the whole file; touches nothing else.
    unsafe {
        let mut lock: libc::flock = core::mem::zeroed();
        lock.l_type = libc::F_UNLCK as _;
        kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_OFD_SETLK, &raw const lock));
        kernel!(Fcntl, syscall!(libc::SYS_flock, fd, libc::LOCK_UN));
    }
}

/// Locks an open file against others who do (flock(2)), without waiting.
///
/// # Errors
/// EAGAIN where somebody has it.
pub fn lock_alone(fd: i32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_flock, fd, libc::LOCK_EX | libc::LOCK_NB)) }).map(drop)
}

/// The same, together with others who do that.
///
/// # Errors
/// What flock says.
pub fn lock_shared(fd: i32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_flock, fd, libc::LOCK_SH)) }).map(drop)
}

/// The path of the link to an open file, terminated.
fn link_of(fd: i32) -> Result<[u8; 32], Errno> {
    let mut link = [0; 32];
    std::io::Write::write_fmt(&mut &mut link[..], format_args!("/proc/self/fd/{fd}\0"))
        .map_err(|_| Errno::EINVAL)?;
    Ok(link)
}

/// Opens an open file anew, also one that is open by `O_PATH` only. The descriptor is closed on exec.
///
/// # Errors
/// What openat says.
pub fn reopen(fd: i32, flags: i32) -> Result<i32, Errno> {
    let link = link_of(fd)?;
    let path = CStr::from_bytes_until_nul(&link).map_err(|_| Errno::EINVAL)?;
    open(path, flags, 0)
}

/// The path by which an open file is known now, as far as `into` has room; that of one without a name ends in ` (deleted)`.
///
/// # Errors
/// What readlink says.
pub fn path_of(fd: i32, into: &mut [u8]) -> Result<usize, Errno> {
    let link = link_of(fd)?;
    let (to, room) = (into.as_mut_ptr(), into.len());
    // SAFETY: a terminated path, and room for as many bytes as is said.
    check(unsafe { kernel!(Stat, syscall!(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), to, room)) })
        .map(|len| len as usize)
}

/// The alignment of memory and offsets that direct writes to an open file ask for, bytes; 4096 where that is not known.
#[must_use]
pub fn direct_granule_bytes(fd: i32) -> u32 {
    const DIOALIGN: u32 = 0x2000;
    let found = statx(fd, DIOALIGN).ok().filter(|found| found.stx_mask & DIOALIGN != 0);
    let found = found.map(|found| found.stx_dio_offset_align.max(found.stx_dio_mem_align));
    found.filter(|granule| (512..=4096).contains(granule) && granule.is_power_of_two()).unwrap_or(4096)
}

/// Whether a path is named by a pattern (fnmatch(3)) whose wildcards stand for what lies within a directory.
#[must_use]
pub fn matches(pattern: &CStr, path: &CStr) -> bool {
    // SAFETY: both end with a zero.
    unsafe { libc::fnmatch(pattern.as_ptr(), path.as_ptr(), libc::FNM_PATHNAME) == 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_lease_is_refused_while_a_file_is_open_otherwise() {
        let path = std::env::temp_dir().join(format!("uncopy-lease-{}", std::process::id()));
        let file = std::fs::File::create(&path).expect("a file");
        let other = std::fs::File::open(&path).expect("a file");
        assert_eq!(take_lease(file.as_raw_fd()), Err(Errno::EAGAIN));
        drop(other);
        assert!(!has_quiet_lease(file.as_raw_fd()));
        take_lease(file.as_raw_fd()).expect("nobody else has it open");
        assert!(has_quiet_lease(file.as_raw_fd()));
        end_lease(file.as_raw_fd());
        assert!(!has_quiet_lease(file.as_raw_fd()));
        std::fs::remove_file(&path).expect("removed");
    }

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
        write_at(fd, 0, &[1; 8192]).expect("written");
        sync(fd).expect("synced");
        assert_eq!(is_on_device(fd, 0, 8192), Ok(true));
        assert_eq!(is_on_device(fd, 100, 50), Ok(true));
        // Memory has no extents: nothing can be said there.
        if file_system(fd) != Ok(0x0102_1994) {
            write_at(fd, 65_536, &[1; 8192]).expect("written");
            sync(fd).expect("synced");
            assert_eq!(is_on_device(fd, 0, 73_728), Ok(false), "a hole");
            assert_eq!(is_on_device(fd, 65_536, 8192), Ok(true));
            assert_eq!(is_on_device(fd, 65_536, 1 << 20), Ok(false), "the end");
            allocate(fd, 1 << 20).expect("allocated");
            assert_eq!(is_on_device(fd, 65_536, 1 << 19), Ok(false), "allocated");
        }
        std::fs::remove_file(&path).expect("removed");
        close(fd);
    }

    #[test]
    fn a_file_is_known_by_what_it_is() {
        let path = std::env::temp_dir().join(format!("uncopy-status-{}", std::process::id()));
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        let fd = open(&name, libc::O_RDWR | libc::O_CREAT | libc::O_APPEND, 0o600).expect("a file");
        write_at(fd, 0, b"abc").expect("written");
        let found = status(fd).expect("known");
        assert!(found.is_regular());
        assert_eq!((found.len_bytes, found.links, found.mode & 0o777), (3, 1, 0o600));
        let mut bytes = [0; 8];
        assert_eq!(read_at(fd, 1, &mut bytes), Ok(2));
        assert_eq!(&bytes[..2], b"bc");
        let mut known = [0; 4096];
        let len = path_of(fd, &mut known).expect("a path");
        assert_eq!(&known[..len], name.to_bytes());
        assert_eq!(flags(fd).expect("flags") & libc::O_APPEND, libc::O_APPEND);
        std::fs::remove_file(&path).expect("removed");
        let len = path_of(fd, &mut known).expect("a path");
        assert!(known[..len].ends_with(b" (deleted)"));
        close(fd);
    }
}
