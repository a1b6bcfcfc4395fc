//! The calls that programs of files make.

use std::ffi::CString;

use libc::{c_int, iovec, off_t};
use uncopy_tests::oracle;

use super::interpreter::{FilesInterpreter, name};
use super::passing::offset;
use super::{NAMES, SLOTS};

/// Maximum bytes of one call.
const MAX_BYTES: usize = 3 << 20;
/// Maximum number of parts of one call.
const MAX_PARTS: usize = 5;

fn flags(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(0)
}

/// Memory with the alignment that direct I/O needs.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; 4096]);

/// Longest direct write that may have an odd length, in bytes: a file-system block.
const BLOCK: usize = 4096;

/// Returns the length and number of parts of a write whose result is well defined. The kernel
/// refuses a direct write of odd length only when it reaches the odd bytes. By then the extents
/// before them, which depend on writeback, are on disk, unseen by the page cache. So direct writes
/// keep an odd length only within one block.
fn clamp_direct_write(fd: c_int, len: usize, parts: usize) -> (usize, usize) {
    // SAFETY: fcntl(2) with F_GETFL takes integers only.
    let status = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let is_direct = status >= 0 && status & libc::O_DIRECT != 0;
    if is_direct && len > BLOCK { (len / BLOCK * BLOCK, 1) } else { (len, parts) }
}

/// Page-aligned bytes to write from or to read into.
pub(super) struct AlignedBuffer {
    pages: Vec<Page>,
    len: usize,
}

impl AlignedBuffer {
    /// Allocates up to `MAX_BYTES` zeroed bytes.
    pub(super) fn new(len: usize) -> Self {
        let len = len.min(MAX_BYTES);
        Self { pages: vec![Page([0; 4096]); len.div_ceil(4096).max(1)], len }
    }

    /// Allocates bytes and fills them with data derived from `seed`.
    pub(super) fn filled(len: usize, seed: usize) -> Self {
        let mut buffer = Self::new(len);
        // SAFETY: `start` is writable for `buffer.len` bytes.
        unsafe { oracle::fill(buffer.start(), buffer.len, seed as u64, 0) };
        buffer
    }

