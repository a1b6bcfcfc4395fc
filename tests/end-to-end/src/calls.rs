//! Every call that uncopy interposes on, as a value that can be picked at random.
//!
//! All of them are reached through function pointers that the optimiser cannot see through, so
//! that each really goes through the dynamic symbol.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr::null_mut;

use libc::{iovec, off_t, off64_t, size_t, ssize_t};

use crate::oracle::{CallResult, call_result, errno, raw_read, raw_write};

unsafe extern "C" {
    fn bcopy(source: *const c_void, destination: *mut c_void, len: size_t);
    fn mempcpy(destination: *mut c_void, source: *const c_void, len: size_t) -> *mut c_void;
    fn __memcpy_chk(to: *mut c_void, from: *const c_void, len: size_t, object_len: size_t) -> *mut c_void;
    fn __memmove_chk(to: *mut c_void, from: *const c_void, len: size_t, object_len: size_t) -> *mut c_void;
    fn __mempcpy_chk(to: *mut c_void, from: *const c_void, len: size_t, object_len: size_t) -> *mut c_void;
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, object_len: size_t) -> ssize_t;
    fn __pread_chk(fd: c_int, buffer: *mut c_void, len: size_t, at: off_t, object_len: size_t) -> ssize_t;
    fn __pread64_chk(fd: c_int, buffer: *mut c_void, len: size_t, at: off64_t, object_len: size_t)
    -> ssize_t;
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, object_len: size_t, flags: c_int) -> ssize_t;
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        object_len: size_t,
        flags: c_int,
        address: *mut libc::sockaddr,
        address_len: *mut libc::socklen_t,
    ) -> ssize_t;
    fn preadv2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn preadv64v2(fd: c_int, parts: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t;
}

type Copy3 = unsafe extern "C" fn(*mut c_void, *const c_void, size_t) -> *mut c_void;
type Copy4 = unsafe extern "C" fn(*mut c_void, *const c_void, size_t, size_t) -> *mut c_void;
type BcopyType = unsafe extern "C" fn(*const c_void, *mut c_void, size_t);
type ReadType = unsafe extern "C" fn(c_int, *mut c_void, size_t) -> ssize_t;
type WriteType = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
type VectorType = unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
type VectorAtType = unsafe extern "C" fn(c_int, *const iovec, c_int, off_t) -> ssize_t;
type VectorAt2Type = unsafe extern "C" fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;

/// A call that copies memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyCall {
    /// `memcpy`.
    Memcpy,
    /// `memmove`.
    Memmove,
    /// `mempcpy`.
    Mempcpy,
    /// `bcopy`.
    Bcopy,
    /// `__memcpy_chk`.
    MemcpyChk,
    /// `__memmove_chk`.
    MemmoveChk,
    /// `__mempcpy_chk`.
    MempcpyChk,
}

impl CopyCall {
    /// Every call that copies memory.
    pub const ALL: &'static [Self] = &[
        Self::Memcpy,
        Self::Memmove,
        Self::Mempcpy,
        Self::Bcopy,
        Self::MemcpyChk,
        Self::MemmoveChk,
        Self::MempcpyChk,
    ];
    /// Calls that allow the ranges to overlap.
    pub const OVERLAPPING: &'static [Self] = &[Self::Memmove, Self::Bcopy, Self::MemmoveChk];

    /// Makes the call and checks what it returns.
    ///
    /// # Safety
    /// As for `memcpy`, or `memmove` if the call is one of [`CopyCall::OVERLAPPING`].
    ///
    /// # Panics
    /// When the call returns a wrong pointer.
    pub unsafe fn copy(self, destination: *mut u8, source: *const u8, len: usize) {
        let (to, from): (*mut c_void, *const c_void) = (destination.cast(), source.cast());
        // SAFETY: the caller promises the ranges; the room given to the checked calls is enough.
        let returned = unsafe {
            match self {
                Self::Memcpy => black_box::<Copy3>(libc::memcpy)(to, from, len),
                Self::Memmove => black_box::<Copy3>(libc::memmove)(to, from, len),
                Self::Mempcpy => black_box::<Copy3>(mempcpy)(to, from, len),
                Self::MemcpyChk => black_box::<Copy4>(__memcpy_chk)(to, from, len, len),
                Self::MemmoveChk => black_box::<Copy4>(__memmove_chk)(to, from, len, len + 1),
                Self::MempcpyChk => black_box::<Copy4>(__mempcpy_chk)(to, from, len, usize::MAX),
                Self::Bcopy => {
                    black_box::<BcopyType>(bcopy)(from, to, len);
                    to
                }
            }
        };
        let past_end = if matches!(self, Self::Mempcpy | Self::MempcpyChk) { len } else { 0 };
        assert_eq!(returned.addr(), destination.addr() + past_end, "{self:?} returned a wrong pointer");
    }
}

