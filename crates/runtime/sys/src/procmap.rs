//! Queries of the mapping at an address, without parsing `/proc/self/maps` if the kernel supports
//! `PROCMAP_QUERY`.
//!
//! `PROCMAP_QUERY` exists since Linux 6.11 (include/uapi/linux/fs.h).

use crate::call::{ioctl, kernel};
use crate::descriptor::{Descriptor, OwnFd};
use crate::errno::{Errno, check};
use crate::maps::{self, Line};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::os::fd::BorrowedFd;

pub(crate) const IOCTL_QUERY: u64 = 0xC068_6611;
const READABLE: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const EXECUTABLE: u64 = 1 << 2;
const SHARED: u64 = 1 << 3;
/// Returns the next mapping if none covers the address.
const OR_NEXT: u64 = 1 << 4;
/// Returns only mappings of files.
const FILE_BACKED: u64 = 1 << 5;

/// Room for any path that the kernel shows (PATH_MAX): with less the query fails.
const MAX_NAME_BYTES: usize = libc::PATH_MAX as usize + 16;

#[repr(C)]
#[derive(Default)]
struct QueryArgument {
    size_bytes: u64,
    query_flags: u64,
    query_address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_size_bytes: u64,
    offset: u64,
    inode: u64,
    device_major: u32,
    device_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_address: u64,
    build_id_address: u64,
}

// The number of a request contains its argument's size (include/uapi/asm-generic/ioctl.h).
const _: () = assert!(size_of::<QueryArgument>() == (IOCTL_QUERY >> 16) as usize & 0x3FFF);

/// A mapping of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address of the first byte.
    pub start: usize,
    /// End of the mapping (exclusive).
    pub end: usize,
    /// Whether the mapping can hold views: it is private, anonymous, readable and writable, of
    /// ordinary pages, and not the first thread's stack.
    pub can_hold_views: bool,
}

/// Prefix of the name of the first thread's stack.
const STACK: &[u8] = b"[stack";

/// Calls `each` with the mappings that cover `start..end`, in order of address, until it returns
/// false. Returns whether they cover the range without a gap and `each` never returned false.
///
/// # Errors
/// ENOTTY before Linux 6.11; errors of open(2) without /proc.
pub fn for_each_mapping(
    start: usize,
    end: usize,
    mut each: impl FnMut(Mapping) -> bool,
) -> Result<bool, Errno> {
    let fd = open_maps()?;
    let mut at = start;
    loop {
        if at >= end {
            break Ok(true);
        }
        match query_with(&fd, at) {
            Ok(Some(mapping)) if each(mapping) => at = mapping.end,
            Ok(_) => break Ok(false),
            Err(errno) => break Err(errno),
        }
    }
}

/// Position in a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePosition {
    /// Offset in the file.
    pub offset: u64,
    /// Inode number of the file.
    pub inode: u64,
    /// Length of the file's path, bytes.
    pub path_len_bytes: usize,
}

/// Returns the file, and the position in it, that is mapped at `address`; `None` if no file is.
/// `path` receives the path as the kernel shows it, cut to its length.
///
/// # Errors
/// Errors of open(2) without /proc.
pub fn file_at(address: usize, path: &mut [u8]) -> Result<Option<FilePosition>, Errno> {
    let fd = open_maps()?;
    let mut name = [0u8; MAX_NAME_BYTES];
    let result = line(&fd, address, &mut name);
    let Some(line) = result?.filter(|line| line.inode != 0) else { return Ok(None) };
    let len = until_zero(&name).len().min(path.len());
    path[..len].copy_from_slice(&name[..len]);
    let offset = line.offset + (address - line.start) as u64;
    Ok(Some(FilePosition { offset, inode: line.inode, path_len_bytes: len }))
}

/// Returns the range of the mapping that covers `address`, and whether it is the first thread's
/// stack; `None` if nothing is mapped there.
///
/// # Errors
/// Errors of open(2) without /proc.
pub fn range_at(address: usize) -> Result<Option<(core::ops::Range<usize>, bool)>, Errno> {
    let fd = open_maps()?;
    let mut name = [0u8; 128];
    let result = line(&fd, address, &mut name);
    match result {
        // A name that long is a file's, not the stack's.
        Err(Errno(libc::ENAMETOOLONG)) => Ok(None),
        Err(errno) => Err(errno),
        Ok(line) => Ok(line.map(|line| (line.start..line.end, name.starts_with(STACK)))),
    }
}

/// Whether a process has mapped code of a file whose path, as the kernel shows it, `is_wanted`.
/// `maps` is the process's open `/proc/PID/maps`.
///
/// # Errors
/// ENOTTY before Linux 6.11; ESRCH if the process has no memory.
pub fn has_code_of(maps: BorrowedFd<'_>, is_wanted: impl Fn(&[u8]) -> bool) -> Result<bool, Errno> {
    let mut name = [0u8; MAX_NAME_BYTES];
    let mut at = 0;
    loop {
        match ask(maps, at, OR_NEXT | FILE_BACKED | EXECUTABLE, &mut name) {
            Err(Errno(libc::ENOENT)) => return Ok(false),
            Err(errno) => return Err(errno),
            Ok(_) if is_wanted(until_zero(&name)) => return Ok(true),
            Ok(found) => at = found.end as usize,
        }
    }
}

