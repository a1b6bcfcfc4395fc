//! What goes out at a stream that may be a lane: large parts by reference, the rest as it is.

use super::lent::{Lent, Stamped, copies, given as given_by, lend};
use super::{end, note_large};
use core::ffi::c_int;
use libc::{iovec, msghdr, ssize_t};
use smallvec::SmallVec;
use uncopy_capi::sending;
use uncopy_core::stats::Counter;
use uncopy_engine::arena::segment::Shared;
use uncopy_engine::call::output::{self, Output};
use uncopy_engine::call::placed::is_in_block;
use uncopy_engine::state::counters;
use uncopy_lanes::copies::Stamp;
use uncopy_lanes::message::{Given, Kept, MIN_REFERENCE_BYTES, bytes_from, join};
use uncopy_lanes::process::{Process, is_attended, process};
use uncopy_sys::errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::presence::Section;
use uncopy_sys::readable::is_readable;
use uncopy_sys::socket;
use uncopy_transmit as transmit;

/// A send on `fd`, plainly by `call`, unless that is a lane. What libc's function would return. The `parts` are only asked for where
/// they may go by reference: to look at a vector of the program's is a system call.
#[inline(never)]
pub fn send<'a>(
    fd: c_int,
    parts: impl FnOnce() -> Option<&'a [Part]>,
    flags: c_int,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if flags & libc::MSG_OOB != 0 {
        // The receiver does not count it where it is out of band.
        end(fd);
    }
    let Some(process) = process() else {
        let sent = call();
        note_large(fd, sent);
        return sent;
    };
    let is_literal = flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 || !process.may_refer(fd);
    let is_large = |parts: &&[Part]| parts.iter().any(|part| part.len_bytes >= MIN_REFERENCE_BYTES);
    let parts = if is_literal { None } else { parts().filter(is_large) };
    let sent = parts.and_then(|parts| refer(process, fd, parts, flags, None));
    sent.unwrap_or_else(|| literally(process, fd, call))
}

/// Sends parts of a message by reference, and what is left of it as it is. What sendmsg would return; `None`: nothing was sent, and
/// it does not go by reference now. `stamped`: which of its bytes have stamps, if the caller knows.
fn refer(
    process: &'static Process,
    fd: c_int,
    parts: &[Part],
    flags: c_int,
    stamped: Option<&[Stamped]>,
) -> Option<ssize_t> {
    let longest = parts.iter().map(|part| part.len_bytes).max().unwrap_or(0);
    let sent_bytes = match by_reference(process, fd, parts, longest, flags, stamped)? {
        Err(errno) => {
            errno::set(errno);
            return Some(-1);
        }
        Ok(sent_bytes) => sent_bytes,
    };
    let whole_bytes: usize = parts.iter().map(|part| part.len_bytes).sum();
    if sent_bytes == whole_bytes {
        return Some(sent_bytes as ssize_t);
    }
    let rest = bytes_from(parts, sent_bytes, usize::MAX);
    let _errno = errno::Keep::new();
    let waits = flags & libc::MSG_DONTWAIT == 0 && !socket::is_non_blocking(fd);
    // Who is told of edges waits for one where not all was sent: there is one only where the kernel itself had no room.
    let went = if waits {
        send_rest(process, fd, rest, flags)
    } else {
        send_parts(process, fd, &rest, flags).max(0)
    };
    Some(sent_bytes as ssize_t + went)
}

/// A part of a message, as a program that has twin memory of its own describes it.
#[repr(C)]
pub struct LanePart {
    /// First byte.
    address: usize,
    /// Length, bytes.
    len_bytes: usize,
    /// Tells whether the bytes have changed since they were sent before; zeroes: nothing tells.
    stamp: Stamp,
}

/// What is returned where nothing was done.
const NO_LANE: ssize_t = -2;

/// Whether streams may become lanes, for servers of uncopy's own, which have the twin allocator in themselves: what they send by
/// system calls of their own is not seen here.
#[unsafe(no_mangle)]
pub extern "C" fn uncopy_lanes_are_on() -> bool {
    super::is_on()
}

/// Whether a part of `len_bytes` bytes would go by reference now at a descriptor. Begins to meet others if this process has not.
#[unsafe(no_mangle)]
pub extern "C" fn uncopy_lane_takes(fd: c_int, len_bytes: usize) -> bool {
    if !super::is_on() {
        return false;
    }
    let Some(process) = process() else {
        note_large(fd, len_bytes as ssize_t);
        return false;
    };
    let _errno = errno::Keep::new();
    Section::enter().is_some_and(|_section| process.outlet(fd, len_bytes).is_some())
}

/// `sendmsg` of these parts where [`uncopy_lane_takes`] has said that they go by reference. -2: nothing was done; the message is
/// to be sent otherwise.
///
/// # Safety
/// There are `count` parts at `parts`, each of which can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_lane_send(
    fd: c_int,
    parts: *const LanePart,
    count: usize,
    flags: c_int,
) -> ssize_t {
    let Some(process) = process() else { return NO_LANE };
    // SAFETY: the caller answers for the parts.
    let given = unsafe { core::slice::from_raw_parts(parts, count) };
    let parts: SmallVec<[Part; 8]> =
        given.iter().map(|part| Part { address: part.address, len_bytes: part.len_bytes }).collect();
    let is_stamped =
        |(_, given): &(usize, &LanePart)| given.stamp != [0; 2] && given.len_bytes >= MIN_REFERENCE_BYTES;
    let stamped = given.iter().enumerate().filter(is_stamped);
    let stamped: SmallVec<[Stamped; 8]> =
        stamped.map(|(index, given)| Stamped { index, bytes: parts[index], stamp: given.stamp }).collect();
    refer(process, fd, &parts, flags, Some(&stamped)).unwrap_or(NO_LANE)
}

