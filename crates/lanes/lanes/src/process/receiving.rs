//! Receiving at an end that accepts references.
//!
//! [`Turn::decide`] chooses a plan from the announcements and the kernel's unread bytes; one function executes
//! each plan:
//!
//! ```text
//! nothing comes by reference any more ─────────────► the call is made as it is
//! the next byte is a token, and fits ──────────────► [`Turn::take_due`]        a byte is read, which was the token
//! several tokens among literal bytes fit ──────────► [`Turn::take_stretches`]  all are read at once
//! otherwise ───────────────────────────────────────► [`Turn::take_next`]       as far as the next token, or a part of a reference
//! ```

use super::{MAX_LITERAL_RECEIVES, MAX_PAUSED_RECEIVES, Process, reset};
use crate::board::{Announcement, Announcements, MAX_ANNOUNCEMENTS};
use crate::descriptors::descriptor;
use crate::ends::RemoteEnd;
use crate::kernel::Kernel;
use crate::message::{PlaceByRef, SharedBuf, deliver, first_bytes};
use crate::receive::{Next, Receiver, Socket as _, Stretches};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::{self, Part};
use uncopy_sys::socket;
use uncopy_sys::sync::Arc;

/// Result of a receive.
pub enum Received {
    /// The descriptor is no lane: make the call unchanged.
    Passthrough,
    /// Nothing is there yet: the caller peeks at one byte as its call would, and calls again if there is one.
    Nothing,
    /// The receive is complete: a number of bytes, or an error.
    Done(Result<usize, Errno>),
    /// A number of bytes, after which there may be more: call again, without blocking, for the rest.
    /// Edge-triggered programs (epoll(7)) infer from a short read that nothing is left.
    Part(usize),
}

impl Received {
    pub(super) const fn of(len_bytes: usize, wanted: usize) -> Self {
        if len_bytes < wanted { Self::Part(len_bytes) } else { Self::Done(Ok(len_bytes)) }
    }
}

/// See [`Destination::read_literal`].
pub trait ReadLiteral: FnOnce(&[Part], i32) -> Result<usize, Errno> {}
impl<F: FnOnce(&[Part], i32) -> Result<usize, Errno>> ReadLiteral for F {}

/// See [`Destination::writable_bytes`].
pub trait WritableBytes: Fn(&[Part]) -> usize {}
impl<F: Fn(&[Part]) -> usize> WritableBytes for F {}

/// Where a receive puts its input.
pub struct Destination<'a, P, L, R> {
    /// Buffers of the receive, writable as far as `writable_bytes` says.
    pub parts: &'a [Part],
    /// Takes parts by reference, or leaves them to be copied.
    pub place: P,
    /// Receives literal bytes from the kernel into the given parts, with these flags.
    pub read_literal: L,
    /// Returns the number of bytes of these parts before the first that is not writable.
    pub writable_bytes: R,
}

/// Decision how to continue a receive.
enum Plan {
    Passthrough,
    /// The descriptor now names another stream.
    Close,
    /// Probably nothing is there yet: let the caller's peek wait for it.
    Wait,
    Due(Announcement),
    Stretches(Stretches),
    Next,
}

/// One receive, under the lock of the end's receiver.
struct Turn<'a> {
    process: &'static Process,
    kernel: Kernel<'a>,
    announced: Announcements<'a>,
    /// Total length of the buffers, bytes.
    wanted: usize,
    peeks: bool,
    waits_first: bool,
}