/// A call that reads from a stream: socket, pipe or a file at its own position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputCall {
    /// `read`.
    Read,
    /// `readv`.
    Readv,
    /// `preadv2` at offset -1.
    Preadv2,
    /// `preadv64v2` at offset -1.
    Preadv64v2,
    /// `__read_chk`.
    ReadChk,
    /// The bare system call, which nothing can interpose on.
    Raw,
    /// `recv`.
    Recv,
    /// `recvfrom`.
    Recvfrom,
    /// `recvmsg`.
    Recvmsg,
    /// `recvmmsg` with one message.
    Recvmmsg,
    /// `__recv_chk`.
    RecvChk,
    /// `__recvfrom_chk`.
    RecvfromChk,
}

impl InputCall {
    /// Input calls that work on every descriptor.
    pub const ANY: &'static [Self] =
        &[Self::Read, Self::Readv, Self::Preadv2, Self::Preadv64v2, Self::ReadChk, Self::Raw];
    /// Input calls that work on sockets.
    pub const SOCKET: &'static [Self] = &[
        Self::Read,
        Self::Readv,
        Self::Preadv2,
        Self::Preadv64v2,
        Self::ReadChk,
        Self::Raw,
        Self::Recv,
        Self::Recvfrom,
        Self::Recvmsg,
        Self::Recvmmsg,
        Self::RecvChk,
        Self::RecvfromChk,
    ];
    /// Input calls that take flags.
    pub const WITH_FLAGS: &'static [Self] =
        &[Self::Recv, Self::Recvfrom, Self::Recvmsg, Self::Recvmmsg, Self::RecvChk, Self::RecvfromChk];

    /// Whether the call takes several parts.
    #[must_use]
    pub const fn is_vector(self) -> bool {
        matches!(self, Self::Readv | Self::Preadv2 | Self::Preadv64v2 | Self::Recvmsg | Self::Recvmmsg)
    }

    /// Makes the call on `parts` (on the first only, unless it is a vector call).
    ///
    /// # Errors
    /// errno.
    ///
    /// # Safety
    /// Every part must be writable, unless the test is about the error that follows.
    ///
    /// # Panics
    /// When `recvmmsg` reports another number of messages than one.
    pub unsafe fn input(self, fd: i32, parts: &mut [iovec], flags: c_int) -> CallResult {
        let iovec { iov_base: base, iov_len: len } = parts[0];
        let count = c_int::try_from(parts.len()).expect("few parts");
        let vector = parts.as_ptr();
        // SAFETY: the caller promises the parts; the headers built here live through the calls.
        unsafe {
            call_result(match self {
                Self::Read => black_box::<ReadType>(libc::read)(fd, base, len),
                Self::Readv => black_box::<VectorType>(libc::readv)(fd, vector, count),
                Self::Preadv2 => black_box::<VectorAt2Type>(preadv2)(fd, vector, count, -1, 0),
                Self::Preadv64v2 => black_box::<VectorAt2Type>(preadv64v2)(fd, vector, count, -1, 0),
                Self::ReadChk => {
                    black_box(__read_chk as unsafe extern "C" fn(_, _, _, _) -> _)(fd, base, len, len)
                }
                Self::Raw => return raw_read(fd, base.cast(), len),
                Self::Recv => {
                    black_box(libc::recv as unsafe extern "C" fn(_, _, _, _) -> _)(fd, base, len, flags)
                }
                Self::Recvfrom => {
                    let mut address: libc::sockaddr_storage = std::mem::zeroed();
                    let mut address_len = 128u32;
                    let address = (&raw mut address).cast::<libc::sockaddr>();
                    let call = black_box(libc::recvfrom as unsafe extern "C" fn(_, _, _, _, _, _) -> _);
                    call(fd, base, len, flags, address, &raw mut address_len)
                }
                Self::Recvmsg => {
                    let mut message = message(parts);
                    let call = black_box(libc::recvmsg as unsafe extern "C" fn(_, _, _) -> _);
                    call(fd, &raw mut message, flags)
                }
                Self::Recvmmsg => {
                    let mut messages = [libc::mmsghdr { msg_hdr: message(parts), msg_len: 0 }];
                    let call = black_box(libc::recvmmsg as unsafe extern "C" fn(_, _, _, _, _) -> c_int);
                    match call(fd, messages.as_mut_ptr(), 1u32, flags, null_mut::<libc::timespec>()) {
                        1 => isize::try_from(messages[0].msg_len).expect("at most 4 GiB"),
                        returned => {
                            assert_eq!(returned, -1, "recvmmsg of one message");
                            -1
                        }
                    }
                }
                Self::RecvChk => black_box(__recv_chk as unsafe extern "C" fn(_, _, _, _, _) -> _)(
                    fd, base, len, len, flags,
                ),
                Self::RecvfromChk => {
                    let call = black_box(__recvfrom_chk as unsafe extern "C" fn(_, _, _, _, _, _, _) -> _);
                    call(fd, base, len, len, flags, null_mut(), null_mut())
                }
            })
        }
    }
}

