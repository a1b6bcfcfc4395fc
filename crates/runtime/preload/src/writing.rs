//! Hooks of write, send and their families.

use crate::files;
use crate::lanes;
use crate::messages::{self, note_moved};
use crate::net;
use crate::pipeline::{self, Buffers, Op, may_have_views};
use crate::reading::{of_a_stream, place};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use libc::{iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, ssize_t};
use uncopy_capi::sending::{self, SEND, SENDMMSG, SENDMSG, SENDTO, WRITE, WRITEV};
use uncopy_engine::call::output::{MAX_PARTS, Output, is_candidate};
use uncopy_engine::state::gate::{MIN_HOOK_BYTES, MIN_STREAM_BYTES};
use uncopy_fdtable as fdtable;
use uncopy_interpose::{alias, entry, slots};
use uncopy_record::{Call, Flags as What, Function, Timer, Transfer};
use uncopy_store::program::Place;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno;
use uncopy_sys::features;
use uncopy_sys::iovec::{Part, parts};
use uncopy_sys::stack_room;

type Pointer = *const c_void;

slots! {
    PWRITE = c"pwrite": unsafe extern "C" fn(ProgramFd, Pointer, usize, off_t) -> ssize_t;
    PWRITEV = c"pwritev": unsafe extern "C" fn(ProgramFd, *const iovec, c_int, off_t) -> ssize_t;
    PWRITEV2 = c"pwritev2": unsafe extern "C" fn(ProgramFd, *const iovec, c_int, off_t, c_int) -> ssize_t;
}

/// Maximum number of messages of one sendmmsg that are examined.
const MAX_MESSAGES: usize = 64;

/// True if a buffer may hold views, or may be lent.
#[inline]
fn is_candidate_one(buffer: Pointer, len: usize) -> bool {
    len >= MIN_STREAM_BYTES.load(Relaxed) || sending::is_candidate(buffer)
}

/// Returns the recorded form of an output by this function.
const fn output(function: Function, fd: ProgramFd) -> Transfer {
    Transfer { call: Call::Output, function, fd, is_socket: false, flags: What(0) }
}

/// Returns the recorded form of an output to a socket by this function.
const fn dispatch(function: Function, fd: ProgramFd) -> Transfer {
    Transfer { call: Call::Output, function, fd, is_socket: true, flags: What(0) }
}

/// Makes a `write`; on a socket, a send, if it would raise a signal that the program must not get.
///
/// # Safety
/// As for write(2).
unsafe fn write_now(fd: ProgramFd, buffer: Pointer, len: usize) -> ssize_t {
    // SAFETY: the caller guarantees the contract of write(2), which is that of send(2) for the buffer.
    unsafe { sent_or(|flags| sending::send(fd, buffer, len, flags), || sending::write(fd, buffer, len)) }
}

fn header(vector: *const iovec, count: usize, to: *const sockaddr, to_len: socklen_t) -> msghdr {
    // SAFETY: msghdr has only pointers and integers, for which zero is valid.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_name = to.cast_mut().cast();
    message.msg_namelen = to_len;
    message.msg_iov = vector.cast_mut();
    message.msg_iovlen = count as _;
    message
}

/// Makes a `writev`; on a socket, a send, as [`write_now`] does.
///
/// # Safety
/// As for writev(2).
unsafe fn writev_now(fd: ProgramFd, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller guarantees the contract of writev(2).
    let write = || unsafe { sending::writev(fd, vector, count) };
    let is_nothing = |count| {
        // SAFETY: the program does not change its vector during the call; `parts` checks the rest.
        unsafe { parts(vector, count) }.is_some_and(|parts| parts.iter().all(|part| part.len_bytes == 0))
    };
    match usize::try_from(count) {
        // Without bytes, writev does nothing, while sendmsg sends an empty datagram or reports a closed peer.
        Ok(count) if net::is_on() && count <= libc::UIO_MAXIOV as usize && !is_nothing(count) => {
            let header = header(vector, count, core::ptr::null(), 0);
            // SAFETY: the caller guarantees the contract of writev(2) for the vector; sendmsg only reads.
            sent_or(|flags| unsafe { sending::sendmsg(fd, &raw const header, flags) }, write)
        }
        _ => write(),
    }
}

