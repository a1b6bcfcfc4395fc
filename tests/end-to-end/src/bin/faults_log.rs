//! A fixed workload of files in a log. The output is the same with and without a log, whatever
//! fails inside, except for lines about failed syncs, which begin with `sync failed`.
//!
//! ```text
//! faults_log DIRECTORY [logged]     logged: some file has to come to take part
//! ```

use std::ffi::CString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use uncopy_tests::forked::in_child;
use uncopy_tests::oracle::errno;
use uncopy_tests::scratch::HANG_LIMIT;

/// Time limit for a file to get into the log, where it need not (programs ask every 200 ms).
const SHORT_LIMIT: Duration = Duration::from_millis(600);

/// A descriptor of a file, with the expected content.
struct TrackedFile {
    fd: i32,
    expected: Vec<u8>,
    position: usize,
}

fn c_path(directory: &str, file: &str) -> CString {
    CString::new(format!("{directory}/{file}")).expect("no NUL")
}

fn open(directory: &str, file: &str, flags: i32) -> i32 {
    // SAFETY: `c_path` returns a NUL-terminated string that lives through the call; open(2) only reads it.
    let fd = unsafe { libc::open(c_path(directory, file).as_ptr(), flags, 0o600) };
    assert!(fd >= 0, "{file}: errno {}", errno());
    fd
}

fn sync(fd: i32, how: usize) {
    // SAFETY: fsync(2) and fdatasync(2) take a descriptor and access no memory.
    let result = unsafe { if how.is_multiple_of(2) { libc::fsync(fd) } else { libc::fdatasync(fd) } };
    if result != 0 {
        println!("sync failed: {}", errno());
    }
}

impl TrackedFile {
    fn new(directory: &str, file: &str) -> Self {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
        Self { fd: open(directory, file, flags), expected: Vec::new(), position: 0 }
    }

    /// Writes bytes and notes them; at the file position if no offset is given.
    fn write(&mut self, at: Option<usize>, len: usize, byte: u8) {
        let bytes = vec![byte; len];
        let start = at.unwrap_or(self.position);
        let offset = libc::off_t::try_from(start).expect("short");
        // SAFETY: `bytes` has `len` bytes and lives through the calls, which only read them.
        let written = unsafe {
            match at {
                None => libc::write(self.fd, bytes.as_ptr().cast(), len),
                Some(_) => libc::pwrite(self.fd, bytes.as_ptr().cast(), len, offset),
            }
        };
        assert_eq!(written, len.cast_signed(), "written; errno {}", errno());
        self.position += if at.is_none() { len } else { 0 };
        self.expected.resize(self.expected.len().max(start + len), 0);
        self.expected[start..start + len].fill(byte);
    }

    /// Compares the file's content, position and size.
    fn check(&self, what: &str) {
        let mut found = vec![0; self.expected.len() + 1];
        // SAFETY: `found` has room for `found.len()` bytes; stat is plain data, so zeroes are valid.
        let (got, status, at) = unsafe {
            let mut status: libc::stat = core::mem::zeroed();
            assert_eq!(libc::fstat(self.fd, &raw mut status), 0, "fstat");
            let got = libc::pread(self.fd, found.as_mut_ptr().cast(), found.len(), 0);
            (got, status, libc::lseek(self.fd, 0, libc::SEEK_CUR))
        };
        assert_eq!(got, self.expected.len().cast_signed(), "{what}: its length");
        found.truncate(self.expected.len());
        assert!(found == self.expected, "{what}: its bytes");
        println!("{what}: {} bytes, {} names, at {at}", status.st_size, status.st_nlink);
    }

    /// Writes and syncs a few times.
    fn write_and_sync(&mut self, times: usize, len: usize) {
        for number in 0..times {
            let byte = u8::try_from(number % 250).expect("short") + 1;
            let at = number.is_multiple_of(3).then_some(self.expected.len() / 2);
            self.write(at, len, byte);
            sync(self.fd, number);
        }
    }
}

/// Waits for a file to get into the log. Returns whether it did.
fn wait_until_logged(directory: &str, limit: Duration) -> bool {
    let begun = Instant::now();
    let mut mark = [0u8; 8192];
    let file = TrackedFile::new(directory, "warm");
    while begun.elapsed() < limit {
        // SAFETY: pwrite(2) reads one byte; the name is a NUL-terminated literal; `mark` has `mark.len()` bytes.
        let is_logged = unsafe {
            libc::pwrite(file.fd, c"a".as_ptr().cast(), 1, 0);
            libc::fsync(file.fd);
            libc::fgetxattr(file.fd, c"user.uncopy.log".as_ptr(), mark.as_mut_ptr().cast(), mark.len()) > 0
        };
        if is_logged {
            return true;
        }
    }
    false
}

fn workload(directory: &str) {
    let mut one = TrackedFile::new(directory, "one");
    one.write_and_sync(12, 3000);
    one.check("steady");

    // SAFETY: descriptors of our own; terminated paths.
    unsafe {
        assert_eq!(libc::ftruncate(one.fd, 20_000), 0, "ftruncate");
        one.expected.resize(20_000, 0);
        libc::lseek(one.fd, 0, libc::SEEK_END);
        one.position = 20_000;
        one.write_and_sync(8, 700);
        one.check("after ftruncate");

        let other = libc::dup(one.fd);
        one.write_and_sync(3, 100);
        libc::close(core::mem::replace(&mut one.fd, other));
        one.write_and_sync(3, 100);
        one.check("duplicated");

        assert_eq!(libc::rename(c_path(directory, "one").as_ptr(), c_path(directory, "moved").as_ptr()), 0);
        one.write_and_sync(3, 200);
        one.check("moved");

        // Waits for the keeper.
        let reader = open(directory, "moved", libc::O_RDONLY);
        one.write_and_sync(3, 300);
        one.check("read by another descriptor");
        libc::close(reader);
    }

    let mut two = TrackedFile::new(directory, "two");
    two.write_and_sync(8, 5000);
    in_child(|| {
        // SAFETY: two bytes; descriptors of our own.
        unsafe { assert_eq!(libc::pwrite(two.fd, c"xy".as_ptr().cast(), 2, 10), 2) };
        sync(two.fd, 0);
        let mut own = TrackedFile::new(directory, "own");
        own.write_and_sync(8, 900);
        own.check("a child's");
    });
    two.expected[10..12].copy_from_slice(b"xy");
    two.check("after a child");
    two.write_and_sync(4, 100);
    two.check("and written to again");

    let mut left = TrackedFile::new(directory, "left");
    left.write_and_sync(8, 400);
    left.write(None, 123, 9);
    for file in [one, two, left] {
        // SAFETY: `file.fd` was opened by this function, and nothing uses the descriptor afterwards.
        unsafe { assert_eq!(libc::close(file.fd), 0, "close") };
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = arguments.first().expect("usage: faults_log DIRECTORY [logged]");
    let must_be_logged = arguments.get(1).is_some_and(|word| word == "logged");
    let is_logged = wait_until_logged(directory, if must_be_logged { HANG_LIMIT } else { SHORT_LIMIT });
    assert!(is_logged || !must_be_logged, "no file takes part in a log");
    workload(directory);
    // Reads the files as other programs see them.
    for file in ["moved", "two", "own", "left"] {
        let bytes = std::fs::read(PathBuf::from(directory).join(file)).expect("a file");
        let digest = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        println!("{file}: {} bytes, {digest:016x}", bytes.len());
    }
}