/// A call that writes to a stream: socket, pipe or a file at its own position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputCall {
    /// `write`.
    Write,
    /// `writev`.
    Writev,
    /// `pwritev2` at offset -1.
    Pwritev2,
    /// `pwritev64v2` at offset -1.
    Pwritev64v2,
    /// The bare system call, which nothing can interpose on.
    Raw,
    /// `send`.
    Send,
    /// `sendto`.
    Sendto,
    /// `sendmsg`.
    Sendmsg,
    /// `sendmmsg` with one message.
    Sendmmsg,
}

impl OutputCall {
    /// Output calls that work on every descriptor.
    pub const ANY: &'static [Self] =
        &[Self::Write, Self::Writev, Self::Pwritev2, Self::Pwritev64v2, Self::Raw];
    /// Output calls that work on sockets.
    pub const SOCKET: &'static [Self] = &[
        Self::Write,
        Self::Writev,
        Self::Pwritev2,
        Self::Pwritev64v2,
        Self::Raw,
        Self::Send,
        Self::Sendto,
        Self::Sendmsg,
        Self::Sendmmsg,
    ];
    /// Output calls that work on sockets and are interposed on by their own names.
    pub const NAMED: [Self; 6] =
        [Self::Write, Self::Writev, Self::Send, Self::Sendto, Self::Sendmsg, Self::Sendmmsg];
    /// Output calls that take flags.
    pub const WITH_FLAGS: &'static [Self] = &[Self::Send, Self::Sendto, Self::Sendmsg, Self::Sendmmsg];

    /// Whether the call takes several parts.
    #[must_use]
    pub const fn is_vector(self) -> bool {
        matches!(self, Self::Writev | Self::Pwritev2 | Self::Pwritev64v2 | Self::Sendmsg | Self::Sendmmsg)
    }

    /// Makes the call on `parts` (on the first only, unless it is a vector call).
    ///
    /// # Errors
    /// errno.
    ///
    /// # Safety
    /// Every part must be readable, unless the test is about the error that follows.
    ///
    /// # Panics
    /// When `sendmmsg` reports another number of messages than one.
    pub unsafe fn output(self, fd: i32, parts: &mut [iovec], flags: c_int) -> CallResult {
        let iovec { iov_base: base, iov_len: len } = parts[0];
        let base = base.cast_const();
        let count = c_int::try_from(parts.len()).expect("few parts");
        let vector = parts.as_ptr();
        // SAFETY: the caller promises the parts; the headers built here live through the calls.
        unsafe {
            call_result(match self {
                Self::Write => black_box::<WriteType>(libc::write)(fd, base, len),
                Self::Writev => black_box::<VectorType>(libc::writev)(fd, vector, count),
                Self::Pwritev2 => black_box::<VectorAt2Type>(pwritev2)(fd, vector, count, -1, 0),
                Self::Pwritev64v2 => black_box::<VectorAt2Type>(pwritev64v2)(fd, vector, count, -1, 0),
                Self::Raw => return raw_write(fd, base.cast(), len),
                Self::Send => {
                    black_box(libc::send as unsafe extern "C" fn(_, _, _, _) -> _)(fd, base, len, flags)
                }
                Self::Sendto => {
                    let call = black_box(libc::sendto as unsafe extern "C" fn(_, _, _, _, _, _) -> _);
                    call(fd, base, len, flags, std::ptr::null::<libc::sockaddr>(), 0u32)
                }
                Self::Sendmsg => {
                    let message = message(parts);
                    black_box(libc::sendmsg as unsafe extern "C" fn(_, _, _) -> _)(
                        fd,
                        &raw const message,
                        flags,
                    )
                }
                Self::Sendmmsg => {
                    let mut messages = [libc::mmsghdr { msg_hdr: message(parts), msg_len: 0 }];
                    let call = black_box(libc::sendmmsg as unsafe extern "C" fn(_, _, _, _) -> c_int);
                    match call(fd, messages.as_mut_ptr(), 1u32, flags) {
                        1 => isize::try_from(messages[0].msg_len).expect("at most 4 GiB"),
                        returned => {
                            assert_eq!(returned, -1, "sendmmsg of one message");
                            -1
                        }
                    }
                }
            })
        }
    }
}

