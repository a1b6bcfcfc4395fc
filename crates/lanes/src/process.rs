//! This process's lanes: begun once, asked by every hook.
//!
//! ```text
//! hook of a receive ──► [`receive`]: a lane that is attended ──► literal bytes, no further than the next token; or a reference
//!                  └──► otherwise libc's call, counted in ([`Plain`]): nobody attends while somebody reads plainly
//! hook of a send ─────► [`send`]: large parts by reference, where the other end attends; else libc's call, counted in
//! ```

mod sending;
mod stretches;

pub use sending::{LiteralSend, Outlet};

extern crate alloc;
use crate::board::MAX_ANNOUNCEMENTS;
use crate::copies::Copies;
use crate::descriptors::{self, Descriptor, Plain, descriptor};
use crate::ends::{self, End};
use crate::forks;
use crate::handed::is_handed;
use crate::kernel::{Kernel, needs_every_byte, read_bytes, stream_of};
use crate::message::{Kept, deliver, first_bytes};
use crate::outcome;
use crate::protocol::Stream;
use crate::receive::{Next, Socket as _};
use crate::service::Lanes;
use alloc::ffi::CString;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::AcqRel};
use uncopy_core::scope::Scope;
use uncopy_core::streams::Outcome;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::iovec::Part;
use uncopy_sys::last_thread::{self, Role};
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{Ordering::Acquire, Ordering::Release};
use uncopy_sys::{iovec, link, socket, stream, thread};

/// A receive that brings so much makes its stream one that may become a lane.
pub const MIN_LARGE_BYTES: usize = 16 << 10;
/// Pauses, some 70 µs each, for a sender that is between announcing and sending.
const MAX_PAUSES: u32 = 1000;
/// After so many receives without a reference, a stream is plain again; where the sender says that it withholds them, after so many.
const MAX_LITERAL_RECEIVES: u32 = 64;
const MAX_WITHHELD_RECEIVES: u32 = 8;

/// How long it is waited for the thread to end, pauses of some 70 µs.
const MAX_STOPPING_PAUSES: u32 = 20_000;

/// The lanes of this process.
pub struct Process {
    lanes: Lanes,
    /// Name of this process's socket.
    path: CString,
    /// Which streams may become lanes.
    scope: Scope<'static>,
    /// The thread is to end.
    is_stopping: AtomicBool,
    /// It has ended.
    has_stopped: AtomicBool,
    /// The thread.
    thread: u32,
    /// What was sent before and has not changed since.
    copies: Guarded<Copies>,
    /// Stamps are not to be believed any more.
    has_no_stamps: AtomicBool,
    /// Bytes that were copied into shared memory and not told of yet.
    copied_bytes: AtomicUsize,
}

pub(crate) static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

/// The process's lanes, if they have begun.
#[inline]
#[must_use]
pub fn process() -> Option<&'static Process> {
    // SAFETY: null, or made by `make` and never freed.
    unsafe { PROCESS.load(Acquire).as_ref() }
}

/// Before a fork. Nobody is at work in lanes but their thread.
pub fn prepare_fork() {
    if let Some(process) = process() {
        forks::prepare();
        process.withdraw_all();
    }
}

/// After a fork, in the parent, also if it failed.
pub fn after_fork() {
    if forks::is_forking() {
        forks::parent();
    }
}

/// After a fork, in the child, before the thread's id is forgotten: the lanes are the parent's, and it has none of their memory.
/// `has_own_descriptors`: they are not shared with the parent.
pub fn in_child(has_own_descriptors: bool) {
    if !forks::is_forking() {
        return;
    }
    forks::child(has_own_descriptors);
    if let Some(process) = process() {
        process.lanes.abandon();
    }
    PROCESS.store(core::ptr::null_mut(), Release);
    // What is still attended is lost.
    descriptors::in_child();
}

/// Nothing goes or comes by reference at a descriptor from here on, once what was announced is received.
pub fn end(fd: i32) {
    if let Some(process) = process() {
        process.end(fd);
    }
    if let Some(descriptor) = descriptor(fd) {
        descriptor.stay_plain();
    }
}

/// There is another descriptor of the same open file.
pub fn duplicated(from: i32, to: i32) {
    if let Some(process) = process() {
        process.lanes.ends.duplicate(from, to);
    }
    if let (Some(from), Some(to)) = (descriptor(from), descriptor(to)) {
        from.duplicate(to);
    }
}

/// A descriptor is about to be closed.
pub fn closed(fd: i32) {
    if let Some(process) = process() {
        process.close(fd);
    }
    if let Some(descriptor) = descriptor(fd) {
        descriptor.close();
    }
}

