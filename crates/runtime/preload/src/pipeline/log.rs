//! Log stage: writes to files that take part in a log are kept for their next sync, and reads wait for what only the
//! log has.

use super::op::Op;
use crate::files;
use core::cell::Cell;
use libc::ssize_t;
use uncopy_engine::call::input::ReceiveResult;
use uncopy_sys::iovec::Part;

/// True if the call is for a file that may take part in a log.
#[inline(always)]
pub fn is_candidate(op: &Op) -> bool {
    op.at.is_some() && files::is_tracked(op.fd())
}

pub fn send(op: &Op, call: &dyn Fn(Option<&[Part]>) -> ssize_t, next: &dyn Fn() -> ssize_t) -> ssize_t {
    let Some(at) = op.at else { return next() };
    match op.buffers.parts() {
        Some(parts) => files::write(op.fd(), at, parts, &|parts| call(Some(parts)), next),
        None => {
            // The kernel may accept a vector that is not aligned, so the write cannot be logged.
            let _outside = files::stop_logging_for(op.fd());
            next()
        }
    }
}

pub fn receive(op: &Op, next: &dyn Fn() -> ReceiveResult) -> ReceiveResult {
    let Some(at) = op.at.filter(|_| files::may_be_in_log(op.fd())) else { return next() };
    let received = Cell::new(None);
    let result = files::read(op.fd(), at, &|| {
        let now = next();
        let result = now.result;
        received.set(Some(now));
        result
    });
    received.take().unwrap_or_else(|| ReceiveResult::passthrough(result))
}
