//! write, send and their families.

use crate::files;
use crate::lanes;
use crate::lending::{Flags, Lending, send_lent};
use crate::messages::{self, note_moved};
use crate::net;
use crate::reading::of_a_stream;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use libc::{iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, ssize_t};
use uncopy_capi::sending::{self, SEND, SENDTO, WRITE};
use uncopy_engine::call::output::{MAX_PARTS, Output, is_candidate};
use uncopy_engine::range::carrying;
use uncopy_engine::state::gate::{self, MIN_BYTES, MIN_SIZE_BYTES, MIN_STREAM_BYTES};
use uncopy_engine::state::phase::STATE;
use uncopy_interpose::{alias, entry, slots};
use uncopy_record::{Call, Flags as What, Function, Timer, Transfer};
use uncopy_store::program::At;
use uncopy_sys::errno;
use uncopy_sys::iovec::{Part, parts};
use uncopy_sys::stack_room;

type Pointer = *const c_void;

slots! {
    PWRITE = c"pwrite": unsafe extern "C" fn(c_int, Pointer, usize, off_t) -> ssize_t;
    PWRITEV = c"pwritev": unsafe extern "C" fn(c_int, *const iovec, c_int, off_t) -> ssize_t;
    PWRITEV2 = c"pwritev2": unsafe extern "C" fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
}

/// The kernel keeps references to the pages of such a send beyond the call: it gets the program's
/// own pages.
const BY_REFERENCE: c_int = libc::MSG_ZEROCOPY;

/// What `write` and its like do.
fn quiet(flags: c_int) -> Flags {
    Some(net::quiet(flags))
}

/// Messages of one sendmmsg that are looked at.
const MAX_MESSAGES: usize = 64;

/// Whether any buffer can hold a view: until then vectors are not looked at.
fn may_have_views() -> bool {
    MIN_SIZE_BYTES.load(Relaxed) != usize::MAX && STATE.is_active()
}

/// Whether one buffer may have views, or may be lent.
#[inline]
fn is_candidate_one(buffer: Pointer, len: usize) -> bool {
    len >= MIN_STREAM_BYTES.load(Relaxed) || sending::is_candidate(buffer)
}

/// An output by this function, as it is entered in a recording.
const fn output(function: Function, fd: c_int) -> Transfer {
    Transfer { call: Call::Output, function, fd, is_socket: false, flags: What(0) }
}

/// The same to a socket.
const fn dispatch(function: Function, fd: c_int) -> Transfer {
    Transfer { call: Call::Output, function, fd, is_socket: true, flags: What(0) }
}

/// A descriptor goes to another program.
fn passed(fd: c_int) {
    lanes::passed(fd);
    files::refuse(fd);
}

/// Makes a call that sends bytes as they are.
#[inline(always)]
fn literally(fd: c_int, call: impl FnOnce() -> ssize_t) -> ssize_t {
    if lanes::is_on() { lanes::send_literally(fd, call, |sent| sent) } else { call() }
}

/// `write`. To a socket it is a send, if a signal may be one too many.
///
/// # Safety
/// As write.
unsafe fn write_now(fd: c_int, buffer: Pointer, len: usize) -> ssize_t {
    // SAFETY: as the caller says.
    unsafe { sent_or(|flags| sending::send(fd, buffer, len, flags), || sending::write(fd, buffer, len)) }
}

/// `writev`, likewise.
///
/// # Safety
/// As writev.
unsafe fn writev_now(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as the caller says.
    let write = || unsafe { sending::writev(fd, vector, count) };
    let is_nothing = |count| {
        // SAFETY: the program does not change its vector during the call.
        unsafe { parts(vector, count) }.is_some_and(|parts| parts.iter().all(|part| part.len_bytes == 0))
    };
    match usize::try_from(count) {
        // Of nothing writev writes nothing, where sendmsg sends an empty datagram, or tells that nobody reads any more.
        Ok(count) if net::is_on() && count <= libc::UIO_MAXIOV as usize && !is_nothing(count) => {
            let header = header(vector, count, core::ptr::null(), 0);
            // SAFETY: as the caller says.
            sent_or(|flags| unsafe { sending::sendmsg(fd, &header, flags) }, write)
        }
        _ => write(),
    }
}

/// What `send` returns that raises no signal, or if there is none to be kept back, or no socket, `write`.
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

