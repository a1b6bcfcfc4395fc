//! Which messages go by reference: those of which the whole process has less to do that way.
//!
//! Where the copy ends and the reference begins to pay depends on the machine, the kernel, the socket, and above all
//! on whether the bytes are in the processor's cache: there, copying 64 KiB costs less than 16 references; from
//! memory twice as much. And what a reference costs is not all in its call, nor in the sender's thread: pages that were referred to are
//! given back one by one while later messages go out, interrupts send what a full socket held, new pages are needed for
//! the next bytes. So it is tried in turn, by [`uncopy_trials`], for each kind of socket and each doubling of the size.

use crate::facts::Kind;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_core::policy::trials::catalogue::{Way, lending};

/// Below this a message is copied: two system calls more cost what the copy does.
pub const MIN_BYTES: usize = 4 << 10;

/// Break-even that is set from outside, bytes; 0: none is, trials decide.
static SET: AtomicUsize = AtomicUsize::new(0);

/// What was chosen for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// By reference, or not.
    pub refers: bool,
    /// Whether what is sent of it is to be counted.
    pub is_counted: bool,
}

/// Decides for a message of `len_bytes` bytes that could go by reference.
pub fn choose(kind: Kind, len_bytes: usize) -> Choice {
    let set = SET.load(Relaxed);
    if set != 0 {
        return Choice { refers: len_bytes >= set, is_counted: false };
    }
    // BBR takes what a splice sends for all that the path can carry, and paces the connection by that for as long as it lives: GET of
    // 128 KiB from Redis by loopback took 1.4 times the processor time, at half of the rate, long after the last one. A
    // trial would do that harm by itself. By a UNIX socket, what is referred to fills the peer's buffer with fragments of a page each: the sender's time is the same, or a
    // little less, and the peer takes half of the messages from 60 KiB on, none faster below (`uncopy bench transmit
    // --sockets unix`).
    let way = match kind {
        Kind::TcpHere => Way::TcpHere,
        Kind::TcpFar => Way::TcpFar,
        Kind::UdpHere => Way::UdpHere,
        Kind::UdpFar => Way::UdpFar,
        Kind::Unix | Kind::BbrHere | Kind::BbrFar | Kind::Other => {
            return Choice { refers: false, is_counted: false };
        }
    };
    let is_counted = uncopy_trials::counts_sends();
    let refers = len_bytes >= MIN_BYTES && uncopy_trials::is_on(lending(way, len_bytes));
    Choice { refers, is_counted }
}

/// Sets the break-even, bytes: 1 is always, `usize::MAX` never; `None`: found out.
pub fn set(min_bytes: Option<usize>) {
    SET.store(min_bytes.map_or(0, |bytes| bytes.max(1)), Relaxed);
}

/// Smallest message for which a reference can be chosen, bytes.
#[inline]
pub fn min_bytes() -> usize {
    match SET.load(Relaxed) {
        0 => MIN_BYTES,
        set => set,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_messages_and_those_that_must_not_be_tried_are_copied() {
        for (kind, len_bytes) in [
            (Kind::Unix, 1 << 20),
            (Kind::BbrHere, 1 << 20),
            (Kind::Other, 1 << 20),
            (Kind::TcpFar, MIN_BYTES - 1),
        ] {
            assert!(!choose(kind, len_bytes).refers, "{kind:?} {len_bytes}");
        }
        assert!(choose(Kind::TcpFar, 1 << 20).refers, "what nobody has tried is done");
    }

    #[test]
    fn a_break_even_that_is_set_decides() {
        set(Some(64 << 10));
        let refers = [(64 << 10) - 1, 64 << 10].map(|len_bytes| choose(Kind::Unix, len_bytes).refers);
        set(None);
        assert_eq!(refers, [false, true]);
    }
}
