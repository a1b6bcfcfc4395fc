//! The lanes of this process, as hooks use them.
//!
//! ```text
//! hook of a receive ──► [`receive`]: a lane that is attended ──► literal bytes, no further than the next token; or a reference
//!                  └──► otherwise libc's call, counted in ([`PlainReceive`]): nobody attends while somebody reads plainly
//! hook of a send ─────► [`send`]: large parts by reference, where the other end attends; else libc's call, counted in
//! ```

mod receiving;
mod sending;
mod stretches;

pub use receiving::{Destination, Received};
pub use sending::{LiteralSend, SendTarget};

extern crate alloc;
use crate::copies::Copies;
use crate::descriptors::{self, Descriptor, PlainReceive, descriptor};
use crate::ends::{self, End};
use crate::forks;
use crate::kernel::{needs_every_byte, read_bytes, stream_of};
use crate::lane_thread::Lanes;
use crate::outcome;
use crate::protocol::Stream;
use crate::shared_streams::may_be_shared;
use alloc::ffi::CString;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::AcqRel};
use uncopy_core::scope::Scope;
use uncopy_core::streams::Outcome;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::last_thread::{self, Role};
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{Ordering::Acquire, Ordering::Release};
use uncopy_sys::{seqpacket, socket, stream, thread};

/// Minimum size of a receive, bytes, that makes its stream a lane candidate.
pub const MIN_LARGE_BYTES: usize = 16 << 10;
/// Maximum number of pauses, about 70 µs each, for a sender between announcing and sending.
const MAX_PAUSES: u32 = 1000;
/// Receives without a reference before a stream falls back to plain receives; [`MAX_PAUSED_RECEIVES`] if the
/// sender pauses references.
const MAX_LITERAL_RECEIVES: u32 = 64;
const MAX_PAUSED_RECEIVES: u32 = 8;

/// Maximum number of pauses, about 70 µs each, for the thread to end.
const MAX_STOPPING_PAUSES: u32 = 20_000;

/// Lanes of this process.
pub struct Process {
    lanes: Lanes,
    path: CString,
    scope: Scope<'static>,
    is_stopping: AtomicBool,
    has_stopped: AtomicBool,
    thread: u32,
    /// Copies of program memory that may be sent again.
    copies: Guarded<Copies>,
    has_no_stamps: AtomicBool,
    /// Bytes copied into shared memory and not reported yet.
    copied_bytes: AtomicUsize,
}

pub(crate) static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the lanes of this process, if they were started.
#[inline]
#[must_use]
pub fn process() -> Option<&'static Process> {
    // SAFETY: the pointer is null, or comes from a box that `begin` leaked, so it is valid for `'static`.
    unsafe { PROCESS.load(Acquire).as_ref() }
}

/// Prepares for a fork. No thread but the lanes' own is working in lanes.
pub fn prepare_fork() {
    if let Some(process) = process() {
        forks::prepare();
        process.refuse_all_refs();
    }
}

/// Resumes in the parent after a fork, also a failed one.
pub fn after_fork() {
    if forks::is_forking() {
        forks::parent();
    }
}

/// Resumes in a forked child, before its cached thread id is reset. The lanes remain the parent's, whose memory
/// the child does not map. `has_own_descriptors`: the descriptor table is not shared with the parent.
pub fn in_child(has_own_descriptors: bool) {
    if !forks::is_forking() {
        return;
    }
    forks::child(has_own_descriptors);
    if let Some(process) = process() {
        process.lanes.abandon();
    }
    PROCESS.store(core::ptr::null_mut(), Release);
    // Descriptors still marked as accepting references can no longer be read in this process.
    descriptors::in_child();
}

/// Stops references at a descriptor in both directions, once those announced are received.
pub fn end(fd: ProgramFd) {
    if let Some(process) = process() {
        process.end(fd);
    }
    if let Some(descriptor) = descriptor(fd) {
        descriptor.exclude();
    }
}

/// Notes that `to` is a duplicate of `from`.
pub fn duplicated(from: ProgramFd, to: ProgramFd) {
    if let Some(process) = process() {
        process.lanes.ends.duplicate(from, to);
    }
    match (descriptor(from), descriptor(to)) {
        (Some(from), Some(to)) => from.duplicate(to),
        // Receives through the other number would not be counted.
        _ => end(from),
    }
}

