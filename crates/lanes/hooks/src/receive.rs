//! Receives on streams that may be lanes.

use crate::input_memory::writable_prefix_bytes;
use crate::startup::note_large;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use libc::{iovec, msghdr, ssize_t};
use smallvec::SmallVec;
use uncopy_core::stats::Counter;
use uncopy_engine::arena::segment::SharedBytes;
use uncopy_engine::call::input::ReceiveResult;
use uncopy_engine::call::shared_input::make_view;
use uncopy_engine::state::counters;
use uncopy_interpose::slots;
use uncopy_lanes::message::{SharedBuf, bytes_from};
use uncopy_lanes::process::{self, Destination, MIN_LARGE_BYTES, Process, Received, accepts_refs, process};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;
use uncopy_sys::presence::Section;
use uncopy_sys::{socket, stream};

slots! {
    LOOK = c"recv": unsafe extern "C" fn(ProgramFd, *mut c_void, usize, c_int) -> ssize_t;
}

/// Maximum number of bytes that a receive discards at once.
const MAX_DISCARDED_BYTES: usize = 1 << 20;

/// Maximum number of changes between lane and plain stream before a receive begins.
const MAX_TURNS: u32 = 1000;

/// Receives on `fd`: through its lane, or plainly by `call` if it has none. Returns the result of libc's function.
/// `parts` is called only for a lane, because validating the program's vector takes a system call; `None`: the
/// kernel refuses the vector.
///
/// # Safety
/// The parts must be buffers that the program passed to a receive.
#[inline(never)]
pub unsafe fn receive<'a>(
    fd: ProgramFd,
    parts: impl Fn() -> Option<&'a [Part]>,
    flags: c_int,
    caller: usize,
    call: impl FnOnce() -> ReceiveResult,
) -> ReceiveResult {
    // SAFETY: the caller guarantees that the parts are buffers that the program passed to a receive.
    let read_literal = |parts: &[Part], flags: c_int| unsafe { socket::receive(fd, parts, flags) };
    // SAFETY: the caller guarantees that the parts are buffers that the program passed to a receive.
    unsafe { receive_by(fd, parts, flags, Some(caller), read_literal, || false, call) }
}

/// Receives on `fd` as [`receive`] does, for recvmsg.
///
/// # Safety
/// As for [`receive`]; `header` must be the readable header of the program's message.
pub unsafe fn receive_message<'a>(
    fd: ProgramFd,
    header: *mut msghdr,
    parts: impl Fn() -> Option<&'a [Part]>,
    flags: c_int,
    caller: usize,
    call: impl FnOnce() -> ReceiveResult,
) -> ReceiveResult {
    let mut is_plain = false;
    // SAFETY: the caller guarantees that `header` is readable; the program does not change it during its call.
    let original = unsafe { *header };
    // Header as the kernel filled it for the literal bytes, if there were any.
    let filled = Cell::new(None::<msghdr>);
    let read_literal = |parts: &[Part], flags: c_int| {
        let mut own = original;
        own.msg_iov = parts.as_ptr().cast_mut().cast::<iovec>();
        own.msg_iovlen = parts.len() as _;
        // SAFETY: `own` is a copy of the program's header, so its name and control buffers are those that the
        // program passed; the parts are buffers that the program passed, as the caller guarantees.
        unsafe { socket::receive_message(fd, &mut own, flags) }.inspect(|_| filled.set(Some(own)))
    };
    let has_control = || filled.get().is_some_and(|filled| filled.msg_controllen > 0);
    let plainly = || {
        is_plain = true;
        call()
    };
    // SAFETY: the caller guarantees that the parts are buffers that the program passed to a receive.
    let received = unsafe { receive_by(fd, parts, flags, Some(caller), read_literal, has_control, plainly) };
    if !is_plain && received.result >= 0 {
        let filled = filled.get();
        // SAFETY: the program passed the header to recvmsg to be written, and does not use it during the call.
        let header = unsafe { &mut *header };
        header.msg_namelen = filled.map_or(0, |filled| filled.msg_namelen);
        header.msg_controllen = filled.map_or(0, |filled| filled.msg_controllen);
        header.msg_flags = filled.map_or(0, |filled| filled.msg_flags);
    }
    received
}

/// Prepares `fd` for a receive by the kernel into buffers that were not examined. Returns true if it will find no
/// token; otherwise `errno` is the error to report.
pub fn make_passthrough(fd: ProgramFd) -> bool {
    let is_plain = !accepts_refs(fd)
        || process()
            .is_some_and(|process| Section::enter().is_some_and(|_section| process.make_passthrough(fd)));
    if !is_plain {
        errno::set(libc::EFAULT);
    }
    is_plain
}