/// Makes a call that sends one buffer, and enters it in the recording if one is on.
#[inline(always)]
fn one(
    transfer: Transfer,
    buffer: Pointer,
    len: usize,
    flags: Flags,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let timer = Timer::begin(len);
    let sent = match flags.filter(|_| lanes::is_on()) {
        None => literally(transfer.fd, call),
        Some(flags) => {
            let parts = [Part { address: buffer as usize, len_bytes: len }];
            lanes::send(transfer.fd, || Some(&parts[..]), flags, call)
        }
    };
    let sent = net::sent(transfer.fd, sent);
    note_moved(sent);
    if let Some(timer) = timer {
        timer.transferred(transfer, buffer as usize, len, sent);
    }
    sent
}

/// The same for an iovec array.
#[inline(always)]
unsafe fn several(
    transfer: Transfer,
    vector: impl Fn() -> (*const iovec, usize),
    flags: Flags,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let timer = Timer::begin_any();
    let given = || {
        let (vector, count) = vector();
        // SAFETY: the program does not change its vector during the call.
        unsafe { parts(vector, count) }.filter(|_| count <= MAX_PARTS)
    };
    let sent = match flags.filter(|_| lanes::is_on()) {
        None => literally(transfer.fd, call),
        Some(flags) => lanes::send(transfer.fd, given, flags, call),
    };
    let sent = net::sent(transfer.fd, sent);
    note_moved(sent);
    if let Some(timer) = timer
        && sent > 0
    {
        let (vector, count) = vector();
        // SAFETY: where the kernel took something, it has read the vector.
        unsafe { timer.transferred_parts(transfer, vector.cast(), count, sent) };
    }
    sent
}

/// Sends parts; `gathered` is the call that takes several, `unchanged` the program's own.
fn send_parts(
    fd: c_int,
    parts: &[Part],
    flags: Flags,
    gathered: impl FnOnce(*const iovec, usize) -> ssize_t,
    unchanged: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if !is_candidate(parts) {
        carrying::sent(parts, gate::min_size_bytes());
        return unchanged();
    }
    if stack_room::is_left(stack_room::FOR_OUTPUT) {
        send_parts_with_room(fd, parts, flags, gathered, unchanged)
    } else {
        unchanged()
    }
}

#[inline(never)]
fn send_parts_with_room(
    fd: c_int,
    parts: &[Part],
    flags: Flags,
    gathered: impl FnOnce(*const iovec, usize) -> ssize_t,
    unchanged: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(mut output) = Output::begin(fd, parts) else { return unchanged() };
    match flags.map(|flags| send_lent(fd, &mut output, flags)) {
        None | Some(Lending::Gather) => {}
        Some(Lending::Sent(Ok(sent))) => {
            output.finish(sent);
            return sent as ssize_t;
        }
        Some(Lending::Sent(Err(error))) => {
            drop(output);
            errno::set(error.0);
            return -1;
        }
    }
    let sent = output.call(|parts| gathered(parts.as_ptr().cast(), parts.len()));
    if let Ok(sent) = usize::try_from(sent) {
        output.finish(sent);
        return sent as ssize_t;
    }
    drop(output);
    // O_DIRECT and its like ask for an alignment that a segment need not have: nothing was sent.
    if errno::get() == libc::EINVAL { unchanged() } else { sent }
}

/// The same for one buffer, entered in the recording if one is on, and in a log if it goes to a file: there.
#[inline(always)]
fn send_one(
    transfer: Transfer,
    buffer: Pointer,
    len: usize,
    flags: Flags,
    at: Option<At>,
    gathered: impl Fn(*const iovec, usize) -> ssize_t,
    unchanged: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let (fd, parts) = (transfer.fd, [Part { address: buffer as usize, len_bytes: len }]);
    let send = || send_parts(fd, &parts, flags, &gathered, unchanged);
    one(transfer, buffer, len, flags, || files::write(fd, at, &parts, &gathered, send))
}

/// The same for an iovec array.
unsafe fn send_several(
    fd: c_int,
    vector: *const iovec,
    count: usize,
    flags: Flags,
    gathered: impl FnOnce(*const iovec, usize) -> ssize_t,
    unchanged: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if !(may_have_views() || carrying::looks_at_outputs()) || count == 0 || count > MAX_PARTS {
        return unchanged();
    }
    // SAFETY: the program does not change its vector during the call.
    match unsafe { parts(vector, count) } {
        Some(parts) => send_parts(fd, parts, flags, gathered, unchanged),
        None => unchanged(),
    }
}