    pub(super) fn start(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr().cast()
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns a digest of the first `got` bytes. The others are zeroed before: a direct read may
    /// leave anything behind the end of the file.
    pub(super) fn digest(&mut self, got: isize) -> u64 {
        let got = usize::try_from(got).unwrap_or(0).min(self.len);
        let whole = self.pages.len() * 4096;
        // SAFETY: the pages have `whole` bytes, and `got` is at most `whole`.
        unsafe { self.start().add(got).write_bytes(0, whole - got) };
        let words = self.pages.iter().flat_map(|page| page.0.as_chunks::<8>().0);
        words.fold(0xcbf2_9ce4_8422_2325, |digest, word| {
            (digest ^ u64::from_ne_bytes(*word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17)
        })
    }

    /// Divides the bytes into `count` parts.
    fn parts(&mut self, count: usize) -> Vec<iovec> {
        let count = count.clamp(1, MAX_PARTS);
        let (start, each) = (self.start(), self.len / count);
        let len = |part| if part + 1 == count { self.len - each * part } else { each };
        let part = |part| iovec { iov_base: start.wrapping_add(each * part).cast(), iov_len: len(part) };
        (0..count).map(part).collect()
    }
}

impl FilesInterpreter<'_> {
    pub(super) fn open(&mut self, slot: usize, number: usize, call: usize, flag_bits: usize) {
        let (path, mode) = (name(number).as_ptr(), 0o640);
        // SAFETY: `path` is a NUL-terminated static string.
        let fd = unsafe {
            match call % 3 {
                0 => libc::open(path, flags(flag_bits), mode),
                1 => libc::openat(libc::AT_FDCWD, path, flags(flag_bits), mode),
                _ => libc::creat(path, mode),
            }
        };
        self.trace_result(i64::from(fd), format_args!("opened"));
        self.set_slot(slot, fd);
        self.trace_descriptor(fd);
    }

    pub(super) fn reopen(&mut self, slot: usize, from: usize, flag_bits: usize) {
        let path = CString::new(format!("/proc/self/fd/{}", self.fd(from))).expect("no NUL");
        // SAFETY: `path` is a NUL-terminated `CString` that lives through the call.
        let fd = unsafe { libc::open(path.as_ptr(), flags(flag_bits), 0o640) };
        self.trace_result(i64::from(fd), format_args!("opened"));
        self.set_slot(slot, fd);
        self.trace_descriptor(fd);
    }

    pub(super) fn close(&mut self, slot: usize, how: usize) {
        let fd = self.fd(slot);
        let number = fd.cast_unsigned();
        // SAFETY: these calls take integers only; the descriptor is the slot's, which is emptied, or none.
        let returned = unsafe {
            match how % 6 {
                0..=2 => libc::close(fd),
                3 if fd >= 0 => libc::close_range(number, number, 0),
                4 if fd >= 0 => {
                    let how = flags(libc::CLOSE_RANGE_CLOEXEC as usize);
                    let returned = libc::close_range(number, number, how);
                    self.trace_result(i64::from(returned), format_args!("closed on exec"));
                    return self.trace_descriptor(fd);
                }
                _ => {
                    let returned = libc::close(299);
                    return self.trace_result(i64::from(returned), format_args!("closed what is not open"));
                }
            }
        };
        self.slots[slot % SLOTS] = -1;
        self.trace_result(i64::from(returned), format_args!("closed {fd}"));
    }

    pub(super) fn duplicate(&mut self, how: usize, from: usize, to: usize) {
        let (fd, over) = (self.fd(from), self.fd(to));
        // SAFETY: dup(2), its variants and fcntl(2) take integers only; descriptors that are
        // replaced belong to slots.
        let new = unsafe {
            match how % 8 {
                0 => libc::dup(fd),
                1 => libc::fcntl(fd, libc::F_DUPFD, 40),
                2 => libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0),
                3 if over >= 0 => libc::dup2(fd, over),
                4 if over >= 0 => libc::dup3(fd, over, libc::O_CLOEXEC),
                5 if over >= 0 => libc::dup3(fd, over, 0),
                6 => super::passing::duplicate_by_scm_rights(fd),
                _ => libc::dup2(fd, 50),
            }
        };
        self.trace_result(i64::from(new), format_args!("duplicated"));
        if new >= 0 && new == over {
            return self.trace_descriptor(new);
        }
        if let Some(slot) = self.slots.iter().position(|slot| new >= 0 && *slot == new) {
            // The number is 50, and another slot had it.
            self.slots[slot] = -1;
        }
        self.set_slot(to, new);
        self.trace_descriptor(new);
    }

    pub(super) fn put(&mut self, call: usize, slot: usize, at: usize, len: usize, parts: usize, seed: usize) {
        let fd = self.fd(slot);
        let (len, parts) = clamp_direct_write(fd, len, parts);
        let mut buffer = AlignedBuffer::filled(len, seed);
        let vector = buffer.parts(parts);
        let (start, len, at) = (buffer.start().cast(), buffer.len(), offset(at));
        let count = c_int::try_from(vector.len()).expect("few");
        // SAFETY: `start` and `vector` describe `buffer`, whose `len` bytes stay readable through the call.
        let written = unsafe {
            match call % 7 {
                0 => libc::write(fd, start, len),
                1 => libc::writev(fd, vector.as_ptr(), count),
                2 => libc::pwrite(fd, start, len, at),
                3 => libc::pwritev(fd, vector.as_ptr(), count, at),
                4 => libc::pwritev2(fd, vector.as_ptr(), count, -1, 0),
                5 => libc::pwritev2(fd, vector.as_ptr(), count, at, libc::RWF_DSYNC),
                _ => libc::pwritev2(fd, vector.as_ptr(), count, at, libc::RWF_APPEND),
            }
        };
        self.trace_result(written as i64, format_args!("written"));
        self.trace_descriptor(fd);
    }

