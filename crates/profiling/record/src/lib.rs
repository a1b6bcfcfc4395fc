//! Records what a program receives, copies and sends into the file that `uncopy profile` reads
//! (`uncopy_core::recording`).
//!
//! Hooks call [`Timer::begin`] before a call and report the call's result to the timer afterwards. While
//! recording is off, that costs a load and a comparison. An event costs two reads of the time-stamp counter,
//! one stack capture and the eight words of its slot. It makes no system call, takes no lock, does not use
//! the program's heap, and preserves `errno`. Slow work (creating the file, first sight of a stack or a
//! descriptor) is done once.
//!
//! | module | contents |
//! |---|---|
//! | [`session`] | start and end of a recording, here and in forked children |
//! | `area` | the mapping of the file |
//! | `ring` | the ring of events |
//! | `stacks` | the table of stacks, and of the modules that contain their addresses |
//! | `recent` | cache of recently captured stacks |
//! | `samples` | per-stack tallies of accessed bytes |
//! | `objects` | cache of descriptor kinds |
//! | `switch` | whether recording is on, and from which size |
//!
//! Invariants: no value read from the file is used as an address or an index without being bounded first,
//! since the command, or any process of the same user, may write to the file. An event is dropped only if the
//! ring is full, or the file is being created or cannot be created. Except in the last case, dropped events
//! are counted, and a Gap precedes the next event.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the recording"
)]

mod area;
mod objects;
mod recent;
mod ring;
pub mod samples;
pub mod session;
mod stacks;
mod switch;

pub use stacks::{Stack, stack_id};
pub use switch::{is_on, min_size_bytes};
pub use uncopy_core::recording::{Call, Flags, Function, Object};

use uncopy_core::recording::Event;
use uncopy_sys::clock;
use uncopy_sys::descriptor::{Descriptor as _, ProgramFd};
use uncopy_sys::iovec::Part;

// uncopy-core and uncopy-sys do not depend on each other, so each defines PAGE_BYTES.
const _: () = assert!(uncopy_core::addr::PAGE_BYTES == uncopy_sys::PAGE_BYTES);

/// Start time of a call that may be recorded; its methods record the call after it has returned.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    start: u64,
}

/// Describes an input or output call.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Kind of the call: `Call::Input` or `Call::Output`.
    pub call: Call,
    /// The libc function that made the call.
    pub function: Function,
    /// Descriptor that the call reads or writes.
    pub fd: ProgramFd,
    /// True if the descriptor is known to be a socket.
    pub is_socket: bool,
    /// Further properties of the event.
    pub flags: Flags,
}

impl Transfer {
    /// Sets `Flags::SAMPLED` if the engine handled the call.
    #[inline]
    #[must_use]
    pub fn by_engine(mut self, handled_by_engine: bool) -> Self {
        if handled_by_engine {
            self.flags = self.flags.with(Flags::SAMPLED);
        }
        self
    }
}

impl Timer {
    /// Starts a timer if recording is on and a call of `len_bytes` bytes would be recorded.
    #[inline]
    #[must_use]
    pub fn begin(len_bytes: usize) -> Option<Self> {
        (len_bytes >= min_size_bytes() && is_on()).then(|| Self { start: clock::ticks() })
    }

    /// Starts a timer if recording is on.
    #[inline]
    #[must_use]
    pub fn begin_any() -> Option<Self> {
        is_on().then(|| Self { start: clock::ticks() })
    }

    /// Records a copy that has completed. `flags` has SAMPLED if the engine made the copy.
    #[inline(always)]
    pub fn record_copy(self, function: Function, to: usize, from: usize, len_bytes: usize, flags: Flags) {
        let end = clock::ticks();
        let stack = Stack::here();
        self.publish_move(end, stack, Call::Copy, (function, flags), [to, from, len_bytes]);
    }

    /// Records bytes that were moved by remapping pages instead of copying.
    #[inline(always)]
    pub fn record_relocation(self, function: Function, to: usize, from: usize, len_bytes: usize) {
        let end = clock::ticks();
        let stack = Stack::here();
        self.publish_move(end, stack, Call::Relocate, (function, Flags::default()), [to, from, len_bytes]);
    }

    #[inline(never)]
    fn publish_move(
        self,
        end: u64,
        stack: Stack,
        call: Call,
        (function, flags): (Function, Flags),
        [to, from, len]: [usize; 3],
    ) {
        let Some(area) = session::area() else { return };
        let (start_ns, duration_ns) = clock::start_and_duration_ns(self.start, end);
        ring::publish(
            area,
            Event {
                sequence: 0,
                start_ns,
                duration_ns,
                call,
                object: Object::None,
                function,
                flags,
                fd: -1,
                thread: uncopy_sys::lock::thread_id(),
                stack: stack.id(area),
                to: to as u64,
                from: from as u64,
                len_bytes: len as u64,
            },
        );
    }

    /// Records an input or output of one buffer; `done` is the call's return value.
    #[inline(always)]
    pub fn record_transfer(self, transfer: Transfer, address: usize, len_bytes: usize, done: isize) {
        let end = clock::ticks();
        if usize::try_from(done).is_ok_and(|done| done >= min_size_bytes()) {
            let stack = Stack::here();
            self.record(end, stack, transfer, &[Part { address, len_bytes }], done as usize);
        }
    }

