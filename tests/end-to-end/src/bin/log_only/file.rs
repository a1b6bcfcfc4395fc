//! A file of a scenario: calls of libc, whose results are printed.

use std::ffi::{CStr, CString};
use std::time::Duration;

use libc::{c_int, iovec, off_t};
use uncopy_tests::oracle::errno;

/// Number of writes and syncs before a scenario begins: enough for a log to take the file.
const ENTRY_SYNCS: usize = 6;

/// Number of syncs, 10 ms apart, after which a log has taken a file: the first log has to be created. Not a time: a sync
/// itself may take a minute on a disk that others use.
const BEGIN_SYNCS: usize = 3000;

/// Writes and syncs a file until a log has it.
pub fn wait_until_logged(name: &str) {
    let file = File::open(name, libc::O_WRONLY | libc::O_CREAT);
    for _ in 0..BEGIN_SYNCS {
        assert_eq!((file.write(b"a"), file.sync()), (1, 0));
        // SAFETY: the name is NUL-terminated; with size 0 no value is written.
        let mark = unsafe { libc::fgetxattr(file.0, c"user.uncopy.log".as_ptr(), std::ptr::null_mut(), 0) };
        if mark > 0 {
            return file.close();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no file is in a log");
}

/// Prints the result of a call; if it failed, with the error number.
pub fn show(call: &str, result: i64) -> i64 {
    if result == -1 {
        println!("{call}: error {}", errno());
    } else {
        println!("{call}: {result}");
    }
    result
}

/// Returns bytes that differ with `seed` and with their place, none of them 0.
pub fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((seed * 31 + at / 251 + at) % 255) as u8 + 1).collect()
}

/// Returns a number that tells contents apart.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

pub fn c_name(name: &str) -> CString {
    CString::new(name).expect("no NUL")
}

/// A descriptor of a file, closed by [`File::close`] or at the end of the process.
#[derive(Clone, Copy, Debug)]
pub struct File(pub c_int);

impl File {
    /// Opens a file, and prints nothing.
    pub fn open(name: &str, flags: c_int) -> Self {
        let fd = Self::try_open(name, flags);
        assert!(fd.0 >= 0, "{name}: errno {}", errno());
        fd
    }

    pub fn try_open(name: &str, flags: c_int) -> Self {
        // SAFETY: the name is NUL-terminated, lives through the call, and is only read.
        Self(unsafe { libc::open(c_name(name).as_ptr(), flags | libc::O_CLOEXEC, 0o600) })
    }

    /// Creates a file that can only be written, with these further flags, and writes and syncs it until a log has it.
    pub fn enter_log(name: &str, flags: c_int) -> Self {
        Self::create_and_enter_log(name, libc::O_WRONLY | flags)
    }

    /// Creates a file that can also be read, as [`File::enter_log`] does.
    pub fn enter_log_to_read(name: &str, flags: c_int) -> Self {
        Self::create_and_enter_log(name, libc::O_RDWR | flags)
    }

    fn create_and_enter_log(name: &str, flags: c_int) -> Self {
        let file = Self::open(name, libc::O_CREAT | libc::O_TRUNC | flags);
        for turn in 0..ENTRY_SYNCS {
            file.write(&bytes(turn, 100));
            file.sync();
        }
        file
    }

    pub fn write(self, bytes: &[u8]) -> i64 {
        // SAFETY: `bytes` live through the call, which only reads them.
        unsafe { libc::write(self.0, bytes.as_ptr().cast(), bytes.len()) as i64 }
    }

    pub fn pwrite(self, bytes: &[u8], offset: off_t) -> i64 {
        // SAFETY: `bytes` live through the call, which only reads them.
        unsafe { libc::pwrite(self.0, bytes.as_ptr().cast(), bytes.len(), offset) as i64 }
    }

    pub fn writev(self, parts: &[&[u8]]) -> i64 {
        let parts = vectors(parts);
        // SAFETY: the parts live through the call, which only reads them.
        unsafe { libc::writev(self.0, parts.as_ptr(), parts.len() as c_int) as i64 }
    }

    pub fn pwritev(self, parts: &[&[u8]], offset: off_t) -> i64 {
        let parts = vectors(parts);
        // SAFETY: the parts live through the call, which only reads them.
        unsafe { libc::pwritev(self.0, parts.as_ptr(), parts.len() as c_int, offset) as i64 }
    }