/// Removes the name of this process's socket: at exit.
pub fn unpublish() {
    if let Some(process) = process() {
        uncopy_sys::mem::unlink(&process.path);
    }
}

/// Whether a descriptor's stream may become a lane. One that may not is told of, once.
#[must_use]
pub fn is_fit(fd: i32, scope: &Scope<'_>) -> bool {
    fit(fd, scope).is_some()
}

/// The stream of a descriptor, if it may become a lane, and its socket's cookie.
fn fit(fd: i32, scope: &Scope<'_>) -> Option<(Stream, u64)> {
    let cookie = socket::cookie(fd).ok()?;
    let stream = stream_of(fd)?;
    let why = if is_handed(cookie) {
        Outcome::Shared
    } else if stream.is_in(scope) {
        return Some((stream, cookie));
    } else {
        Outcome::OutOfScope
    };
    tell_once(fd, why);
    None
}

/// Tells what becomes of a stream that is no lane, once for each descriptor.
fn tell_once(fd: i32, why: Outcome) {
    if descriptor(fd).is_some_and(Descriptor::note_told) {
        outcome::add(why);
    }
}

/// Whether something is known of a descriptor.
#[must_use]
pub fn is_known(fd: i32) -> bool {
    descriptor(fd).is_some_and(|descriptor| !descriptor.is_unknown())
        || process().is_some_and(|process| process.lanes.ends.find(fd).is_some())
}

/// Whether there is a lane that is attended at a descriptor: what comes may be tokens. In a forked child without lanes of its own
/// only the parent can tell what they stand for.
#[must_use]
pub fn is_attended(fd: i32) -> bool {
    descriptor(fd).is_some_and(Descriptor::is_attended)
}

/// What became of a receive.
pub enum Received {
    /// It is not one of a lane's: the call is to be made as it is.
    Plainly,
    /// There is nothing now: what the kernel says to a look at one byte is true, and if there is one, this is to be asked again.
    Nothing,
    /// So many bytes, or an error.
    Done(Result<usize, Errno>),
    /// So many bytes, and there may be more: this is to be asked again for what is missing, and does not wait for it. Programs that
    /// are told of edges (epoll(7)) take it that nothing is left where they got less than they asked for.
    Part(usize),
}

impl Received {
    const fn of(len_bytes: usize, wanted: usize) -> Self {
        if len_bytes < wanted { Self::Part(len_bytes) } else { Self::Done(Ok(len_bytes)) }
    }
}

impl Process {
    /// In the thread that serves them.
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