/// Receives and discards (MSG_TRUNC) on `fd`: through its lane, or plainly by `call` if it has none. Returns the
/// result of libc's function.
///
/// # Safety
/// The parts must be buffers that the program passed to a receive.
pub unsafe fn discard(
    fd: ProgramFd,
    parts: &[Part],
    flags: c_int,
    caller: usize,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let flags = flags & !libc::MSG_TRUNC;
    let is_tcp = matches!(socket::kind(fd), Ok((libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, _)));
    let plainly = || ReceiveResult::passthrough(call());
    if !is_tcp || !accepts_refs(fd) {
        // SAFETY: the caller guarantees that the parts are buffers that the program passed to a receive. On other
        // streams than TCP, MSG_TRUNC does not discard.
        return unsafe { receive(fd, || Some(parts), flags, caller, plainly) }.result;
    }
    let len_bytes = parts.iter().map(|part| part.len_bytes).sum::<usize>().min(MAX_DISCARDED_BYTES);
    let mut room = {
        let _critical = Critical::enter();
        vec![0u8; len_bytes]
    };
    let parts = [Part { address: room.as_mut_ptr() as usize, len_bytes }];
    // SAFETY: the parts describe memory of this function's own, which outlives the call and is writable.
    let read_literal = |parts: &[Part], flags: c_int| unsafe { socket::receive(fd, parts, flags) };
    // SAFETY: the parts describe memory of this function's own, which outlives the call and is writable.
    let arrival =
        unsafe { receive_by(fd, || Some(&parts[..]), flags, None, read_literal, || false, plainly) };
    let _critical = Critical::enter();
    drop(room);
    arrival.result
}

/// Receives on `fd`, its literal bytes by `read_literal`. A receive that waits for all of its bytes returns early if
/// `stops` is true after a part of them. Without a `caller` everything is copied: the parts are not the program's.
unsafe fn receive_by<'a>(
    fd: ProgramFd,
    parts: impl Fn() -> Option<&'a [Part]>,
    flags: c_int,
    caller: Option<usize>,
    read_literal: impl Fn(&[Part], c_int) -> Result<usize, Errno>,
    stops: impl Fn() -> bool,
    call: impl FnOnce() -> ReceiveResult,
) -> ReceiveResult {
    let Some(process) = process() else {
        if accepts_refs(fd) {
            errno::set(libc::ECONNRESET);
            return ReceiveResult::passthrough(-1);
        }
        let arrival = call();
        note_large(fd, arrival.result);
        return arrival;
    };
    let mut turns = 0;
    let plain = loop {
        if let Some(plain) = process.begin_plain_receive(fd) {
            break plain;
        }
        turns += 1;
        if turns > MAX_TURNS {
            errno::set(libc::ECONNRESET);
            return ReceiveResult::passthrough(-1);
        }
        let Some(parts) = parts() else {
            // The kernel may accept a vector that is not aligned: then it must not find a token.
            if Section::enter().is_some_and(|_section| process.make_passthrough(fd)) {
                return call();
            }
            errno::set(libc::EFAULT);
            return ReceiveResult::passthrough(-1);
        };
        // SAFETY: the caller guarantees that the parts are buffers to receive into.
        let got = unsafe { receive_on_lane(process, fd, parts, flags, caller, &read_literal, &stops) };
        if let Some(got) = got {
            return ReceiveResult::passthrough(got);
        }
        // The descriptor was a lane until just now.
    };
    let arrival = call();
    let got = arrival.result;
    drop(plain);
    if got >= MIN_LARGE_BYTES as ssize_t && flags & libc::MSG_PEEK == 0 {
        let _errno = errno::SavedErrno::new();
        if let Some(_section) = Section::enter()
            && process.received(fd, got as usize)
        {
            counters::add(Counter::Lanes, 1);
        }
    }
    arrival
}

/// Enters a section for a descriptor that accepts references; `None` once it no longer does. If a fork takes long,
/// waits for it, since input may contain tokens.
fn enter_attended(fd: ProgramFd) -> Option<Section> {
    loop {
        let section = Section::enter();
        if section.is_some() || !accepts_refs(fd) {
            return section;
        }
        uncopy_sys::thread::pause();
    }
}

