//! Service stage: UNIX sockets that stand for connections of a TCP service behave as TCP sockets.

use super::engine;
use super::op::Op;
use crate::net;
use core::ffi::c_int;
use libc::ssize_t;
use uncopy_engine::call::input::ReceiveResult;
use uncopy_sys::descriptor::OwnFd;
use uncopy_sys::file;

#[inline(always)]
pub fn send(op: &Op, next: impl FnOnce() -> ssize_t) -> ssize_t {
    let sent = net::send_result(op.fd(), next());
    match op.asked {
        Some(asked) => net::raise_sigpipe(op.fd(), asked, sent),
        None => sent,
    }
}

#[inline(always)]
pub fn receive(op: &Op, next: impl FnOnce() -> ReceiveResult) -> ReceiveResult {
    let received = next();
    match op.stream {
        Some(flags) if received.result <= 0 && net::is_on() => receive_rest(Op { ..*op }, received, flags),
        _ => received,
    }
}

/// Makes a receive that stores nothing.
#[inline(always)]
pub fn discard(op: &Op, next: impl FnOnce() -> ReceiveResult) -> ssize_t {
    if op.header.is_null() { net::recv_result(op.fd(), next().result) } else { receive(op, next).result }
}

/// Completes a receive that found nothing: with input from before a shutdown, or with an error.
#[cold]
fn receive_rest(op: Op, arrival: ReceiveResult, flags: c_int) -> ReceiveResult {
    let room_bytes = op.buffers.len_bytes();
    if room_bytes == Some(0) && op.header.is_null() {
        return arrival;
    }
    let read = |kept: &OwnFd| {
        let call = |parts: Option<&[_]>| {
            let parts = parts.or_else(|| op.buffers.parts()).unwrap_or_default();
            // SAFETY: the parts are the program's receive buffers, or the engine's in their place.
            unsafe { file::read_parts(kept, parts) }.map_or(-1, usize::cast_signed)
        };
        engine::receive(&op, &call).result
    };
    let result = match room_bytes {
        None | Some(0) => arrival.result,
        Some(room_bytes) => net::read_after_shutdown(op.fd(), arrival.result, || room_bytes, flags, read),
    };
    ReceiveResult { result: net::recv_result(op.fd(), result), ..arrival }
}
