//! What both servers promise the transmit engine.

use std::os::fd::{AsRawFd, BorrowedFd};

use uncopy_transmit::Owner;

/// This program never closes descriptors that it does not own. What has `min_bytes` or more goes by reference; where
/// nothing is said, what is measured to pay.
pub fn prepare(min_bytes: Option<usize>) {
    uncopy_transmit::trust_descriptors();
    if min_bytes.is_some() {
        uncopy_transmit::set_break_even(min_bytes);
    }
}

/// Says what is true of each socket, once: it does not block, only its thread sends on it, SIGPIPE is ignored (by Rust's
/// runtime), and after an error it is closed, or the datagram is not tried again. `reads_errors`: the engine may read its
/// error queue.
pub fn own(socket: BorrowedFd<'_>, reads_errors: bool) {
    let owner = Owner { ends_on_errors: true, sends_alone: true, reads_errors };
    uncopy_transmit::own(socket.as_raw_fd(), owner);
}
