//! The service's state table: the state of each connection, in shared memory that programs map read-only.
//!
//! A UNIX socket reports that its other end is gone, but not why. The state table carries the error of TCP.

use uncopy_sys::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// Maximum number of connections at a time.
pub const MAX_CONNECTIONS: usize = 65_536;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// The handshake is in progress.
    Connecting,
    /// The handshake is complete.
    Established,
    /// The peer has sent a FIN: no bytes follow those in flight.
    PeerEnded,
    /// The connection has failed with this errno.
    Failed(i32),
}

/// The state table: a word for each slot.
#[repr(C)]
pub struct StateTable {
    words: [AtomicU64; MAX_CONNECTIONS],
}

/// Size of the state table, bytes: whole pages.
pub const STATE_TABLE_BYTES: usize = size_of::<StateTable>();

impl StateTable {
    /// Sets the state of a connection; only the service can.
    pub fn set(&self, slot: u32, serial: u32, condition: ConnectionState) {
        let code = match condition {
            ConnectionState::Connecting => 1,
            ConnectionState::Established => 2,
            ConnectionState::PeerEnded => 4,
            ConnectionState::Failed(errno) => 3 | u64::from(errno as u16) << 16,
        };
        if let Some(word) = self.words.get(slot as usize) {
            word.store(u64::from(serial) << 32 | code, Release);
        }
    }

    /// Returns the state of a connection; `None`: the slot has been reused or was never used.
    #[must_use]
    pub fn get(&self, slot: u32, serial: u32) -> Option<ConnectionState> {
        let word = self.words.get(slot as usize)?.load(Acquire);
        if (word >> 32) as u32 != serial {
            return None;
        }
        match word & 0xffff {
            1 => Some(ConnectionState::Connecting),
            2 => Some(ConnectionState::Established),
            3 => Some(ConnectionState::Failed((word >> 16) as u16 as i32)),
            4 => Some(ConnectionState::PeerEnded),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_of_one_connection_is_not_said_of_the_next() {
        // SAFETY: `StateTable` is an array of atomic words, for which zeroes are valid.
        let state_table: Box<StateTable> = unsafe { Box::new_zeroed().assume_init() };
        assert_eq!(state_table.get(3, 0), None);
        for condition in [
            ConnectionState::Connecting,
            ConnectionState::Established,
            ConnectionState::PeerEnded,
            ConnectionState::Failed(libc::ECONNRESET),
        ] {
            state_table.set(3, 9, condition);
            assert_eq!(state_table.get(3, 9), Some(condition));
            assert_eq!(state_table.get(3, 8), None);
        }
        assert_eq!(state_table.get(u32::MAX, 9), None);
        state_table.set(u32::MAX, 9, ConnectionState::Established);
        assert!(STATE_TABLE_BYTES.is_multiple_of(4096));
    }
}
