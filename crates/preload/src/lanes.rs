//! Streams that may be lanes: what receives and sends on them do. Without `--lanes` that is a load.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use libc::{iovec, msghdr, ssize_t};
use smallvec::SmallVec;
use std::sync::OnceLock;
use uncopy_capi::sending;
use uncopy_core::stats::Counter;
use uncopy_engine::arena::segment::Shared;
use uncopy_engine::call::output::{self, Output};
use uncopy_engine::call::placed::place;
use uncopy_engine::state::counters;
use uncopy_engine::state::phase::look_at_streams;
use uncopy_interpose::slots;
use uncopy_lanes::message::{Given, Kept, join};
use uncopy_lanes::process::{self, MIN_LARGE_BYTES, Process, Received, begin, is_lost, process};
use uncopy_sys::errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;
use uncopy_sys::presence::Section;
use uncopy_sys::socket;
use uncopy_transmit as transmit;

slots! {
    LOOK = c"recv": unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> ssize_t;
}

/// Whether streams may become lanes.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whether streams may become lanes.
#[inline(always)]
pub fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// Where processes meet whose streams may become lanes.
static DIRECTORY: OnceLock<String> = OnceLock::new();
/// This process has begun to meet others, or cannot.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Streams may become lanes from here on, those to processes that meet in `directory`.
pub fn switch_on(directory: &str) {
    if DIRECTORY.set(directory.to_owned()).is_ok() {
        IS_ON.store(true, Relaxed);
        look_at_streams();
    }
}

/// A call has moved so many bytes: the first that is large begins to meet others.
fn note_large(len_bytes: ssize_t) {
    if len_bytes >= MIN_LARGE_BYTES as ssize_t && !HAS_BEGUN.swap(true, Relaxed) {
        let _errno = errno::Keep::new();
        let _critical = Critical::enter();
        if let Some(directory) = DIRECTORY.get()
            && let Err(errno) = begin(directory, u64::from(std::process::id()))
        {
            uncopy_sys::mem::say(format_args!("uncopy: no lanes: {errno:?}\n"));
        }
    }
}

/// In a forked child: its lanes are to begin anew.
pub fn begin_anew() {
    HAS_BEGUN.store(false, Relaxed);
}

/// A receive on `fd`, plainly by `call`, unless that is a lane. What libc's function would return.
///
/// # Safety
/// The parts are the program's, which gave them to a receive.
#[inline(never)]
pub unsafe fn receive(
    fd: c_int,
    parts: &[Part],
    flags: c_int,
    caller: usize,
    call: impl FnOnce() -> (ssize_t, bool),
) -> (ssize_t, bool) {
    let Some(process) = process() else {
        if is_lost(fd) {
            errno::set(libc::ECONNRESET);
            return (-1, false);
        }
        let (got, is_engines) = call();
        note_large(got);
        return (got, is_engines);
    };
    let Some(plain) = process.begin_plain(fd) else {
        // SAFETY: the caller answers for the parts.
        return unsafe { receive_on_lane(process, fd, parts, flags, caller) }
            .map_or_else(call, |got| (got, false));
    };
    let (got, is_engines) = call();
    drop(plain);
    if got > 0 && flags & libc::MSG_PEEK == 0 {
        let _errno = errno::Keep::new();
        if let Some(_section) = Section::enter() {
            process.received(fd, got as usize);
        }
    }
    (got, is_engines)
}

