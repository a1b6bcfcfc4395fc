//! Sends on streams that may be lanes: large parts by reference, the rest unchanged.

use super::lent::{Lent, copy_stamped, lend, with_copies as given_parts};
use crate::descriptors::end;
use crate::startup::note_large;
use core::ffi::c_int;
use libc::{iovec, msghdr, ssize_t};
use smallvec::SmallVec;
use uncopy_capi::sending;
use uncopy_core::policy::sites::Exit;
use uncopy_core::stats::Counter;
use uncopy_engine::arena::segment::SharedBytes;
use uncopy_engine::call::output::{self, Output};
use uncopy_engine::call::shared_input::is_in_block;
use uncopy_engine::state::counters;
use uncopy_lanes::ends::End;
use uncopy_lanes::message::{MIN_REFERENCE_BYTES, SendPart, SharedBuf, bytes_from, extend_shared};
use uncopy_lanes::process::{Process, accepts_refs, process};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::presence::Section;
use uncopy_sys::readable::is_readable;
use uncopy_sys::socket;
use uncopy_sys::sync::Arc;
use uncopy_transmit as transmit;

/// Sends on `fd`: by reference if its lane allows, otherwise by `call`. Returns the result of libc's function.
/// `parts` is called only if references are possible, because validating the program's vector takes a system call.
#[inline(never)]
pub fn send<'a>(
    fd: ProgramFd,
    parts: impl FnOnce() -> Option<&'a [Part]>,
    flags: c_int,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if flags & libc::MSG_OOB != 0 {
        // The receiver does not count out-of-band bytes.
        end(fd);
    }
    let Some(process) = process() else {
        let sent = call();
        note_large(fd, sent);
        return sent;
    };
    let end = process.find_end(fd);
    let is_literal = flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0;
    let is_large = |parts: &&[Part]| parts.iter().any(|part| part.len_bytes >= MIN_REFERENCE_BYTES);
    if let Some(end) = end.as_ref().filter(|end| !is_literal && process.may_send_refs(end))
        && let Some(parts) = parts().filter(is_large)
    {
        let sent = refer(Outgoing { process, fd, end }, parts, flags);
        // The descriptor may meanwhile have been found to be another end's.
        return sent.unwrap_or_else(|| send_bytes(process, fd, process.find_end(fd), call));
    }
    send_bytes(process, fd, end, call)
}

#[derive(Clone, Copy)]
struct Outgoing<'a> {
    process: &'static Process,
    fd: ProgramFd,
    end: &'a Arc<End>,
}