/// Notes that a descriptor is about to be closed.
pub fn closed(fd: ProgramFd) {
    if let Some(process) = process() {
        process.close(fd);
    }
    if let Some(descriptor) = descriptor(fd) {
        descriptor.close();
    }
}

/// Unlinks this process's socket; called at exit.
pub fn unpublish() {
    if let Some(process) = process() {
        uncopy_sys::mem::unlink(&process.path);
    }
}

/// True if a descriptor's stream may become a lane. If not, the reason is reported once.
#[must_use]
pub fn is_eligible(fd: ProgramFd, scope: &Scope<'_>) -> bool {
    eligible_stream(fd, scope).is_some()
}

/// Returns a descriptor's stream, if it may become a lane, and its socket's cookie.
fn eligible_stream(fd: ProgramFd, scope: &Scope<'_>) -> Option<(Stream, u64)> {
    let cookie = socket::cookie(fd).ok()?;
    let stream = stream_of(fd)?;
    let why = if may_be_shared(cookie) {
        Outcome::Shared
    } else if stream.is_in(scope) {
        return Some((stream, cookie));
    } else {
        Outcome::OutOfScope
    };
    report_once(fd, why);
    None
}

/// Reports the outcome of a stream that is no lane, once per descriptor.
fn report_once(fd: ProgramFd, why: Outcome) {
    if descriptor(fd).is_some_and(Descriptor::mark_reported) {
        outcome::add(why);
    }
}

/// True if a descriptor is a lane that accepts references, so that input may contain tokens. In a forked child
/// without lanes of its own, only the parent can resolve them.
#[must_use]
pub fn accepts_refs(fd: ProgramFd) -> bool {
    descriptor(fd).is_some_and(Descriptor::accepts_refs)
}

impl Process {
    /// Makes the lanes of this process; called in their thread.
    pub(crate) fn new(lanes: Lanes, path: CString, scope: Scope<'static>) -> Self {
        let thread = uncopy_sys::lock::thread_id();
        Self {
            lanes,
            path,
            scope,
            is_stopping: AtomicBool::new(false),
            has_stopped: AtomicBool::new(false),
            thread,
            copies: Guarded::new(Copies::new()),
            has_no_stamps: AtomicBool::new(false),
            copied_bytes: AtomicUsize::new(0),
        }
    }

    /// Returns the linked processes.
    #[must_use]
    pub const fn peers(&self) -> &crate::peers::Peers {
        &self.lanes().peers
    }

