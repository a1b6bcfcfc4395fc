//! The board: how each connection is, in a file in memory that only the service can write and programs map read-only.
//!
//! A UNIX socket tells that its other end has gone, and not why; the errors of TCP are here.

use uncopy_sys::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// Connections that programs have at a time, at most.
pub const MAX_CONNECTIONS: usize = 65_536;

/// How a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Its handshake is not done.
    Connecting,
    /// Bytes can go, or have gone.
    Established,
    /// The peer has ended its stream: no more bytes come than those that are under way.
    Ended,
    /// It has ended with an error, an errno.
    Failed(i32),
}

/// The whole of it: a word for each place.
#[repr(C)]
pub struct Board {
    words: [AtomicU64; MAX_CONNECTIONS],
}

/// Length of a board, bytes: whole pages.
pub const BOARD_BYTES: usize = size_of::<Board>();

impl Board {
    /// The service's: says how a connection is.
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

    /// How a connection is; `None`: its place is another's by now, or it never had one.
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
        // SAFETY: words, for which zero is valid.
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