/// The same, entered in the recording if one is on, and in a log if it goes to a file: there.
#[inline(always)]
unsafe fn send_vector(
    transfer: Transfer,
    vector: *const iovec,
    count: c_int,
    flags: Flags,
    at: Option<At>,
    gathered: impl Fn(*const iovec, usize) -> ssize_t,
    unchanged: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let (fd, count) = (transfer.fd, usize::try_from(count).unwrap_or(0));
    // SAFETY: the program's own vector; what the kernel took it has read.
    unsafe {
        several(
            transfer,
            || (vector, count),
            flags,
            || {
                let send = || send_several(fd, vector, count, flags, &gathered, unchanged);
                if !files::is_known(fd) {
                    return send();
                }
                match parts(vector, count).filter(|_| count <= MAX_PARTS) {
                    Some(parts) => files::write(fd, at, parts, &gathered, send),
                    // The kernel refuses them.
                    None => send(),
                }
            },
        )
    }
}

entry!(write WRITE (fd: c_int, buffer: Pointer, len: usize) -> ssize_t, is_candidate_one(buffer, len) || files::is_known(fd), {
    // Gathered parts are readable while the output holds them; here and below.
    let sent = send_one(
        output(Function::Write, fd),
        buffer,
        len,
        quiet(0),
        Some(At::Position),
        |vector, count| writev_now(fd, vector, count as c_int),
        || write_now(fd, buffer, len),
    );
    net::loud(fd, 0, sent)
});

/// What `fwrite` writes past its stream's buffer; never by reference to another program, because glibc writes the other parts by itself.
pub fn by_stdio(fd: c_int, buffer: Pointer, len: usize) -> ssize_t {
    // SAFETY: the program's own buffer, or gathered parts, which are readable while the output holds them.
    let unchanged = || unsafe { write_now(fd, buffer, len) };
    if len < MIN_BYTES.load(Relaxed) {
        return net::loud(fd, 0, net::sent(fd, unchanged()));
    }
    let sent = send_one(
        output(Function::Fwrite, fd),
        buffer,
        len,
        None,
        Some(At::Position),
        // SAFETY: as above.
        |vector, count| unsafe { writev_now(fd, vector, count as c_int) },
        unchanged,
    );
    net::loud(fd, 0, sent)
}

entry!(pwrite PWRITE (fd: c_int, buffer: Pointer, len: usize, offset: off_t) -> ssize_t,
len >= MIN_BYTES.load(Relaxed) || files::is_known(fd), {
    send_one(
        output(Function::Pwrite, fd),
        buffer,
        len,
        None,
        Some(At::Offset(offset.cast_unsigned())),
        |vector, count| PWRITEV.call()(fd, vector, count as c_int, offset),
        || PWRITE.call()(fd, buffer, len, offset),
    )
});

alias!(pwrite64 = pwrite (fd: c_int, buffer: Pointer, len: usize, offset: off_t) -> ssize_t);

/// A header for parts sent to `to`.
fn header(vector: *const iovec, count: usize, to: *const sockaddr, to_len: socklen_t) -> msghdr {
    // SAFETY: all-zero is a valid msghdr: no name, no parts, no control data.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_name = to.cast_mut().cast();
    message.msg_namelen = to_len;
    message.msg_iov = vector.cast_mut();
    message.msg_iovlen = count as _;
    message
}

entry!(send SEND (fd: c_int, buffer: Pointer, len: usize, given: c_int) -> ssize_t, is_candidate_one(buffer, len), {
    let flags = net::quiet(given);
    let sent = if flags & BY_REFERENCE != 0 {
        let by_reference = || SEND.call()(fd, buffer, len, flags);
        one(dispatch(Function::Send, fd), buffer, len, Some(flags), by_reference)
    } else {
        send_one(
            dispatch(Function::Send, fd),
            buffer,
            len,
            Some(flags),
            None,
            |vector, count| sending::sendmsg(fd, &header(vector, count, core::ptr::null(), 0), flags),
            || sending::send(fd, buffer, len, flags),
        )
    };
    net::loud(fd, given, sent)
});

