//! The calls that programs of files make.

use std::ffi::CString;

use libc::{c_int, iovec, off_t};
use uncopy_tests::oracle;

use super::interpreter::{Files, name};
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
fn well_defined(fd: c_int, len: usize, parts: usize) -> (usize, usize) {
    // SAFETY: fcntl(2) with F_GETFL takes integers only.
    let status = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let is_direct = status >= 0 && status & libc::O_DIRECT != 0;
    if is_direct && len > BLOCK { (len / BLOCK * BLOCK, 1) } else { (len, parts) }
}

/// Page-aligned bytes to write from or to read into.
pub(super) struct Room {
    pages: Vec<Page>,
    len: usize,
}

impl Room {
    /// Allocates up to `MAX_BYTES` zeroed bytes.
    pub(super) fn new(len: usize) -> Self {
        let len = len.min(MAX_BYTES);
        Self { pages: vec![Page([0; 4096]); len.div_ceil(4096).max(1)], len }
    }

    /// Allocates bytes and fills them with data derived from `seed`.
    pub(super) fn filled(len: usize, seed: usize) -> Self {
        let mut room = Self::new(len);
        // SAFETY: `start` is writable for `room.len` bytes.
        unsafe { oracle::fill(room.start(), room.len, seed as u64, 0) };
        room
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

impl Files<'_> {
    pub(super) fn open(&mut self, slot: usize, number: usize, call: usize, given: usize) {
        let (path, mode) = (name(number).as_ptr(), 0o640);
        // SAFETY: `path` is a NUL-terminated static string.
        let fd = unsafe {
            match call % 3 {
                0 => libc::open(path, flags(given), mode),
                1 => libc::openat(libc::AT_FDCWD, path, flags(given), mode),
                _ => libc::creat(path, mode),
            }
        };
        self.tell(i64::from(fd), format_args!("opened"));
        self.fill(slot, fd);
        self.tell_state(fd);
    }

    pub(super) fn reopen(&mut self, slot: usize, from: usize, given: usize) {
        let path = CString::new(format!("/proc/self/fd/{}", self.fd(from))).expect("no NUL");
        // SAFETY: `path` is a NUL-terminated `CString` that lives through the call.
        let fd = unsafe { libc::open(path.as_ptr(), flags(given), 0o640) };
        self.tell(i64::from(fd), format_args!("opened"));
        self.fill(slot, fd);
        self.tell_state(fd);
    }

    pub(super) fn close(&mut self, slot: usize, how: usize) {
        let fd = self.fd(slot);
        let number = fd.cast_unsigned();
        // SAFETY: these calls take integers only; the descriptor is the slot's, which is emptied, or none.
        let said = unsafe {
            match how % 6 {
                0..=2 => libc::close(fd),
                3 if fd >= 0 => libc::close_range(number, number, 0),
                4 if fd >= 0 => {
                    let how = flags(libc::CLOSE_RANGE_CLOEXEC as usize);
                    let said = libc::close_range(number, number, how);
                    self.tell(i64::from(said), format_args!("closed on exec"));
                    return self.tell_state(fd);
                }
                _ => {
                    let said = libc::close(299);
                    return self.tell(i64::from(said), format_args!("closed what is not open"));
                }
            }
        };
        self.slots[slot % SLOTS] = -1;
        self.tell(i64::from(said), format_args!("closed {fd}"));
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
                6 => super::passing::over_a_socket(fd),
                _ => libc::dup2(fd, 50),
            }
        };
        self.tell(i64::from(new), format_args!("duplicated"));
        if new >= 0 && new == over {
            return self.tell_state(new);
        }
        if let Some(slot) = self.slots.iter().position(|slot| new >= 0 && *slot == new) {
            // The number is 50, and another slot had it.
            self.slots[slot] = -1;
        }
        self.fill(to, new);
        self.tell_state(new);
    }

    pub(super) fn put(&mut self, call: usize, slot: usize, at: usize, len: usize, parts: usize, seed: usize) {
        let fd = self.fd(slot);
        let (len, parts) = well_defined(fd, len, parts);
        let mut room = Room::filled(len, seed);
        let vector = room.parts(parts);
        let (start, len, at) = (room.start().cast(), room.len(), offset(at));
        let count = c_int::try_from(vector.len()).expect("few");
        // SAFETY: `start` and `vector` describe `room`, whose `len` bytes stay readable through the call.
        let put = unsafe {
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
        self.tell(put as i64, format_args!("written"));
        self.tell_state(fd);
    }

    pub(super) fn get(&mut self, call: usize, slot: usize, at: usize, len: usize, parts: usize) {
        let fd = self.fd(slot);
        let mut room = Room::new(len);
        let vector = room.parts(parts);
        let (start, len, at) = (room.start().cast(), room.len(), offset(at));
        let count = c_int::try_from(vector.len()).expect("few");
        // SAFETY: `start` and `vector` describe `room`, whose `len` bytes stay writable through the call.
        let got = unsafe {
            match call % 4 {
                0 => libc::read(fd, start, len),
                1 => libc::readv(fd, vector.as_ptr(), count),
                2 => libc::pread(fd, start, len, at),
                _ => libc::preadv(fd, vector.as_ptr(), count, at),
            }
        };
        self.tell(got as i64, format_args!("read {:016x}", room.digest(got)));
        self.tell_state(fd);
    }

    pub(super) fn steady(&mut self, slot: usize, times: usize, len: usize, how: usize, seed: usize) {
        let fd = self.fd(slot);
        let (len, _) = well_defined(fd, len, 1);
        let mut room = Room::filled(len, seed);
        for number in 0..times.clamp(1, 16) {
            let at = off_t::try_from(number * len / 2).expect("short");
            let (start, len) = (room.start().cast(), room.len());
            // SAFETY: `room` is readable for `len` bytes; fsync(2) and fdatasync(2) take an integer.
            let (put, said) = unsafe {
                let put = match how % 3 {
                    0 | 1 => libc::write(fd, start, len),
                    _ => libc::pwrite(fd, start, len, at),
                };
                (put, if how.is_multiple_of(2) { libc::fsync(fd) } else { libc::fdatasync(fd) })
            };
            self.tell(put as i64, format_args!("written, synced {said}"));
        }
        self.tell_state(fd);
    }

    pub(super) fn seek(&mut self, slot: usize, whence: usize, at: usize) {
        let fd = self.fd(slot);
        const ALL: [c_int; 6] =
            [libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, libc::SEEK_DATA, libc::SEEK_HOLE, 77];
        // SAFETY: lseek(2) takes integers only.
        let found = unsafe { libc::lseek(fd, offset(at), ALL[whence % ALL.len()]) };
        self.tell(found, format_args!("sought"));
        self.tell_state(fd);
    }

    pub(super) fn sync(&mut self, slot: usize, how: usize, at: usize, len: usize) {
        let fd = self.fd(slot);
        // SAFETY: all calls that sync take integers only.
        let said = unsafe {
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
        self.tell(i64::from(said), format_args!("synced"));
        self.tell_state(fd);
    }

    pub(super) fn length(&mut self, how: usize, slot: usize, number: usize, len: usize) {
        let fd = self.fd(slot);
        // SAFETY: `name` returns a NUL-terminated static string; the other arguments are integers.
        let said = unsafe {
            match how % 4 {
                0 | 1 => libc::ftruncate(fd, offset(len)),
                2 => libc::truncate(name(number).as_ptr(), offset(len)),
                _ => libc::posix_fallocate(fd, 0, offset(len)),
            }
        };
        self.tell(i64::from(said), format_args!("set"));
        self.tell_state(fd);
    }

    pub(super) fn reserve(&mut self, slot: usize, mode: usize, at: usize, len: usize) {
        let fd = self.fd(slot);
        // SAFETY: fallocate(2) takes integers only.
        let said = unsafe { libc::fallocate(fd, flags(mode), offset(at), offset(len)) };
        self.tell(i64::from(said), format_args!("reserved"));
        self.tell_state(fd);
    }

    pub(super) fn rename(&mut self, how: usize, from: usize, to: usize) {
        let (old, new) = (name(from).as_ptr(), name(to).as_ptr());
        let here = libc::AT_FDCWD;
        // SAFETY: `old` and `new` are NUL-terminated static strings.
        let said = unsafe {
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
        self.tell(i64::from(said), format_args!("named"));
        (0..NAMES).for_each(|number| self.look(number, 1));
    }

    pub(super) fn control(&mut self, slot: usize, how: usize, argument: usize) {
        let fd = self.fd(slot);
        let mode = libc::mode_t::try_from(argument % 0o100).expect("short") | 0o600;
        // SAFETY: an all-zero `flock` is a valid lock of the whole file and lives through the call;
        // the other calls take integers only.
        let said = unsafe {
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
        self.tell(i64::from(said), format_args!("set"));
        self.tell_state(fd);
    }

    pub(super) fn look(&mut self, number: usize, how: usize) {
        let path = name(number).as_ptr();
        // SAFETY: `path` is a NUL-terminated static string; `status` is valid and lives through the call.
        let (said, status) = unsafe {
            let mut status: libc::stat = core::mem::zeroed();
            let said = match how % 3 {
                0 => libc::stat(path, &raw mut status),
                1 => libc::fstatat(libc::AT_FDCWD, path, &raw mut status, libc::AT_SYMLINK_NOFOLLOW),
                _ => libc::access(path, libc::W_OK),
            };
            (said, status)
        };
        let (size, mode, links) = (status.st_size, status.st_mode, status.st_nlink);
        self.tell(i64::from(said), format_args!("{size} bytes, {mode:o}, {links} names"));
    }
}
