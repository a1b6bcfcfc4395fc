//! read, recv and their families.

use crate::lanes;
use crate::messages::{self, note_arrival, note_moved};
use crate::net;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use libc::{iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, ssize_t, timespec};
use uncopy_engine::call::input::{Input, MAX_PARTS, is_candidate};
use uncopy_engine::call::little;
use uncopy_engine::state::early;
use uncopy_engine::state::gate::{MIN_BYTES, MIN_SIZE_BYTES, MIN_STREAM_BYTES};
use uncopy_interpose::{alias, gate, slots};
use uncopy_record::{Call, Flags, Function, Timer, Transfer};
use uncopy_sys::iovec::{Part, parts};
use uncopy_sys::stack_room;

type Pointer = *mut c_void;

slots! {
    READ = c"read": unsafe extern "C" fn(c_int, Pointer, usize) -> ssize_t;
    PREAD = c"pread": unsafe extern "C" fn(c_int, Pointer, usize, off_t) -> ssize_t;
    RECV = c"recv": unsafe extern "C" fn(c_int, Pointer, usize, c_int) -> ssize_t;
    RECVFROM = c"recvfrom": unsafe extern "C" fn(c_int, Pointer, usize, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    READV = c"readv": unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
    PREADV = c"preadv": unsafe extern "C" fn(c_int, *const iovec, c_int, off_t) -> ssize_t;
    PREADV2 = c"preadv2": unsafe extern "C" fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
    RECVMSG = c"recvmsg": unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> ssize_t;
    RECVMMSG = c"recvmmsg": unsafe extern "C" fn(c_int, *mut mmsghdr, u32, c_int, *mut timespec) -> c_int;
    READ_CHK = c"__read_chk": unsafe extern "C" fn(c_int, Pointer, usize, usize) -> ssize_t;
    PREAD_CHK = c"__pread_chk": unsafe extern "C" fn(c_int, Pointer, usize, off_t, usize) -> ssize_t;
    RECV_CHK = c"__recv_chk": unsafe extern "C" fn(c_int, Pointer, usize, usize, c_int) -> ssize_t;
    RECVFROM_CHK = c"__recvfrom_chk": unsafe extern "C" fn(c_int, Pointer, usize, usize, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
}

/// Flags that make the length returned mean something else than bytes stored, or the bytes come
/// from elsewhere than the stream.
const UNUSUAL: c_int = libc::MSG_TRUNC | libc::MSG_ERRQUEUE | libc::MSG_OOB;

/// What preadv2 and pwritev2 do with these arguments: at the offset -1 what readv and writev do, perhaps without waiting.
pub const fn of_a_stream(offset: off_t, flags: c_int) -> Stream {
    match offset {
        -1 if flags & libc::RWF_NOWAIT != 0 => Some(libc::MSG_DONTWAIT),
        -1 => Some(0),
        _ => None,
    }
}

/// How a call may receive from a stream: as `recv` does with these flags. `None`: it does not.
pub type Stream = Option<c_int>;

/// Messages of one recvmmsg that are looked at.
const MAX_MESSAGES: usize = 16;

/// An input by this function, as it is entered in a recording.
const fn input(function: Function, fd: c_int) -> Transfer {
    Transfer { call: Call::Input, function, fd, is_socket: false, flags: Flags(0) }
}

/// The same from a socket.
const fn receipt(function: Function, fd: c_int, flags: c_int) -> Transfer {
    let is_peeked = flags & libc::MSG_PEEK != 0;
    let flags = if is_peeked { Flags::PEEKED } else { Flags(0) };
    Transfer { call: Call::Input, function, fd, is_socket: true, flags }
}

/// Reads into one buffer, and enters that in the recording if one is on; `call` is libc's function with the buffer
/// left open.
#[inline(always)]
fn one(
    transfer: Transfer,
    buffer: Pointer,
    len: usize,
    caller: usize,
    stream: Stream,
    call: impl Fn(Pointer) -> ssize_t,
) -> ssize_t {
    let timer = Timer::begin(len);
    let (got, is_engines) = match stream.filter(|_| lanes::is_on()) {
        None => one_now(buffer, len, caller, call),
        Some(flags) => {
            let parts = [Part { address: buffer as usize, len_bytes: len }];
            let plainly = || one_now(buffer, len, caller, call);
            // SAFETY: the program's own buffer.
            unsafe { lanes::receive(transfer.fd, || Some(&parts[..]), flags, caller, plainly) }
        }
    };
    let got = match stream {
        Some(flags) if len > 0 => {
            // SAFETY: the program's own buffer.
            let read =
                |file| one_now(buffer, len, caller, |buffer| unsafe { READ.call()(file, buffer, len) }).0;
            net::received(transfer.fd, net::rest(transfer.fd, got, || len, flags, read))
        }
        _ => got,
    };
    note_moved(got);
    let part = Part { address: buffer as usize, len_bytes: len };
    note_arrival(transfer.fd, transfer.is_socket, caller, &[part], got);
    if let Some(timer) = timer {
        timer.transferred(transfer.by_engine(is_engines), buffer as usize, len, got);
    }
    got
}

/// What was read, and whether the engine had a part in it.
#[inline(always)]
fn one_now(buffer: Pointer, len: usize, caller: usize, call: impl Fn(Pointer) -> ssize_t) -> (ssize_t, bool) {
    let mut parts = [Part { address: buffer as usize, len_bytes: len }];
    if !is_candidate(&parts) {
        return (call(buffer), false);
    }
    let input = if little::is_likely(caller) { None } else { Input::begin(&mut parts, caller) };
    let is_engines = input.is_some();
    let got = match input {
        None => call(buffer),
        Some(input) => {
            let got = input.call(|parts| call(parts[0].address as Pointer));
            input.finish(usize::try_from(got).unwrap_or(0));
            got
        }
    };
    little::note(caller, usize::try_from(got).unwrap_or(0));
    (got, is_engines)
}

/// Reads into several buffers, and enters that in the recording if one is on; `call` is libc's function with the
/// buffers left open.
#[inline(always)]
unsafe fn several(
    transfer: Transfer,
    vector: *const iovec,
    count: c_int,
    caller: usize,
    stream: Stream,
    call: impl Fn(*const iovec, c_int) -> ssize_t,
) -> ssize_t {
    let timer = Timer::begin_any();
    // SAFETY: the program's own vector; where the kernel stored something, it has read it.
    unsafe {
        let given = || {
            let count = usize::try_from(count).ok().filter(|count| *count <= uncopy_sys::iovec::MAX_PARTS)?;
            parts(vector, count)
        };
        let plainly = || several_now(vector, count, caller, call);
        let (got, is_engines) = match stream.filter(|_| lanes::is_on()) {
            None => plainly(),
            Some(flags) => lanes::receive(transfer.fd, given, flags, caller, plainly),
        };
        let got = match stream {
            Some(flags) => {
                let read = |file| rest_of_several(file, vector, count, caller);
                net::received(
                    transfer.fd,
                    net::rest(transfer.fd, got, || room_of(vector, count), flags, read),
                )
            }
            None => got,
        };
        note_moved(got);
        if got > 0 {
            note_arrival(transfer.fd, transfer.is_socket, caller, given().unwrap_or(&[]), got);
        }
        if let Some(timer) = timer {
            let transfer = transfer.by_engine(is_engines);
            timer.transferred_parts(transfer, vector.cast(), usize::try_from(count).unwrap_or(0), got);
        }
        got
    }
}

/// Room of a vector, bytes.
///
/// # Safety
/// As readv.
unsafe fn room_of(vector: *const iovec, count: c_int) -> usize {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: as the caller says; a vector that cannot be read has no parts.
    let parts = unsafe { parts(vector, count) }.unwrap_or_default();
    parts.iter().fold(0, |all, part| all.saturating_add(part.len_bytes))
}

/// Reads what came after the program has shut a connection for reading, of a file.
///
/// # Safety
/// As readv.
unsafe fn rest_of_several(file: c_int, vector: *const iovec, count: c_int, caller: usize) -> ssize_t {
    let real = READV.call();
    // SAFETY: as the caller says.
    unsafe { several_now(vector, count, caller, |vector, count| real(file, vector, count)).0 }
}

unsafe fn several_now(
    vector: *const iovec,
    count: c_int,
    caller: usize,
    call: impl Fn(*const iovec, c_int) -> ssize_t,
) -> (ssize_t, bool) {
    if MIN_SIZE_BYTES.load(Relaxed) == usize::MAX {
        return (call(vector, count), false);
    }
    let number = usize::try_from(count).unwrap_or(0);
    if number == 0 || number > MAX_PARTS || !stack_room::is_left(stack_room::FOR_ONE) {
        return (call(vector, count), false);
    }
    // SAFETY: the program's own vector, which it does not change during the call.
    unsafe { several_with_room(vector, count, number, caller, call) }
}

#[inline(never)]
unsafe fn several_with_room(
    vector: *const iovec,
    count: c_int,
    number: usize,
    caller: usize,
    call: impl Fn(*const iovec, c_int) -> ssize_t,
) -> (ssize_t, bool) {
    let plainly = || {
        let got = call(vector, count);
        little::note(caller, usize::try_from(got).unwrap_or(0));
        (got, false)
    };
    if little::is_likely(caller) {
        return plainly();
    }
    // SAFETY: the program does not change its vector during the call.
    let Some(given) = (unsafe { parts(vector, number) }) else { return (call(vector, count), false) };
    // The engine names other buffers in place.
    let mut room = [Part::NONE; MAX_PARTS];
    room.iter_mut().zip(given).for_each(|(slot, part)| *slot = *part);
    let parts = &mut room[..number];
    if !is_candidate(parts) {
        return (call(vector, count), false);
    }
    let Some(input) = Input::begin(parts, caller) else { return plainly() };
    let got = input.call(|parts| call(parts.as_ptr().cast(), count));
    let is_misaligned = got == -1 && uncopy_sys::errno::get() == libc::EINVAL;
    let got_bytes = usize::try_from(got).unwrap_or(0);
    input.finish(got_bytes);
    if is_misaligned {
        // O_DIRECT may take parts that end inside a sector only where the next begins: nothing was read.
        return plainly();
    }
    little::note(caller, got_bytes);
    (got, true)
}

gate!(read, "rdx", "rcx", MIN_STREAM_BYTES, READ, read_body);
gate!(pread, "rdx", "r8", MIN_BYTES, PREAD, pread_body);
gate!(pread64, "rdx", "r8", MIN_BYTES, PREAD, pread_body);
gate!(recv, "rdx", "r8", MIN_STREAM_BYTES, RECV, recv_body);

unsafe extern "C" fn read_body(fd: c_int, buffer: Pointer, len: usize, caller: usize) -> ssize_t {
    let real = READ.call();
    // SAFETY: the program's own arguments, with a buffer at least as long.
    one(input(Function::Read, fd), buffer, len, caller, Some(0), |buffer| unsafe { real(fd, buffer, len) })
}

/// What `fread` reads past its stream's buffer: as a file's, whatever it is, because glibc reads its other parts by itself.
pub fn by_stdio(fd: c_int, buffer: Pointer, len: usize, caller: usize) -> ssize_t {
    let real = READ.call();
    // SAFETY: the program's own arguments, with a buffer at least as long.
    one(input(Function::Fread, fd), buffer, len, caller, None, |buffer| unsafe { real(fd, buffer, len) })
}

unsafe extern "C" fn pread_body(
    fd: c_int,
    buffer: Pointer,
    len: usize,
    offset: off_t,
    caller: usize,
) -> ssize_t {
    let real = PREAD.call();
    // SAFETY: the program's own arguments, with a buffer at least as long.
    one(input(Function::Pread, fd), buffer, len, caller, None, |buffer| unsafe {
        real(fd, buffer, len, offset)
    })
}

unsafe extern "C" fn recv_body(
    fd: c_int,
    buffer: Pointer,
    len: usize,
    flags: c_int,
    caller: usize,
) -> ssize_t {
    let real = RECV.call();
    if flags & UNUSUAL == libc::MSG_TRUNC && lanes::is_on() {
        let part = Part { address: buffer as usize, len_bytes: len };
        // SAFETY: the program's own arguments.
        let got = unsafe { lanes::discard(fd, &[part], flags, caller, || real(fd, buffer, len, flags)) };
        return net::received(fd, got);
    }
    if flags & UNUSUAL != 0 {
        // SAFETY: the program's own arguments.
        return unsafe { real(fd, buffer, len, flags) };
    }
    // SAFETY: the program's own arguments, with a buffer at least as long.
    one(receipt(Function::Recv, fd, flags), buffer, len, caller, Some(flags), |buffer| unsafe {
        real(fd, buffer, len, flags)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: Pointer,
    len: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let real = RECVFROM.call();
    if flags & UNUSUAL == libc::MSG_TRUNC && lanes::is_on() {
        let part = Part { address: buffer as usize, len_bytes: len };
        let caller = recvfrom as *const () as usize;
        let call = || {
            // SAFETY: the program's own arguments.
            unsafe { real(fd, buffer, len, flags, from, from_len) }
        };
        // SAFETY: the program's own buffer.
        return net::received(fd, unsafe { lanes::discard(fd, &[part], flags, caller, call) });
    }
    if len < MIN_STREAM_BYTES.load(Relaxed) || flags & UNUSUAL != 0 {
        // SAFETY: the program's own arguments.
        return unsafe { real(fd, buffer, len, flags, from, from_len) };
    }
    // SAFETY: the program's own arguments, with a buffer at least as long.
    one(
        receipt(Function::Recvfrom, fd, flags),
        buffer,
        len,
        recvfrom as *const () as usize,
        Some(flags),
        |buffer| unsafe { real(fd, buffer, len, flags, from, from_len) },
    )
}

/// The FORTIFY variants: a buffer that is too small is libc's to report.
macro_rules! checked {
    ($name:ident $slot:ident ($($argument:ident: $type:ty),*), if $fits:expr => $unchecked:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> ssize_t {
            // SAFETY: the program's own arguments; the buffer has room for what is read into it, as was checked.
            unsafe { if $fits { $unchecked } else { $slot.call()($($argument),*) } }
        }
    };
}

checked!(__read_chk READ_CHK (fd: c_int, buffer: Pointer, len: usize, room: usize),
if len <= room => read_body(fd, buffer, len, __read_chk as *const () as usize));
checked!(__pread_chk PREAD_CHK (fd: c_int, buffer: Pointer, len: usize, offset: off_t, room: usize),
if len <= room => pread_body(fd, buffer, len, offset, __pread_chk as *const () as usize));
alias!(__pread64_chk = __pread_chk
(fd: c_int, buffer: Pointer, len: usize, offset: off_t, room: usize) -> ssize_t);
checked!(__recv_chk RECV_CHK (fd: c_int, buffer: Pointer, len: usize, room: usize, flags: c_int),
if len <= room => recv_body(fd, buffer, len, flags, __recv_chk as *const () as usize));
checked!(__recvfrom_chk RECVFROM_CHK
(fd: c_int, buffer: Pointer, len: usize, room: usize, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t),
if len <= room => recvfrom(fd, buffer, len, flags, from, from_len));

/// Hooks that read into a vector: the function that is recorded, and the arguments behind the vector.
macro_rules! vectored {
    ($name:ident $slot:ident $function:ident $stream:expr, ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            fd: c_int,
            vector: *const iovec,
            count: c_int
            $(, $argument: $type)*
        ) -> ssize_t {
            let real = $slot.call();
            let (transfer, caller) = (input(Function::$function, fd), $name as *const () as usize);
            // SAFETY: the program's own arguments, with buffers at least as long.
            unsafe { several(transfer, vector, count, caller, $stream, |vector, count| real(fd, vector, count $(, $argument)*)) }
        }
    };
}

vectored!(readv READV Readv Some(0), ());
vectored!(preadv PREADV Preadv None, (offset: off_t));
alias!(preadv64 = preadv (fd: c_int, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t);
vectored!(preadv2 PREADV2 Preadv of_a_stream(offset, flags), (offset: off_t, flags: c_int));
alias!(preadv64v2 = preadv2
(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let real = RECVMSG.call();
    // SAFETY: the program's own header, found readable. Where the buffers are replaced, a copy of it names the
    // replacements, and what the kernel stores in the header is copied back.
    unsafe {
        let gated = MIN_STREAM_BYTES.load(Relaxed) == usize::MAX || flags & UNUSUAL != 0;
        let is_of_stream = flags & UNUSUAL & !libc::MSG_TRUNC == 0;
        if (lanes::is_on() || net::is_on()) && is_of_stream && messages::is_header(message) {
            return net::received(fd, recvmsg_on_stream(fd, message, flags));
        }
        if gated || !messages::is_header(message) || (*message).msg_iovlen > uncopy_sys::iovec::MAX_PARTS {
            return real(fd, message, flags);
        }
        let count = (*message).msg_iovlen as c_int;
        several(
            receipt(Function::Recvmsg, fd, flags),
            (*message).msg_iov,
            count,
            recvmsg as *const () as usize,
            None,
            |vector, _| {
                if vector == (*message).msg_iov {
                    return real(fd, message, flags);
                }
                let mut replaced = *message;
                replaced.msg_iov = vector.cast_mut();
                let got = real(fd, &mut replaced, flags);
                replaced.msg_iov = (*message).msg_iov;
                *message = replaced;
                got
            },
        )
    }
}

/// recvmsg where streams may be lanes.
unsafe fn recvmsg_on_stream(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let (real, caller) = (RECVMSG.call(), recvmsg as *const () as usize);
    // SAFETY: the program's own header, which can be read; nobody changes its vector during the call.
    unsafe {
        let Some(parts) = messages::parts_of(&*message, uncopy_sys::iovec::MAX_PARTS) else {
            return real(fd, message, flags);
        };
        let plainly = || real(fd, message, flags);
        let got = if flags & libc::MSG_TRUNC != 0 {
            lanes::discard(fd, parts, flags, caller, plainly)
        } else {
            lanes::receive_message(fd, message, parts, flags, caller, || (plainly(), false)).0
        };
        if got >= 0 {
            messages::each_descriptor(&*message, lanes::passed);
            note_arrival(fd, true, caller, parts, got);
        }
        let read = |file| rest_of_several(file, (*message).msg_iov, (*message).msg_iovlen as c_int, caller);
        net::rest(fd, got, || room_of((*message).msg_iov, (*message).msg_iovlen as c_int), flags, read)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let timer = Timer::begin_any();
    // SAFETY: the program's own arguments; the messages that the kernel has filled are there.
    unsafe {
        let is_of_stream = flags & UNUSUAL & !libc::MSG_TRUNC == 0;
        let got = if lanes::is_on() && is_of_stream && count > 0 {
            recvmmsg_on_stream(fd, messages, count, flags, timeout)
        } else {
            recvmmsg_now(fd, messages, count, flags, timeout)
        };
        let got = if is_of_stream && got < 0 { net::received(fd, got as ssize_t) as c_int } else { got };
        note_moved(messages::moved_bytes(messages, got));
        if let Some(timer) = timer
            && flags & UNUSUAL == 0
            && got > 0
        {
            let filled = messages::transferred(messages, got as usize);
            timer.transferred_messages(receipt(Function::Recvmmsg, fd, flags), filled);
        }
        got
    }
}

/// recvmmsg where streams may be lanes: from a lane it gives one message.
unsafe fn recvmmsg_on_stream(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the program's own arguments; it does nothing to its messages and their vectors during the call.
    unsafe {
        let plainly = || recvmmsg_now(fd, messages, count, flags, timeout);
        let Some([first]) = messages::given(messages, 1) else { return plainly() };
        let header = &raw mut first.msg_hdr;
        let Some(parts) = messages::parts_of(&*header, uncopy_sys::iovec::MAX_PARTS) else {
            return plainly();
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
            lanes::receive_message(fd, header, parts, flags, caller, || (plainly(), false)).0
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
            messages::each_descriptor(&message.msg_hdr, lanes::passed);
        }
        got
    }
}

unsafe fn recvmmsg_now(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let real = RECVMMSG.call();
    let number = count as usize;
    // SAFETY: the program's own arguments.
    let unchanged = || unsafe { real(fd, messages, count, flags, timeout) };
    let gated = MIN_SIZE_BYTES.load(Relaxed) == usize::MAX || flags & UNUSUAL != 0;
    if gated || number == 0 || number > MAX_MESSAGES || !stack_room::is_left(stack_room::FOR_MESSAGES) {
        return unchanged();
    }
    // SAFETY: the program's own arguments; it does nothing to its messages during the call.
    unsafe { recvmmsg_with_room(messages, number, |messages| real(fd, messages, count, flags, timeout)) }
}

#[inline(never)]
unsafe fn recvmmsg_with_room(
    messages: *mut mmsghdr,
    number: usize,
    call: impl Fn(*mut mmsghdr) -> c_int,
) -> c_int {
    let unchanged = || call(messages);
    // SAFETY: the program does nothing to its messages during the call.
    let Some(given) = (unsafe { messages::given(messages, number) }) else { return unchanged() };
    let mut parts = [Part::NONE; MAX_PARTS];
    let mut counts = [0usize; MAX_MESSAGES];
    // SAFETY: nor to their vectors.
    let Some(used) = (unsafe { messages::flatten(given, &mut parts, &mut counts) }) else {
        return unchanged();
    };
    let parts = &mut parts[..used];
    if !is_candidate(parts) {
        return unchanged();
    }
    let Some(input) = Input::begin(parts, recvmmsg as *const () as usize) else {
        let got = unchanged();
        // SAFETY: the kernel has just filled so many.
        early::note(usize::try_from(unsafe { messages::moved_bytes(messages, got) }).unwrap_or(0));
        return got;
    };
    let mut replaced: [mmsghdr; MAX_MESSAGES] = messages::over(given, input.parts(), &counts);
    // The program's messages with the engine's buffers, at least as long, while `input` holds them.
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
