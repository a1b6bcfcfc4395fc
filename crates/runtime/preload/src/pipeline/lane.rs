//! Lane stage: large parts of lanes are sent and received by reference.

use super::op::Op;
use crate::lanes;
use crate::messages;
use libc::ssize_t;
use uncopy_engine::call::input::ReceiveResult;

/// True if streams may be lanes.
#[inline(always)]
pub fn is_candidate(_op: &Op) -> bool {
    lanes::is_on()
}

pub fn send(op: &Op, next: &dyn Fn() -> ssize_t) -> ssize_t {
    match op.stream {
        Some(flags) => lanes::send(op.fd(), || op.buffers.parts(), flags, next),
        None => lanes::send_unchanged(op.fd(), next, |sent| sent),
    }
}

pub fn receive(op: &Op, next: &dyn Fn() -> ReceiveResult) -> ReceiveResult {
    let Some(flags) = op.stream else { return next() };
    if op.header.is_null() {
        // SAFETY: the parts are the buffers that the program passed to this receive.
        return unsafe { lanes::receive(op.fd(), || op.buffers.parts(), flags, op.caller, next) };
    }
    // SAFETY: `header` was found readable, and the parts are the buffers that the program passed to this receive.
    let arrival =
        unsafe { lanes::receive_message(op.fd(), op.header, || op.buffers.parts(), flags, op.caller, next) };
    note_descriptors(op, arrival.result);
    arrival
}

#[inline(always)]
pub fn discard(op: &Op, call: impl FnOnce() -> ssize_t) -> ReceiveResult {
    let Some(flags) = op.stream.filter(|_| lanes::is_on()) else { return ReceiveResult::passthrough(call()) };
    let result = match op.buffers.parts() {
        // SAFETY: the parts are the buffers that the program passed to this receive.
        Some(parts) => unsafe { lanes::discard(op.fd(), parts, flags, op.caller, call) },
        None if lanes::make_passthrough(op.fd()) => call(),
        None => -1,
    };
    note_descriptors(op, result);
    ReceiveResult::passthrough(result)
}

/// Notes descriptors received with a message as shared with another process.
fn note_descriptors(op: &Op, result: ssize_t) {
    if result >= 0 && !op.header.is_null() {
        // SAFETY: the call has succeeded, so the kernel has just filled the program's header and its control data.
        unsafe { messages::each_descriptor(&*op.header, uncopy_fdtable::on_pass) };
    }
}