/// A call that reads a file at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the name of the call")]
pub enum FileInput {
    Pread,
    Pread64,
    PreadChk,
    Pread64Chk,
    Preadv,
    Preadv64,
    Preadv2,
    Preadv64v2,
}

impl FileInput {
    /// All calls that read from a file at an offset.
    pub const ALL: &'static [Self] = &[
        Self::Pread,
        Self::Pread64,
        Self::PreadChk,
        Self::Pread64Chk,
        Self::Preadv,
        Self::Preadv64,
        Self::Preadv2,
        Self::Preadv64v2,
    ];

    /// Whether the call takes several parts.
    #[must_use]
    pub const fn is_vector(self) -> bool {
        matches!(self, Self::Preadv | Self::Preadv64 | Self::Preadv2 | Self::Preadv64v2)
    }

    /// Makes the call on `parts` (on the first only, unless it is a vector call).
    ///
    /// # Errors
    /// errno.
    ///
    /// # Safety
    /// As [`InputCall::input`].
    pub unsafe fn input(self, fd: i32, parts: &[iovec], at: i64) -> CallResult {
        let iovec { iov_base: base, iov_len: len } = parts[0];
        let count = c_int::try_from(parts.len()).expect("few parts");
        let vector = parts.as_ptr();
        // SAFETY: the caller promises that `parts` are writable; `vector` has `count` entries.
        call_result(unsafe {
            match self {
                Self::Pread => {
                    black_box(libc::pread as unsafe extern "C" fn(_, _, _, _) -> _)(fd, base, len, at)
                }
                Self::Pread64 => {
                    black_box(libc::pread64 as unsafe extern "C" fn(_, _, _, _) -> _)(fd, base, len, at)
                }
                Self::PreadChk => {
                    black_box(__pread_chk as unsafe extern "C" fn(_, _, _, _, _) -> _)(fd, base, len, at, len)
                }
                Self::Pread64Chk => black_box(__pread64_chk as unsafe extern "C" fn(_, _, _, _, _) -> _)(
                    fd, base, len, at, len,
                ),
                Self::Preadv => black_box::<VectorAtType>(libc::preadv)(fd, vector, count, at),
                Self::Preadv64 => black_box::<VectorAtType>(libc::preadv64)(fd, vector, count, at),
                Self::Preadv2 => black_box::<VectorAt2Type>(preadv2)(fd, vector, count, at, 0),
                Self::Preadv64v2 => black_box::<VectorAt2Type>(preadv64v2)(fd, vector, count, at, 0),
            }
        })
    }
}

