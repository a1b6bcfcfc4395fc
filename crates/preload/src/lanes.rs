//! Streams that may be lanes: what receives and sends on them do. Without `--lanes` that is a load.

mod lent;
mod room;
mod send;

use crate::exit;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use libc::{iovec, msghdr, ssize_t};
use room::{room_of, take_shared};
pub use send::{pass, send, send_literally};
use smallvec::SmallVec;
use std::sync::OnceLock;
use uncopy_core::bounds::shared_bytes;
use uncopy_core::scope::Scope;
use uncopy_core::stats::Counter;
use uncopy_engine::arena::segment::{Shared, share_by};
use uncopy_engine::call::placed::place;
use uncopy_engine::service::activation;
use uncopy_engine::state::phase::look_at_streams;
use uncopy_engine::state::{counters, ledger};
use uncopy_interpose::slots;
use uncopy_lanes::begin::begin;
use uncopy_lanes::handover;
use uncopy_lanes::message::{Kept, bytes_from};
use uncopy_lanes::outcome;
use uncopy_lanes::process::{self, MIN_LARGE_BYTES, Process, Received, is_attended, process};
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;
use uncopy_sys::presence::Section;
use uncopy_sys::{cgroup, ids, socket, stream};

slots! {
    LOOK = c"recv": unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> ssize_t;
}

/// Bytes that a receive discards at once, at most.
const MAX_DISCARDED_BYTES: usize = 1 << 20;

/// How often a lane may end, and become one again, while a receive begins.
const MAX_TURNS: u32 = 1000;

/// Whether streams may become lanes.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whether streams may become lanes.
#[inline(always)]
pub fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// Which streams may become lanes, and where their processes meet.
struct Meeting {
    scope: Scope<'static>,
    directory: String,
    max_bytes: Option<usize>,
    /// Whose process it was.
    user: u32,
}

static MEETING: OnceLock<Meeting> = OnceLock::new();
/// This process has begun to meet others, or cannot.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Streams in `scope` may become lanes from here on, those to processes that meet in `directory`; not those that are open now.
/// For the process's life. Shared memory takes `max_bytes` at most.
pub fn switch_on(scope: Scope<'_>, directory: &[u8], max_bytes: Option<usize>) {
    let text: &'static str = Box::leak(scope.text().into());
    let directory = String::from_utf8_lossy(directory).into_owned();
    if let Some(scope) = Scope::parse(text.as_bytes())
        && MEETING.set(Meeting { scope, directory, max_bytes, user: ids::effective_user() }).is_ok()
    {
        handover::note_inherited();
        outcome::tell_by(ledger::add_stream);
        IS_ON.store(true, Relaxed);
        look_at_streams();
    }
}

/// A call has moved so many bytes: the first that is large and a stream's begins to meet others.
fn note_large(fd: c_int, len_bytes: ssize_t) {
    if len_bytes < MIN_LARGE_BYTES as ssize_t || HAS_BEGUN.load(Relaxed) {
        return;
    }
    let _errno = errno::Keep::new();
    let _critical = Critical::enter();
    if let Some(Meeting { scope, directory, max_bytes, user }) = MEETING.get()
        && process::is_fit(fd, scope)
        && !HAS_BEGUN.swap(true, Relaxed)
        && let Err(errno) = begin(directory, *scope, shared_bytes(*max_bytes, cgroup::memory_limit()))
            .inspect(|()| share_by(take_shared))
            .inspect(|()| activation::begin_without_engine())
    {
        // Who has become another user meets nobody, as is known.
        if ids::effective_user() != *user {
            return;
        }
        let why = if errno.0 == libc::EPERM { "others can enter " } else { "nothing can be made in " };
        uncopy_sys::mem::say(format_args!("uncopy: no lanes: {why}{directory} ({errno:?})\n"));
    }
}

/// In a forked child: its lanes are to begin anew.
pub fn begin_anew() {
    HAS_BEGUN.store(false, Relaxed);
}