    pub(super) fn get(&mut self, call: usize, slot: usize, at: usize, len: usize, parts: usize) {
        let fd = self.fd(slot);
        let mut buffer = AlignedBuffer::new(len);
        let vector = buffer.parts(parts);
        let (start, len, at) = (buffer.start().cast(), buffer.len(), offset(at));
        let count = c_int::try_from(vector.len()).expect("few");
        // SAFETY: `start` and `vector` describe `buffer`, whose `len` bytes stay writable through the call.
        let got = unsafe {
            match call % 4 {
                0 => libc::read(fd, start, len),
                1 => libc::readv(fd, vector.as_ptr(), count),
                2 => libc::pread(fd, start, len, at),
                _ => libc::preadv(fd, vector.as_ptr(), count, at),
            }
        };
        self.trace_result(got as i64, format_args!("read {:016x}", buffer.digest(got)));
        self.trace_descriptor(fd);
    }

    pub(super) fn steady(&mut self, slot: usize, times: usize, len: usize, how: usize, seed: usize) {
        let fd = self.fd(slot);
        let (len, _) = clamp_direct_write(fd, len, 1);
        let mut buffer = AlignedBuffer::filled(len, seed);
        for number in 0..times.clamp(1, 16) {
            let at = off_t::try_from(number * len / 2).expect("short");
            let (start, len) = (buffer.start().cast(), buffer.len());
            // SAFETY: `buffer` is readable for `len` bytes; fsync(2) and fdatasync(2) take an integer.
            let (written, returned) = unsafe {
                let written = match how % 3 {
                    0 | 1 => libc::write(fd, start, len),
                    _ => libc::pwrite(fd, start, len, at),
                };
                (written, if how.is_multiple_of(2) { libc::fsync(fd) } else { libc::fdatasync(fd) })
            };
            self.trace_result(written as i64, format_args!("written, synced {returned}"));
        }
        self.trace_descriptor(fd);
    }

    pub(super) fn seek(&mut self, slot: usize, whence: usize, at: usize) {
        let fd = self.fd(slot);
        const ALL: [c_int; 6] =
            [libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, libc::SEEK_DATA, libc::SEEK_HOLE, 77];
        // SAFETY: lseek(2) takes integers only.
        let found = unsafe { libc::lseek(fd, offset(at), ALL[whence % ALL.len()]) };
        self.trace_result(found, format_args!("sought"));
        self.trace_descriptor(fd);
    }

    pub(super) fn sync(&mut self, slot: usize, how: usize, at: usize, len: usize) {
        let fd = self.fd(slot);
        // SAFETY: all calls that sync take integers only.
        let returned = unsafe {
            match how % 12 {
                0..=4 => libc::fsync(fd),
                5..=8 => libc::fdatasync(fd),
                9 => {
                    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                        | libc::SYNC_FILE_RANGE_WRITE
                        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
                    libc::sync_file_range(fd, offset(at), offset(len), all)
                }
                10 => libc::syncfs(fd),
                _ => {
                    libc::sync();
                    0
                }
            }
        };
        self.trace_result(i64::from(returned), format_args!("synced"));
        self.trace_descriptor(fd);
    }

    pub(super) fn length(&mut self, how: usize, slot: usize, number: usize, len: usize) {
        let fd = self.fd(slot);
        // SAFETY: `name` returns a NUL-terminated static string; the other arguments are integers.
        let returned = unsafe {
            match how % 4 {
                0 | 1 => libc::ftruncate(fd, offset(len)),
                2 => libc::truncate(name(number).as_ptr(), offset(len)),
                _ => libc::posix_fallocate(fd, 0, offset(len)),
            }
        };
        self.trace_result(i64::from(returned), format_args!("set"));
        self.trace_descriptor(fd);
    }

