//! Waiting for descriptors.

use crate::call::{kernel, syscall};

/// Waits until one of these can be read, or `timeout_ms` has passed, or a signal came.
pub fn for_any(descriptors: impl Iterator<Item = i32>, timeout_ms: i32) {
    let mut polls: Vec<libc::pollfd> =
        descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: as many valid structures as is said.
    unsafe { kernel!(Poll, syscall!(libc::SYS_poll, polls.as_mut_ptr(), polls.len(), timeout_ms)) };
}

/// Whether a descriptor can be read, or its other end is gone.
#[must_use]
pub fn is_ready(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid structure.
    unsafe { kernel!(Poll, syscall!(libc::SYS_poll, &raw mut poll, 1, 0)) == 1 }
}