    /// Records an input or output of several buffers, with one event per buffer that was read or written;
    /// `done` is the call's return value.
    ///
    /// # Safety
    /// If `done` is above 0, `vector` must point to `count` parts.
    #[inline(always)]
    pub unsafe fn record_parts(self, transfer: Transfer, vector: *const Part, count: usize, done: isize) {
        let end = clock::ticks();
        if usize::try_from(done).is_ok_and(|done| done >= min_size_bytes()) {
            let stack = Stack::here();
            let count = if vector.is_aligned() { count } else { 0 };
            // SAFETY: `vector` is aligned, or `count` is 0. The caller guarantees `count` parts at `vector`,
            // which the call has read, since it transferred bytes.
            let parts = unsafe { core::slice::from_raw_parts(vector, count) };
            self.record(end, stack, transfer, parts, done as usize);
        }
    }

    /// Records several messages. Each item has the message's parts and the number of bytes transferred.
    #[inline(always)]
    pub fn record_messages<'a>(
        self,
        transfer: Transfer,
        messages: impl Iterator<Item = (impl FnOnce() -> &'a [Part], usize)> + Clone,
    ) {
        let end = clock::ticks();
        let sum_bytes: usize = messages.clone().map(|(_, done)| done).sum();
        if sum_bytes < min_size_bytes() {
            return;
        }
        let mut transfer = transfer;
        let stack = Stack::here();
        for (parts, done) in messages {
            self.record(end, stack, transfer, parts(), done);
            transfer.flags = transfer.flags.with(Flags::CONTINUES);
        }
    }

    #[inline(never)]
    fn record(self, end: u64, stack: Stack, transfer: Transfer, parts: &[Part], done_bytes: usize) {
        let Some(area) = session::area() else { return };
        let (start_ns, duration_ns) = clock::start_and_duration_ns(self.start, end);
        let is_input = transfer.call == Call::Input;
        let mut event = Event {
            sequence: 0,
            start_ns,
            duration_ns: if transfer.flags.has(Flags::CONTINUES) { 0 } else { duration_ns },
            call: transfer.call,
            object: objects::of(transfer.fd, transfer.is_socket, end),
            function: transfer.function,
            flags: transfer.flags,
            fd: transfer.fd.number(),
            thread: uncopy_sys::lock::thread_id(),
            stack: stack.id(area),
            to: 0,
            from: 0,
            len_bytes: 0,
        };
        let mut remaining_bytes = done_bytes;
        for part in parts {
            let len_bytes = part.len_bytes.min(remaining_bytes);
            if len_bytes == 0 {
                continue;
            }
            remaining_bytes -= len_bytes;
            let address = part.address as u64;
            (event.to, event.from) = if is_input { (address, 0) } else { (0, address) };
            event.len_bytes = len_bytes as u64;
            ring::publish(area, event);
            event.duration_ns = 0;
            event.flags = event.flags.with(Flags::CONTINUES);
        }
    }

    /// Records bytes that the kernel moved from one descriptor to another, as an input and an output.
    #[inline(always)]
    pub fn record_fd_transfer(self, function: Function, from_fd: ProgramFd, to_fd: ProgramFd, done: isize) {
        let end = clock::ticks();
        if usize::try_from(done).is_ok_and(|done| done >= min_size_bytes()) {
            self.record_passed(end, Stack::here(), function, [from_fd, to_fd], done as u64);
        }
    }

    #[inline(never)]
    fn record_passed(self, end: u64, stack: Stack, function: Function, fds: [ProgramFd; 2], len_bytes: u64) {
        let Some(area) = session::area() else { return };
        let (start_ns, duration_ns) = clock::start_and_duration_ns(self.start, end);
        let thread = uncopy_sys::lock::thread_id();
        let stack = stack.id(area);
        for (index, fd) in fds.into_iter().enumerate() {
            let is_first = index == 0;
            let flags = if is_first { Flags::IN_KERNEL } else { Flags::IN_KERNEL.with(Flags::CONTINUES) };
            ring::publish(
                area,
                Event {
                    sequence: 0,
                    start_ns,
                    duration_ns: if is_first { duration_ns } else { 0 },
                    call: if is_first { Call::Input } else { Call::Output },
                    object: objects::of(fd, false, end),
                    function,
                    flags,
                    fd: fd.number(),
                    thread,
                    stack,
                    to: 0,
                    from: 0,
                    len_bytes,
                },
            );
        }
    }
}

/// Records that the contents of a range are discarded. Must be called before the range is released, so that
/// this event precedes those of the range's next owner.
#[inline]
pub fn record_discard(function: Function, address: usize, len_bytes: usize) {
    if len_bytes >= min_size_bytes() && is_on() {
        record_forget(function, address, len_bytes);
    }
}

#[inline(never)]
fn record_forget(function: Function, address: usize, len_bytes: usize) {
    // If nothing has been recorded yet, no event can refer to the range.
    let Some(area) = session::area_in_use() else { return };
    let (start_ns, _) = clock::start_and_duration_ns(clock::ticks(), 0);
    ring::publish(
        area,
        Event {
            sequence: 0,
            start_ns,
            duration_ns: 0,
            call: Call::Forget,
            object: Object::None,
            function,
            flags: Flags::default(),
            fd: -1,
            thread: uncopy_sys::lock::thread_id(),
            stack: 0,
            to: 0,
            from: address as u64,
            len_bytes: len_bytes as u64,
        },
    );
}
