//! userfaultfd: registration, page placement and the fault messages.
//!
//! Kernel: missing-page faults since 4.3, thread ids since 4.14, `UFFDIO_MOVE` since 6.8
//! (Documentation/admin-guide/mm/userfaultfd.rst).

use crate::PAGE_BYTES;
use crate::call::{ioctl, kernel, syscall};
use crate::control::Control;
use crate::descriptor::{Descriptor, OwnFd, ProgramFd};
use crate::errno::{Errno, check};
pub use crate::messages::{Access, Change, Fault, Message, Placed, Ready, Reports};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

mod abi;

use abi::{
    API, ApiArgument, COPY_MODE_PROTECTED, EVENT_PAGEFAULT, EVENT_REMAP, EVENT_REMOVE, EVENT_UNMAP,
    FEATURE_EVENTS, FEATURE_THREAD_ID, FEATURE_WRITES, FLAG_PROTECTED, IOCTL_API, IOCTL_COPY, IOCTL_MOVE,
    IOCTL_NEW, IOCTL_REGISTER, IOCTL_UNREGISTER, IOCTL_WAKE, IOCTL_WRITE_PROTECT, IOCTL_ZEROPAGE,
    PlaceArgument, ProtectArgument, REGISTER_MODE_MISSING, REGISTER_MODE_WRITES, RangeArgument,
    RegisterArgument, WRITE_PROTECT, ZeroArgument,
};
pub use abi::{FEATURE_MOVE, NEEDED_FEATURES, USER_MODE_ONLY};

/// Number of times that an ioctl is retried after EAGAIN before the caller must fall back.
const RETRIES: u32 = 64;

/// Makes a placement stop half-way, as if interrupted, if a test asks for it.
fn call_or_cut(argument: &mut PlaceArgument, call: impl Fn(&mut PlaceArgument) -> i32) -> i32 {
    #[cfg(feature = "inject")]
    if crate::inject::is_next_short() {
        argument.len_bytes = argument.len_bytes / 2 / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if argument.len_bytes > 0 && call(argument) != 0 {
            return -1;
        }
        crate::errno::set(libc::EAGAIN);
        return -1;
    }
    call(argument)
}

static MOVES_PAGES: AtomicBool = AtomicBool::new(true);

/// Whether pages are moved (`UFFDIO_MOVE`). If not, [`Uffd::move_pages`] fails at once.
#[must_use]
pub fn can_move_pages() -> bool {
    MOVES_PAGES.load(Relaxed)
}

/// Stops moving pages for good: the kernel cannot (before Linux 6.8), or an option forbids it.
pub fn disable_moves() {
    MOVES_PAGES.store(false, Relaxed);
}

/// A userfaultfd of this process.
#[derive(Clone, Copy, Debug)]
pub struct Uffd {
    fd: i32,
}

impl From<OwnFd> for Uffd {
    fn from(fd: OwnFd) -> Self {
        Self { fd: fd.leave_open() }
    }
}

/// Reason why there is no userfaultfd.
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

/// Whether `fd` is an open `/dev/userfaultfd` (major number 10), not another file that reused the number.
fn is_device(fd: impl Descriptor) -> bool {
    // SAFETY: an all-zero stat is a valid buffer for fstat to fill.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `found` is a `stat`, which fstat(2) fills and which lives through the call.
    let is_found = unsafe { kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) } == 0;
    is_found && found.st_mode & libc::S_IFMT == libc::S_IFCHR && libc::major(found.st_rdev) == 10
}

/// Sets close-on-exec on an inherited device, so that programs which this one executes do not get it.
pub fn close_device_on_exec(fd: ProgramFd) {
    let _errno = crate::errno::SavedErrno::new();
    if is_device(fd) {
        crate::fd::close_on_exec(fd);
    }
}

/// Creates a userfaultfd by the system call, closed on exec.
///
/// # Errors
/// EPERM without the privilege, ENOSYS if the kernel has no userfaultfd.
pub fn create_by_syscall(flags: i32) -> Result<OwnFd, Errno> {
    // SAFETY: userfaultfd(2) takes only integers and returns a new descriptor.
    OwnFd::from_result(unsafe { kernel!(Uffd, syscall!(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC)) })
}

