//! Engine stage: buffers of the engine in place of the program's. Output that was not copied is gathered from
//! where it lies; input goes where it need not be copied from.

use super::lending::{Lending, send_lent};
use super::op::{Buffers, Op};
use core::sync::atomic::Ordering::Relaxed;
use libc::{MSG_ZEROCOPY, ssize_t};
use uncopy_engine::call::input::ReceiveResult;
use uncopy_engine::call::input::{self, Input};
use uncopy_engine::call::output::{self, Output};
use uncopy_engine::call::short_reads;
use uncopy_engine::range::carriers;
use uncopy_engine::state::gate::{self, MIN_ENGINE_BYTES};
use uncopy_engine::state::phase::STATE;
use uncopy_sys::errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::stack_room;

/// True if any buffer may hold views; before that, vectors are not examined.
pub fn may_have_views() -> bool {
    MIN_ENGINE_BYTES.load(Relaxed) != usize::MAX && STATE.is_active()
}

#[inline(always)]
pub fn send(op: &Op, call: &impl Fn(Option<&[Part]>) -> ssize_t) -> ssize_t {
    // With MSG_ZEROCOPY the kernel references the pages beyond the call, so it gets the program's own.
    if op.asked.is_some_and(|asked| asked & MSG_ZEROCOPY != 0) {
        return call(None);
    }
    match &op.buffers {
        Buffers::One(part) => send_parts(op, part, call),
        _ if !(may_have_views() || carriers::examines_outputs()) => call(None),
        _ => match op.buffers.parts() {
            Some(parts) => send_parts(op, parts, call),
            None => call(None),
        },
    }
}

#[inline(always)]
fn send_parts(op: &Op, parts: &[Part], call: &impl Fn(Option<&[Part]>) -> ssize_t) -> ssize_t {
    if !output::is_candidate(parts) {
        carriers::record_output(parts, gate::min_engine_bytes());
        return call(None);
    }
    if stack_room::is_available(stack_room::FOR_OUTPUT_BYTES) { gather(op, parts, call) } else { call(None) }
}

#[inline(never)]
fn gather(op: &Op, parts: &[Part], call: &impl Fn(Option<&[Part]>) -> ssize_t) -> ssize_t {
    let Some(mut output) = Output::begin(op.fd(), parts) else { return call(None) };
    match op.stream.map(|flags| send_lent(op.fd(), &mut output, flags)) {
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
    let sent = output.call(|parts| call(Some(parts)));
    if let Ok(sent) = usize::try_from(sent) {
        output.finish(sent);
        return sent as ssize_t;
    }
    drop(output);
    // O_DIRECT and its like require an alignment that a segment may not have. Nothing was sent.
    if errno::get() == libc::EINVAL { call(None) } else { sent }
}

#[inline(always)]
pub fn receive(op: &Op, call: &impl Fn(Option<&[Part]>) -> ssize_t) -> ReceiveResult {
    let is_candidate = match &op.buffers {
        Buffers::One(part) => input::is_candidate(part),
        _ => {
            MIN_ENGINE_BYTES.load(Relaxed) != usize::MAX
                && stack_room::is_available(stack_room::FOR_COPY_BYTES)
        }
    };
    if !is_candidate {
        return ReceiveResult::passthrough(call(None));
    }
    if short_reads::is_likely(op.caller) {
        return receive_in_place(op, call);
    }
    match op.buffers {
        Buffers::One(mut part) => redirect(op, &mut part, call),
        _ => receive_several(op, call),
    }
}

#[inline(never)]
fn receive_several(op: &Op, call: &impl Fn(Option<&[Part]>) -> ssize_t) -> ReceiveResult {
    let Some(given) = op.buffers.parts().filter(|given| input::is_candidate(given)) else {
        return ReceiveResult::passthrough(call(None));
    };
    // The engine replaces these parts in place.
    let mut room = [Part::NONE; input::MAX_PARTS];
    let parts = &mut room[..given.len()];
    parts.copy_from_slice(given);
    redirect(op, parts, call)
}

/// Lets the call fill the engine's buffers, if that pays.
#[inline(always)]
fn redirect(op: &Op, parts: &mut [Part], call: &impl Fn(Option<&[Part]>) -> ssize_t) -> ReceiveResult {
    let Some(input) = Input::begin(parts, op.caller) else { return receive_in_place(op, call) };
    let result = input.call(|parts| call(Some(parts)));
    let is_misaligned = result == -1 && errno::get() == libc::EINVAL;
    let got_bytes = usize::try_from(result).unwrap_or(0);
    input.finish(got_bytes);
    if is_misaligned {
        // O_DIRECT may refuse parts that do not end at a sector boundary. Nothing was read.
        return receive_in_place(op, call);
    }
    short_reads::record(op.caller, got_bytes);
    ReceiveResult { result, handled_by_engine: true }
}

#[inline(always)]
fn receive_in_place(op: &Op, call: &impl Fn(Option<&[Part]>) -> ssize_t) -> ReceiveResult {
    let result = call(None);
    short_reads::record(op.caller, usize::try_from(result).unwrap_or(0));
    ReceiveResult::passthrough(result)
}