/// Calls `send` with flags that suppress SIGPIPE if services are on (`--net`); calls `write` if they are not, or
/// the descriptor is no socket.
#[inline(always)]
fn sent_or(send: impl FnOnce(c_int) -> ssize_t, write: impl FnOnce() -> ssize_t) -> ssize_t {
    if !net::is_on() {
        return write();
    }
    let before = errno::get();
    let sent = send(libc::MSG_NOSIGNAL);
    if sent >= 0 || errno::get() != libc::ENOTSOCK {
        return sent;
    }
    errno::set(before);
    write()
}

fn op_of_write(function: Function, fd: ProgramFd, buffer: Pointer, len: usize) -> Op {
    let (buffers, at) = (Buffers::one(buffer, len), Some(Place::Position));
    Op { asked: Some(0), at, ..Op::new(output(function, fd), buffers) }
}

/// Makes a write described by [`op_of_write`].
///
/// # Safety
/// As for write(2).
unsafe fn write_by(op: &Op, buffer: Pointer, len: usize) -> ssize_t {
    let fd = op.fd();
    // SAFETY: the caller's buffer, as for write(2); parts in its place are readable while the pipeline holds them.
    pipeline::send(op, |parts| unsafe {
        match parts {
            None => write_now(fd, buffer, len),
            Some(parts) => writev_now(fd, parts.as_ptr().cast(), parts.len() as c_int),
        }
    })
}

entry!(write WRITE (fd: ProgramFd, buffer: Pointer, len: usize) -> ssize_t, is_candidate_one(buffer, len) || files::is_tracked(fd), {
    let op = Op { stream: Some(net::suppress_sigpipe(0)), ..op_of_write(Function::Write, fd, buffer, len) };
    write_by(&op, buffer, len)
});

/// Writes past the stdio buffer for `fwrite`. Never by reference to another program, because glibc writes the
/// other parts itself.
pub fn by_stdio(fd: ProgramFd, buffer: Pointer, len: usize) -> ssize_t {
    // SAFETY: the caller passes a buffer of the program's with `len` bytes, readable during the call.
    unsafe { write_by(&op_of_write(Function::Fwrite, fd, buffer, len), buffer, len) }
}

entry!(pwrite PWRITE (fd: ProgramFd, buffer: Pointer, len: usize, offset: off_t) -> ssize_t,
len >= MIN_HOOK_BYTES.load(Relaxed) || files::is_tracked(fd), {
    let at = Some(Place::Offset(offset.cast_unsigned()));
    let op = Op { at, ..Op::new(output(Function::Pwrite, fd), Buffers::one(buffer, len)) };
    pipeline::send(&op, |parts| match parts {
        None => PWRITE.call()(fd, buffer, len, offset),
        Some(parts) => PWRITEV.call()(fd, parts.as_ptr().cast(), parts.len() as c_int, offset),
    })
});

alias!(pwrite64 = pwrite (fd: ProgramFd, buffer: Pointer, len: usize, offset: off_t) -> ssize_t);

fn op_of_send(function: Function, fd: ProgramFd, buffers: Buffers, asked: c_int) -> Op {
    Op { asked: Some(asked), ..Op::new(dispatch(function, fd), buffers) }
}

entry!(send SEND (fd: ProgramFd, buffer: Pointer, len: usize, asked: c_int) -> ssize_t, is_candidate_one(buffer, len), {
    let flags = net::suppress_sigpipe(asked);
    let op = op_of_send(Function::Send, fd, Buffers::one(buffer, len), asked);
    pipeline::send(&Op { stream: Some(flags), ..op }, |parts| match parts {
        None => sending::send(fd, buffer, len, flags),
        Some(parts) => sending::sendmsg(fd, &header(parts.as_ptr().cast(), parts.len(), core::ptr::null(), 0), flags),
    })
});

