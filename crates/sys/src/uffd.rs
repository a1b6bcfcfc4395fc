//! userfaultfd: registration, page placement and the fault messages.
//!
//! Kernel: missing-page faults since 4.3, thread ids since 4.14, `UFFDIO_MOVE` since 6.8
//! (Documentation/admin-guide/mm/userfaultfd.rst). The structures and numbers are those of
//! include/uapi/linux/userfaultfd.h; distributions' headers may be older than the kernel.

use crate::PAGE_BYTES;
use crate::call::{kernel, syscall};
use crate::control::Control;
use crate::errno::{Errno, check};
pub use crate::messages::{Access, Change, Fault, Message, Placed, Ready, Reports};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

const API: u64 = 0xAA;
const FEATURE_WRITES: u64 = 1;
const FEATURE_THREAD_ID: u64 = 1 << 8;
/// `UFFDIO_MOVE`.
pub const FEATURE_MOVE: u64 = 1 << 16;
/// The feature that the engine cannot do without: faults that name their thread.
pub const NEEDED_FEATURES: u64 = FEATURE_THREAD_ID;
/// Faults from inside system calls are not served; needs no privilege (Linux 5.11).
pub const USER_MODE_ONLY: i32 = 1;

const IOCTL_NEW: u64 = 0xAA00;
const IOCTL_API: u64 = 0xC018_AA3F;
const IOCTL_REGISTER: u64 = 0xC020_AA00;
const IOCTL_UNREGISTER: u64 = 0x8010_AA01;
const IOCTL_WAKE: u64 = 0x8010_AA02;
const IOCTL_COPY: u64 = 0xC028_AA03;
const IOCTL_ZEROPAGE: u64 = 0xC020_AA04;
const IOCTL_MOVE: u64 = 0xC028_AA05;
const IOCTL_WRITE_PROTECT: u64 = 0xC018_AA06;

const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WRITES: u64 = 1 << 1;
/// The pages that `UFFDIO_COPY` puts there are write-protected.
const COPY_MODE_PROTECTED: u64 = 1 << 1;
const WRITE_PROTECT: u64 = 1;
/// A write to a protected page, `uffd_msg.arg.pagefault.flags`.
const FLAG_PROTECTED: u64 = 1 << 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
/// Changes of mappings are reported: mremap, madvise that drops pages, munmap and whatever replaces a
/// mapping (Linux 4.11).
const FEATURE_EVENTS: u64 = (1 << 2) | (1 << 3) | (1 << 6);

/// Times an ioctl that says "try again" is tried again before the caller must fall back.
const RETRIES: u32 = 64;

#[repr(C)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeArgument {
    start: u64,
    len_bytes: u64,
}

#[repr(C)]
struct RegisterArgument {
    range: RangeArgument,
    mode: u64,
    ioctls: u64,
}

/// Argument of `UFFDIO_COPY` and of `UFFDIO_MOVE`: both have this shape.
#[repr(C)]
struct PlaceArgument {
    destination: u64,
    source: u64,
    len_bytes: u64,
    mode: u64,
    /// Bytes placed, or a negated error number.
    done: i64,
}

#[repr(C)]
struct ZeroArgument {
    start: u64,
    len_bytes: u64,
    mode: u64,
    /// Bytes placed, or a negated error number.
    done: i64,
}

#[repr(C)]
struct ProtectArgument {
    range: RangeArgument,
    mode: u64,
}

/// The number of a request holds its argument's size, bytes (include/uapi/asm-generic/ioctl.h).
const fn argument_bytes(request: u64) -> usize {
    (request >> 16) as usize & 0x3FFF
}

const _: () = assert!(
    argument_bytes(IOCTL_API) == size_of::<ApiArgument>()
        && argument_bytes(IOCTL_REGISTER) == size_of::<RegisterArgument>()
        && argument_bytes(IOCTL_UNREGISTER) == size_of::<RangeArgument>()
        && argument_bytes(IOCTL_WAKE) == size_of::<RangeArgument>()
        && argument_bytes(IOCTL_COPY) == size_of::<PlaceArgument>()
        && argument_bytes(IOCTL_ZEROPAGE) == size_of::<ZeroArgument>()
        && argument_bytes(IOCTL_MOVE) == size_of::<PlaceArgument>()
        && argument_bytes(IOCTL_WRITE_PROTECT) == size_of::<ProtectArgument>()
);