impl Process {
    /// Receives, if the descriptor is a lane that accepts references. Signal handlers of the program must be
    /// deferred. With `waits_first`, may return [`Received::Nothing`] without asking the kernel.
    ///
    /// # Safety
    /// The parts must be memory that is writable as far as `writable_bytes` says.
    #[must_use]
    pub unsafe fn receive(
        &'static self,
        fd: ProgramFd,
        flags: i32,
        waits_first: bool,
        mut to: Destination<'_, impl PlaceByRef, impl ReadLiteral, impl WritableBytes>,
    ) -> Received {
        let Some(end) = self.attended(fd) else { return Received::Passthrough };
        let Some(far) = end.remote_end() else { return Received::Passthrough };
        let (Some(far_slot), Some(own)) =
            (far.peer.slot(far.slot), self.lanes.board.slots.get(end.slot as usize))
        else {
            return Received::Passthrough;
        };
        let turn = Turn {
            process: self,
            kernel: Kernel { fd, end: &end, own, far: far_slot, flags },
            announced: far_slot.sending.of(far.lane),
            wanted: to.parts.iter().map(|part| part.len_bytes).sum(),
            peeks: flags & libc::MSG_PEEK != 0,
            waits_first,
        };
        let mut receiver = end.receiver.lock();
        let fits = |len_bytes: usize| {
            len_bytes <= turn.wanted && (to.writable_bytes)(&first_bytes(to.parts, len_bytes)) == len_bytes
        };
        let plan = turn.decide(&receiver, &far, fits);
        // SAFETY: the parts are writable as far as `writable_bytes` says, by contract; `decide` has checked that the plan
        // fits.
        unsafe {
            match plan {
                Plan::Passthrough => {
                    if let Some(descriptor) = descriptor(fd) {
                        descriptor.stop_accepting_refs();
                    }
                    Received::Passthrough
                }
                Plan::Close => {
                    drop(receiver);
                    self.close(fd);
                    Received::Passthrough
                }
                Plan::Wait => Received::Nothing,
                Plan::Due(due) => turn.take_due(due, &mut receiver, to.parts, &mut to.place),
                Plan::Stretches(stretches) => turn.take_stretches(&stretches, &mut receiver, to),
                Plan::Next => turn.take_next(&mut receiver, to),
            }
        }
    }
}