    pub(crate) const fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(crate) fn path(&self) -> &core::ffi::CStr {
        &self.path
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Acquire)
    }

    /// Ends the thread, for good, and all links: see [`crate::service::Service::detach`]. Every end has ended before.
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
            if !thread::lives(self.thread) {
                last_thread::forget(Role::Lanes);
                break;
            }
            thread::pause();
        }
        self.has_stopped.store(true, Release);
    }

    /// The lane that is attended at a descriptor. A load where there is none.
    fn attended(&self, fd: i32) -> Option<Arc<End>> {
        descriptor(fd).filter(|descriptor| descriptor.is_attended()).and_then(|_| self.lanes.ends.find(fd))
    }

    /// Counts a plain receive in; `None`: there is a lane that is attended, ask [`Process::receive`].
    #[must_use]
    pub fn begin_plain(&self, fd: i32) -> Option<Option<Plain>> {
        descriptor(fd).map_or(Some(None), |descriptor| descriptor.begin_plain().map(Some))
    }

    /// Receives into parts of the program's, if the descriptor has a lane that is attended. With no handler of the program
    /// on top of it. `place` may take a part, to which the bytes at an address belong, and keeps these; else they are copied.
    /// `literally` receives bytes that came through the kernel, into no more than the parts it is given. `room` says how many of their
    /// bytes can be written before the first that cannot. With `waits_first` it may say that there is nothing without having looked.
    ///
    /// # Safety
    /// The parts must be memory that may be written, as far as `room` says that it can.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "what a receive consists of")]
    pub unsafe fn receive(
        &'static self,
        fd: i32,
        parts: &[Part],
        flags: i32,
        waits_first: bool,
        mut place: impl FnMut(Part, usize, &dyn Fn() -> Kept) -> bool,
        literally: impl FnOnce(&[Part], i32) -> Result<usize, Errno>,
        room: impl Fn(&[Part]) -> usize,
    ) -> Received {
        let Some(end) = self.attended(fd) else { return Received::Plainly };
        let Some(far) = end.far() else { return Received::Plainly };
        let (Some(far_slot), Some(own)) =
            (far.peer.slot(far.slot), self.lanes.board.slots.get(end.slot as usize))
        else {
            return Received::Plainly;
        };
        let announced = far_slot.sending.of(far.lane);
        let kernel = Kernel { fd, end: &end, own, far: far_slot, flags };
        let wanted: usize = parts.iter().map(|part| part.len_bytes).sum();
        let peeks = flags & libc::MSG_PEEK != 0;
        let mut receiver = end.receiver.lock();
        if !end.is_attentive() && Self::is_quiet(&far) && !receiver.has_announced(announced) {
            // Nothing of a lane comes any more.
            if let Some(descriptor) = descriptor(fd) {
                descriptor.leave();
            }
            return Received::Plainly;
        }
        if receiver.has_announced(announced) && socket::cookie(fd) != Ok(end.cookie) {
            drop(receiver);
            self.close(fd);
            return Received::Plainly;
        }
        let due = receiver.due(own.receiving.read_bytes(), announced);
        let fits =
            |len_bytes: usize| len_bytes <= wanted && room(&first_bytes(parts, len_bytes)) == len_bytes;
        if let Some(due) = due.filter(|due| !peeks && fits(due.reference.len_bytes as usize)) {
            let byte = match kernel.take_byte() {
                Ok(byte) => byte,
                Err(Errno(libc::EAGAIN)) => return Received::Nothing,
                Err(errno) => return Received::Done(Err(errno)),
            };
            return match receiver.took_due(due, announced, own, &self.lanes.peers) {
                Some(Ok(held)) => {
                    // SAFETY: the caller answers for the parts, which have room for as much.
                    Received::of(
                        unsafe { deliver(Arc::new(held), &self.lanes, 0, parts, &mut place) },
                        wanted,
                    )
                }
                Some(Err(why)) => break_off(fd, why),
                None => {
                    if let Some(part) = parts.iter().find(|part| part.len_bytes > 0) {
                        // SAFETY: the caller answers for the parts.
                        unsafe { (part.address as *mut u8).write(byte) };
                    }
                    Received::of(1, wanted)
                }
            };
        }
        if waits_first && receiver.has_waited && !receiver.has_announced(announced) {
            // Most likely there is nothing yet: whoever looks whether there is waits for it as well.
            return Received::Nothing;
        }
        let mut tokens = [0u8; MAX_ANNOUNCEMENTS as usize];
        if !peeks
            && receiver.has_announced(announced)
            && let Ok(unread) = kernel.unread()
            && let Some(stretches) = receiver.stretches(unread, own.receiving.read_bytes(), announced, wanted)
            && fits(stretches.len_bytes)
            && let Some(into) =
                Some(stretches.parts(parts, &mut tokens)).filter(|into| into.len() <= iovec::MAX_PARTS)
        {
            own.receiving.begin_reading();
            let got = literally(&into, flags | libc::MSG_DONTWAIT);
            own.receiving.end_reading(*got.as_ref().unwrap_or(&0));
            receiver.has_waited = !waits_first;
            return match got {
                // SAFETY: the caller answers for the parts, which have room for as much.
                Ok(got) => unsafe { self.took(&stretches, got, parts, &mut receiver, own, &mut place) }
                    .unwrap_or_else(|why| break_off(fd, why)),
                Err(errno) => Received::Done(Err(errno)),
            };
        }
        let next = receiver.next(&kernel, announced, &self.lanes.peers);
        let is_before_token = matches!(next, Next::Before(_));
        let taken = match next {
            Next::Nothing => {
                receiver.has_waited = true;
                return Received::Nothing;
            }
            Next::Broken(why) => return break_off(fd, why),
            Next::Literal(most) | Next::Before(most) => {
                let parts = first_bytes(parts, most.min(wanted));
                own.receiving.begin_reading();
                let got = literally(&parts, flags | libc::MSG_DONTWAIT);
                let got_bytes = got.as_ref().map_or(0, |got| if peeks { 0 } else { *got });
                own.receiving.end_reading(got_bytes);
                receiver.has_waited = !waits_first;
                receiver.took_literal(got_bytes);
                let withholds = far_slot.sending.withholds();
                let most_receives = if withholds { MAX_WITHHELD_RECEIVES } else { MAX_LITERAL_RECEIVES };
                if receiver.literal_receives() >= most_receives && end.lose_interest(own, withholds) {
                    receiver.count_anew();
                }
                return match got {
                    Ok(got) if is_before_token && got == most && !peeks => Received::of(got, wanted),
                    got => Received::Done(got),
                };
            }
            Next::Reference { held, taken_bytes } => {
                let mut place =
                    |part: Part, from: usize, keep: &dyn Fn() -> Kept| !peeks && place(part, from, keep);
                let parts = first_bytes(parts, held.len_bytes() - taken_bytes);
                let room_bytes = room(&parts);
                if room_bytes == 0 && !parts.is_empty() {
                    return Received::Done(Err(Errno(libc::EFAULT)));
                }
                let parts = first_bytes(&parts, room_bytes);
                // SAFETY: the caller answers for the parts, which can be written so far.
                unsafe { deliver(Arc::clone(held), &self.lanes, taken_bytes, &parts, &mut place) }
            }
        };
        if peeks {
            return Received::Done(Ok(taken));
        }
        match receiver.took(taken, &kernel, own) {
            Ok(done) => {
                drop(Kept::of(done, &self.lanes));
                Received::of(taken, wanted)
            }
            Err(errno) => Received::Done(Err(errno)),
        }
    }

    /// Whether the sender, whose receiver's attention was withdrawn before, announces nothing any more. What it has announced is to be
    /// looked at after that.
    fn is_quiet(far: &ends::Far) -> bool {
        far.peer.slot(far.slot).is_none_or(|slot| !slot.sending.is_busy()) || far.peer.is_gone()
    }

    /// Takes note of what a plain receive has brought, which is over. Whether the stream is a lane from here on that was none before.
    pub fn received(&self, fd: i32, len_bytes: usize) -> bool {
        if len_bytes < MIN_LARGE_BYTES || forks::is_shared() {
            return false;
        }
        let Some(end) = self.bound(fd) else { return false };
        if end.far().is_some_and(|far| far.withholds()) {
            return false;
        }
        let Some(own) = self.lanes.board.slots.get(end.slot as usize) else { return false };
        // Nobody may be in a plain receive: it would take a token for a byte.
        let _receiver = end.receiver.lock();
        let Some(descriptor) = descriptor(fd) else { return false };
        if end.has_ended() || !end.is_due() || !descriptor.attend() {
            return false;
        }
        if needs_every_byte(fd) {
            end.end_as(Outcome::Unsuited);
            descriptor.leave();
            return false;
        }
        let read_bytes = if matches!(end.stream, Stream::Tcp { .. }) { read_bytes(fd) } else { Some(0) };
        let Some(read_bytes) = read_bytes else {
            descriptor.leave();
            return false;
        };
        own.receiving.count_from(read_bytes);
        end.attend(own);
        let is_first = end.is_first();
        if is_first {
            outcome::add(Outcome::Lane);
        }
        is_first
    }

    /// The end behind a descriptor, if the other end is known. Makes it known if it was not.
    fn bound(&self, fd: i32) -> Option<Arc<End>> {
        let Some(end) = self.lanes.ends.find(fd) else {
            self.know(fd);
            return None;
        };
        if end.has_ended() || end.far().is_none() {
            return None;
        }
        if is_handed(end.cookie) {
            end.end_as(Outcome::Shared);
            return None;
        }
        if self.is_still(fd, &end) { Some(end) } else { self.know(fd).and(None) }
    }

    /// Whether a descriptor is still that end's. If not, it was closed by a way that nobody saw, and the end is given up.
    fn is_still(&self, fd: i32, end: &End) -> bool {
        let is_still = socket::cookie(fd) == Ok(end.cookie);
        if !is_still {
            self.close(fd);
        }
        is_still
    }

    /// Makes an end known, and tells the peers of it.
    fn know(&self, fd: i32) -> Option<Arc<End>> {
        let (stream, cookie) = fit(fd, &self.scope)?;
        let Some(end) = self.lanes.ends.add(fd, stream, cookie, self.lanes.board) else {
            tell_once(fd, Outcome::Crowded);
            return None;
        };
        self.lanes.tell(Arc::clone(&end));
        self.ring();
        Some(end)
    }

    /// Wakes the thread.
    fn ring(&self) {
        if let Ok(fd) = link::connect(&self.path) {
            link::end(fd);
        }
    }

    /// Attention is withdrawn from an end; whether nothing is announced that was not received: then it is plain. Where it cannot
    /// attend again, that is `why`.
    fn withdraw(&self, fd: i32, end: &End, why: Outcome) -> bool {
        let Some(own) = self.lanes.board.slots.get(end.slot as usize) else { return true };
        end.withdraw(own);
        if !matches!(end.stream, Stream::Tcp { .. }) {
            // The sender goes on with its count.
            end.end_as(why);
        }
        let Some(far) = end.far() else { return true };
        let Some(slot) = far.peer.slot(far.slot) else { return true };
        // One that is stopped between announcing and sending sends its token later.
        let is_quiet = Self::wait_until_quiet(&far);
        let is_plain = is_quiet && !end.receiver.lock().has_announced(slot.sending.of(far.lane));
        if is_plain && let Some(descriptor) = descriptor(fd) {
            descriptor.leave();
        }
        is_plain
    }

    /// Waits for a sender that is between announcing and sending: a few system calls that do not wait, unless that process is
    /// stopped in between. Whether it is not any more.
    fn wait_until_quiet(far: &ends::Far) -> bool {
        for _ in 0..MAX_PAUSES {
            if Self::is_quiet(far) {
                return true;
            }
            thread::pause();
        }
        false
    }

    /// How many bytes can be received at once; `None`: as many as the kernel says.
    #[must_use]
    pub fn receivable(&self, fd: i32) -> Option<usize> {
        let end = self.attended(fd)?;
        let far = end.far()?;
        let own = self.lanes.board.slots.get(end.slot as usize)?;
        let receiver = end.receiver.lock();
        let unread = stream::unread(fd).ok()?;
        Some(receiver.receivable(
            unread,
            own.receiving.read_bytes(),
            far.peer.slot(far.slot)?.sending.of(far.lane),
        ))
    }

    /// See [`end`].
    fn end(&self, fd: i32) {
        if let Some(end) = self.lanes.ends.find(fd) {
            end.end_as(Outcome::Unsuited);
            let _ = self.withdraw(fd, &end, Outcome::Unsuited);
        }
    }

    /// Nothing goes by reference any more at a socket. Whether nothing is announced that was not received.
    pub(crate) fn end_socket(&self, cookie: u64) -> bool {
        let ends = self.lanes.ends.with_descriptors().into_iter().filter(|(_, end)| end.cookie == cookie);
        ends.fold(true, |is_plain, (fd, end)| {
            end.end_as(Outcome::Shared);
            self.withdraw(fd, &end, Outcome::Shared) && is_plain
        })
    }

    /// Nothing goes by reference any more; calls `unread` for each descriptor at which something is announced that was not received, or
    /// may still be: `true` if it may.
    pub(crate) fn end_every(&self, unread: impl Fn(i32, bool)) {
        for (fd, end) in self.lanes.ends.with_descriptors() {
            end.end();
            // Who has found before that it had not ended begins to attend until then.
            drop(end.receiver.lock());
            if !self.withdraw(fd, &end, Outcome::Shared) {
                unread(fd, end.far().is_some_and(|far| !Self::is_quiet(&far)));
            }
        }
    }

    /// A descriptor is about to be read by somebody who knows nothing of tokens: no more of them come. Whether there are none
    /// that were not received.
    #[must_use]
    pub fn leave(&self, fd: i32) -> bool {
        self.attended(fd).is_none_or(|end| self.withdraw(fd, &end, Outcome::Unsuited))
    }

    /// The same for all. Nobody receives or sends meanwhile.
    pub(crate) fn withdraw_all(&self) {
        for (fd, end) in self.lanes.ends.with_descriptors() {
            let _ = self.withdraw(fd, &end, Outcome::Shared);
        }
    }

    /// See [`closed`].
    fn close(&self, fd: i32) {
        let Some(end) = self.lanes.ends.remove(fd) else { return };
        if let Some(descriptor) = descriptor(fd) {
            descriptor.leave();
        }
        let Some(own) = self.lanes.board.slots.get(end.slot as usize) else { return };
        own.receiving.attend(0);
        let far = end.far();
        if let Some(far) = &far
            && let Some(slot) = far.peer.slot(far.slot)
        {
            // What it announces later is given back when it ends.
            Self::wait_until_quiet(far);
            for held in end.receiver.lock().end(slot.sending.of(far.lane), own, &self.lanes.peers) {
                self.lanes.peers.release(held);
            }
        }
        own.receiving.close(end.lane);
        self.lanes.ends.give_slot(end.slot, far);
    }
}

/// A sender has announced what cannot be: nothing of the connection is believed any more.
fn break_off(fd: i32, why: &str) -> Received {
    reset(fd, why);
    Received::Done(Err(Errno(libc::ECONNRESET)))
}

/// Resets a connection whose sender announced what cannot be.
pub fn reset(fd: i32, why: &str) {
    uncopy_sys::mem::say(format_args!("uncopy: a lane is reset: its sender announced {why}\n"));
    socket::reset(fd);
}
