//! Waiting for descriptors.

use crate::call::{kernel, syscall};
use crate::descriptor::Descriptor;

/// Waits until one of the descriptors is readable, `timeout_ms` has passed, or a signal has come.
pub fn for_any<D: Descriptor>(descriptors: impl Iterator<Item = D>, timeout_ms: i32) {
    let mut polls: Vec<libc::pollfd> =
        descriptors.map(|fd| libc::pollfd { fd: fd.number(), events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: `polls` holds `polls.len()` pollfds and lives through the call.
    unsafe { kernel!(Poll, syscall!(libc::SYS_poll, polls.as_mut_ptr(), polls.len(), timeout_ms)) };
}

/// Whether a descriptor is readable, or its peer is closed.
#[must_use]
pub fn is_ready(fd: impl Descriptor) -> bool {
    crate::fd::poll(fd, libc::POLLIN, 0).is_ok_and(|events| events != 0)
}