/// Where a test wants it, a placement that stops half-way as if it had been interrupted.
fn cut(argument: &mut PlaceArgument, call: impl Fn(&mut PlaceArgument) -> i32) -> i32 {
    #[cfg(feature = "inject")]
    if crate::inject::next_is_cut() {
        argument.len_bytes = argument.len_bytes / 2 / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if argument.len_bytes > 0 && call(argument) != 0 {
            return -1;
        }
        crate::errno::set(libc::EAGAIN);
        return -1;
    }
    call(argument)
}

static MOVES: AtomicBool = AtomicBool::new(true);

/// Whether pages are moved (`UFFDIO_MOVE`). Where not, [`Uffd::move_pages`] moves none, and asks nobody.
#[must_use]
pub fn moves() -> bool {
    MOVES.load(Relaxed)
}

/// No page is moved from here on: the kernel cannot (before Linux 6.8), or nobody wants it.
pub fn leave_moves() {
    MOVES.store(false, Relaxed);
}

/// A userfaultfd of this process.
#[derive(Clone, Copy, Debug)]
pub struct Uffd {
    fd: i32,
}

/// Why there is no userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The system call and `/dev/userfaultfd` were both refused.
    Refused(Errno),
    /// The kernel lacks a feature.
    NoFeature(Errno),
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Refused(errno) => write!(f, "userfaultfd was refused: {errno}"),
            Self::NoFeature(errno) => {
                write!(
                    f,
                    "userfaultfd lacks thread ids (Linux 4.14) or write protection (Linux 5.7): {errno}"
                )
            }
        }
    }
}

/// Whether `fd` is an open `/dev/userfaultfd` (character device 10, and not some other file that
/// took the number).
fn is_device(fd: i32) -> bool {
    // SAFETY: an all-zero stat is a valid buffer for fstat to fill.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the buffer is valid.
    let known = unsafe { kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) } == 0;
    known && found.st_mode & libc::S_IFMT == libc::S_IFCHR && libc::major(found.st_rdev) == 10
}

/// A descriptor by the system call, closed on exec.
///
/// # Errors
/// EPERM without the privilege, ENOSYS where the kernel has no userfaultfd.
pub fn by_call(flags: i32) -> Result<i32, Errno> {
    // SAFETY: creates a descriptor, touches no memory.
    check(unsafe { kernel!(Uffd, syscall!(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC)) })
        .map(|fd| fd as i32)
}

/// A descriptor by an open `/dev/userfaultfd` (Linux 6.1), closed on exec.
///
/// # Errors
/// ENOTTY if `device` is something else.
pub fn by_device(device: i32, flags: i32) -> Result<i32, Errno> {
    // SAFETY: the request takes flags by value and creates a descriptor, touches no memory.
    let fd = unsafe { kernel!(Uffd, libc::ioctl(device, IOCTL_NEW, flags | libc::O_CLOEXEC)) };
    check(i64::from(fd)).map(|_| fd)
}

fn open_any(inherited: Option<i32>) -> Result<i32, Errno> {
    let refused = match by_call(libc::O_NONBLOCK) {
        Ok(fd) => return Ok(fd),
        Err(errno) => errno,
    };
    if let Some(fd) =
        inherited.filter(|fd| is_device(*fd)).and_then(|device| by_device(device, libc::O_NONBLOCK).ok())
    {
        return Ok(fd);
    }
    let Some(device) = open_path() else { return Err(refused) };
    let fd = by_device(device, libc::O_NONBLOCK);
    // SAFETY: opened above, and nobody else knows it.
    unsafe { kernel!(Close, syscall!(libc::SYS_close, device)) };
    fd
}

/// `/dev/userfaultfd`, if it may be opened, closed on exec.
fn open_path() -> Option<i32> {
    let path = c"/dev/userfaultfd";
    // SAFETY: the path is terminated.
    let device = check(unsafe {
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0))
    });
    device.ok().map(|device| device as i32)
}

/// The same with a high number, for a process that may lose the right to open it: see [`Uffd::open`].
#[must_use]
pub fn open_device() -> Option<i32> {
    let _errno = crate::errno::Keep::new();
    let low = open_path()?;
    let device = crate::fd::duplicate_high(low);
    // SAFETY: the low number is ours and no longer needed.
    unsafe { kernel!(Close, syscall!(libc::SYS_close, low)) };
    device
}