/// Receives through the lane of `fd`; `None` if it is no lane any more.
unsafe fn receive_on_lane(
    process: &'static Process,
    fd: ProgramFd,
    parts: &[Part],
    flags: c_int,
    caller: Option<usize>,
    read_literal: impl Fn(&[Part], c_int) -> Result<usize, Errno>,
    stops: impl Fn() -> bool,
) -> Option<ssize_t> {
    let whole_bytes: usize = parts.iter().map(|part| part.len_bytes).sum();
    let waits_for_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    let mut rest: SmallVec<[Part; 8]> = SmallVec::from_slice(parts);
    let (mut got_bytes, mut waits_first) = (0, true);
    let mut has_found = false;
    loop {
        let mut by_reference_bytes = 0;
        let put = |part: Part, from: usize, kept: &dyn Fn() -> SharedBuf| {
            by_reference_bytes += part.len_bytes;
            caller.is_some_and(|caller| {
                // SAFETY: the kept bytes stay mapped and unchanged as long as `kept` lives; the program passed the
                // part to a receive, so it may be replaced.
                unsafe {
                    make_view(part, caller, || SharedBytes::new(from, part.len_bytes, Box::new(kept())))
                }
            })
        };
        let received = match enter_attended(fd) {
            None => Received::Passthrough,
            Some(_section) => {
                let flags = flags & !libc::MSG_WAITALL;
                let to = Destination {
                    parts: &rest,
                    place: put,
                    read_literal: &read_literal,
                    writable_bytes: writable_prefix_bytes,
                };
                // SAFETY: the caller guarantees that the parts are buffers to receive into; `writable_prefix_bytes` finds their
                // end.
                unsafe { process.receive(fd, flags, waits_first, to) }
            }
        };
        let is_part = matches!(received, Received::Part(_));
        match received {
            Received::Passthrough if got_bytes == 0 => return None,
            // The descriptor is no lane any more, but the receive must wait for all of its bytes.
            Received::Passthrough if waits_for_all => {
                if let Some(_plain) = process.begin_plain_receive(fd) {
                    let _errno = errno::SavedErrno::new();
                    return Some((got_bytes + read_literal(&rest, flags).unwrap_or(0)) as ssize_t);
                }
            }
            Received::Passthrough => return Some(got_bytes as ssize_t),
            Received::Done(Ok(len_bytes)) | Received::Part(len_bytes) => {
                if flags & libc::MSG_PEEK == 0 {
                    counters::add(Counter::LaneReceivedBytes, by_reference_bytes);
                    counters::add(Counter::LaneLiteralBytes, len_bytes - by_reference_bytes);
                }
                got_bytes += len_bytes;
                let continues = waits_for_all || is_part;
                if !continues || len_bytes == 0 || got_bytes == whole_bytes || stops() {
                    return Some(got_bytes as ssize_t);
                }
                rest = bytes_from(&rest, len_bytes, usize::MAX);
                waits_first &= !is_part;
            }
            Received::Done(Err(errno)) if errno.0 != libc::EAGAIN => {
                errno::set(errno.0);
                return Some(if got_bytes > 0 { got_bytes as ssize_t } else { -1 });
            }
            Received::Nothing | Received::Done(Err(_)) if got_bytes > 0 && !waits_for_all => {
                return Some(got_bytes as ssize_t);
            }
            Received::Nothing | Received::Done(Err(_)) => {
                if has_found && leaves_at_mark(process, fd) {
                    return if got_bytes == 0 { None } else { Some(got_bytes as ssize_t) };
                }
                waits_first = false;
                let found = wait_for_byte(fd, flags);
                if found != 1 {
                    return Some(if got_bytes > 0 { got_bytes as ssize_t } else { found });
                }
                has_found = true;
            }
        }
    }
}

/// True if the next bytes follow out-of-band data, plainly: its sender ends the lane before sending it.
fn leaves_at_mark(process: &Process, fd: ProgramFd) -> bool {
    if stream::is_at_mark(fd) != Ok(true) {
        return false;
    }
    let is_plain = Section::enter().is_some_and(|_section| process.make_passthrough(fd));
    if !is_plain {
        process::reset(fd, "bytes behind some out of band");
    }
    is_plain
}

/// Peeks at the next byte, waiting as the program's receive would; returns the result of the peek.
fn wait_for_byte(fd: ProgramFd, flags: c_int) -> ssize_t {
    let mut byte = 0u8;
    let look = libc::MSG_PEEK | flags & libc::MSG_DONTWAIT;
    // SAFETY: the pointer and the length describe `byte`, a local that nothing else refers to.
    unsafe { LOOK.call()(fd, (&raw mut byte).cast::<c_void>(), 1, look) }
}

/// Returns the number of bytes that can be received at once; `None`: the kernel's count is right.
pub fn receivable(fd: ProgramFd) -> Option<usize> {
    let _errno = errno::SavedErrno::new();
    let _section = Section::enter()?;
    process()?.receivable(fd)
}
