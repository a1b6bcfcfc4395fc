//! Fault injection, for tests only: the Nth call to the kernel fails.
//!
//! Compiled with the feature `inject`. The calls of a process and of its forked children are counted
//! together, from the time when the library is loaded. Environment variables control the injection:
//!
//! | variable | meaning |
//! |---|---|
//! | `INJECT_FAULT=N:ERRNO` | call N fails with this error number |
//! | `INJECT_FAULT=N+:ERRNO` | so does every later call of the same kind, unless the kernel cannot fail that way for ever |
//! | `INJECT_FAULT=N~:ERRNO` | call N, if it places pages, does half of its work and fails with EAGAIN; the next call fails |
//! | `INJECT_FAULT=N!:0` | the process is killed (SIGKILL) in place of call N |
//! | `MAX_INJECT_RESERVE=BYTES` | ranges of addresses longer than this cannot be reserved |
//! | `INJECT_FAULT_LOG=FILE` | a file of 8-byte records: the number of calls, then the name of each call's kind |
//!
//! The names do not begin as those of the options, because an unknown option is an error.

use crate::errno;
use crate::raw::syscall;
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Number of calls for which the log has room.
const LOGGED: usize = (1 << 16) - 1;

/// Kinds of calls. `Close` is counted but never fails: the kernel closes the descriptor even if
/// close(2) returns an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `mmap`.
    Map,
    /// `munmap`.
    Unmap,
    /// `mprotect`.
    Protect,
    /// `mremap`.
    Remap,
    /// `madvise` with an advice that the engine relies on.
    Discard,
    /// `madvise(MADV_POPULATE_WRITE)`.
    Populate,
    /// `madvise` with any other advice.
    Advise,
    /// `openat`, `pipe2`.
    Open,
    /// `close`, `close_range`, and the end of a lease.
    Close,
    /// `read`, `pread`.
    Read,
    /// `write`, `pwrite`.
    Write,
    /// `fsync`, `fdatasync`.
    Sync,
    /// `poll`.
    Poll,
    /// `fcntl`, `flock`.
    Fcntl,
    /// `fstat`, `lstat`, `fstatfs`, `access`, `mincore`, `sysinfo`.
    Stat,
    /// `mkdir`, `unlink`, `fsetxattr`, `fremovexattr`.
    Name,
    /// `fallocate`.
    Allocate,
    /// `getrlimit`, `setrlimit`, `prctl`.
    Limit,
    /// `futex(FUTEX_WAIT)`.
    Futex,
    /// `pthread_create`.
    Thread,
    /// `unshare`.
    Unshare,
    /// `nanosleep`.
    Sleep,
    /// Reading of a directory, see readdir(3).
    List,
    /// `userfaultfd`, or the ioctl of `/dev/userfaultfd`.
    Uffd,
    /// `UFFDIO_API`.
    Api,
    /// `UFFDIO_REGISTER`.
    Register,
    /// `UFFDIO_UNREGISTER`.
    Forget,
    /// `UFFDIO_WAKE`.
    Wake,
    /// `UFFDIO_COPY`.
    Copy,
    /// `UFFDIO_ZEROPAGE`.
    Zero,
    /// `UFFDIO_MOVE`.
    Move,
    /// `UFFDIO_WRITEPROTECT`.
    Guard,
    /// `PROCMAP_QUERY`.
    Query,
    /// `vmsplice`, `splice`.
    Splice,
    /// `process_vm_readv`.
    Peek,
    /// `getsockopt`, and an ioctl that only queries.
    Ask,
}

impl Kind {
    /// The variant's name, cut to the eight bytes of a log record.
    fn name(self) -> u64 {
        let mut name = [0u8; 8];
        let mut text = Text(&mut name, 0);
        // The writer drops the bytes beyond the eighth.
        let _ = core::fmt::Write::write_fmt(&mut text, format_args!("{self:?}"));
        u64::from_ne_bytes(name)
    }
}

struct Text<'a>(&'a mut [u8; 8], usize);

impl core::fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes().take(8 - self.1) {
            self.0[self.1] = byte;
            self.1 += 1;
        }
        Ok(())
    }
}

/// Return types of calls that can be made to fail.
pub trait Refusal {
    /// The value that a failed call returns, with the reason in `errno`.
    fn refusal() -> Self;
}

impl Refusal for i32 {
    fn refusal() -> Self {
        -1
    }
}

impl Refusal for i64 {
    fn refusal() -> Self {
        -1
    }
}

impl Refusal for *mut libc::c_void {
    fn refusal() -> Self {
        libc::MAP_FAILED
    }
}

impl<T> Refusal for std::io::Result<T> {
    fn refusal() -> Self {
        Err(std::io::Error::from_raw_os_error(errno::get()))
    }
}

#[repr(C)]
struct Log {
    count: AtomicU64,
    kinds: [AtomicU64; LOGGED],
}

/// Address of the shared log; 0 until [`begin`] has mapped it.
static LOG: AtomicUsize = AtomicUsize::new(0);
/// Number of the call that fails; 0 for none.
static AT: AtomicU64 = AtomicU64::new(0);
static ERRNO: AtomicI32 = AtomicI32::new(0);
/// The kind whose calls all fail, or -1.
static REFUSED: AtomicI32 = AtomicI32::new(-1);
/// The character after N, or 0.
static MODE: AtomicI32 = AtomicI32::new(0);

