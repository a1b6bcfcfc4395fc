//! Records what a program receives, copies and sends, into the file that `uncopy profile` reads
//! (`uncopy_core::recording`).
//!
//! Hooks ask [`Timer::begin`] before a call and tell the timer what was done after it; while nothing is recorded that
//! is a load and a comparison. An event costs two readings of the time stamp counter, one stack and the eight words of
//! its slot: no system call, no lock, nothing of the program's heap, `errno` kept. What is slow (the file, a stack or a
//! descriptor that is not known yet) is made once.
//!
//! | module | what it owns |
//! |---|---|
//! | [`session`] | beginning and ending, here and in forked children |
//! | `area` | the mapping of the file, and its words |
//! | `ring` | places in the ring |
//! | `stacks` | the table of stacks, and the modules that they lie in |
//! | `recent` | stacks that were taken a moment ago |
//! | `samples` | what was touched, by stack |
//! | `objects` | what descriptors are |
//! | `clock` | the time |
//!
//! Invariants: nothing read from the file is used as an address or an index without being cut to what there is (the
//! command, or anyone with the same user's rights, may write there). An event is dropped only where the ring is full,
//! the file is being made or cannot be made; it is counted then, and a Gap precedes the next.
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

pub use objects::closed;
pub use stacks::{Stack, id_of};
pub use switch::{is_on, min_size_bytes};
pub use uncopy_core::recording::{Call, Flags, Function, Object};

use uncopy_core::recording::Event;
use uncopy_sys::clock;
use uncopy_sys::iovec::Part;

// Neither crate depends on the other; everything else takes the number from one of them.
const _: () = assert!(uncopy_core::addr::PAGE_BYTES == uncopy_sys::PAGE_BYTES);

/// A call that may be recorded: made before it, asked to enter what was done after it.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    start: u64,
}

/// The call of an input or an output.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Input or Output.
    pub call: Call,
    /// The function.
    pub function: Function,
    /// The descriptor.
    pub fd: i32,
    /// Whether it is known to be a socket.
    pub is_socket: bool,
    /// What else is to be known.
    pub flags: Flags,
}

impl Transfer {
    /// The same, made by the engine or not.
    #[inline]
    #[must_use]
    pub fn by_engine(mut self, is_engines: bool) -> Self {
        if is_engines {
            self.flags = self.flags.with(Flags::SAMPLED);
        }
        self
    }
}

impl Timer {
    /// Starts if a recording is on and a call of so many bytes would be entered.
    #[inline]
    #[must_use]
    pub fn begin(len_bytes: usize) -> Option<Self> {
        (len_bytes >= min_size_bytes() && is_on()).then(|| Self { start: clock::ticks() })
    }

    /// Starts if a recording is on.
    #[inline]
    #[must_use]
    pub fn begin_any() -> Option<Self> {
        is_on().then(|| Self { start: clock::ticks() })
    }

    /// Enters a copy. In order of effects it comes after it. `flags`: SAMPLED if the engine made it.
    #[inline(always)]
    pub fn copied(self, function: Function, to: usize, from: usize, len_bytes: usize, flags: Flags) {
        let end = clock::ticks();
        let stack = Stack::here();
        self.enter_copy(end, stack, Call::Copy, (function, flags), [to, from, len_bytes]);
    }

    /// Enters bytes that were moved by page tables.
    #[inline(always)]
    pub fn relocated(self, function: Function, to: usize, from: usize, len_bytes: usize) {
        let end = clock::ticks();
        let stack = Stack::here();
        self.enter_copy(end, stack, Call::Relocate, (function, Flags::default()), [to, from, len_bytes]);
    }