entry!(sendto SENDTO
(fd: ProgramFd, buffer: Pointer, len: usize, asked: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t,
is_candidate_one(buffer, len), {
    let flags = net::suppress_sigpipe(asked);
    let op = op_of_send(Function::Sendto, fd, Buffers::one(buffer, len), asked);
    let stream = (to.is_null() && to_len == 0).then_some(flags);
    let sent = pipeline::send(&Op { stream, ..op }, |parts| match parts {
        None => sending::sendto(fd, buffer, len, flags, to, to_len),
        Some(parts) => sending::sendmsg(fd, &header(parts.as_ptr().cast(), parts.len(), to, to_len), flags),
    });
    if net::is_address_refused(fd, sent) { send(fd, buffer, len, asked) } else { sent }
});

/// Defines hooks that write a vector, from the function that makes the call, the recorded function, the flags of
/// an equivalent send and those that the program passed, the file position, and the arguments after the vector.
macro_rules! vectored {
    ($name:ident $slot:ident $real:expr, $function:ident, $stream:expr, $asked:expr, $at:expr, ($($argument:ident: $type:ty),*)) => {
        entry!($name $slot (fd: ProgramFd, vector: *const iovec, count: c_int $(, $argument: $type)*) -> ssize_t, features::is_any_active(), {
            let real = $real;
            let (stream, asked, at): (Option<c_int>, Option<c_int>, Option<Place>) = ($stream, $asked, ($at)(fd));
            let op = Op::new(output(Function::$function, fd), Buffers::vector(vector, count));
            pipeline::send(&Op { stream, asked, at, ..op }, |parts| match parts {
                None => real(fd, vector, count $(, $argument)*),
                Some(parts) => real(fd, parts.as_ptr().cast(), parts.len() as c_int $(, $argument)*),
            })
        });
    };
}

/// Returns the file position of a `pwritev2`; `None` if its flags make it wait or append, since such writes cannot
/// be logged.
fn place_of(fd: ProgramFd, offset: off_t, flags: c_int) -> Option<Place> {
    const HARMLESS: c_int = libc::RWF_NOWAIT | libc::RWF_HIPRI;
    if flags & !HARMLESS != 0 {
        files::exclude(fd);
        return None;
    }
    Some(place(offset))
}

vectored!(writev WRITEV writev_now, Writev, Some(net::suppress_sigpipe(0)), Some(0), |_| Some(Place::Position), ());
vectored!(pwritev PWRITEV PWRITEV.call(), Pwritev, None, None, |_| Some(Place::Offset(offset.cast_unsigned())), (offset: off_t));
alias!(pwritev64 = pwritev (fd: ProgramFd, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t);
vectored!(pwritev2 PWRITEV2 PWRITEV2.call(), Pwritev, of_a_stream(offset, flags), None, |fd| place_of(fd, offset, flags), (offset: off_t, flags: c_int));
alias!(pwritev64v2 = pwritev2
(fd: ProgramFd, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t);

entry!(sendmsg SENDMSG (fd: ProgramFd, message: *const msghdr, asked: c_int) -> ssize_t, features::is_any_active(), {
    let flags = net::suppress_sigpipe(asked);
    let mut op = op_of_send(Function::Sendmsg, fd, Buffers::Unseen(message), asked);
    if (lanes::is_on() || files::is_on() || may_have_views()) && messages::is_header(message) {
        op.buffers = Buffers::Vector((*message).msg_iov, (*message).msg_iovlen);
        op.stream = ((*message).msg_namelen == 0 && (*message).msg_controllen == 0).then_some(flags);
        messages::each_descriptor(&*message, fdtable::on_pass);
    }
    let sent = pipeline::send(&op, |parts| match parts {
        None => sending::sendmsg(fd, message, flags),
        Some(parts) => {
            let mut replaced = *message;
            replaced.msg_iov = parts.as_ptr().cast_mut().cast();
            replaced.msg_iovlen = parts.len() as _;
            sending::sendmsg(fd, &replaced, flags)
        }
    });
    if net::is_address_refused(fd, sent) {
        // The kernel has read this header, the program's own except for the address.
        let without = msghdr { msg_name: core::ptr::null_mut(), msg_namelen: 0, ..*message };
        return sendmsg(fd, &raw const without, asked);
    }
    sent
});

entry!(sendmmsg SENDMMSG (fd: ProgramFd, messages: *mut mmsghdr, count: u32, given: c_int) -> c_int, features::is_any_active(), {
    let flags = net::suppress_sigpipe(given);
    let timer = Timer::begin_any();
    if lanes::is_on() || files::is_on() {
        for message in messages::given(messages, count as usize).unwrap_or_default() {
            messages::each_descriptor(&message.msg_hdr, fdtable::on_pass);
        }
    }
    let sent = if lanes::is_on() {
        let bytes = |sent| messages::moved_bytes(messages, sent);
        lanes::send_unchanged(fd, || sendmmsg_now(fd, messages, count, flags), bytes)
    } else {
        sendmmsg_now(fd, messages, count, flags)
    };
    let sent = net::send_result(fd, sent as ssize_t) as c_int;
    if net::is_address_refused(fd, sent as ssize_t) {
        return send_first(fd, messages, given);
    }
    // The kernel has taken these messages.
    note_moved(messages::moved_bytes(messages, sent));
    if let Some(timer) = timer
        && sent > 0
    {
        let taken = messages::transferred(messages, sent as usize);
        timer.record_messages(dispatch(Function::Sendmmsg, fd), taken);
    }
    net::raise_sigpipe(fd, given, sent as ssize_t) as c_int
});

/// Sends the first of several messages, which the kernel has read, by sendmsg. Returns the result of sendmmsg.
unsafe fn send_first(fd: ProgramFd, messages: *mut mmsghdr, flags: c_int) -> c_int {
    // SAFETY: by contract the kernel has read the message, which the program does not change.
    unsafe {
        let sent = sendmsg(fd, &raw const (*messages).msg_hdr, flags);
        let Ok(sent_bytes) = u32::try_from(sent) else { return -1 };
        (*messages).msg_len = sent_bytes;
        1
    }
}

#[inline(always)]
unsafe fn sendmmsg_now(fd: ProgramFd, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    // SAFETY: the program's own arguments, passed on unchanged.
    let unchanged = || unsafe { sending::sendmmsg(fd, messages, count, flags) };
    let number = count as usize;
    let gated = !may_have_views() || flags & libc::MSG_ZEROCOPY != 0;
    if gated || number == 0 || number > MAX_MESSAGES {
        return unchanged();
    }
    // SAFETY: the program does not use its messages during the call.
    let Some(given) = (unsafe { messages::given(messages, number) }) else { return unchanged() };
    let has_candidate = |message: &mmsghdr| {
        // SAFETY: the program does not change the messages' vectors during the call.
        unsafe { messages::parts_of(&message.msg_hdr, MAX_PARTS) }.is_some_and(is_candidate)
    };
    if !given.iter().any(has_candidate) {
        return unchanged();
    }
    if !stack_room::is_available(stack_room::FOR_MESSAGES_BYTES) {
        return unchanged();
    }
    // SAFETY: the program does not change the messages' vectors during the call.
    unsafe { gather_messages(fd, given, flags) }.unwrap_or_else(unchanged)
}

/// Sends messages with their parts gathered; `None` if nothing was sent and the call is to be made unchanged.
///
/// # Safety
/// Nobody changes the messages' vectors: the program does not during its call.
#[inline(never)]
unsafe fn gather_messages(fd: ProgramFd, given: &mut [mmsghdr], flags: c_int) -> Option<c_int> {
    let mut parts = [Part::NONE; MAX_PARTS];
    let mut counts = [0usize; MAX_MESSAGES];
    // SAFETY: the caller guarantees that nobody changes the vectors.
    let used = unsafe { messages::flatten(given, &mut parts, &mut counts) }?;
    let output = Output::begin_messages(fd, &parts[..used], &counts[..given.len()])?;
    let mut replaced: [mmsghdr; MAX_MESSAGES] = messages::over(given, output.parts(), output.messages());
    // SAFETY: copies of the program's headers, with gathered parts that are readable while `output` holds them.
    let sent =
        output.call(|_| unsafe { sending::sendmmsg(fd, replaced.as_mut_ptr(), given.len() as u32, flags) });
    if sent == -1 && errno::get() == libc::EINVAL {
        return None;
    }
    let mut sent_bytes = 0;
    for (message, replacement) in given.iter_mut().zip(&replaced).take(usize::try_from(sent).unwrap_or(0)) {
        message.msg_len = replacement.msg_len;
        sent_bytes += replacement.msg_len as usize;
    }
    output.finish(sent_bytes);
    Some(sent)
}