    pub(crate) const fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(crate) fn path(&self) -> &core::ffi::CStr {
        &self.path
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Acquire)
    }

    /// Ends the thread and all links, see [`crate::lane_thread::LaneThread::detach`]. Every end has ended before.
    pub(crate) fn stop(&self) {
        if self.is_stopping.swap(true, AcqRel) {
            while !self.has_stopped.load(Acquire) {
                thread::pause();
            }
            return;
        }
        self.ring();
        uncopy_sys::mem::unlink(&self.path);
        for _ in 0..MAX_STOPPING_PAUSES {
            if !thread::exists(self.thread) {
                last_thread::forget(Role::Lanes);
                break;
            }
            thread::pause();
        }
        self.has_stopped.store(true, Release);
    }

    /// Returns the end of a descriptor that accepts references. Costs one load if there is none.
    fn attended(&self, fd: ProgramFd) -> Option<Arc<End>> {
        descriptor(fd).filter(|descriptor| descriptor.accepts_refs()).and_then(|_| self.lanes.ends.find(fd))
    }

    /// Counts a plain receive in; `None` if the descriptor accepts references: use [`Process::receive`].
    #[must_use]
    pub fn begin_plain_receive(&self, fd: ProgramFd) -> Option<Option<PlainReceive>> {
        descriptor(fd).map_or(Some(None), |descriptor| descriptor.begin_plain_receive().map(Some))
    }

    /// True if the sender announces nothing more, after its receiver has stopped accepting references. Outstanding
    /// announcements are to be read after that.
    fn is_quiet(far: &ends::RemoteEnd) -> bool {
        far.peer.slot(far.slot).is_none_or(|slot| !slot.sending.is_busy()) || far.peer.is_gone()
    }

    /// Accounts for a finished plain receive. Returns true if it turned the stream into a lane.
    pub fn received(&self, fd: ProgramFd, len_bytes: usize) -> bool {
        if len_bytes < MIN_LARGE_BYTES || forks::is_shared() {
            return false;
        }
        let Some(end) = self.bound(fd) else { return false };
        if end.remote_end().is_some_and(|far| far.pauses_refs()) {
            return false;
        }
        let Some(own) = self.lanes.board.slots.get(end.slot as usize) else { return false };
        // No plain receive may be in progress: it would take a token for a byte.
        let _receiver = end.receiver.lock();
        let Some(descriptor) = descriptor(fd) else { return false };
        if end.has_ended() || !end.should_resume_refs() || !descriptor.accept_refs() {
            return false;
        }
        if needs_every_byte(fd) {
            end.end_as(Outcome::Unsuited);
            descriptor.stop_accepting_refs();
            return false;
        }
        let read_bytes = if matches!(end.stream, Stream::Tcp { .. }) { read_bytes(fd) } else { Some(0) };
        let Some(read_bytes) = read_bytes else {
            descriptor.stop_accepting_refs();
            return false;
        };
        own.receiving.count_from(read_bytes);
        end.accept_refs(own);
        let is_first = end.has_never_stopped();
        if is_first {
            outcome::add(Outcome::Lane);
        }
        is_first
    }

    /// Returns the end of a descriptor if its remote end is known. Adds an unknown end.
    fn bound(&self, fd: ProgramFd) -> Option<Arc<End>> {
        let Some(end) = self.lanes.ends.find(fd) else {
            self.know(fd);
            return None;
        };
        self.is_bound(fd, &end).then_some(end)
    }

    /// True if the remote end of an end found by descriptor is known.
    fn is_bound(&self, fd: ProgramFd, end: &End) -> bool {
        if end.has_ended() || end.remote_end().is_none() {
            return false;
        }
        if may_be_shared(end.cookie) {
            end.end_as(Outcome::Shared);
            return false;
        }
        let is_still = self.is_still(fd, end);
        if !is_still {
            self.know(fd);
        }
        is_still
    }

    /// True if a descriptor still names that end's socket. If not, its closing was missed, and the end is removed.
    fn is_still(&self, fd: ProgramFd, end: &End) -> bool {
        let is_still = socket::cookie(fd) == Ok(end.cookie);
        if !is_still {
            self.close_as(fd, |found| core::ptr::eq(found, end));
        }
        is_still
    }

    /// Adds an end and announces it to the peers.
    fn know(&self, fd: ProgramFd) -> Option<Arc<End>> {
        let (stream, cookie) = eligible_stream(fd, &self.scope)?;
        let Some(end) = self.lanes.ends.add(fd, stream, cookie, self.lanes.board) else {
            report_once(fd, Outcome::Crowded);
            return None;
        };
        self.lanes.announce_end(Arc::clone(&end));
        self.ring();
        Some(end)
    }

    /// Wakes the lanes' thread.
    fn ring(&self) {
        drop(seqpacket::connect(&self.path));
    }

    /// Stops accepting references at an end; returns true if no announcement is outstanding, so that the end is
    /// plain. If it cannot accept references again, `why` is its outcome.
    fn withdraw(&self, fd: ProgramFd, end: &End, why: Outcome) -> bool {
        let Some(own) = self.lanes.board.slots.get(end.slot as usize) else { return true };
        end.refuse_refs(own);
        if !matches!(end.stream, Stream::Tcp { .. }) {
            // The sender continues its byte count, which cannot be restarted.
            end.end_as(why);
        }
        let Some(far) = end.remote_end() else { return true };
        let Some(slot) = far.peer.slot(far.slot) else { return true };
        // A sender stopped between announcing and sending sends its token later.
        let is_quiet = Self::wait_until_quiet(&far);
        let is_plain = is_quiet && !end.receiver.lock().has_announced(slot.sending.of(far.lane));
        if is_plain && let Some(descriptor) = descriptor(fd) {
            descriptor.stop_accepting_refs();
        }
        is_plain
    }

    /// Waits for a sender between announcing and sending, which makes a few non-blocking system calls. Returns
    /// false if the sender's process seems to be stopped there.
    fn wait_until_quiet(far: &ends::RemoteEnd) -> bool {
        for _ in 0..MAX_PAUSES {
            if Self::is_quiet(far) {
                return true;
            }
            thread::pause();
        }
        false
    }

    /// Returns the number of bytes that can be received at once; `None`: the kernel's count is right.
    #[must_use]
    pub fn receivable(&self, fd: ProgramFd) -> Option<usize> {
        let end = self.attended(fd)?;
        let far = end.remote_end()?;
        let own = self.lanes.board.slots.get(end.slot as usize)?;
        let receiver = end.receiver.lock();
        let unread = stream::unread(fd).ok()?;
        Some(receiver.receivable(
            unread,
            own.receiving.read_bytes(),
            far.peer.slot(far.slot)?.sending.of(far.lane),
        ))
    }

    /// Implements the function [`end`].
    fn end(&self, fd: ProgramFd) {
        if let Some(end) = self.lanes.ends.find(fd) {
            end.end_as(Outcome::Unsuited);
            let _ = self.withdraw(fd, &end, Outcome::Unsuited);
        }
    }

    /// Stops references at a socket. Returns true if no announcement is outstanding.
    pub(crate) fn end_socket(&self, cookie: u64) -> bool {
        let ends = self.lanes.ends.with_descriptors().into_iter().filter(|(_, end)| end.cookie == cookie);
        ends.fold(true, |is_plain, (fd, end)| {
            end.end_as(Outcome::Shared);
            self.withdraw(fd, &end, Outcome::Shared) && is_plain
        })
    }

    /// Stops references everywhere. Calls `unread` for each descriptor with outstanding announcements; its second
    /// argument is true if more may follow.
    pub(crate) fn end_every(&self, unread: impl Fn(ProgramFd, bool)) {
        for (fd, end) in self.lanes.ends.with_descriptors() {
            end.end();
            // A thread that checked `has_ended` before may still begin to accept references under this lock.
            drop(end.receiver.lock());
            if !self.withdraw(fd, &end, Outcome::Shared) {
                unread(fd, end.remote_end().is_some_and(|far| !Self::is_quiet(&far)));
            }
        }
    }

    /// Prepares a descriptor for being read without regard to tokens: stops accepting references. Returns true if
    /// no announcement is outstanding.
    #[must_use]
    pub fn make_passthrough(&self, fd: ProgramFd) -> bool {
        self.attended(fd).is_none_or(|end| self.withdraw(fd, &end, Outcome::Unsuited))
    }

    /// Stops accepting references everywhere. Nobody receives or sends meanwhile.
    pub(crate) fn refuse_all_refs(&self) {
        for (fd, end) in self.lanes.ends.with_descriptors() {
            let _ = self.withdraw(fd, &end, Outcome::Shared);
        }
    }

    /// Implements the function [`closed`].
    fn close(&self, fd: ProgramFd) {
        self.close_as(fd, |_| true);
    }

    /// Closes a descriptor if its end satisfies `is_same`.
    fn close_as(&self, fd: ProgramFd, is_same: impl Fn(&End) -> bool) {
        let Some(end) = self.lanes.ends.remove(fd, is_same) else { return };
        if let Some(descriptor) = descriptor(fd) {
            descriptor.stop_accepting_refs();
        }
        let Some(own) = self.lanes.board.slots.get(end.slot as usize) else { return };
        own.receiving.accept_refs(0);
        let far = end.remote_end();
        if let Some(far) = &far
            && let Some(slot) = far.peer.slot(far.slot)
        {
            // Whatever it announces later is released when it ends.
            Self::wait_until_quiet(far);
            for held in end.receiver.lock().end(slot.sending.of(far.lane), own, &self.lanes.peers) {
                self.lanes.peers.release(held);
            }
        }
        own.receiving.close(end.lane);
        self.lanes.ends.release_slot(end.slot, far);
    }
}

/// Resets a connection whose sender has announced something invalid.
pub fn reset(fd: ProgramFd, why: &str) {
    uncopy_sys::mem::write_stderr(format_args!("uncopy: a lane is reset: its sender announced {why}\n"));
    socket::shut_down(fd);
}
