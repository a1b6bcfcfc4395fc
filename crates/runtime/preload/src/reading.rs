//! Hooks of read, recv and their families.

use crate::lanes;
use crate::messages::{self, note_moved};
use crate::net;
use crate::pipeline::{self, Buffers, Op};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use libc::{iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, ssize_t, timespec};
use uncopy_engine::call::input::ReceiveResult;
use uncopy_engine::call::input::{Input, MAX_PARTS, is_candidate};
use uncopy_engine::state::gate::{MIN_ENGINE_BYTES, MIN_STREAM_BYTES};
use uncopy_engine::state::warmup;
use uncopy_interpose::{alias, gate, slots};
use uncopy_record::{Call, Flags, Function, Timer, Transfer};
use uncopy_store::program::Place;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::iovec::Part;
use uncopy_sys::stack_room;

type Pointer = *mut c_void;

slots! {
    READ = c"read": unsafe extern "C" fn(ProgramFd, Pointer, usize) -> ssize_t;
    PREAD = c"pread": unsafe extern "C" fn(ProgramFd, Pointer, usize, off_t) -> ssize_t;
    RECV = c"recv": unsafe extern "C" fn(ProgramFd, Pointer, usize, c_int) -> ssize_t;
    RECVFROM = c"recvfrom": unsafe extern "C" fn(ProgramFd, Pointer, usize, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    READV = c"readv": unsafe extern "C" fn(ProgramFd, *const iovec, c_int) -> ssize_t;
    PREADV = c"preadv": unsafe extern "C" fn(ProgramFd, *const iovec, c_int, off_t) -> ssize_t;
    PREADV2 = c"preadv2": unsafe extern "C" fn(ProgramFd, *const iovec, c_int, off_t, c_int) -> ssize_t;
    RECVMSG = c"recvmsg": unsafe extern "C" fn(ProgramFd, *mut msghdr, c_int) -> ssize_t;
    RECVMMSG = c"recvmmsg": unsafe extern "C" fn(ProgramFd, *mut mmsghdr, u32, c_int, *mut timespec) -> c_int;
    READ_CHK = c"__read_chk": unsafe extern "C" fn(ProgramFd, Pointer, usize, usize) -> ssize_t;
    PREAD_CHK = c"__pread_chk": unsafe extern "C" fn(ProgramFd, Pointer, usize, off_t, usize) -> ssize_t;
    RECV_CHK = c"__recv_chk": unsafe extern "C" fn(ProgramFd, Pointer, usize, usize, c_int) -> ssize_t;
    RECVFROM_CHK = c"__recvfrom_chk": unsafe extern "C" fn(ProgramFd, Pointer, usize, usize, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
}

/// Flags with which the result is not the number of bytes stored, or the bytes are not from the stream.
const UNUSUAL: c_int = libc::MSG_TRUNC | libc::MSG_ERRQUEUE | libc::MSG_OOB;

/// Returns the stream flags of preadv2 or pwritev2: with offset -1 these act as readv and writev do, except that
/// they may not wait.
pub const fn of_a_stream(offset: off_t, flags: c_int) -> Stream {
    match offset {
        -1 if flags & libc::RWF_NOWAIT != 0 => Some(libc::MSG_DONTWAIT),
        -1 => Some(0),
        _ => None,
    }
}

/// Returns the place in a file that preadv2 or pwritev2 means: with offset -1 the file offset.
pub const fn place(offset: off_t) -> Place {
    if offset == -1 { Place::Position } else { Place::Offset(offset.cast_unsigned()) }
}

/// Flags with which `recv` does on a stream what a call does; `None` if it cannot.
pub type Stream = Option<c_int>;

/// Maximum number of messages of one recvmmsg that are examined.
const MAX_MESSAGES: usize = 16;

/// Returns the recorded form of an input by this function.
const fn input(function: Function, fd: ProgramFd) -> Transfer {
    Transfer { call: Call::Input, function, fd, is_socket: false, flags: Flags(0) }
}

/// Returns the recorded form of an input from a socket by this function.
const fn receipt(function: Function, fd: ProgramFd, flags: c_int) -> Transfer {
    let is_peeked = flags & libc::MSG_PEEK != 0;
    let flags = if is_peeked { Flags::PEEKED } else { Flags(0) };
    Transfer { call: Call::Input, function, fd, is_socket: true, flags }
}

/// Returns the buffer to read into: the program's, or the one in place of it.
fn target(parts: Option<&[Part]>, buffer: Pointer) -> Pointer {
    parts.map_or(buffer, |parts| parts[0].address as Pointer)
}

gate!(read, "rdx", "rcx", MIN_STREAM_BYTES, READ, read_body);
gate!(pread, "rdx", "r8", MIN_STREAM_BYTES, PREAD, pread_body);
gate!(pread64, "rdx", "r8", MIN_STREAM_BYTES, PREAD, pread_body);
gate!(recv, "rdx", "r8", MIN_STREAM_BYTES, RECV, recv_body);

fn op_of_read(transfer: Transfer, buffer: Pointer, len: usize, stream: Stream, caller: usize) -> Op {
    Op { stream, caller, ..Op::new(transfer, Buffers::one(buffer, len)) }
}

unsafe extern "C" fn read_body(fd: ProgramFd, buffer: Pointer, len: usize, caller: usize) -> ssize_t {
    let real = READ.call();
    let op = op_of_read(input(Function::Read, fd), buffer, len, Some(0), caller);
    let op = Op { at: Some(Place::Position), ..op };
    // SAFETY: the program's own arguments; a buffer in place of its own is at least as long.
    pipeline::receive(&op, |parts| unsafe { real(fd, target(parts, buffer), len) })
}

/// Reads past the stdio buffer for `fread`. Any descriptor is treated as a file, because glibc reads the other
/// parts itself.
pub fn by_stdio(fd: ProgramFd, buffer: Pointer, len: usize, caller: usize) -> ssize_t {
    let real = READ.call();
    let op = op_of_read(input(Function::Fread, fd), buffer, len, None, caller);
    // SAFETY: the program's buffer of `len` bytes, or one in its place, at least as long.
    pipeline::receive(&op, |parts| unsafe { real(fd, target(parts, buffer), len) })
}

unsafe extern "C" fn pread_body(
    fd: ProgramFd,
    buffer: Pointer,
    len: usize,
    offset: off_t,
    caller: usize,
) -> ssize_t {
    let real = PREAD.call();
    let op = op_of_read(input(Function::Pread, fd), buffer, len, None, caller);
    let op = Op { at: Some(Place::Offset(offset.cast_unsigned())), ..op };
    // SAFETY: the program's own arguments; a buffer in place of its own is at least as long.
    pipeline::receive(&op, |parts| unsafe { real(fd, target(parts, buffer), len, offset) })
}

unsafe extern "C" fn recv_body(
    fd: ProgramFd,
    buffer: Pointer,
    len: usize,
    flags: c_int,
    caller: usize,
) -> ssize_t {
    let real = RECV.call();
    let op = op_of_read(receipt(Function::Recv, fd, flags), buffer, len, Some(flags), caller);
    // SAFETY: the program's own arguments; a buffer in place of its own is at least as long.
    receive(&op, flags, |parts| unsafe { real(fd, target(parts, buffer), len, flags) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: ProgramFd,
    buffer: Pointer,
    len: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let real = RECVFROM.call();
    if len < MIN_STREAM_BYTES.load(Relaxed) && !(lanes::is_on() && flags & libc::MSG_TRUNC != 0) {
        // SAFETY: the program's own arguments, passed on unchanged.
        return unsafe { real(fd, buffer, len, flags, from, from_len) };
    }
    let caller = recvfrom as *const () as usize;
    let op = op_of_read(receipt(Function::Recvfrom, fd, flags), buffer, len, Some(flags), caller);
    // SAFETY: the program's own arguments; a buffer in place of its own is at least as long.
    receive(&op, flags, |parts| unsafe { real(fd, target(parts, buffer), len, flags, from, from_len) })
}

#[inline(always)]
fn receive(op: &Op, flags: c_int, call: impl Fn(Option<&[Part]>) -> ssize_t) -> ssize_t {
    match flags & UNUSUAL {
        0 => pipeline::receive(op, call),
        libc::MSG_TRUNC => pipeline::discard(op, || call(None)),
        _ => call(None),
    }
}

/// Defines the FORTIFY variants. If the buffer is too small, libc reports that.
macro_rules! checked {
    ($name:ident $slot:ident ($($argument:ident: $type:ty),*), if $fits:expr => $unchecked:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> ssize_t {
            // SAFETY: the program's own arguments, for a buffer with enough room; libc reports the others.
            unsafe { if $fits { $unchecked } else { $slot.call()($($argument),*) } }
        }
    };
}

checked!(__read_chk READ_CHK (fd: ProgramFd, buffer: Pointer, len: usize, room: usize),
if len <= room => read_body(fd, buffer, len, __read_chk as *const () as usize));
checked!(__pread_chk PREAD_CHK (fd: ProgramFd, buffer: Pointer, len: usize, offset: off_t, room: usize),
if len <= room => pread_body(fd, buffer, len, offset, __pread_chk as *const () as usize));
alias!(__pread64_chk = __pread_chk
(fd: ProgramFd, buffer: Pointer, len: usize, offset: off_t, room: usize) -> ssize_t);
checked!(__recv_chk RECV_CHK (fd: ProgramFd, buffer: Pointer, len: usize, room: usize, flags: c_int),
if len <= room => recv_body(fd, buffer, len, flags, __recv_chk as *const () as usize));
checked!(__recvfrom_chk RECVFROM_CHK
(fd: ProgramFd, buffer: Pointer, len: usize, room: usize, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t),
if len <= room => recvfrom(fd, buffer, len, flags, from, from_len));

/// Defines hooks that read into a vector, from the recorded function, the flags of an equivalent `recv`, the place in a
/// file, and the arguments after the vector.
macro_rules! vectored {
    ($name:ident $slot:ident $function:ident $stream:expr, $at:expr, ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            fd: ProgramFd,
            vector: *const iovec,
            count: c_int
            $(, $argument: $type)*
        ) -> ssize_t {
            let real = $slot.call();
            let op = Op::new(input(Function::$function, fd), Buffers::vector(vector, count));
            let op = Op { stream: $stream, at: Some($at), caller: $name as *const () as usize, ..op };
            pipeline::receive(&op, |parts| {
                let vector = parts.map_or(vector, |parts| parts.as_ptr().cast());
                // SAFETY: the program's own arguments; buffers in place of its own are at least as long.
                unsafe { real(fd, vector, count $(, $argument)*) }
            })
        }
    };
}

vectored!(readv READV Readv Some(0), Place::Position, ());
vectored!(preadv PREADV Preadv None, Place::Offset(offset.cast_unsigned()), (offset: off_t));
alias!(preadv64 = preadv (fd: ProgramFd, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t);
vectored!(preadv2 PREADV2 Preadv of_a_stream(offset, flags), place(offset), (offset: off_t, flags: c_int));
alias!(preadv64v2 = preadv2
(fd: ProgramFd, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: ProgramFd, message: *mut msghdr, flags: c_int) -> ssize_t {
    let real = RECVMSG.call();
    let is_on = MIN_STREAM_BYTES.load(Relaxed) != usize::MAX || lanes::is_on() || net::is_on();
    if !is_on || !messages::is_header(message) {
        if lanes::is_on() && !lanes::make_passthrough(fd) {
            return -1;
        }
        // SAFETY: the program's own arguments, passed on unchanged.
        return unsafe { real(fd, message, flags) };
    }
    // SAFETY: the program's header was found readable, and the program does not change it during the call.
    let (vector, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
    let op = Op::new(receipt(Function::Recvmsg, fd, flags), Buffers::Vector(vector, count));
    let op = Op { stream: Some(flags), caller: recvmsg as *const () as usize, header: message, ..op };
    // SAFETY: `message` is the program's header, found readable, or a copy that names the buffers in place of its
    // own; fields that the kernel stores in the copy are copied back.
    receive(&op, flags, |parts| unsafe {
        let Some(parts) = parts else { return real(fd, message, flags) };
        let mut replaced = *message;
        replaced.msg_iov = parts.as_ptr().cast_mut().cast();
        let got = real(fd, &mut replaced, flags);
        replaced.msg_iov = vector;
        *message = replaced;
        got
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: ProgramFd,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let timer = Timer::begin_any();
    // SAFETY: the program's own arguments; only messages that the kernel has filled are read.
    unsafe {
        let is_of_stream = flags & UNUSUAL & !libc::MSG_TRUNC == 0;
        let got = if lanes::is_on() && is_of_stream && count > 0 {
            recvmmsg_on_stream(fd, messages, count, flags, timeout)
        } else {
            recvmmsg_now(fd, messages, count, flags, timeout)
        };
        let got = if is_of_stream && got < 0 { net::recv_result(fd, got as ssize_t) as c_int } else { got };
        note_moved(messages::moved_bytes(messages, got));
        if let Some(timer) = timer
            && flags & UNUSUAL == 0
            && got > 0
        {
            let filled = messages::transferred(messages, got as usize);
            timer.record_messages(receipt(Function::Recvmmsg, fd, flags), filled);
        }
        got
    }
}

/// Makes a recvmmsg on a stream that may be a lane; a lane returns one message.
unsafe fn recvmmsg_on_stream(
    fd: ProgramFd,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the program's own arguments; it does not use messages and vectors during the call.
    unsafe {
        let plainly = || recvmmsg_now(fd, messages, count, flags, timeout);
        let unseen = || if lanes::make_passthrough(fd) { plainly() } else { -1 };
        let Some([first]) = messages::given(messages, 1) else { return unseen() };
        let header = &raw mut first.msg_hdr;
        let Some(parts) = messages::parts_of(&*header, uncopy_sys::iovec::MAX_PARTS) else {
            return unseen();
        };
        let caller = recvmmsg as *const () as usize;
        let mut received = None;
        let flags = flags & !libc::MSG_WAITFORONE;
        let mut plainly = || {
            received = Some(plainly());
            -1
        };
        let got = if flags & libc::MSG_TRUNC != 0 {
            lanes::discard(fd, parts, flags, caller, plainly)
        } else {
            lanes::receive_message(
                fd,
                header,
                || Some(parts),
                flags,
                caller,
                || ReceiveResult::passthrough(plainly()),
            )
            .result
        };
        let got = match (received, usize::try_from(got)) {
            (Some(received), _) => received,
            (None, Err(_)) => -1,
            (None, Ok(got)) => {
                first.msg_len = got as u32;
                1
            }
        };
        let count = usize::try_from(got).unwrap_or(0);
        for message in messages::given(messages, count).unwrap_or_default() {
            messages::each_descriptor(&message.msg_hdr, uncopy_fdtable::on_pass);
        }
        got
    }
}

unsafe fn recvmmsg_now(
    fd: ProgramFd,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let real = RECVMMSG.call();
    let number = count as usize;
    // SAFETY: the program's own arguments, passed on unchanged.
    let unchanged = || unsafe { real(fd, messages, count, flags, timeout) };
    let gated = MIN_ENGINE_BYTES.load(Relaxed) == usize::MAX || flags & UNUSUAL != 0;
    if gated
        || number == 0
        || number > MAX_MESSAGES
        || !stack_room::is_available(stack_room::FOR_MESSAGES_BYTES)
    {
        return unchanged();
    }
    // SAFETY: the program's own arguments; replaced buffers are at least as long.
    unsafe { recvmmsg_with_room(messages, number, |messages| real(fd, messages, count, flags, timeout)) }
}

#[inline(never)]
unsafe fn recvmmsg_with_room(
    messages: *mut mmsghdr,
    number: usize,
    call: impl Fn(*mut mmsghdr) -> c_int,
) -> c_int {
    let unchanged = || call(messages);
    // SAFETY: the program does not use its messages during the call.
    let Some(given) = (unsafe { messages::given(messages, number) }) else { return unchanged() };
    let mut parts = [Part::NONE; MAX_PARTS];
    let mut counts = [0usize; MAX_MESSAGES];
    // SAFETY: the program does not change the messages' vectors during the call.
    let Some(used) = (unsafe { messages::flatten(given, &mut parts, &mut counts) }) else {
        return unchanged();
    };
    let parts = &mut parts[..used];
    if !is_candidate(parts) {
        return unchanged();
    }
    let Some(input) = Input::begin(parts, recvmmsg as *const () as usize) else {
        let got = unchanged();
        // SAFETY: the kernel has just filled `got` messages.
        warmup::count_received(usize::try_from(unsafe { messages::moved_bytes(messages, got) }).unwrap_or(0));
        return got;
    };
    let mut replaced: [mmsghdr; MAX_MESSAGES] = messages::over(given, input.parts(), &counts);
    // The messages name the engine's buffers, at least as long as the program's, while `input` holds them.
    let got = input.call(|_| call(replaced.as_mut_ptr()));
    let received = usize::try_from(got).unwrap_or(0).min(number);
    let mut arrived = counts.map(|parts| (parts, 0));
    for at in 0..received {
        replaced[at].msg_hdr.msg_iov = given[at].msg_hdr.msg_iov;
        given[at] = replaced[at];
        arrived[at].1 = given[at].msg_len as usize;
    }
    input.finish_messages(&arrived[..number]);
    got
}
