//! The service's board: the state of each connection, in shared memory that programs map read-only.
//!
//! A UNIX socket reports that its other end is gone, but not why. The board carries the error of TCP.

use uncopy_sys::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// Maximum number of connections at a time.
pub const MAX_CONNECTIONS: usize = 65_536;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The handshake is in progress.
    Connecting,
    /// The handshake is complete.
    Established,
    /// The peer has sent a FIN: no bytes follow those in flight.
    Ended,
    /// The connection has failed with this errno.
    Failed(i32),
}

/// The board: a word for each slot.
#[repr(C)]
pub struct Board {
    words: [AtomicU64; MAX_CONNECTIONS],
}

/// Size of the board, bytes: whole pages.
pub const BOARD_BYTES: usize = size_of::<Board>();

impl Board {
    /// Sets the state of a connection; only the service can.
    pub fn set(&self, slot: u32, serial: u32, condition: Condition) {
        let code = match condition {
            Condition::Connecting => 1,
            Condition::Established => 2,
            Condition::Ended => 4,
            Condition::Failed(errno) => 3 | u64::from(errno as u16) << 16,
        };
        if let Some(word) = self.words.get(slot as usize) {
            word.store(u64::from(serial) << 32 | code, Release);
        }
    }

    /// Returns the state of a connection; `None`: the slot has been reused or was never used.
    #[must_use]
    pub fn get(&self, slot: u32, serial: u32) -> Option<Condition> {
        let word = self.words.get(slot as usize)?.load(Acquire);
        if (word >> 32) as u32 != serial {
            return None;
        }
        match word & 0xffff {
            1 => Some(Condition::Connecting),
            2 => Some(Condition::Established),
            3 => Some(Condition::Failed((word >> 16) as u16 as i32)),
            4 => Some(Condition::Ended),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_of_one_connection_is_not_said_of_the_next() {
        // SAFETY: `Board` is an array of atomic words, for which zeroes are valid.
        let board: Box<Board> = unsafe { Box::new_zeroed().assume_init() };
        assert_eq!(board.get(3, 0), None);
        for condition in [
            Condition::Connecting,
            Condition::Established,
            Condition::Ended,
            Condition::Failed(libc::ECONNRESET),
        ] {
            board.set(3, 9, condition);
            assert_eq!(board.get(3, 9), Some(condition));
            assert_eq!(board.get(3, 8), None);
        }
        assert_eq!(board.get(u32::MAX, 9), None);
        board.set(u32::MAX, 9, Condition::Established);
        assert!(BOARD_BYTES.is_multiple_of(4096));
    }
}
