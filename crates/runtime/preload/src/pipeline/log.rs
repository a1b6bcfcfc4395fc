//! Log stage: writes to files that take part in a log are kept for their next sync.

use super::op::Op;
use crate::files;
use libc::ssize_t;
use uncopy_sys::iovec::Part;

/// True if the call writes to a file that may take part in a log.
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