/// Sends parts of a message as they are, of which others were sent: only those count if nobody is there any more.
fn send_parts(process: &Process, fd: c_int, parts: &[Part], flags: c_int) -> ssize_t {
    // SAFETY: all-zero is a valid msghdr: no name, no parts, no control data.
    let mut header: msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = parts.as_ptr().cast_mut().cast::<iovec>();
    header.msg_iovlen = parts.len() as _;
    // SAFETY: parts of the program's message.
    literally(process, fd, || unsafe { sending::sendmsg(fd, &raw const header, flags | libc::MSG_NOSIGNAL) })
}

/// A call that waits until all is sent: goes on with what is left.
fn send_rest(process: &'static Process, fd: c_int, mut rest: SmallVec<[Part; 8]>, flags: c_int) -> ssize_t {
    let mut sent_bytes = 0;
    while !rest.is_empty() && transmit::wait_for_room(fd) {
        let longest = rest.iter().map(|part| part.len_bytes).max().unwrap_or(0);
        let went = match by_reference(process, fd, &rest, longest, flags, Some(&[])) {
            Some(Ok(went)) => went,
            Some(Err(_)) => break,
            None => {
                let Ok(went) = usize::try_from(send_parts(process, fd, &rest, flags)) else { break };
                went
            }
        };
        sent_bytes += went;
        rest = bytes_from(&rest, went, usize::MAX);
    }
    sent_bytes as ssize_t
}

/// Makes a call that sends the bytes as they are.
fn literally(process: &Process, fd: c_int, call: impl FnOnce() -> ssize_t) -> ssize_t {
    let literal = process.begin_literal(fd);
    let sent = call();
    let sent_bytes = usize::try_from(sent).unwrap_or(0);
    match literal {
        Some(literal) => literal.sent(sent_bytes),
        None if sent_bytes >= MIN_REFERENCE_BYTES => {
            let _errno = errno::Keep::new();
            if let Some(_section) = Section::enter() {
                process.sent(fd);
            }
        }
        None => {}
    }
    sent
}

/// Makes a call that sends bytes as they are, `bytes` of its result.
pub fn send_literally<T: Copy>(fd: c_int, call: impl FnOnce() -> T, bytes: impl FnOnce(T) -> ssize_t) -> T {
    let literal = process().and_then(|process| process.begin_literal(fd));
    let sent = call();
    if let Some(literal) = literal {
        literal.sent(usize::try_from(bytes(sent)).unwrap_or(0));
    }
    sent
}

/// Makes a call that moves bytes from one descriptor to another inside the kernel, which knows nothing of tokens. Where the
/// next bytes are somewhere else, it says what it says of descriptors that it cannot do that with.
pub fn pass(from: c_int, to: c_int, call: impl FnOnce() -> ssize_t) -> ssize_t {
    let is_plain = process().is_none_or(|process| {
        let _errno = errno::Keep::new();
        Section::enter().is_none_or(|_section| process.leave(from))
    });
    if !is_plain || is_attended(from) {
        errno::set(libc::EINVAL);
        return -1;
    }
    send_literally(to, call, |sent| sent)
}

/// Sends by reference, as far as there is room. `None`: nothing was sent, and it does not go by reference now.
fn by_reference(
    process: &'static Process,
    fd: c_int,
    parts: &[Part],
    longest: usize,
    flags: c_int,
    stamped: Option<&[Stamped]>,
) -> Option<Result<usize, c_int>> {
    let outlet = {
        let _errno = errno::Keep::new();
        let _section = Section::enter()?;
        process.outlet(fd, longest)?
    };
    // What cannot be read is for the kernel to refuse.
    if !parts.iter().all(|part| is_in_block(*part) || is_readable(part.address, part.len_bytes)) {
        return None;
    }
    let is_output = output::is_candidate(parts);
    let lends = stamped.is_none() && !is_output && !process.has_no_stamps();
    let lent = if lends { lend(parts) } else { Lent::default() };
    let stamped = stamped.unwrap_or(&lent.stamped);
    let output = if is_output { Output::begin(fd, parts) } else { None };
    let sent = {
        // Left before the output is: it was entered after it.
        let _section = Section::enter()?;
        match &output {
            Some(output) => output.inspect(|parts| {
                let mut parts: SmallVec<[Given<'_>; 16]> = parts.map(given).collect();
                // SAFETY: the program's own parts, which it sends.
                unsafe { join(&mut parts) };
                process.send(fd, &outlet, &parts, flags)
            }),
            None => {
                // SAFETY: parts that were found to be readable.
                let copies = unsafe { copies(process, stamped, |number| lent.was_copied(number)) };
                process.send(fd, &outlet, &given_by(parts, &copies), flags)
            }
        }
    };
    if let Some(Ok(sent_bytes)) = &sent {
        count_sent(process, *sent_bytes);
    }
    if let Some(output) = output {
        let sent_bytes = sent.as_ref().and_then(|sent| sent.as_ref().ok()).copied().unwrap_or(0);
        output.left_by_lane(sent_bytes, MIN_REFERENCE_BYTES);
        output.finish(sent_bytes);
    }
    sent.map(|sent| sent.map_err(|errno| errno.0))
}

fn count_sent(process: &Process, sent_bytes: usize) {
    counters::add(Counter::LaneSentBytes, sent_bytes);
    counters::add(Counter::LaneCopiedBytes, process.take_copied_bytes());
}

fn given((part, shared): (Part, Option<&Shared>)) -> Given<'_> {
    let kept = shared.and_then(|shared| shared.keeper().downcast_ref::<Kept>());
    kept.map_or(Given::Plain(part), |kept| Given::Kept(part, kept))
}