    pub fn pwritev2(self, parts: &[&[u8]], offset: off_t, flags: c_int) -> i64 {
        let parts = vectors(parts);
        // SAFETY: the parts live through the call, which only reads them.
        unsafe { libc::pwritev2(self.0, parts.as_ptr(), parts.len() as c_int, offset, flags) as i64 }
    }

    /// Makes a pipe: the ends to read from and to write to.
    pub fn pipe() -> (Self, Self) {
        let mut ends: [c_int; 2] = [0; 2];
        // SAFETY: pipe(2) writes two descriptors, for which `ends` has room.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        (Self(ends[0]), Self(ends[1]))
    }

    pub fn read(self, to: &mut [u8]) -> i64 {
        // SAFETY: `to` lives through the call, which stores at most its length.
        unsafe { libc::read(self.0, to.as_mut_ptr().cast(), to.len()) as i64 }
    }

    pub fn pread(self, to: &mut [u8], offset: off_t) -> i64 {
        // SAFETY: as for `read`.
        unsafe { libc::pread(self.0, to.as_mut_ptr().cast(), to.len(), offset) as i64 }
    }

    /// Reads into two halves.
    pub fn readv(self, to: &mut [u8]) -> i64 {
        let (one, two) = to.split_at(to.len() / 2);
        let parts = vectors(&[one, two]);
        // SAFETY: the parts live through the call, which stores at most their lengths; nothing else uses them.
        unsafe { libc::readv(self.0, parts.as_ptr(), 2) as i64 }
    }

    /// Reads into two halves, with the flags of preadv2(2).
    pub fn preadv(self, to: &mut [u8], offset: off_t, flags: c_int) -> i64 {
        let (one, two) = to.split_at(to.len() / 2);
        let parts = vectors(&[one, two]);
        // SAFETY: as for `readv`.
        unsafe { libc::preadv2(self.0, parts.as_ptr(), 2, offset, flags) as i64 }
    }

    pub fn seek(self, offset: off_t, whence: c_int) -> i64 {
        // SAFETY: lseek(2) accesses no memory.
        unsafe { libc::lseek(self.0, offset, whence) }
    }

    pub fn sync(self) -> i64 {
        // SAFETY: fdatasync(2) accesses no memory.
        i64::from(unsafe { libc::fdatasync(self.0) })
    }

    pub fn truncate(self, len: off_t) -> i64 {
        // SAFETY: ftruncate(2) accesses no memory.
        i64::from(unsafe { libc::ftruncate(self.0, len) })
    }

    pub fn fcntl(self, command: c_int, argument: c_int) -> i64 {
        // SAFETY: the commands used here take a number and access no memory.
        i64::from(unsafe { libc::fcntl(self.0, command, argument) })
    }

    /// Returns the size by fstat(2).
    pub fn size(self) -> i64 {
        // SAFETY: an all-zero stat is valid, and fstat(2) fills it.
        unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            if libc::fstat(self.0, &raw mut found) == 0 { found.st_size } else { -1 }
        }
    }

    pub fn close(self) {
        // SAFETY: close(2) accesses no memory; nothing uses the descriptor afterwards.
        assert_eq!(unsafe { libc::close(self.0) }, 0, "errno {}", errno());
    }

    /// Prints the file's size, offset and flags.
    pub fn show_state(self, when: &str) {
        show(&format!("{when}: size"), self.size());
        show(&format!("{when}: offset"), self.seek(0, libc::SEEK_CUR));
        show(&format!("{when}: flags"), self.fcntl(libc::F_GETFL, 0) & !i64::from(libc::O_LARGEFILE));
    }
}

fn vectors(parts: &[&[u8]]) -> Vec<iovec> {
    parts
        .iter()
        .map(|part| iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
        .collect()
}

/// Prints length and digest of a file, as a read by another descriptor finds it.
pub fn show_content(name: &str, when: &str) {
    match std::fs::read(name) {
        Ok(found) => println!("{when}: {} bytes, {:016x}", found.len(), digest(&found)),
        Err(error) => println!("{when}: {:?}", error.raw_os_error()),
    }
}

/// Calls a function of libc that takes a path, and prints the result.
pub fn show_by_path(call: &str, name: &str, function: impl FnOnce(&CStr) -> c_int) {
    show(call, i64::from(function(&c_name(name))));
}