    pub(super) fn reserve(&mut self, slot: usize, mode: usize, at: usize, len: usize) {
        let fd = self.fd(slot);
        // SAFETY: fallocate(2) takes integers only.
        let returned = unsafe { libc::fallocate(fd, flags(mode), offset(at), offset(len)) };
        self.trace_result(i64::from(returned), format_args!("reserved"));
        self.trace_descriptor(fd);
    }

    pub(super) fn rename(&mut self, how: usize, from: usize, to: usize) {
        let (old, new) = (name(from).as_ptr(), name(to).as_ptr());
        let here = libc::AT_FDCWD;
        // SAFETY: `old` and `new` are NUL-terminated static strings.
        let returned = unsafe {
            match how % 8 {
                0 => libc::rename(old, new),
                1 => libc::renameat(here, old, here, new),
                2 => libc::renameat2(here, old, here, new, libc::RENAME_EXCHANGE),
                3 => libc::renameat2(here, old, here, new, libc::RENAME_NOREPLACE),
                4 => libc::link(old, new),
                5 => libc::linkat(here, old, here, new, 0),
                6 => libc::unlinkat(here, old, 0),
                _ => libc::unlink(old),
            }
        };
        self.trace_result(i64::from(returned), format_args!("named"));
        (0..NAMES).for_each(|number| self.look(number, 1));
    }

    pub(super) fn control(&mut self, slot: usize, how: usize, argument: usize) {
        let fd = self.fd(slot);
        let mode = libc::mode_t::try_from(argument % 0o100).expect("short") | 0o600;
        // SAFETY: an all-zero `flock` is a valid lock of the whole file and lives through the call;
        // the other calls take integers only.
        let returned = unsafe {
            let mut lock: libc::flock = core::mem::zeroed();
            let kind = [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK][argument % 3];
            lock.l_type = libc::c_short::try_from(kind).expect("short");
            match how % 11 {
                0 | 1 => libc::fcntl(fd, libc::F_SETFL, libc::O_APPEND),
                10 => libc::fcntl(fd, libc::F_GETLEASE),
                2 | 3 => libc::fcntl(fd, libc::F_SETFL, 0),
                4 => libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK),
                5 => libc::fcntl(fd, libc::F_SETFD, flags(argument % 2)),
                6 => {
                    let locks = [libc::LOCK_EX, libc::LOCK_SH, libc::LOCK_UN];
                    libc::flock(fd, locks[argument % 3] | libc::LOCK_NB)
                }
                7 => libc::fcntl(fd, libc::F_OFD_SETLK, &raw mut lock),
                8 => libc::fcntl(fd, libc::F_SETLK, &raw mut lock),
                _ => libc::fchmod(fd, mode),
            }
        };
        self.trace_result(i64::from(returned), format_args!("set"));
        self.trace_descriptor(fd);
    }

    pub(super) fn look(&mut self, number: usize, how: usize) {
        let path = name(number).as_ptr();
        if self.depth > 0 {
            // Another process's stat(2) may be older than a log that has the only copy. An open waits for the log.
            // SAFETY: `path` is a NUL-terminated static string; the descriptor is closed here.
            unsafe {
                let fd = libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC);
                if fd >= 0 {
                    libc::close(fd);
                }
            }
        }
        // SAFETY: `path` is a NUL-terminated static string; `status` is valid and lives through the call.
        let (returned, status) = unsafe {
            let mut status: libc::stat = core::mem::zeroed();
            let returned = match how % 3 {
                0 => libc::stat(path, &raw mut status),
                1 => libc::fstatat(libc::AT_FDCWD, path, &raw mut status, libc::AT_SYMLINK_NOFOLLOW),
                _ => libc::access(path, libc::W_OK),
            };
            (returned, status)
        };
        let (size, mode, links) = (status.st_size, status.st_mode, status.st_nlink);
        self.trace_result(i64::from(returned), format_args!("{size} bytes, {mode:o}, {links} names"));
    }
}