/// A call that writes a file at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the name of the call")]
pub enum FileOutput {
    Pwrite,
    Pwrite64,
    Pwritev,
    Pwritev64,
    Pwritev2,
    Pwritev64v2,
}

impl FileOutput {
    /// All calls that write to a file at an offset.
    pub const ALL: &'static [Self] =
        &[Self::Pwrite, Self::Pwrite64, Self::Pwritev, Self::Pwritev64, Self::Pwritev2, Self::Pwritev64v2];

    /// Whether the call takes several parts.
    #[must_use]
    pub const fn is_vector(self) -> bool {
        !matches!(self, Self::Pwrite | Self::Pwrite64)
    }

    /// Makes the call on `parts` (on the first only, unless it is a vector call).
    ///
    /// # Errors
    /// errno.
    ///
    /// # Safety
    /// As [`OutputCall::output`].
    pub unsafe fn output(self, fd: i32, parts: &[iovec], at: i64) -> CallResult {
        let iovec { iov_base: base, iov_len: len } = parts[0];
        let base = base.cast_const();
        let count = c_int::try_from(parts.len()).expect("few parts");
        let vector = parts.as_ptr();
        // SAFETY: the caller promises that `parts` describe readable memory; `vector` has `count` entries.
        call_result(unsafe {
            match self {
                Self::Pwrite => {
                    black_box(libc::pwrite as unsafe extern "C" fn(_, _, _, _) -> _)(fd, base, len, at)
                }
                Self::Pwrite64 => {
                    black_box(libc::pwrite64 as unsafe extern "C" fn(_, _, _, _) -> _)(fd, base, len, at)
                }
                Self::Pwritev => black_box::<VectorAtType>(libc::pwritev)(fd, vector, count, at),
                Self::Pwritev64 => black_box::<VectorAtType>(libc::pwritev64)(fd, vector, count, at),
                Self::Pwritev2 => black_box::<VectorAt2Type>(pwritev2)(fd, vector, count, at, 0),
                Self::Pwritev64v2 => black_box::<VectorAt2Type>(pwritev64v2)(fd, vector, count, at, 0),
            }
        })
    }
}

/// Returns a message header over `parts`, without address or control data.
#[must_use]
pub fn message(parts: &mut [iovec]) -> libc::msghdr {
    // SAFETY: msghdr is plain data; zeroes are null pointers and lengths of 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message
}

/// Waits until `fd` is ready for `events`, at most a minute.
///
/// # Panics
/// When the descriptor does not become ready in time.
pub fn wait_ready(fd: i32, events: i16) {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    loop {
        // SAFETY: `poll` is one valid pollfd.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 60_000) };
        assert_ne!(ready, 0, "descriptor {fd} was not ready for {events:#x} within a minute");
        if ready > 0 {
            return;
        }
        assert_eq!(errno(), libc::EINTR, "poll");
    }
}

/// Switches `O_NONBLOCK` of a descriptor.
///
/// # Panics
/// When the descriptor is bad.
pub fn set_nonblocking(fd: i32, nonblocking: bool) {
    // SAFETY: fcntl with these commands takes integers only.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        assert!(flags >= 0, "descriptor {fd}");
        let flags = if nonblocking { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags), 0, "descriptor {fd}");
    }
}

/// Sets a socket's buffer size (`SO_SNDBUF`, `SO_RCVBUF` or their forced variants).
///
/// # Panics
/// When the kernel refuses.
pub fn set_buffer_size(fd: i32, option: c_int, bytes: c_int) {
    // SAFETY: the value is one int and lives through the call.
    let returned = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const bytes).cast(), 4) };
    assert_eq!(returned, 0, "setsockopt {option} to {bytes}: errno {}", errno());
}
