//! Fault injection, for tests only: the Nth call to the kernel fails.
//!
//! Compiled with the feature `inject`. The calls of a process and of its forked children are counted
//! together, from the moment when the library is loaded. Two variables say what happens:
//!
//! | variable | meaning |
//! |---|---|
//! | `INJECT_FAULT=N:ERRNO` | call N fails with that error number |
//! | `INJECT_FAULT=N+:ERRNO` | so does every later call of the same kind, unless that is one the kernel cannot go on refusing |
//! | `INJECT_FAULT=N~:ERRNO` | call N, if it places pages, does half of its work and says EAGAIN; the next one fails |
//! | `MAX_INJECT_RESERVE=BYTES` | no range of addresses longer than this is to be had |
//! | `INJECT_FAULT_LOG=FILE` | a file of 8 byte records: the number of calls, then the name of each call's kind |
//!
//! Their names do not begin as the options' do, because an unknown option is an error.

use crate::errno;
use crate::raw::syscall;
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Calls that the log has room for.
const LOGGED: usize = (1 << 16) - 1;

/// Kinds of calls. `Close` is counted but never refused: the kernel closes the descriptor whatever it
/// says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// mmap.
    Map,
    /// munmap.
    Unmap,
    /// mprotect.
    Protect,
    /// mremap.
    Remap,
    /// madvise with an advice that must be followed.
    Discard,
    /// madvise(MADV_POPULATE_WRITE).
    Populate,
    /// madvise with any other advice.
    Advise,
    /// openat, pipe2.
    Open,
    /// close, close_range, the end of a lease.
    Close,
    /// read, pread.
    Read,
    /// write, pwrite.
    Write,
    /// fsync, fdatasync.
    Sync,
    /// poll.
    Poll,
    /// fcntl, flock.
    Fcntl,
    /// fstat, lstat, fstatfs, access, mincore, sysinfo.
    Stat,
    /// mkdir, unlink, fsetxattr, fremovexattr.
    Name,
    /// fallocate.
    Allocate,
    /// getrlimit, setrlimit, prctl.
    Limit,
    /// futex(FUTEX_WAIT).
    Futex,
    /// pthread_create.
    Thread,
    /// unshare.
    Unshare,
    /// nanosleep.
    Sleep,
    /// Reading a directory.
    List,
    /// userfaultfd, or the device's ioctl.
    Uffd,
    /// UFFDIO_API.
    Api,
    /// UFFDIO_REGISTER.
    Register,
    /// UFFDIO_UNREGISTER.
    Forget,
    /// UFFDIO_WAKE.
    Wake,
    /// UFFDIO_COPY.
    Copy,
    /// UFFDIO_ZEROPAGE.
    Zero,
    /// UFFDIO_MOVE.
    Move,
    /// UFFDIO_WRITEPROTECT.
    Guard,
    /// PROCMAP_QUERY.
    Query,
    /// vmsplice, splice.
    Splice,
    /// process_vm_readv.
    Peek,
    /// getsockopt, ioctl that asks.
    Ask,
}

impl Kind {
    /// The name in the log: the variant's, in eight bytes.
    fn name(self) -> u64 {
        let mut name = [0u8; 8];
        let mut text = Text(&mut name, 0);
        // What does not fit is cut.
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

/// What a call gives that was refused.
pub trait Refusal {
    /// That value; `errno` says why.
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

/// Address of the shared log; 0: nothing is counted yet.
static LOG: AtomicUsize = AtomicUsize::new(0);
/// The call to fail, 0: none.
static AT: AtomicU64 = AtomicU64::new(0);
static ERRNO: AtomicI32 = AtomicI32::new(0);
/// The kind of calls that all fail, or -1.
static REFUSED: AtomicI32 = AtomicI32::new(-1);
/// The character behind N, or 0.
static MODE: AtomicI32 = AtomicI32::new(0);

/// Whether so long a range of addresses is not to be had.
#[must_use]
pub fn is_too_long(len_bytes: usize) -> bool {
    static MAX: AtomicUsize = AtomicUsize::new(0);
    if MAX.load(Relaxed) == 0 {
        // SAFETY: the name is terminated; nobody changes the environment meanwhile; the value is terminated.
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

/// Begins to count, and takes the plan from the environment. Called once, when the library is loaded.
pub fn begin() {
    // SAFETY: the strings are terminated; nobody changes the environment while a library is loaded; a
    // mapping of our own, shared with forked children, never unmapped.
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
            let digits = at.trim_end_matches(['+', '~']);
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
        // SAFETY: only `begin` stores here: a mapping of this size that is never unmapped.
        address => Some(unsafe { &*(address as *const Log) }),
    }
}

/// Whether the kernel can go on with this answer. It cannot for ever refuse to wake threads on an open
/// descriptor, or to say what happened there, or say that an absent page is present: its bytes would be lost. Nor are there signals all
/// the time, or nothing on a socket that poll has said to be readable.
fn can_last(kind: Kind) -> bool {
    let errno = ERRNO.load(Relaxed);
    let lies = match kind {
        Kind::Copy | Kind::Zero => errno == libc::EEXIST,
        Kind::Write => errno == libc::EINTR,
        Kind::Ask | Kind::Open => errno == libc::EINTR || errno == libc::EAGAIN,
        _ => false,
    };
    !lies && !matches!(kind, Kind::Wake | Kind::Read)
}

/// Counts a call; true: it must fail, with `errno` as it is then.
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
    if at == 0 || kind == Kind::Close {
        return false;
    }
    let refused = match MODE.load(Relaxed) as u8 {
        b'+' if can_last(kind) => {
            number >= at
                && log.kinds.get(at as usize - 1).is_some_and(|first| first.load(Relaxed) == kind.name())
        }
        b'~' => number == at + 1,
        _ => number == at,
    };
    if refused {
        errno::set(ERRNO.load(Relaxed));
    }
    refused
}

/// Lets every call of a kind fail from here on, for tests inside the process.
pub fn refuse(kind: Kind, errno: i32) {
    ERRNO.store(errno, Relaxed);
    REFUSED.store(kind as i32, Relaxed);
}

/// Ends what [`refuse`] began.
pub fn refuse_nothing() {
    REFUSED.store(-1, Relaxed);
}

/// Whether the next call to be counted does only half of its work.
#[must_use]
pub fn next_is_cut() -> bool {
    MODE.load(Relaxed) == i32::from(b'~')
        && log().is_some_and(|log| log.count.load(Relaxed) + 1 == AT.load(Relaxed))
}