/// Creates a userfaultfd by an open `/dev/userfaultfd` (Linux 6.1), closed on exec.
///
/// # Errors
/// ENOTTY if `device` is something else.
pub fn create_by_device(device: impl Descriptor, flags: i32) -> Result<OwnFd, Errno> {
    // SAFETY: USERFAULTFD_IOC_NEW takes its flags by value and returns a new descriptor.
    OwnFd::from_result(i64::from(unsafe {
        kernel!(Uffd, ioctl!(device, IOCTL_NEW, flags | libc::O_CLOEXEC))
    }))
}

fn open_any(inherited: Option<ProgramFd>) -> Result<OwnFd, Errno> {
    let refused = match create_by_syscall(libc::O_NONBLOCK) {
        Ok(fd) => return Ok(fd),
        Err(errno) => errno,
    };
    if let Some(device) = inherited.filter(|fd| is_device(*fd))
        && let Ok(fd) = create_by_device(device, libc::O_NONBLOCK)
    {
        return Ok(fd);
    }
    let device = open_path().ok_or(refused)?;
    create_by_device(&device, libc::O_NONBLOCK)
}

/// Opens `/dev/userfaultfd`, closed on exec, if permissions allow it.
fn open_path() -> Option<OwnFd> {
    crate::file::open(c"/dev/userfaultfd", libc::O_RDWR, 0).ok()
}

/// Opens the device under a high number, for a process that may lose the right to open it: see
/// [`Uffd::open`].
#[must_use]
pub fn open_device() -> Option<OwnFd> {
    let _errno = crate::errno::SavedErrno::new();
    crate::fd::duplicate_high(&open_path()?)
}