/// Whether `MAX_INJECT_RESERVE` forbids a range of this length.
#[must_use]
pub fn is_too_long(len_bytes: usize) -> bool {
    static MAX: AtomicUsize = AtomicUsize::new(0);
    if MAX.load(Relaxed) == 0 {
        // SAFETY: the name is NUL-terminated, and so is a value that getenv(3) returns; no thread
        // of these tests changes the environment.
        let most = unsafe {
            let value = libc::getenv(c"MAX_INJECT_RESERVE".as_ptr());
            if value.is_null() {
                None
            } else {
                CStr::from_ptr(value).to_str().ok().and_then(|text| text.parse().ok())
            }
        };
        MAX.store(most.unwrap_or(usize::MAX), Relaxed);
    }
    len_bytes > MAX.load(Relaxed)
}

/// Starts counting, with the plan from the environment. Called once, when the library is loaded.
pub fn begin() {
    // SAFETY: all strings are NUL-terminated, and nothing changes the environment while a library
    // is loaded. The mapping replaces nothing, is shared with forked children and never unmapped.
    unsafe {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
        let path = libc::getenv(c"INJECT_FAULT_LOG".as_ptr());
        let fd = if path.is_null() { -1 } else { libc::open(path, flags, 0o600) };
        let len_bytes = size_of::<Log>();
        let kind = if fd >= 0 { libc::MAP_SHARED } else { libc::MAP_SHARED | libc::MAP_ANONYMOUS };
        if fd >= 0 {
            libc::ftruncate(fd, len_bytes as libc::off_t);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let log = libc::mmap(core::ptr::null_mut(), len_bytes, protection, kind, fd, 0);
        if fd >= 0 {
            syscall!(libc::SYS_close, fd);
        }
        let plan = libc::getenv(c"INJECT_FAULT".as_ptr());
        if !plan.is_null() {
            let plan = CStr::from_ptr(plan).to_str().unwrap_or("");
            let (at, number) = plan.split_once(':').unwrap_or(("0", "0"));
            let digits = at.trim_end_matches(['+', '~', '!']);
            AT.store(digits.parse().unwrap_or(0), Relaxed);
            MODE.store(i32::from(at.as_bytes().get(digits.len()).copied().unwrap_or(0)), Relaxed);
            ERRNO.store(number.parse().unwrap_or(0), Relaxed);
        }
        if log != libc::MAP_FAILED {
            LOG.store(log as usize, Relaxed);
        }
    }
}

fn log() -> Option<&'static Log> {
    match LOG.load(Relaxed) {
        0 => None,
        // SAFETY: `begin` alone stores an address here, of a mapping of `Log`'s size that is never
        // unmapped; `Log` consists of atomics, for which any bytes are valid.
        address => Some(unsafe { &*(address as *const Log) }),
    }
}

/// Whether the kernel can fail this way for ever. It cannot keep refusing to wake threads on an open
/// descriptor, or to report faults there; nor report absent pages as present, whose bytes would be lost; nor
/// interrupt every call; nor find nothing on a socket that poll(2) reports as readable.
fn can_last(kind: Kind) -> bool {
    let errno = ERRNO.load(Relaxed);
    let is_impossible = match kind {
        Kind::Copy | Kind::Zero => errno == libc::EEXIST,
        Kind::Write => errno == libc::EINTR,
        Kind::Ask | Kind::Open => errno == libc::EINTR || errno == libc::EAGAIN,
        _ => false,
    };
    !is_impossible && !matches!(kind, Kind::Wake | Kind::Read)
}

/// Counts a call. Returns true, with `errno` set, if the call must fail.
#[must_use]
pub fn refuses(kind: Kind) -> bool {
    if REFUSED.load(Relaxed) == kind as i32 {
        errno::set(ERRNO.load(Relaxed));
        return true;
    }
    let Some(log) = log() else { return false };
    let number = log.count.fetch_add(1, Relaxed) + 1;
    if let Some(entry) = log.kinds.get(number as usize - 1) {
        entry.store(kind.name(), Relaxed);
    }
    let at = AT.load(Relaxed);
    if number == at && MODE.load(Relaxed) == i32::from(b'!') {
        // SAFETY: kill(2) takes only integers, and ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    if at == 0 || kind == Kind::Close {
        return false;
    }
    let refused = match MODE.load(Relaxed) as u8 {
        b'+' if can_last(kind) => {
            number >= at
                && log.kinds.get(at as usize - 1).is_some_and(|first| first.load(Relaxed) == kind.name())
        }
        b'~' => number == at + 1,
        b'!' => false,
        _ => number == at,
    };
    if refused {
        errno::set(ERRNO.load(Relaxed));
    }
    refused
}

/// Makes every call of a kind fail from here on, for tests inside the process.
pub fn refuse(kind: Kind, errno: i32) {
    ERRNO.store(errno, Relaxed);
    REFUSED.store(kind as i32, Relaxed);
}

/// Ends the effect of [`refuse`].
pub fn stop_refusing() {
    REFUSED.store(-1, Relaxed);
}

/// Whether the next counted call does only half of its work.
#[must_use]
pub fn is_next_short() -> bool {
    MODE.load(Relaxed) == i32::from(b'~')
        && log().is_some_and(|log| log.count.load(Relaxed) + 1 == AT.load(Relaxed))
}