/// A receive on `fd`, plainly by `call`, unless that is a lane. What libc's function would return. The `parts` are only asked for at
/// a lane: to look at a vector of the program's is a system call. `None`: the kernel refuses them.
///
/// # Safety
/// The parts are the program's, which gave them to a receive.
#[inline(never)]
pub unsafe fn receive<'a>(
    fd: c_int,
    parts: impl Fn() -> Option<&'a [Part]>,
    flags: c_int,
    caller: usize,
    call: impl FnOnce() -> (ssize_t, bool),
) -> (ssize_t, bool) {
    // SAFETY: the caller answers for the parts.
    let literally = |parts: &[Part], flags: c_int| unsafe { socket::receive(fd, parts, flags) };
    // SAFETY: as said.
    unsafe { receive_by(fd, parts, flags, Some(caller), literally, || false, call) }
}

/// The same by recvmsg.
///
/// # Safety
/// As for [`receive`]; the header is that of the program's message, and can be read.
pub unsafe fn receive_message(
    fd: c_int,
    header: *mut msghdr,
    parts: &[Part],
    flags: c_int,
    caller: usize,
    call: impl FnOnce() -> (ssize_t, bool),
) -> (ssize_t, bool) {
    let mut is_plain = false;
    // SAFETY: the program's own header, which can be read.
    let given = unsafe { *header };
    // What the kernel says of the literal bytes, if there were any.
    let said = Cell::new(None::<msghdr>);
    let literally = |parts: &[Part], flags: c_int| {
        let mut own = given;
        own.msg_iov = parts.as_ptr().cast_mut().cast::<iovec>();
        own.msg_iovlen = parts.len() as _;
        // SAFETY: the program's own header with other parts, for which the caller answers.
        unsafe { socket::receive_message(fd, &mut own, flags) }.inspect(|_| said.set(Some(own)))
    };
    let has_control = || said.get().is_some_and(|said| said.msg_controllen > 0);
    let plainly = || {
        is_plain = true;
        call()
    };
    // SAFETY: as said.
    let received =
        unsafe { receive_by(fd, || Some(parts), flags, Some(caller), literally, has_control, plainly) };
    if !is_plain && received.0 >= 0 {
        let said = said.get();
        // SAFETY: the program's own header, which it gave to a receive.
        let header = unsafe { &mut *header };
        header.msg_namelen = said.map_or(0, |said| said.msg_namelen);
        header.msg_controllen = said.map_or(0, |said| said.msg_controllen);
        header.msg_flags = said.map_or(0, |said| said.msg_flags);
    }
    received
}

/// A receive that discards what it receives (MSG_TRUNC), plainly by `call`, unless that is a lane. What libc's function would
/// return.
///
/// # Safety
/// The parts are the program's, which gave them to a receive.
pub unsafe fn discard(
    fd: c_int,
    parts: &[Part],
    flags: c_int,
    caller: usize,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let flags = flags & !libc::MSG_TRUNC;
    let is_tcp = matches!(socket::kind(fd), Ok((libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, _)));
    let plainly = || (call(), false);
    if !is_tcp || !is_attended(fd) {
        // SAFETY: the caller answers for the parts. Other streams know no such flag.
        return unsafe { receive(fd, || Some(parts), flags, caller, plainly) }.0;
    }
    let len_bytes = parts.iter().map(|part| part.len_bytes).sum::<usize>().min(MAX_DISCARDED_BYTES);
    let mut room = {
        let _critical = Critical::enter();
        vec![0u8; len_bytes]
    };
    let parts = [Part { address: room.as_mut_ptr() as usize, len_bytes }];
    // SAFETY: room of our own.
    let literally = |parts: &[Part], flags: c_int| unsafe { socket::receive(fd, parts, flags) };
    // SAFETY: as said.
    let got = unsafe { receive_by(fd, || Some(&parts[..]), flags, None, literally, || false, plainly) }.0;
    let _critical = Critical::enter();
    drop(room);
    got
}