impl Uffd {
    /// Opens a userfaultfd that serves faults from user mode and from inside system calls, under a
    /// high number, which the program does not use.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(inherited_device: Option<ProgramFd>, reports: Reports) -> Result<Self, OpenError> {
        let low = open_any(inherited_device).map_err(OpenError::Refused)?;
        let uffd = Self::from(crate::fd::duplicate_high(&low).unwrap_or(low));
        let features = match reports {
            Reports::Faults => NEEDED_FEATURES,
            Reports::Changes => NEEDED_FEATURES | FEATURE_EVENTS,
            Reports::Writes => FEATURE_THREAD_ID | FEATURE_WRITES,
        };
        // A refused handshake leaves the descriptor as it was, so that it can be repeated.
        let agreed = match reports {
            Reports::Faults | Reports::Changes if can_move_pages() => uffd
                .enable_features(features | FEATURE_MOVE)
                .inspect_err(|_| disable_moves())
                .or_else(|_| uffd.enable_features(features)),
            _ => uffd.enable_features(features),
        };
        match agreed {
            Ok(_) => {
                if reports == Reports::Faults && can_move_pages() && !uffd.may_move() {
                    disable_moves();
                }
                Ok(uffd)
            }
            Err(errno) => {
                uffd.close();
                Err(OpenError::NoFeature(errno))
            }
        }
    }

    /// Whether the kernel implements `UFFDIO_MOVE`: it refuses an empty range with EINVAL. A
    /// seccomp filter gives another error.
    fn may_move(self) -> bool {
        let mut nothing = PlaceArgument { destination: 0, source: 0, len_bytes: 0, mode: 0, done: 0 };
        // SAFETY: `nothing` has the layout that UFFDIO_MOVE expects; an empty range moves nothing.
        let result =
            check(i64::from(unsafe { kernel!(Move, ioctl!(self.fd, IOCTL_MOVE, &raw mut nothing)) }));
        result == Err(Errno(libc::EINVAL))
    }

    /// Enables `features` (`UFFDIO_API`), once for each descriptor; returns all features that the kernel has.
    ///
    /// # Errors
    /// EINVAL if the kernel lacks one of them, or features were enabled before.
    pub fn enable_features(self, features: u64) -> Result<u64, Errno> {
        let mut api = ApiArgument { api: API, features, ioctls: 0 };
        // SAFETY: UFFDIO_API reads and writes one uffdio_api, whose layout `api` has.
        let result = unsafe { kernel!(Api, ioctl!(self.fd, IOCTL_API, &raw mut api)) };
        check(i64::from(result)).map(|_| api.features)
    }

    /// The userfaultfd with this descriptor number.
    #[must_use]
    pub const fn from_fd(fd: i32) -> Self {
        Self { fd }
    }

    /// The descriptor's number.
    #[must_use]
    pub const fn fd(self) -> i32 {
        self.fd
    }

    /// The descriptor as the program would name it; the hooks hide it from the program.
    #[must_use]
    pub const fn as_program(self) -> ProgramFd {
        ProgramFd::new(self.fd)
    }

    /// Closes the userfaultfd's descriptor.
    pub fn close(self) {
        drop(OwnFd::new(self.fd));
    }

    /// Closes the descriptor unless the program has closed it and uses the number for something else.
    pub fn close_if_ours(self) {
        let mut nothing = RangeArgument { start: 0, len_bytes: 0 };
        // A userfaultfd refuses an empty range with EINVAL; other files do not know the request.
        if self.request_wake(&mut nothing) == Err(Errno(libc::EINVAL)) {
            self.close();
        }
    }

    /// Wakes the threads that wait in a range. If the program has closed the descriptor and reused
    /// its number, this and the other requests fail with ENOTTY or EBADF and change nothing.
    fn request_wake(self, range: &mut RangeArgument) -> Result<(), Errno> {
        // SAFETY: `range` has the layout that UFFDIO_WAKE expects and lives through the call.
        let result = unsafe { kernel!(Wake, ioctl!(self.fd, IOCTL_WAKE, &raw mut *range)) };
        check(i64::from(result)).map(drop)
    }

    /// Registers pages: from here on an access to an absent one is reported as a [`Fault`].
    ///
    /// # Errors
    /// Any error of the request; ENOMEM when there are too many mappings.
    pub fn register(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.register_for(address, len_bytes, REGISTER_MODE_MISSING)
    }

    /// Registers pages, also for writes to those that [`Uffd::protect`] protects.
    ///
    /// # Errors
    /// Any error of the request.
    pub fn register_for_write_protection(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.register_for(address, len_bytes, REGISTER_MODE_MISSING | REGISTER_MODE_WRITES)
    }

    fn register_for(self, address: usize, len_bytes: usize, mode: u64) -> Result<(), Errno> {
        let range = RangeArgument { start: address as u64, len_bytes: len_bytes as u64 };
        let mut argument = RegisterArgument { range, mode, ioctls: 0 };
        // SAFETY: `argument` has the layout that UFFDIO_REGISTER expects and lives through the call.
        let result = unsafe { kernel!(Register, ioctl!(self.fd, IOCTL_REGISTER, &raw mut argument)) };
        check(i64::from(result)).map(drop)
    }

    /// Write-protects the present pages of a range: when this returns, no thread can write there.
    ///
    /// # Errors
    /// Any error of the request; part of the range may be protected then.
    pub fn protect(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.set_protection(address, len_bytes, WRITE_PROTECT)
    }

    /// Lifts the write protection of a range and wakes the threads that wait to write there.
    ///
    /// # Errors
    /// Any error of the request; part of the range may be unprotected then.
    pub fn unprotect(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.set_protection(address, len_bytes, 0)
    }

    fn set_protection(self, address: usize, len_bytes: usize, mode: u64) -> Result<(), Errno> {
        let mut tries = 0;
        loop {
            let range = RangeArgument { start: address as u64, len_bytes: len_bytes as u64 };
            let mut argument = ProtectArgument { range, mode };
            // SAFETY: `argument` has the layout that UFFDIO_WRITEPROTECT expects and lives through the call.
            let result = unsafe { kernel!(Guard, ioctl!(self.fd, IOCTL_WRITE_PROTECT, &raw mut argument)) };
            match check(i64::from(result)) {
                Err(Errno(libc::EAGAIN | libc::EINTR)) if tries < RETRIES => tries += 1,
                result => return result.map(drop),
            }
        }
    }

    /// Unregisters a range and wakes the threads that wait there, which retry their access.
    ///
    /// # Errors
    /// Any error of the request.
    pub fn unregister(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let mut range = RangeArgument { start: address as u64, len_bytes: len_bytes as u64 };
        // SAFETY: `range` has the layout that UFFDIO_UNREGISTER expects and lives through the call.
        let result = unsafe { kernel!(Forget, ioctl!(self.fd, IOCTL_UNREGISTER, &raw mut range)) };
        check(i64::from(result)).map(drop)
    }

    /// Wakes the threads that wait on these pages, which retry their access. Returns false if the
    /// kernel refused, which does not happen while the descriptor is open.
    pub fn wake(self, address: usize, len_bytes: usize) -> bool {
        let mut range = RangeArgument { start: address as u64, len_bytes: len_bytes as u64 };
        (0..RETRIES).any(|_| self.request_wake(&mut range).is_ok())
    }

    fn place(
        len_bytes: usize,
        (mut destination, mut source): (usize, usize),
        call: impl Fn(&mut PlaceArgument) -> i32,
    ) -> Placed {
        let mut done_bytes = 0;
        // EEXIST is believed only the second time: taking an absent page for present would lose its bytes.
        let mut reported_present = false;
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
                (reported_present, max_bytes, tries) = (false, len_bytes, 0);
            }
            tries += 1;
            match result {
                Ok(_) if step_bytes > 0 => {}
                Err(Errno(libc::EEXIST)) if !reported_present => reported_present = true,
                // Interrupted part-way, or a thread is changing the mappings.
                Ok(_) | Err(Errno(libc::EAGAIN | libc::EINTR)) if tries < RETRIES => {}
                Ok(_) => return Placed { done_bytes, error: Some(Errno(libc::EAGAIN)) },
                // The kernel refuses a range that crosses mappings as a whole; madvise and mprotect
                // of the program split mappings.
                Err(Errno(libc::ENOENT | libc::EINVAL)) if asked_bytes > PAGE_BYTES => {
                    max_bytes = (asked_bytes / 2).next_multiple_of(PAGE_BYTES);
                }
                Err(errno) => return Placed { done_bytes, error: Some(errno) },
            }
        }
        Placed { done_bytes, error: None }
    }

    /// Whether a thread is changing registered mappings: from before the change until its message
    /// has been read the kernel refuses every placement, even an empty one (`mmap_changing`,
    /// fs/userfaultfd.c). Meaningful only with [`Reports::Changes`].
    #[must_use]
    pub fn is_changing(self) -> bool {
        let mut nothing = PlaceArgument { destination: 0, source: 0, len_bytes: 0, mode: 0, done: 0 };
        // SAFETY: `nothing` has the layout that UFFDIO_COPY expects; an empty range places nothing.
        let result = check(i64::from(unsafe { ioctl!(self.fd, IOCTL_COPY, &raw mut nothing) }));
        result == Err(Errno(libc::EAGAIN))
    }

    /// Fills absent pages with copies of the bytes at `source` and wakes the threads that wait for
    /// them. `destination` and `len_bytes` are whole pages; `source` need not be aligned.
    ///
    /// # Safety
    /// `source` must be readable for `len_bytes`, without a fault that this process's handler
    /// would have to serve if the caller is that handler.
    #[must_use]
    pub unsafe fn copy(self, destination: usize, source: usize, len_bytes: usize) -> Placed {
        Self::place(len_bytes, (destination, source), |argument| {
            // SAFETY: `argument` has the layout that UFFDIO_COPY expects; the caller vouches for the source.
            call_or_cut(argument, |argument| unsafe {
                kernel!(Copy, ioctl!(self.fd, IOCTL_COPY, &raw mut *argument))
            })
        })
    }

    /// Does the same as [`Uffd::copy`], with the new pages write-protected.
    ///
    /// # Safety
    /// See [`Uffd::copy`].
    #[must_use]
    pub unsafe fn copy_protected(self, destination: usize, source: usize, len_bytes: usize) -> Placed {
        Self::place(len_bytes, (destination, source), |argument| {
            argument.mode = COPY_MODE_PROTECTED;
            // SAFETY: `argument` has the layout that UFFDIO_COPY expects; the caller vouches for the source.
            call_or_cut(argument, |argument| unsafe {
                kernel!(Copy, ioctl!(self.fd, IOCTL_COPY, &raw mut *argument))
            })
        })
    }

    /// Fills one absent page with zeroes and wakes the threads that wait for it.
    ///
    /// # Errors
    /// Any error of the request; EEXIST if the page is present.
    pub fn zero_page(self, address: usize) -> Result<(), Errno> {
        let mut argument =
            ZeroArgument { start: address as u64, len_bytes: PAGE_BYTES as u64, mode: 0, done: 0 };
        // SAFETY: `argument` has the layout that UFFDIO_ZEROPAGE expects and lives through the call.
        let result = unsafe { kernel!(Zero, ioctl!(self.fd, IOCTL_ZEROPAGE, &raw mut argument)) };
        check(i64::from(result)).map(drop)
    }

    /// Moves pages into absent ones and wakes the threads that wait for them; the source pages become absent.
    /// Stops at a page that is absent at the source (ENOENT), shared with a forked process or pinned (EBUSY),
    /// or present at the destination (EEXIST). EOPNOTSUPP if pages are not moved ([`can_move_pages`]).
    ///
    /// # Safety
    /// Both ranges must be whole pages of memory that the caller may rearrange.
    #[must_use]
    pub unsafe fn move_pages(self, destination: usize, source: usize, len_bytes: usize) -> Placed {
        if !can_move_pages() {
            return Placed { done_bytes: 0, error: Some(Errno(libc::EOPNOTSUPP)) };
        }
        Self::place(len_bytes, (destination, source), |argument| {
            // SAFETY: `argument` has the layout that UFFDIO_MOVE expects; the caller vouches for both ranges.
            call_or_cut(argument, |argument| unsafe {
                kernel!(Move, ioctl!(self.fd, IOCTL_MOVE, &raw mut *argument))
            })
        })
    }

    /// Wakes the handler of this userfaultfd by touching a page that the handler must place, and
    /// returns once it has. `announce` gets the page's address first.
    ///
    /// # Errors
    /// Errors of mmap(2) or of the registration; nothing was announced or touched then.
    pub fn wake_handler(self, announce: impl FnOnce(usize)) -> Result<(), Errno> {
        // SAFETY: no address is given, so the mapping replaces nothing.
        let page = unsafe { crate::mem::map_private(PAGE_BYTES, None) }?;
        let registered = self.register(page, PAGE_BYTES);
        if registered.is_ok() {
            announce(page);
            // SAFETY: `page` is mapped readable; the access waits until the handler has placed the page.
            unsafe { (page as *const u8).read_volatile() };
        }
        // SAFETY: `page` was mapped above, and no reference to it exists.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, page, PAGE_BYTES)) };
        registered
    }

    /// Passes all pending messages to `each`, without waiting. Returns false if the descriptor is unusable.
    pub fn read(self, mut each: impl FnMut(Message)) -> bool {
        self.read_words(|message| {
            // uffd_msg: event u8 + padding; then flags u64, address u64, ptid u32 (fault), from,
            // to, len (remap), or start, end (others).
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

    /// Passes all pending faults, for missing pages and for writes, to `each`. See [`Uffd::read`].
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
        // SAFETY: read(2) writes at most `len_bytes` bytes, the size of `messages`.
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

/// Waits up to `timeout_ms` (-1: without limit) until a descriptor is readable.
pub fn wait(
    first: Uffd,
    second: Option<Uffd>,
    control: Control,
    program: Option<&OwnFd>,
    timeout_ms: i32,
) -> Ready {
    let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let second_fd = second.map_or(-1, |second| second.fd);
    let program_fd = program.map_or(-1, Descriptor::number);
    let mut polls = [first.fd, second_fd, control.fd(), program_fd].map(watch);
    // SAFETY: `polls` holds `polls.len()` pollfds; poll(2) ignores negative descriptors.
    let ready =
        unsafe { kernel!(Poll, syscall!(libc::SYS_poll, polls.as_mut_ptr(), polls.len(), timeout_ms)) };
    if ready == -1 {
        // Interrupted, or out of memory. Reading does not block, so the caller can find out by itself.
        crate::clock::pause();
        return Ready { first: true, second: second.is_some(), ..Ready::default() };
    }
    let [first, second, control, program] = polls.map(|poll| poll.revents);
    Ready {
        first: first != 0,
        second: second != 0,
        control: control != 0,
        program: program != 0,
        is_closed: first & libc::POLLNVAL != 0,
    }
}