/// `None`: the call is to be made as it is.
unsafe fn receive_on_lane(
    process: &'static Process,
    fd: c_int,
    parts: &[Part],
    flags: c_int,
    caller: usize,
) -> Option<ssize_t> {
    let whole_bytes: usize = parts.iter().map(|part| part.len_bytes).sum();
    let waits_for_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    let mut rest: SmallVec<[Part; 8]> = SmallVec::from_slice(parts);
    let (mut got_bytes, mut waits_first) = (0, true);
    loop {
        let section = Section::enter()?;
        let put = |part: Part, from: usize, kept: &dyn Fn() -> Kept| {
            counters::add(Counter::LaneReceivedBytes, part.len_bytes);
            // SAFETY: what is kept stays as it is; the program gave the part to a receive.
            unsafe { place(part, caller, || Shared::new(from, part.len_bytes, Box::new(kept()))) }
        };
        // SAFETY: the caller answers for the parts.
        let received = unsafe { process.receive(fd, &rest, flags & !libc::MSG_WAITALL, waits_first, put) };
        drop(section);
        match received {
            Received::Plainly if got_bytes == 0 => return None,
            Received::Plainly => return Some(got_bytes as ssize_t),
            Received::Done(Ok(len_bytes)) => {
                got_bytes += len_bytes;
                if !waits_for_all || len_bytes == 0 || got_bytes == whole_bytes {
                    return Some(got_bytes as ssize_t);
                }
                skip(&mut rest, len_bytes);
            }
            Received::Done(Err(errno)) if errno.0 != libc::EAGAIN => {
                errno::set(errno.0);
                return Some(if got_bytes > 0 { got_bytes as ssize_t } else { -1 });
            }
            Received::Nothing | Received::Done(Err(_)) => {
                waits_first = false;
                let mut byte = 0u8;
                let look = libc::MSG_PEEK | flags & libc::MSG_DONTWAIT;
                // SAFETY: room for a byte.
                let found = unsafe { LOOK.call()(fd, (&raw mut byte).cast::<c_void>(), 1, look) };
                if found != 1 {
                    return Some(if got_bytes > 0 { got_bytes as ssize_t } else { found });
                }
            }
        }
    }
}

/// Takes `len_bytes` bytes off the front of the parts.
fn skip(parts: &mut SmallVec<[Part; 8]>, mut len_bytes: usize) {
    let gone = parts.iter().take_while(|part| {
        let is_gone = part.len_bytes <= len_bytes;
        len_bytes -= if is_gone { part.len_bytes } else { 0 };
        is_gone
    });
    let gone = gone.count();
    parts.drain(..gone);
    if let Some(first) = parts.first_mut() {
        *first = Part { address: first.address + len_bytes, len_bytes: first.len_bytes - len_bytes };
    }
}

/// What a message's header says after a receive on a lane.
pub fn note_header(message: &mut msghdr) {
    message.msg_namelen = 0;
    message.msg_controllen = 0;
    message.msg_flags = 0;
}

/// A send on `fd`, plainly by `call`, unless that is a lane. What libc's function would return.
#[inline(never)]
pub fn send(fd: c_int, parts: &[Part], flags: c_int, call: impl FnOnce() -> ssize_t) -> ssize_t {
    let Some(process) = process() else {
        let sent = call();
        note_large(sent);
        return sent;
    };
    let whole_bytes: usize = parts.iter().map(|part| part.len_bytes).sum();
    let longest = parts.iter().map(|part| part.len_bytes).max().unwrap_or(0);
    let is_unusual = flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0;
    let sent = if is_unusual { None } else { by_reference(process, fd, parts, longest, flags) };
    let sent_bytes = match sent {
        None => return literally(process, fd, call),
        Some(Err(errno)) => {
            errno::set(errno);
            return -1;
        }
        Some(Ok(sent_bytes)) => sent_bytes,
    };
    let waits = || flags & libc::MSG_DONTWAIT == 0 && !socket::is_non_blocking(fd);
    if sent_bytes == whole_bytes || !waits() {
        return sent_bytes as ssize_t;
    }
    send_rest(process, fd, parts, sent_bytes, flags)
}