/// A receive on `fd` whose literal bytes come by `literally`; `stops` says whether one that waits for all of its bytes returns
/// after these. Without a `caller` whatever comes is copied: the parts are not the program's.
unsafe fn receive_by<'a>(
    fd: c_int,
    parts: impl Fn() -> Option<&'a [Part]>,
    flags: c_int,
    caller: Option<usize>,
    literally: impl Fn(&[Part], c_int) -> Result<usize, Errno>,
    stops: impl Fn() -> bool,
    call: impl FnOnce() -> (ssize_t, bool),
) -> (ssize_t, bool) {
    let Some(process) = process() else {
        if is_attended(fd) {
            errno::set(libc::ECONNRESET);
            return (-1, false);
        }
        let (got, is_engines) = call();
        note_large(fd, got);
        return (got, is_engines);
    };
    let mut turns = 0;
    let plain = loop {
        if let Some(plain) = process.begin_plain(fd) {
            break plain;
        }
        turns += 1;
        if turns > MAX_TURNS {
            errno::set(libc::ECONNRESET);
            return (-1, false);
        }
        let Some(parts) = parts() else {
            // The kernel refuses them, or takes them where they are not aligned: it must not find a token then.
            if Section::enter().is_some_and(|_section| process.leave(fd)) {
                return call();
            }
            errno::set(libc::EFAULT);
            return (-1, false);
        };
        // SAFETY: the caller answers for the parts.
        if let Some(got) = unsafe { receive_on_lane(process, fd, parts, flags, caller, &literally, &stops) } {
            return (got, false);
        }
        // It was one until just now.
    };
    let (got, is_engines) = call();
    drop(plain);
    if got >= MIN_LARGE_BYTES as ssize_t && flags & libc::MSG_PEEK == 0 {
        let _errno = errno::Keep::new();
        if let Some(_section) = Section::enter()
            && process.received(fd, got as usize)
        {
            counters::add(Counter::Lanes, 1);
        }
    }
    (got, is_engines)
}

/// Begins work on a descriptor that is attended; `None`: it is not any more. While a fork takes long there is nothing to go on with:
/// what comes may be tokens.
fn enter_attended(fd: c_int) -> Option<Section> {
    loop {
        let section = Section::enter();
        if section.is_some() || !is_attended(fd) {
            return section;
        }
        uncopy_sys::thread::pause();
    }
}