impl Uffd {
    /// Opens a userfaultfd that serves faults from user mode and from inside system calls.
    ///
    /// The descriptor gets a high number, out of the way of the program's own.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(inherited_device: Option<i32>, reports: Reports) -> Result<Self, OpenError> {
        let low = open_any(inherited_device).map_err(OpenError::Refused)?;
        let fd = crate::fd::duplicate_high(low);
        let uffd = Self { fd: fd.unwrap_or(low) };
        if fd.is_some() {
            // SAFETY: the low number is ours and no longer needed.
            unsafe { kernel!(Close, syscall!(libc::SYS_close, low)) };
        }
        let features = match reports {
            Reports::Faults => NEEDED_FEATURES,
            Reports::Changes => NEEDED_FEATURES | FEATURE_EVENTS,
            Reports::Writes => FEATURE_THREAD_ID | FEATURE_WRITES,
        };
        // What is refused leaves the descriptor as it was.
        let agreed = match reports {
            Reports::Faults | Reports::Changes if moves() => uffd
                .agree(features | FEATURE_MOVE)
                .inspect_err(|_| leave_moves())
                .or_else(|_| uffd.agree(features)),
            _ => uffd.agree(features),
        };
        match agreed {
            Ok(_) => {
                if reports == Reports::Faults && moves() && !uffd.may_move() {
                    leave_moves();
                }
                Ok(uffd)
            }
            Err(errno) => {
                uffd.close();
                Err(OpenError::NoFeature(errno))
            }
        }
    }

    /// Whether the kernel would listen to a request to move pages: it finds fault with an empty one. A filter of system
    /// calls says something else.
    fn may_move(self) -> bool {
        let mut nothing = PlaceArgument { destination: 0, source: 0, len_bytes: 0, mode: 0, done: 0 };
        // SAFETY: the structure that the request takes; nothing is moved.
        let result =
            check(i64::from(unsafe { kernel!(Move, libc::ioctl(self.fd, IOCTL_MOVE, &raw mut nothing)) }));
        result == Err(Errno(libc::EINVAL))
    }

    /// Agrees with the kernel on `features`, which a descriptor does once; every feature that the kernel has.
    ///
    /// # Errors
    /// EINVAL if the kernel lacks one of them, or something was agreed on before.
    pub fn agree(self, features: u64) -> Result<u64, Errno> {
        let mut api = ApiArgument { api: API, features, ioctls: 0 };
        // SAFETY: the request reads and writes one uffdio_api, which `api` is laid out as.
        let result = unsafe { kernel!(Api, libc::ioctl(self.fd, IOCTL_API, &raw mut api)) };
        check(i64::from(result)).map(|_| api.features)
    }

    /// The userfaultfd with this descriptor.
    #[must_use]
    pub const fn from_fd(fd: i32) -> Self {
        Self { fd }
    }

    /// The descriptor's number.
    #[must_use]
    pub const fn fd(self) -> i32 {
        self.fd
    }

    /// Closes the descriptor.
    pub fn close(self) {
        // SAFETY: the descriptor is ours.
        unsafe { kernel!(Close, syscall!(libc::SYS_close, self.fd)) };
    }

    /// Closes the descriptor unless the program has closed it and uses the number for something else.
    pub fn close_if_ours(self) {
        let mut nothing = RangeArgument { start: 0, len_bytes: 0 };
        // A userfaultfd finds fault with an empty range; anything else does not know the request.
        if self.ask_to_wake(&mut nothing) == Err(Errno(libc::EINVAL)) {
            self.close();
        }
    }

    /// On a descriptor that the program closed and reused the kernel answers ENOTTY or EBADF to this and
    /// to the other requests, and touches nothing.
    fn ask_to_wake(self, range: &mut RangeArgument) -> Result<(), Errno> {
        // SAFETY: the structure that the request takes.
        let result = unsafe { kernel!(Wake, libc::ioctl(self.fd, IOCTL_WAKE, &raw mut *range)) };
        check(i64::from(result)).map(drop)
    }

    /// Registers pages: from here on, touching an absent one is reported as a [`Fault`].
    ///
    /// # Errors
    /// What the kernel says; ENOMEM when there are too many mappings.
    pub fn register(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.register_for(address, len_bytes, REGISTER_MODE_MISSING)
    }

    /// The same, and writes to pages that [`Uffd::protect`] protects are reported too.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn register_with_writes(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.register_for(address, len_bytes, REGISTER_MODE_MISSING | REGISTER_MODE_WRITES)
    }

    fn register_for(self, address: usize, len_bytes: usize, mode: u64) -> Result<(), Errno> {
        let range = RangeArgument { start: address as u64, len_bytes: len_bytes as u64 };
        let mut argument = RegisterArgument { range, mode, ioctls: 0 };
        // SAFETY: the structure that the request takes.
        let result = unsafe { kernel!(Register, libc::ioctl(self.fd, IOCTL_REGISTER, &raw mut argument)) };
        check(i64::from(result)).map(drop)
    }

    /// Protects the present pages of a range against writes: when this returns, no thread can write there.
    ///
    /// # Errors
    /// What the kernel says; some of the pages may be protected then.
    pub fn protect(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.set_protection(address, len_bytes, WRITE_PROTECT)
    }

    /// Lifts the protection and wakes whoever waits to write there.
    ///
    /// # Errors
    /// What the kernel says; some of the pages may be free then.
    pub fn unprotect(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.set_protection(address, len_bytes, 0)
    }

    fn set_protection(self, address: usize, len_bytes: usize, mode: u64) -> Result<(), Errno> {
        let mut tries = 0;
        loop {
            let range = RangeArgument { start: address as u64, len_bytes: len_bytes as u64 };
            let mut argument = ProtectArgument { range, mode };
            // SAFETY: the structure that the request takes.
            let result =
                unsafe { kernel!(Guard, libc::ioctl(self.fd, IOCTL_WRITE_PROTECT, &raw mut argument)) };
            match check(i64::from(result)) {
                Err(Errno(libc::EAGAIN | libc::EINTR)) if tries < RETRIES => tries += 1,
                result => return result.map(drop),
            }
        }
    }

    /// Takes the registration back; threads that wait are woken and touch again.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn unregister(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let mut range = RangeArgument { start: address as u64, len_bytes: len_bytes as u64 };
        // SAFETY: the structure that the request takes.
        let result = unsafe { kernel!(Forget, libc::ioctl(self.fd, IOCTL_UNREGISTER, &raw mut range)) };
        check(i64::from(result)).map(drop)
    }

    /// Wakes threads that wait on these pages; they touch again. False if the kernel refused, which it
    /// has no reason to while the descriptor is open.
    pub fn wake(self, address: usize, len_bytes: usize) -> bool {
        let mut range = RangeArgument { start: address as u64, len_bytes: len_bytes as u64 };
        (0..RETRIES).any(|_| self.ask_to_wake(&mut range).is_ok())
    }

    fn place(
        len_bytes: usize,
        (mut destination, mut source): (usize, usize),
        call: impl Fn(&mut PlaceArgument) -> i32,
    ) -> Placed {
        let mut done_bytes = 0;
        // A page that is said to be there already is asked for twice: whoever believes it wrongly has lost
        // the page's bytes.
        let mut doubted = false;
        let mut max_bytes = len_bytes;
        let mut tries = 0;
        while done_bytes < len_bytes {
            let mut argument = PlaceArgument {
                destination: destination as u64,
                source: source as u64,
                len_bytes: (len_bytes - done_bytes).min(max_bytes) as u64,
                mode: 0,
                done: 0,
            };
            let asked_bytes = argument.len_bytes as usize;
            let result = check(i64::from(call(&mut argument)));
            let step_bytes = usize::try_from(argument.done).unwrap_or(0);
            done_bytes += step_bytes;
            destination += step_bytes;
            source += step_bytes;
            if step_bytes > 0 {
                (doubted, max_bytes, tries) = (false, len_bytes, 0);
            }
            tries += 1;
            match result {
                Ok(_) if step_bytes > 0 => {}
                Err(Errno(libc::EEXIST)) if !doubted => doubted = true,
                // Interrupted part-way, or the mappings are changing.
                Ok(_) | Err(Errno(libc::EAGAIN | libc::EINTR)) if tries < RETRIES => {}
                Ok(_) => return Placed { done_bytes, error: Some(Errno(libc::EAGAIN)) },
                // A range that crosses mappings is refused as a whole; madvise and mprotect by the program
                // split them.
                Err(Errno(libc::ENOENT | libc::EINVAL)) if asked_bytes > PAGE_BYTES => {
                    max_bytes = (asked_bytes / 2).next_multiple_of(PAGE_BYTES);
                }
                Err(errno) => return Placed { done_bytes, error: Some(errno) },
            }
        }
        Placed { done_bytes, error: None }
    }

    /// Whether a thread is just now changing registered mappings, from before the change until it has been read:
    /// the kernel then refuses every placement, also one of nothing (`mmap_changing`, fs/userfaultfd.c). Only where
    /// [`Reports::Changes`] were asked for.
    #[must_use]
    pub fn is_changing(self) -> bool {
        let mut nothing = PlaceArgument { destination: 0, source: 0, len_bytes: 0, mode: 0, done: 0 };
        // SAFETY: the structure that the request takes; nothing is placed.
        let result = check(i64::from(unsafe { libc::ioctl(self.fd, IOCTL_COPY, &raw mut nothing) }));
        result == Err(Errno(libc::EAGAIN))
    }

    /// Puts copies of `source`'s bytes into absent pages and wakes whoever waits for them.
    /// All three are whole pages, except that `source` need not be aligned.
    ///
    /// # Safety
    /// `source` must be readable for `len_bytes`, without a fault that this process's handler
    /// would have to serve if the caller is that handler.
    #[must_use]
    pub unsafe fn copy(self, destination: usize, source: usize, len_bytes: usize) -> Placed {
        Self::place(len_bytes, (destination, source), |argument| {
            // SAFETY: the request takes one uffdio_copy; the caller says that the source is readable.
            cut(argument, |argument| unsafe { kernel!(Copy, libc::ioctl(self.fd, IOCTL_COPY, argument)) })
        })
    }

    /// The same; the new pages are protected against writes.
    ///
    /// # Safety
    /// As for [`Uffd::copy`].
    #[must_use]
    pub unsafe fn copy_protected(self, destination: usize, source: usize, len_bytes: usize) -> Placed {
        Self::place(len_bytes, (destination, source), |argument| {
            argument.mode = COPY_MODE_PROTECTED;
            // SAFETY: the request takes one uffdio_copy; the caller says that the source is readable.
            cut(argument, |argument| unsafe { kernel!(Copy, libc::ioctl(self.fd, IOCTL_COPY, argument)) })
        })
    }

    /// Lets one absent page read as zeroes and wakes whoever waits for it.
    ///
    /// # Errors
    /// What the kernel says; EEXIST if it is present.
    pub fn zero_page(self, address: usize) -> Result<(), Errno> {
        let mut argument =
            ZeroArgument { start: address as u64, len_bytes: PAGE_BYTES as u64, mode: 0, done: 0 };
        // SAFETY: the structure that the request takes.
        let result = unsafe { kernel!(Zero, libc::ioctl(self.fd, IOCTL_ZEROPAGE, &raw mut argument)) };
        check(i64::from(result)).map(drop)
    }

    /// Moves pages into absent ones and wakes whoever waits for them; the source pages are absent
    /// afterwards. Stops at a page that is absent at the source (ENOENT), shared with a forked
    /// process or pinned (EBUSY), or present at the destination (EEXIST). EOPNOTSUPP where pages are not moved ([`moves`]).
    ///
    /// # Safety
    /// Both ranges must be whole pages of memory that the caller may rearrange.
    #[must_use]
    pub unsafe fn move_pages(self, destination: usize, source: usize, len_bytes: usize) -> Placed {
        if !moves() {
            return Placed { done_bytes: 0, error: Some(Errno(libc::EOPNOTSUPP)) };
        }
        Self::place(len_bytes, (destination, source), |argument| {
            // SAFETY: the request takes one uffdio_move; the caller may rearrange both ranges.
            cut(argument, |argument| unsafe { kernel!(Move, libc::ioctl(self.fd, IOCTL_MOVE, argument)) })
        })
    }

    /// Makes the handler of this userfaultfd look up, and returns when it has: by touching a page that it
    /// has to put in place. `announce` is told the page's address before.
    ///
    /// # Errors
    /// What mmap or the registration say; nothing was announced or touched then.
    pub fn ring(self, announce: impl FnOnce(usize)) -> Result<(), Errno> {
        // SAFETY: a fresh mapping.
        let page = unsafe { crate::mem::map_private(PAGE_BYTES, None) }?;
        let registered = self.register(page, PAGE_BYTES);
        if registered.is_ok() {
            announce(page);
            // SAFETY: the page is readable once the handler has put it there.
            unsafe { (page as *const u8).read_volatile() };
        }
        // SAFETY: the mapping made above, of which nobody else knows.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, page, PAGE_BYTES)) };
        registered
    }

    /// Hands what there is to `each`; waits for nothing. False when the descriptor is of no use any more.
    pub fn read(self, mut each: impl FnMut(Message)) -> bool {
        self.read_words(|message| {
            // uffd_msg: event u8 + padding; then for faults flags u64, address u64, ptid u32, for
            // moves from, to, len_bytes, for the others start, end.
            let [event, first, second, third] = message;
            let (start, end) = (first as usize, second as usize);
            match event.to_ne_bytes()[0] {
                EVENT_PAGEFAULT => each(Message::Fault(Fault { address: end, thread_id: third as u32 })),
                EVENT_REMOVE | EVENT_UNMAP => each(Message::Change(Change { start, end, moved_to: None })),
                EVENT_REMAP => {
                    let moved_to = Some(end);
                    each(Message::Change(Change { start, end: start + third as usize, moved_to }));
                }
                _ => {}
            }
        })
    }

    /// Whether reading waits for something to read from here on; true if that was done. While it does, `wait` is of no
    /// use (fs/userfaultfd.c: poll reports an error then).
    #[must_use]
    pub fn set_waiting(self, waits: bool) -> bool {
        let flags = libc::O_RDWR | if waits { 0 } else { libc::O_NONBLOCK };
        // SAFETY: changes a flag of a descriptor of ours.
        check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, self.fd, libc::F_SETFL, flags)) }).is_ok()
    }

    /// The same for faults of both kinds.
    pub fn read_faults(self, mut each: impl FnMut(Fault, Access)) -> bool {
        self.read_words(|[event, flags, address, thread_id]| {
            if event.to_ne_bytes()[0] == EVENT_PAGEFAULT {
                let access = if flags & FLAG_PROTECTED == 0 { Access::Missing } else { Access::Protected };
                each(Fault { address: address as usize, thread_id: thread_id as u32 }, access);
            }
        })
    }

    fn read_words(self, mut each: impl FnMut([u64; 4])) -> bool {
        let mut messages = [[0u64; 4]; 16];
        // SAFETY: the buffer is valid for its size; a message is 32 bytes.
        let got = unsafe {
            let len_bytes = core::mem::size_of_val(&messages);
            kernel!(Read, syscall!(libc::SYS_read, self.fd, messages.as_mut_ptr(), len_bytes))
        };
        if got == -1 {
            let is_gone = matches!(crate::errno::get(), libc::EBADF | libc::EINVAL);
            if !is_gone && crate::errno::get() != libc::EAGAIN {
                crate::clock::pause();
            }
            return !is_gone;
        }
        messages[..usize::try_from(got).unwrap_or(0) / 32].iter().for_each(|message| each(*message));
        true
    }
}

/// Waits up to `timeout_ms` (-1: without limit) until there is something to read.
pub fn wait(first: Uffd, second: Option<Uffd>, control: Control, timeout_ms: i32) -> Ready {
    let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polls = [watch(first.fd), watch(second.map_or(-1, |second| second.fd)), watch(control.fd())];
    // SAFETY: three valid pollfds; a negative descriptor is passed over.
    let ready = unsafe { kernel!(Poll, syscall!(libc::SYS_poll, polls.as_mut_ptr(), 3, timeout_ms)) };
    if ready == -1 {
        // Interrupted, or no memory: reading does not wait, so it tells as well.
        crate::clock::pause();
        return Ready { first: true, second: second.is_some(), ..Ready::default() };
    }
    let [first, second, control] = polls.map(|poll| poll.revents);
    Ready {
        first: first != 0,
        second: second != 0,
        control: control != 0,
        is_closed: first & libc::POLLNVAL != 0,
    }
}
