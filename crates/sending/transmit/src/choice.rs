//! Chooses which messages go by reference: those that cost the whole process less that way.
//!
//! The break-even size depends on the machine, the kernel, the socket, and above all on whether the bytes are
//! in the processor's cache: if so, copying 64 KiB costs less than 16 references; from memory, twice as much.
//! Nor does the whole cost of a reference fall into its call, or even into the sender's thread: referenced
//! pages are freed one by one while later messages are sent, interrupts send the backlog of a full socket,
//! and the next bytes need new pages. So [`uncopy_trials`] compares both ways, per kind of socket and power
//! of two of the size.

use crate::socket_cache::Kind;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_core::policy::trials::catalogue::{Transport, lending_factor};

/// Messages below this size are copied: two more system calls cost as much as the copy.
pub const MIN_BYTES: usize = 4 << 10;

/// Break-even set by [`set_break_even`], in bytes; 0 if trials decide.
static BREAK_EVEN: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub by_reference: bool,
    /// True if the bytes sent must be counted for trials.
    pub is_counted: bool,
}

/// Decides for a message with `len_bytes` bytes that can go by reference.
pub fn choose(kind: Kind, len_bytes: usize) -> Choice {
    let break_even = BREAK_EVEN.load(Relaxed);
    if break_even != 0 {
        return Choice { by_reference: len_bytes >= break_even, is_counted: false };
    }
    // BBR takes the rate of a splice for all that the path can carry, and paces the connection by that for
    // the rest of its life: GET of 128 KiB from Redis over loopback took 1.4 times the processor time at half
    // the rate, long after the last splice. Even a trial would do that harm. On UNIX sockets, references fill
    // the peer's buffer with page-sized fragments: the sender's time is equal or slightly lower, but the peer
    // takes half as many messages from 60 KiB on, and no more below (`uncopy-bench transmit --sockets unix`).
    let way = match kind {
        Kind::TcpLocal => Transport::TcpHere,
        Kind::TcpRemote => Transport::TcpFar,
        Kind::UdpLocal => Transport::UdpHere,
        Kind::UdpRemote => Transport::UdpFar,
        Kind::Unix | Kind::BbrLocal | Kind::BbrRemote | Kind::Other => {
            return Choice { by_reference: false, is_counted: false };
        }
    };
    let is_counted = uncopy_trials::needs_send_reports();
    let by_reference = len_bytes >= MIN_BYTES && uncopy_trials::is_on(lending_factor(way, len_bytes));
    Choice { by_reference, is_counted }
}

/// Sets the break-even in bytes: 1 for always, `usize::MAX` for never, `None` to let trials decide.
pub fn set_break_even(min_bytes: Option<usize>) {
    BREAK_EVEN.store(min_bytes.map_or(0, |bytes| bytes.max(1)), Relaxed);
}

/// Returns the minimum size in bytes of a message that can be chosen to go by reference.
#[inline]
pub fn min_bytes() -> usize {
    match BREAK_EVEN.load(Relaxed) {
        0 => MIN_BYTES,
        break_even => break_even,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_messages_and_those_that_must_not_be_tried_are_copied() {
        for (kind, len_bytes) in [
            (Kind::Unix, 1 << 20),
            (Kind::BbrLocal, 1 << 20),
            (Kind::Other, 1 << 20),
            (Kind::TcpRemote, MIN_BYTES - 1),
        ] {
            assert!(!choose(kind, len_bytes).by_reference, "{kind:?} {len_bytes}");
        }
        assert!(choose(Kind::TcpRemote, 1 << 20).by_reference, "what nobody has tried is done");
    }

    #[test]
    fn a_break_even_that_is_set_decides() {
        set_break_even(Some(64 << 10));
        let by_reference =
            [(64 << 10) - 1, 64 << 10].map(|len_bytes| choose(Kind::Unix, len_bytes).by_reference);
        set_break_even(None);
        assert_eq!(by_reference, [false, true]);
    }
}