entry!(sendto SENDTO
(fd: c_int, buffer: Pointer, len: usize, given: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t,
is_candidate_one(buffer, len), {
    let flags = net::quiet(given);
    let sent = if flags & BY_REFERENCE != 0 {
        let by_reference = || SENDTO.call()(fd, buffer, len, flags, to, to_len);
        one(dispatch(Function::Sendto, fd), buffer, len, Some(flags), by_reference)
    } else {
        send_one(
            dispatch(Function::Sendto, fd),
            buffer,
            len,
            (to.is_null() && to_len == 0).then_some(flags),
            None,
            |vector, count| sending::sendmsg(fd, &header(vector, count, to, to_len), flags),
            || sending::sendto(fd, buffer, len, flags, to, to_len),
        )
    };
    if net::refuses_address(fd, sent) {
        return send(fd, buffer, len, given);
    }
    net::loud(fd, given, sent)
});

/// Hooks that write a vector: what makes the call, the function that is recorded, whether the bytes may go by reference, where in a
/// file they go, and the arguments behind the vector.
macro_rules! vectored {
    ($name:ident $real:expr, $function:ident, $flags:expr, $at:expr, ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            fd: c_int,
            vector: *const iovec,
            count: c_int
            $(, $argument: $type)*
        ) -> ssize_t {
            let real = $real;
            let flags: Flags = $flags;
            // SAFETY: the program's own arguments, or parts that are readable while the output holds them.
            let sent = unsafe {
                send_vector(
                    output(Function::$function, fd),
                    vector,
                    count,
                    flags,
                    ($at)(fd),
                    |vector, count| real(fd, vector, count as c_int $(, $argument)*),
                    || real(fd, vector, count $(, $argument)*),
                )
            };
            let is_quiet = flags.is_some_and(|flags| flags & libc::MSG_NOSIGNAL != 0);
            if is_quiet { net::loud(fd, 0, sent) } else { sent }
        }
    };
}

/// Where in a file `pwritev2` writes. With flags by which it waits, or writes at the end, no record tells of it.
fn place_of(fd: c_int, offset: off_t, flags: c_int) -> Option<At> {
    const HARMLESS: c_int = libc::RWF_NOWAIT | libc::RWF_HIPRI;
    if flags & !HARMLESS != 0 {
        files::refuse(fd);
        return None;
    }
    Some(if offset == -1 { At::Position } else { At::Offset(offset.cast_unsigned()) })
}