fn until_zero(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns the mapping that covers an address, by query or else from the text; `None` if there is none.
fn line(fd: &OwnFd, address: usize, name: &mut [u8]) -> Result<Option<Line>, Errno> {
    match ask(fd, address, 0, name) {
        Ok(found) => Ok(Some(Line {
            start: found.start as usize,
            end: found.end as usize,
            offset: found.offset,
            inode: found.inode,
        })),
        Err(Errno(libc::ENOENT)) => Ok(None),
        Err(Errno(libc::ENOTTY)) => maps::find(fd, address, name),
        Err(errno) => Err(errno),
    }
}

fn open_maps() -> Result<OwnFd, Errno> {
    crate::file::open(c"/proc/self/maps", libc::O_RDONLY, 0)
}

/// Queries the mapping that covers an address, or the one that `query_flags` select; `name`
/// receives the mapping's name.
fn ask(
    fd: impl Descriptor,
    address: usize,
    query_flags: u64,
    name: &mut [u8],
) -> Result<QueryArgument, Errno> {
    let mut argument = QueryArgument {
        size_bytes: core::mem::size_of::<QueryArgument>() as u64,
        query_flags,
        query_address: address as u64,
        name_size: name.len() as u32,
        name_address: name.as_mut_ptr() as u64,
        ..QueryArgument::default()
    };
    // SAFETY: `argument` has the layout that PROCMAP_QUERY expects, and gives address and length of `name`.
    check(i64::from(unsafe { kernel!(Query, ioctl!(fd, IOCTL_QUERY, &raw mut argument)) }))?;
    Ok(argument)
}

/// Start and end (exclusive) of the range that never holds views.
static EXCLUDED: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// Excludes a range from holding views, because another layer registers it with a userfaultfd of
/// its own. There is one such range at most.
pub fn exclude_range(start: usize, len_bytes: usize) {
    EXCLUDED.0.store(start, Relaxed);
    EXCLUDED.1.store(start + len_bytes, Relaxed);
}

fn is_kept_out(start: usize, end: usize) -> bool {
    start < EXCLUDED.1.load(Relaxed) && EXCLUDED.0.load(Relaxed) < end
}

fn query_with(fd: &OwnFd, address: usize) -> Result<Option<Mapping>, Errno> {
    let mut name = [0u8; 128];
    match ask(fd, address, 0, &mut name) {
        Err(Errno(libc::ENOENT)) => Ok(None),
        // A name that long is a file's, which cannot hold views.
        Err(Errno(libc::ENAMETOOLONG)) => {
            Ok(Some(Mapping { start: address, end: address + 1, can_hold_views: false }))
        }
        Err(errno) => Err(errno),
        Ok(argument) => {
            let access = argument.flags & (READABLE | WRITABLE | EXECUTABLE | SHARED);
            Ok(Some(Mapping {
                start: argument.start as usize,
                end: argument.end as usize,
                can_hold_views: access == READABLE | WRITABLE
                    && argument.inode == 0
                    && argument.page_size_bytes as usize == crate::mem::page_size()
                    && !name.starts_with(STACK)
                    && !is_kept_out(argument.start as usize, argument.end as usize),
            }))
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn code_is_found_in_its_file() {
        let mut path = [0; 256];
        let place = file_at(file_at as *const () as usize, &mut path).expect("asked").expect("mapped");
        let own = std::env::current_exe().expect("a path");
        assert_eq!(&path[..place.path_len_bytes], own.as_os_str().as_encoded_bytes());
        let bytes = std::fs::read(own).expect("readable");
        let offset = usize::try_from(place.offset).expect("short");
        // SAFETY: the function has at least one byte of code, which is readable.
        let first = unsafe { *(file_at as *const u8) };
        assert_eq!(bytes[offset], first);
        let variable = 0u8;
        assert_eq!(file_at(&raw const variable as usize, &mut path), Ok(None));
    }

    #[test]
    fn code_of_this_program_is_mapped_and_other_code_is_not() {
        let own = std::env::current_exe().expect("a path");
        let maps = std::fs::File::open("/proc/self/maps").expect("maps");
        match has_code_of(maps.as_fd(), |path| path == own.as_os_str().as_encoded_bytes()) {
            Err(Errno(libc::ENOTTY)) => eprintln!("skipped: PROCMAP_QUERY needs Linux 6.11"),
            found => assert_eq!(found, Ok(true)),
        }
        assert_ne!(has_code_of(maps.as_fd(), |path| path.ends_with(b".nothing")), Ok(true));
    }

    #[test]
    fn memory_of_ours_can_hold_views_and_code_cannot() {
        let heap = vec![0u8; 1 << 20];
        let address = heap.as_ptr() as usize + crate::PAGE_BYTES;
        let one = |address: usize| {
            let mut found = None;
            for_each_mapping(address, address + 1, |mapping| {
                found = Some(mapping);
                true
            })
            .map(|_| found)
        };
        match one(address) {
            Err(Errno(libc::ENOTTY)) => eprintln!("skipped: PROCMAP_QUERY needs Linux 6.11"),
            found => {
                let mapping = found.expect("query works").expect("mapped");
                assert!(mapping.start <= address && address < mapping.end && mapping.can_hold_views);
                let code = one(query_with as *const () as usize);
                assert!(!code.expect("query works").expect("mapped").can_hold_views);
                let stack = one(&raw const address as usize).expect("query works").expect("mapped");
                assert!(stack.start <= &raw const address as usize);
                assert_eq!(one(8).expect("query works"), None);
            }
        }
    }
}