    #[inline(never)]
    fn enter_copy(
        self,
        end: u64,
        stack: Stack,
        call: Call,
        (function, flags): (Function, Flags),
        [to, from, len]: [usize; 3],
    ) {
        let Some(area) = session::area() else { return };
        let (start_ns, duration_ns) = clock::span(self.start, end);
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

    /// Enters an input or an output of one buffer; `done` is what the call returned.
    #[inline(always)]
    pub fn transferred(self, transfer: Transfer, address: usize, len_bytes: usize, done: isize) {
        let end = clock::ticks();
        if usize::try_from(done).is_ok_and(|done| done >= min_size_bytes()) {
            let stack = Stack::here();
            self.enter(end, stack, transfer, &[Part { address, len_bytes }], done as usize);
        }
    }

    /// Enters an input or an output of several buffers, an event for each that bytes went into or came from; `done` is
    /// what the call returned.
    ///
    /// # Safety
    /// If `done` is above 0, there are `count` parts at `vector`.
    #[inline(always)]
    pub unsafe fn transferred_parts(
        self,
        transfer: Transfer,
        vector: *const Part,
        count: usize,
        done: isize,
    ) {
        let end = clock::ticks();
        if usize::try_from(done).is_ok_and(|done| done >= min_size_bytes()) {
            let stack = Stack::here();
            let count = if vector.is_aligned() { count } else { 0 };
            // SAFETY: aligned; a call that transferred bytes has read the vector: it holds `count` parts.
            let parts = unsafe { core::slice::from_raw_parts(vector, count) };
            self.enter(end, stack, transfer, parts, done as usize);
        }
    }

    /// Enters several messages: for each its parts, and how many bytes there were.
    #[inline(always)]
    pub fn transferred_messages<'a>(
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
            self.enter(end, stack, transfer, parts(), done);
            transfer.flags = transfer.flags.with(Flags::CONTINUES);
        }
    }

    #[inline(never)]
    fn enter(self, end: u64, stack: Stack, transfer: Transfer, parts: &[Part], done_bytes: usize) {
        let Some(area) = session::area() else { return };
        let (start_ns, duration_ns) = clock::span(self.start, end);
        let is_input = transfer.call == Call::Input;
        let mut event = Event {
            sequence: 0,
            start_ns,
            duration_ns: if transfer.flags.has(Flags::CONTINUES) { 0 } else { duration_ns },
            call: transfer.call,
            object: objects::of(transfer.fd, transfer.is_socket, end),
            function: transfer.function,
            flags: transfer.flags,
            fd: transfer.fd,
            thread: uncopy_sys::lock::thread_id(),
            stack: stack.id(area),
            to: 0,
            from: 0,
            len_bytes: 0,
        };
        let mut left = done_bytes;
        for part in parts {
            let len_bytes = part.len_bytes.min(left);
            if len_bytes == 0 {
                continue;
            }
            left -= len_bytes;
            let address = part.address as u64;
            (event.to, event.from) = if is_input { (address, 0) } else { (0, address) };
            event.len_bytes = len_bytes as u64;
            ring::publish(area, event);
            event.duration_ns = 0;
            event.flags = event.flags.with(Flags::CONTINUES);
        }
    }

    /// Enters bytes that went from one descriptor to another inside the kernel: an input and an output.
    #[inline(always)]
    pub fn passed(self, function: Function, from_fd: i32, to_fd: i32, done: isize) {
        let end = clock::ticks();
        if usize::try_from(done).is_ok_and(|done| done >= min_size_bytes()) {
            self.enter_passed(end, Stack::here(), function, [from_fd, to_fd], done as u64);
        }
    }

    #[inline(never)]
    fn enter_passed(self, end: u64, stack: Stack, function: Function, fds: [i32; 2], len_bytes: u64) {
        let Some(area) = session::area() else { return };
        let (start_ns, duration_ns) = clock::span(self.start, end);
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
                    fd,
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

/// Enters that what a range holds is nobody's any more. Before it is given up: whoever gets it next comes later.
#[inline]
pub fn forget(function: Function, address: usize, len_bytes: usize) {
    if len_bytes >= min_size_bytes() && is_on() {
        enter_forget(function, address, len_bytes);
    }
}

#[inline(never)]
fn enter_forget(function: Function, address: usize, len_bytes: usize) {
    // Where nothing was recorded yet nothing is to be forgotten.
    let Some(area) = session::area_in_use() else { return };
    let (start_ns, _) = clock::span(clock::ticks(), 0);
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