/// Sends large parts by reference, and the rest through the kernel. Returns the result of sendmsg; `None` if
/// nothing was sent, and references are not possible now.
fn refer(at: Outgoing<'_>, parts: &[Part], flags: c_int) -> Option<ssize_t> {
    let longest = parts.iter().map(|part| part.len_bytes).max().unwrap_or(0);
    let sent_bytes = match by_reference(at, parts, longest, flags, true)? {
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
    let _errno = errno::SavedErrno::new();
    let waits = flags & libc::MSG_DONTWAIT == 0 && !socket::is_non_blocking(at.fd);
    // An edge-triggered program waits for EPOLLOUT after a short send, which comes only if the kernel itself had
    // no room: so the rest is offered to the kernel.
    let moved_bytes = if waits { send_rest(at, rest, flags) } else { send_parts(at, &rest, flags).max(0) };
    Some(sent_bytes as ssize_t + moved_bytes)
}

/// Sends the rest of a message unchanged, without SIGPIPE, since the bytes sent before are to be reported.
fn send_parts(at: Outgoing<'_>, parts: &[Part], flags: c_int) -> ssize_t {
    // SAFETY: msghdr has only pointers and integers, for which zero is valid.
    let mut header: msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = parts.as_ptr().cast_mut().cast::<iovec>();
    header.msg_iovlen = parts.len() as _;
    // SAFETY: the header is a local, and the parts are those of the program's message, which sendmsg only reads.
    let send = || unsafe { sending::sendmsg(at.fd, &raw const header, flags | libc::MSG_NOSIGNAL) };
    send_bytes(at.process, at.fd, Some(Arc::clone(at.end)), send)
}

/// Sends the rest of a message in a blocking call; returns the number of bytes sent.
fn send_rest(at: Outgoing<'_>, mut rest: SmallVec<[Part; 8]>, flags: c_int) -> ssize_t {
    let mut sent_bytes = 0;
    // The descriptor's number may have been reused.
    let is_still = || socket::cookie(at.fd) == Ok(at.end.cookie);
    while !rest.is_empty() && transmit::wait_for_room(at.fd) && is_still() {
        let longest = rest.iter().map(|part| part.len_bytes).max().unwrap_or(0);
        let moved_bytes = match by_reference(at, &rest, longest, flags, false) {
            Some(Ok(moved_bytes)) => moved_bytes,
            Some(Err(_)) => break,
            None => {
                let Ok(moved_bytes) = usize::try_from(send_parts(at, &rest, flags)) else { break };
                moved_bytes
            }
        };
        sent_bytes += moved_bytes;
        rest = bytes_from(&rest, moved_bytes, usize::MAX);
    }
    sent_bytes as ssize_t
}

/// Sends by `call`, counted as a literal send.
fn send_bytes(
    process: &Process,
    fd: ProgramFd,
    end: Option<Arc<End>>,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let literal = process.begin_literal(fd, end);
    let sent = call();
    let sent_bytes = usize::try_from(sent).unwrap_or(0);
    match literal {
        Some(literal) => literal.finish(sent_bytes),
        None if sent_bytes >= MIN_REFERENCE_BYTES => {
            let _errno = errno::SavedErrno::new();
            if let Some(_section) = Section::enter() {
                process.note_large_send(fd);
            }
        }
        None => {}
    }
    sent
}

/// Sends by `call`, counted as a literal send; `bytes` extracts the number of bytes from its result.
pub fn send_unchanged<T: Copy>(
    fd: ProgramFd,
    call: impl FnOnce() -> T,
    bytes: impl FnOnce(T) -> ssize_t,
) -> T {
    let literal = process().and_then(|process| process.begin_literal(fd, process.find_end(fd)));
    let sent = call();
    if let Some(literal) = literal {
        literal.finish(usize::try_from(bytes(sent)).unwrap_or(0));
    }
    sent
}

/// Transfers bytes between descriptors inside the kernel, by `call`. Tokens cannot be transferred, so if `from`
/// has outstanding references, fails with EINVAL, as for descriptors that do not support the call.
pub fn transfer(from: ProgramFd, to: ProgramFd, call: impl FnOnce() -> ssize_t) -> ssize_t {
    let is_plain = process().is_none_or(|process| {
        let _errno = errno::SavedErrno::new();
        Section::enter().is_none_or(|_section| process.make_passthrough(from))
    });
    if !is_plain || accepts_refs(from) {
        errno::set(libc::EINVAL);
        return -1;
    }
    send_unchanged(to, call, |sent| sent)
}

/// Sends by reference as far as there is room. `None` if nothing was sent, and references are not possible now.
/// `may_lend`: cached copies of twin memory may be used.
fn by_reference(
    at: Outgoing<'_>,
    parts: &[Part],
    longest: usize,
    flags: c_int,
    may_lend: bool,
) -> Option<Result<usize, c_int>> {
    let Outgoing { process, fd, end } = at;
    let send_target = {
        let _errno = errno::SavedErrno::new();
        let _section = Section::enter()?;
        process.send_target(fd, end, longest)?
    };
    // The kernel is to refuse unreadable parts.
    if !parts.iter().all(|part| is_in_block(*part) || is_readable(part.address, part.len_bytes)) {
        return None;
    }
    let is_output = output::is_candidate(parts);
    let lends = may_lend && !is_output && !process.has_no_stamps();
    let lent = if lends { lend(parts) } else { Lent::default() };
    let output = if is_output { Output::begin(fd, parts) } else { None };
    let sent = {
        // Sections are left in reverse order: this one before that of `output`.
        let _section = Section::enter()?;
        match &output {
            Some(output) => output.inspect(|parts| {
                let mut parts: SmallVec<[SendPart<'_>; 16]> = parts.map(send_part).collect();
                // SAFETY: the parts were found readable, or are the engine's, readable while `output` holds them.
                unsafe { extend_shared(&mut parts) };
                process.send(fd, &send_target, &parts, flags)
            }),
            None => {
                // SAFETY: the stamped bytes lie within the parts, which were found readable above.
                let copies =
                    unsafe { copy_stamped(process, &lent.stamped, |number| lent.note_copied(number)) };
                process.send(fd, &send_target, &given_parts(parts, &copies), flags)
            }
        }
    };
    if let Some(Ok(sent_bytes)) = &sent {
        count_sent(process, *sent_bytes);
    }
    if let Some(output) = output {
        let sent_bytes = sent.as_ref().and_then(|sent| sent.as_ref().ok()).copied().unwrap_or(0);
        output.record_leaving(Exit::Lane, sent_bytes, MIN_REFERENCE_BYTES);
        output.finish(sent_bytes);
    }
    sent.map(|sent| sent.map_err(|errno| errno.0))
}

fn count_sent(process: &Process, sent_bytes: usize) {
    counters::add(Counter::LaneSentBytes, sent_bytes);
    counters::add(Counter::LaneCopiedBytes, process.take_copied_bytes());
}

fn send_part((part, shared): (Part, Option<&SharedBytes>)) -> SendPart<'_> {
    let kept = shared.and_then(|shared| shared.owner().downcast_ref::<SharedBuf>());
    kept.map_or(SendPart::Plain(part), |kept| SendPart::Shared(part, kept))
}
