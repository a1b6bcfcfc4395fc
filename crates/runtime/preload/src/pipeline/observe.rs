//! Observer stage: counts the bytes moved, and records them if a recording is on.

use super::op::{Buffers, Op};
use crate::messages::note_moved;
use libc::ssize_t;
use uncopy_engine::call::input::ReceiveResult;
use uncopy_engine::range::carriers;
use uncopy_engine::state::gate;
use uncopy_record::{Timer, Transfer};
use uncopy_sys::errno;

#[inline(always)]
pub fn send(op: &Op, next: impl FnOnce() -> ssize_t) -> ssize_t {
    let timer = begin(op);
    let sent = next();
    note_moved(sent);
    if let Some(timer) = timer {
        enter(op, timer, op.transfer, sent);
    }
    sent
}

#[inline(always)]
pub fn receive(op: &Op, next: impl FnOnce() -> ReceiveResult) -> ssize_t {
    let timer = begin(op);
    let ReceiveResult { result, handled_by_engine } = next();
    note_moved(result);
    let min_bytes = gate::min_engine_bytes();
    if usize::try_from(result).is_ok_and(|result| result >= min_bytes) {
        note_arrival(op, min_bytes);
    }
    if let Some(timer) = timer {
        enter(op, timer, op.transfer.by_engine(handled_by_engine), result);
    }
    result
}

/// Notes where large input has arrived.
#[cold]
fn note_arrival(op: &Op, min_bytes: usize) {
    let mut parts = op.buffers.parts().unwrap_or_default().iter();
    if let Some(part) = parts.find(|part| part.len_bytes >= min_bytes) {
        let errno = errno::get();
        carriers::record_input(op.fd(), op.transfer.is_socket, part.address, part.len_bytes, op.caller);
        errno::set(errno);
    }
}

#[inline(always)]
fn begin(op: &Op) -> Option<Timer> {
    match &op.buffers {
        Buffers::One([part]) => Timer::begin(part.len_bytes),
        _ => Timer::begin_any(),
    }
}

#[inline(always)]
fn enter(op: &Op, timer: Timer, transfer: Transfer, moved: ssize_t) {
    if moved > 0 {
        // SAFETY: the call has moved bytes, so the kernel has read the vector.
        unsafe {
            let (vector, count) = op.buffers.read_by_kernel();
            timer.record_parts(transfer, vector, count, moved);
        }
    }
}