vectored!(writev writev_now, Writev, quiet(0), |_| Some(At::Position), ());
vectored!(pwritev PWRITEV.call(), Pwritev, None, |_| Some(At::Offset(offset.cast_unsigned())), (offset: off_t));
alias!(pwritev64 = pwritev (fd: c_int, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t);
vectored!(pwritev2 PWRITEV2.call(), Pwritev, of_a_stream(offset, flags), |fd| place_of(fd, offset, flags), (offset: off_t, flags: c_int));
alias!(pwritev64v2 = pwritev2
(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, given: c_int) -> ssize_t {
    let flags = net::quiet(given);
    // SAFETY: the program's own header; where the kernel took something, it has read it.
    let sent = unsafe {
        let vector = || ((*message).msg_iov.cast_const(), (*message).msg_iovlen);
        let mut is_bare = false;
        if (lanes::is_on() || files::is_on()) && messages::is_header(message) {
            is_bare = (*message).msg_namelen == 0 && (*message).msg_controllen == 0;
            messages::each_descriptor(&*message, passed);
        }
        let lane_flags = is_bare.then_some(flags);
        several(dispatch(Function::Sendmsg, fd), vector, lane_flags, || sendmsg_now(fd, message, flags))
    };
    if net::refuses_address(fd, sent) {
        // SAFETY: the kernel has read the header.
        let without = unsafe { msghdr { msg_name: core::ptr::null_mut(), msg_namelen: 0, ..*message } };
        // SAFETY: the program's own header but for the address.
        return unsafe { sendmsg(fd, &raw const without, given) };
    }
    net::loud(fd, given, sent)
}

#[inline(always)]
unsafe fn sendmsg_now(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let real = sending::sendmsg;
    // SAFETY: the program's own header, found readable; a copy of it names the gathered parts.
    unsafe {
        let gated = !may_have_views() || flags & BY_REFERENCE != 0;
        if gated || !messages::is_header(message) {
            return real(fd, message, flags);
        }
        let gathered = |vector: *const iovec, count: usize| {
            let mut replaced = *message;
            replaced.msg_iov = vector.cast_mut();
            replaced.msg_iovlen = count as _;
            real(fd, &replaced, flags)
        };
        let number = (*message).msg_iovlen;
        let is_bare = (*message).msg_namelen == 0 && (*message).msg_controllen == 0;
        let lent_flags = is_bare.then_some(flags);
        send_several(fd, (*message).msg_iov, number, lent_flags, gathered, || real(fd, message, flags))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, given: c_int) -> c_int {
    let flags = net::quiet(given);
    let timer = Timer::begin_any();
    // SAFETY: the program's own arguments; the messages that the kernel has taken are there.
    unsafe {
        if lanes::is_on() || files::is_on() {
            for message in messages::given(messages, count as usize).unwrap_or_default() {
                messages::each_descriptor(&message.msg_hdr, passed);
            }
        }
        let sent = if lanes::is_on() {
            let bytes = |sent| messages::moved_bytes(messages, sent);
            lanes::send_literally(fd, || sendmmsg_now(fd, messages, count, flags), bytes)
        } else {
            sendmmsg_now(fd, messages, count, flags)
        };
        let sent = net::sent(fd, sent as ssize_t) as c_int;
        if net::refuses_address(fd, sent as ssize_t) {
            return send_first(fd, messages, given);
        }
        note_moved(messages::moved_bytes(messages, sent));
        if let Some(timer) = timer
            && sent > 0
        {
            let taken = messages::transferred(messages, sent as usize);
            timer.transferred_messages(dispatch(Function::Sendmmsg, fd), taken);
        }
        net::loud(fd, given, sent as ssize_t) as c_int
    }
}

/// Sends the first of several messages, which the kernel has read, for itself. What sendmmsg would return.
unsafe fn send_first(fd: c_int, messages: *mut mmsghdr, flags: c_int) -> c_int {
    // SAFETY: the caller answers for the message.
    unsafe {
        let sent = sendmsg(fd, &raw const (*messages).msg_hdr, flags);
        let Ok(sent_bytes) = u32::try_from(sent) else { return -1 };
        (*messages).msg_len = sent_bytes;
        1
    }
}

#[inline(always)]
unsafe fn sendmmsg_now(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    let unchanged = || unsafe { sending::sendmmsg(fd, messages, count, flags) };
    let number = count as usize;
    let gated = !may_have_views() || flags & BY_REFERENCE != 0;
    if gated || number == 0 || number > MAX_MESSAGES {
        return unchanged();
    }
    // SAFETY: the program does nothing to its messages during the call.
    let Some(given) = (unsafe { messages::given(messages, number) }) else { return unchanged() };
    let has_candidate = |message: &mmsghdr| {
        // SAFETY: nor to their vectors.
        unsafe { messages::parts_of(&message.msg_hdr, MAX_PARTS) }.is_some_and(is_candidate)
    };
    if !given.iter().any(has_candidate) {
        return unchanged();
    }
    if !stack_room::is_left(stack_room::FOR_MESSAGES) {
        return unchanged();
    }
    // SAFETY: the program does not change its vectors during the call.
    unsafe { gather_messages(fd, given, flags) }.unwrap_or_else(unchanged)
}

/// Sends messages with their parts gathered; `None`: nothing was sent and the call is to be made as
/// it is.
///
/// # Safety
/// Nobody changes the messages' vectors meanwhile: the program does not during its call.
#[inline(never)]
unsafe fn gather_messages(fd: c_int, given: &mut [mmsghdr], flags: c_int) -> Option<c_int> {
    let mut parts = [Part::NONE; MAX_PARTS];
    let mut counts = [0usize; MAX_MESSAGES];
    // SAFETY: the caller answers for the vectors: nobody changes them.
    let used = unsafe { messages::flatten(given, &mut parts, &mut counts) }?;
    let output = Output::begin_messages(fd, &parts[..used], &counts[..given.len()])?;
    let mut replaced: [mmsghdr; MAX_MESSAGES] = messages::over(given, output.parts(), output.messages());
    // SAFETY: the program's messages; their gathered parts are readable while `output` holds them.
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