/// A call that waits until all is sent: goes on behind the first bytes.
fn send_rest(process: &Process, fd: c_int, parts: &[Part], mut sent_bytes: usize, flags: c_int) -> ssize_t {
    let mut rest: SmallVec<[Part; 8]> = SmallVec::from_slice(parts);
    skip(&mut rest, sent_bytes);
    while !rest.is_empty() && transmit::wait_for_room(fd) {
        let longest = rest.iter().map(|part| part.len_bytes).max().unwrap_or(0);
        let went = match by_reference(process, fd, &rest, longest, flags) {
            Some(Ok(went)) => went,
            Some(Err(_)) => break,
            None => {
                // SAFETY: all-zero is a valid msghdr: no name, no parts, no control data.
                let mut header: msghdr = unsafe { core::mem::zeroed() };
                header.msg_iov = rest.as_ptr().cast_mut().cast::<iovec>();
                header.msg_iovlen = rest.len() as _;
                // SAFETY: parts of the program's message.
                let went =
                    literally(process, fd, || unsafe { sending::sendmsg(fd, &raw const header, flags) });
                let Ok(went) = usize::try_from(went) else { break };
                went
            }
        };
        sent_bytes += went;
        skip(&mut rest, went);
    }
    sent_bytes as ssize_t
}

/// Makes a call that sends the bytes as they are.
fn literally(process: &Process, fd: c_int, call: impl FnOnce() -> ssize_t) -> ssize_t {
    let literal = process.begin_literal(fd);
    let sent = call();
    if let Some(literal) = literal {
        literal.sent(usize::try_from(sent).unwrap_or(0));
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
    if !is_plain || is_lost(from) {
        errno::set(libc::EINVAL);
        return -1;
    }
    send_literally(to, call, |sent| sent)
}

/// Sends by reference, as far as there is room. `None`: nothing was sent, and it does not go by reference now.
fn by_reference(
    process: &Process,
    fd: c_int,
    parts: &[Part],
    longest: usize,
    flags: c_int,
) -> Option<Result<usize, c_int>> {
    let outlet = {
        let _errno = errno::Keep::new();
        let _section = Section::enter()?;
        process.outlet(fd, longest)?
    };
    let output = if output::is_candidate(parts) { Output::begin(fd, parts) } else { None };
    let _section = Section::enter()?;
    let sent = match &output {
        Some(output) => output.inspect(|parts| {
            let mut parts: SmallVec<[Given<'_>; 16]> = parts.map(given).collect();
            // SAFETY: the program's own parts, which it sends.
            unsafe { join(&mut parts) };
            process.send(fd, &outlet, &parts, flags)
        }),
        None => {
            let parts: SmallVec<[Given<'_>; 16]> = parts.iter().map(|part| Given::Plain(*part)).collect();
            process.send(fd, &outlet, &parts, flags)
        }
    };
    if let Some(Ok(sent_bytes)) = &sent {
        counters::add(Counter::LaneSentBytes, *sent_bytes);
    }
    if let Some(output) = output {
        output.finish(sent.as_ref().and_then(|sent| sent.as_ref().ok()).copied().unwrap_or(0));
    }
    sent.map(|sent| sent.map_err(|errno| errno.0))
}

fn given((part, shared): (Part, Option<&Shared>)) -> Given<'_> {
    let kept = shared.and_then(|shared| shared.keeper().downcast_ref::<Kept>());
    kept.map_or(Given::Plain(part), |kept| Given::Kept(part, kept))
}

/// How many bytes can be received from a lane at once; `None`: as many as the kernel says.
pub fn receivable(fd: c_int) -> Option<usize> {
    let _errno = errno::Keep::new();
    let _section = Section::enter()?;
    process()?.receivable(fd)
}

/// Nothing goes by reference at a descriptor any more.
pub fn end(fd: c_int) {
    let _errno = errno::Keep::new();
    if let Some(_section) = Section::enter() {
        process::end(fd);
    }
}

/// A descriptor has been duplicated, if `to` is one.
pub fn duplicated(from: c_int, to: c_int) {
    if is_on()
        && to >= 0
        && let Some(_section) = Section::enter()
    {
        let _errno = errno::Keep::new();
        process::duplicated(from, to);
    }
}

/// A descriptor is about to be closed.
pub fn closed(fd: c_int) {
    if is_on()
        && let Some(_section) = Section::enter()
    {
        let _errno = errno::Keep::new();
        process::closed(fd);
    }
}