impl Turn<'_> {
    /// Chooses a plan. Changes nothing.
    fn decide(&self, receiver: &Receiver, far: &RemoteEnd, fits: impl Fn(usize) -> bool) -> Plan {
        let end = self.kernel.end;
        let has_announced = || receiver.has_announced(self.announced);
        if !end.accepts_refs() && Process::is_quiet(far) && !has_announced() {
            // Neither references nor tokens arrive any more.
            return Plan::Passthrough;
        }
        if has_announced() && socket::cookie(self.kernel.fd) != Ok(end.cookie) {
            return Plan::Close;
        }
        let due = receiver.due(self.kernel.own.receiving.read_bytes(), self.announced);
        if let Some(due) = due.filter(|due| !self.peeks && fits(due.reference.len_bytes as usize)) {
            return Plan::Due(due);
        }
        if self.waits_first && receiver.has_waited && !has_announced() {
            return Plan::Wait;
        }
        if self.peeks || !has_announced() {
            return Plan::Next;
        }
        // The socket is asked before the announcements are read.
        let Ok(unread) = self.kernel.unread() else { return Plan::Next };
        let read_bytes = self.kernel.own.receiving.read_bytes();
        match receiver.stretches(unread, read_bytes, self.announced, self.wanted) {
            Some(stretches) if fits(stretches.len_bytes) => Plan::Stretches(stretches),
            _ => Plan::Next,
        }
    }

    /// Reads the byte that is due, and delivers the reference if the byte was its token.
    ///
    /// # Safety
    /// The parts must be writable as far as the due reference reaches.
    unsafe fn take_due(
        &self,
        due: Announcement,
        receiver: &mut Receiver,
        parts: &[Part],
        place: &mut impl PlaceByRef,
    ) -> Received {
        let byte = match self.kernel.take_byte() {
            Ok(byte) => byte,
            Err(Errno(libc::EAGAIN)) => return Received::Nothing,
            Err(errno) => return Received::Done(Err(errno)),
        };
        let lanes = &self.process.lanes;
        match receiver.resolve_due(due, self.announced, self.kernel.own, &lanes.peers) {
            // SAFETY: the parts are writable for what was due, by contract, and `held` is not longer.
            Some(Ok(held)) => unsafe {
                Received::of(deliver(Arc::new(held), lanes, 0, parts, place), self.wanted)
            },
            Some(Err(why)) => self.break_off(why),
            None => {
                if let Some(part) = parts.iter().find(|part| part.len_bytes > 0) {
                    // SAFETY: the parts are writable for what was due, by contract, and `part` is not empty.
                    unsafe { (part.address as *mut u8).write(byte) };
                }
                Received::of(1, self.wanted)
            }
        }
    }

    /// Reads several tokens and the literal bytes between them in one call. If they exceed the maximum number of
    /// parts, reads only the next one.
    ///
    /// # Safety
    /// The parts must be writable as far as the stretches reach.
    unsafe fn take_stretches(
        &self,
        stretches: &Stretches,
        receiver: &mut Receiver,
        mut to: Destination<'_, impl PlaceByRef, impl ReadLiteral, impl WritableBytes>,
    ) -> Received {
        let mut tokens = [0u8; MAX_ANNOUNCEMENTS as usize];
        let into = stretches.parts(to.parts, &mut tokens);
        if into.len() > iovec::MAX_PARTS {
            // SAFETY: the caller guarantees that the parts are writable as far as the stretches reach.
            return unsafe { self.take_next(receiver, to) };
        }
        let got = self.read(&into, to.read_literal, |got| got);
        receiver.has_waited = !self.waits_first;
        match got {
            Ok(got) => {
                let place = &mut to.place;
                // SAFETY: the parts are writable as far as the stretches reach, by contract.
                let result = unsafe {
                    self.process.deliver_stretches(stretches, got, to.parts, receiver, self.kernel.own, place)
                };
                result.unwrap_or_else(|why| self.break_off(why))
            }
            Err(errno) => Received::Done(Err(errno)),
        }
    }

    /// Receives what comes next: literal bytes up to the next token, or as much of a reference as fits.
    ///
    /// # Safety
    /// The parts must be memory that is writable as far as `writable_bytes` says.
    unsafe fn take_next(
        &self,
        receiver: &mut Receiver,
        mut to: Destination<'_, impl PlaceByRef, impl ReadLiteral, impl WritableBytes>,
    ) -> Received {
        let taken = match receiver.next(&self.kernel, self.announced, &self.process.lanes.peers) {
            Next::Nothing => {
                receiver.has_waited = true;
                return Received::Nothing;
            }
            Next::Broken(why) => return self.break_off(why),
            Next::Literal(max_bytes) => {
                let parts = first_bytes(to.parts, max_bytes.min(self.wanted));
                return Received::Done(self.take_literal(&parts, receiver, to.read_literal));
            }
            Next::Before(max_bytes) => {
                let parts = first_bytes(to.parts, max_bytes.min(self.wanted));
                return match self.take_literal(&parts, receiver, to.read_literal) {
                    Ok(got) if got == max_bytes && !self.peeks => Received::of(got, self.wanted),
                    got => Received::Done(got),
                };
            }
            Next::Reference { held, taken_bytes } => {
                let mut place = |part: Part, from: usize, keep: &dyn Fn() -> SharedBuf| {
                    !self.peeks && (to.place)(part, from, keep)
                };
                let parts = first_bytes(to.parts, held.len_bytes() - taken_bytes);
                let room_bytes = (to.writable_bytes)(&parts);
                if room_bytes == 0 && !parts.is_empty() {
                    return Received::Done(Err(Errno(libc::EFAULT)));
                }
                let parts = first_bytes(&parts, room_bytes);
                let held = Arc::clone(held);
                // SAFETY: `parts` was shortened to what `writable_bytes` says, which is writable by contract.
                unsafe { deliver(held, &self.process.lanes, taken_bytes, &parts, &mut place) }
            }
        };
        if self.peeks {
            return Received::Done(Ok(taken));
        }
        match receiver.note_delivered(taken, &self.kernel, self.kernel.own) {
            Ok(done) => {
                drop(SharedBuf::of(done, &self.process.lanes));
                Received::of(taken, self.wanted)
            }
            Err(errno) => Received::Done(Err(errno)),
        }
    }

    /// Receives literal bytes. After many receives without a reference the stream falls back to plain receives.
    fn take_literal(
        &self,
        parts: &[Part],
        receiver: &mut Receiver,
        read_literal: impl ReadLiteral,
    ) -> Result<usize, Errno> {
        let count = |got: usize| if self.peeks { 0 } else { got };
        let got = self.read(parts, read_literal, count);
        receiver.has_waited = !self.waits_first;
        receiver.note_literal(count(*got.as_ref().unwrap_or(&0)));
        let pauses_refs = self.kernel.far.sending.pauses_refs();
        let most_receives = if pauses_refs { MAX_PAUSED_RECEIVES } else { MAX_LITERAL_RECEIVES };
        if receiver.literal_receives() >= most_receives
            && self.kernel.end.stop_accepting_refs(self.kernel.own, pauses_refs)
        {
            receiver.reset_literal_receives();
        }
        got
    }

    /// Reads from the kernel's socket. `count` maps the result to the bytes taken off the socket.
    fn read(
        &self,
        parts: &[Part],
        read_literal: impl ReadLiteral,
        count: impl FnOnce(usize) -> usize,
    ) -> Result<usize, Errno> {
        self.kernel.own.receiving.begin_reading();
        let got = read_literal(parts, self.kernel.flags | libc::MSG_DONTWAIT);
        self.kernel.own.receiving.end_reading(count(*got.as_ref().unwrap_or(&0)));
        got
    }

    /// Resets the connection, because its sender has announced something invalid.
    fn break_off(&self, why: &str) -> Received {
        reset(self.kernel.fd, why);
        Received::Done(Err(Errno(libc::ECONNRESET)))
    }
}