/// `None`: it is no lane any more.
unsafe fn receive_on_lane(
    process: &'static Process,
    fd: c_int,
    parts: &[Part],
    flags: c_int,
    caller: Option<usize>,
    literally: impl Fn(&[Part], c_int) -> Result<usize, Errno>,
    stops: impl Fn() -> bool,
) -> Option<ssize_t> {
    let whole_bytes: usize = parts.iter().map(|part| part.len_bytes).sum();
    let waits_for_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    let mut rest: SmallVec<[Part; 8]> = SmallVec::from_slice(parts);
    let (mut got_bytes, mut waits_first) = (0, true);
    let mut has_found = false;
    loop {
        let mut by_reference_bytes = 0;
        let put = |part: Part, from: usize, kept: &dyn Fn() -> Kept| {
            by_reference_bytes += part.len_bytes;
            caller.is_some_and(|caller| {
                // SAFETY: what is kept stays as it is; the program gave the part to a receive.
                unsafe { place(part, caller, || Shared::new(from, part.len_bytes, Box::new(kept()))) }
            })
        };
        let received = match enter_attended(fd) {
            None => Received::Plainly,
            Some(_section) => {
                let flags = flags & !libc::MSG_WAITALL;
                // SAFETY: the caller answers for the parts.
                unsafe { process.receive(fd, &rest, flags, waits_first, put, &literally, room_of) }
            }
        };
        let is_part = matches!(received, Received::Part(_));
        match received {
            Received::Plainly if got_bytes == 0 => return None,
            // It is no lane any more, and all of the bytes are waited for.
            Received::Plainly if waits_for_all => {
                if let Some(_plain) = process.begin_plain(fd) {
                    let _errno = errno::Keep::new();
                    return Some((got_bytes + literally(&rest, flags).unwrap_or(0)) as ssize_t);
                }
            }
            Received::Plainly => return Some(got_bytes as ssize_t),
            Received::Done(Ok(len_bytes)) | Received::Part(len_bytes) => {
                if flags & libc::MSG_PEEK == 0 {
                    counters::add(Counter::LaneReceivedBytes, by_reference_bytes);
                    counters::add(Counter::LaneLiteralBytes, len_bytes - by_reference_bytes);
                }
                got_bytes += len_bytes;
                let goes_on = waits_for_all || is_part;
                if !goes_on || len_bytes == 0 || got_bytes == whole_bytes || stops() {
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
                // Who sends out of band ends the lane first: nothing comes by reference behind the mark.
                if has_found && stream::is_at_mark(fd) == Ok(true) {
                    if Section::enter().is_some_and(|_section| process.leave(fd)) {
                        return if got_bytes == 0 { None } else { Some(got_bytes as ssize_t) };
                    }
                    process::reset(fd, "bytes behind some out of band");
                }
                waits_first = false;
                let mut byte = 0u8;
                let look = libc::MSG_PEEK | flags & libc::MSG_DONTWAIT;
                // SAFETY: room for a byte.
                let found = unsafe { LOOK.call()(fd, (&raw mut byte).cast::<c_void>(), 1, look) };
                if found != 1 {
                    return Some(if got_bytes > 0 { got_bytes as ssize_t } else { found });
                }
                has_found = true;
            }
        }
    }
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
        && process::is_known(from)
        && exit::is_owner()
        && let Some(_section) = Section::enter()
    {
        let _errno = errno::Keep::new();
        process::duplicated(from, to);
    }
}

/// A descriptor is about to be closed.
pub fn closed(fd: c_int) {
    // The descriptors of a child of vfork are its own.
    if is_on()
        && process::is_known(fd)
        && exit::is_owner()
        && let Some(_section) = Section::enter()
    {
        let _errno = errno::Keep::new();
        process::closed(fd);
    }
}

/// Descriptors from `first` to `last` are about to be closed.
pub fn closed_range(first: u32, last: u32) {
    if is_on() {
        uncopy_lanes::descriptors::known(first, last).for_each(closed);
    }
}

/// What memory holds is about to change in a way that leaves no trace: copies of twin memory are not to be trusted from here on.
pub fn changed(address: usize, len_bytes: usize) {
    if is_on()
        && uncopy_twin::overlaps(address, len_bytes)
        && let Some(process) = process()
    {
        let _errno = errno::Keep::new();
        let _critical = Critical::enter();
        process.forget_stamps();
    }
}

/// Runs what is to be done before something that is not the engine's, with `errno` kept.
fn aside(work: impl FnOnce()) {
    if is_on() {
        let _errno = errno::Keep::new();
        // Where a fork takes long, without it: nobody waits for what this needs.
        let _section = Section::enter();
        work();
    }
}

/// The calling process, or a child of vfork that shares its memory, is about to execute another program.
pub fn before_exec() {
    aside(|| handover::before_exec(exit::is_owner()));
}

/// The program starts another one by a function that has its own way to do so.
pub fn before_spawn() {
    aside(handover::before_spawn);
}

/// A descriptor goes to another program, or came from one.
pub fn passed(fd: c_int) {
    aside(|| handover::pass(fd));
}

/// Nothing goes by reference from here on, and nothing is asked of the kernel.
pub fn end_all() {
    aside(handover::end_all);
    IS_ON.store(false, Relaxed);
}

/// Before the process becomes another user's, or is allowed less: no lane is left, nor anybody else's memory.
pub fn before_change() {
    end_all();
}

/// The same, if this process has begun to meet others.
pub fn end_begun() {
    if process().is_some() {
        end_all();
    }
}
