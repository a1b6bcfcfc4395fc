//! Messages that ask a running process to record. A command writes them to the pipe beside the process's
//! counters (`stats::CONTROL_SUFFIX`), and the handler thread reads them.
//!
//! ```text
//! release           'r'
//! record            'R', min_size_bytes (u64), directory_len_bytes (u16), directory; in native byte order
//! end the recording 'E'
//! ```
//!
//! A message is written atomically, as it is shorter than PIPE_BUF. To begin: create a directory (absolute
//! path, mode 0700, owned by the effective user of the process), write `record`, and wait for `PID-*.rec`
//! in it. A process that records already starts again in the new directory. To end: write `end`, wait until
//! the recording is in `Phase::Ended`, and drain the rest.

use crate::stats::CONTROL_RELEASE;

extern crate std;
use std::vec::Vec;

/// First byte of the message that begins a recording.
pub const CONTROL_RECORD: u8 = b'R';
/// The message that ends a recording.
pub const CONTROL_END: u8 = b'E';
/// Length of a `record` message before the directory, bytes.
const HEAD_BYTES: usize = 1 + 8 + 2;
/// Maximum length of a directory's path, bytes.
pub const MAX_DIRECTORY_BYTES: usize = 1024;
/// Maximum length of a message, bytes.
pub const MAX_MESSAGE_BYTES: usize = HEAD_BYTES + MAX_DIRECTORY_BYTES;

/// A message to the control pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Turn every view back into plain memory, for good.
    Release,
    /// Record the calls of at least `min_size_bytes` into the directory.
    Record {
        /// Absolute path of the directory.
        directory: &'a [u8],
        /// Minimum size that is recorded, bytes.
        min_size_bytes: u64,
    },
    /// Asks for the end of the recording.
    End,
}

impl<'a> Request<'a> {
    /// Encodes the message; `None` if the directory's path is too long.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        match self {
            Self::Release => bytes.push(CONTROL_RELEASE),
            Self::End => bytes.push(CONTROL_END),
            Self::Record { directory, min_size_bytes } => {
                if directory.len() > MAX_DIRECTORY_BYTES {
                    return None;
                }
                bytes.push(CONTROL_RECORD);
                bytes.extend_from_slice(&min_size_bytes.to_ne_bytes());
                bytes.extend_from_slice(&u16::try_from(directory.len()).ok()?.to_ne_bytes());
                bytes.extend_from_slice(directory);
            }
        }
        Some(bytes)
    }

    /// Returns the first message in `bytes` and the bytes after it. Bytes that begin no message are
    /// skipped. If the first message is incomplete, returns `None` and the incomplete message.
    #[must_use]
    pub fn decode(mut bytes: &'a [u8]) -> (Option<Self>, &'a [u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            match *first {
                CONTROL_RELEASE => return (Some(Self::Release), rest),
                CONTROL_END => return (Some(Self::End), rest),
                CONTROL_RECORD => {
                    let Some(head) = bytes.get(..HEAD_BYTES) else { return (None, bytes) };
                    let min_size_bytes = u64::from_ne_bytes(head[1..9].try_into().unwrap_or_default());
                    let len = usize::from(u16::from_ne_bytes([head[9], head[10]]));
                    if len > MAX_DIRECTORY_BYTES {
                        bytes = rest;
                        continue;
                    }
                    let Some(directory) = bytes.get(HEAD_BYTES..HEAD_BYTES + len) else {
                        return (None, bytes);
                    };
                    let message = Self::Record { directory, min_size_bytes };
                    return (Some(message), &bytes[HEAD_BYTES + len..]);
                }
                _ => bytes = rest,
            }
        }
        (None, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_in_a_stream_of_them() {
        let record = Request::Record { directory: b"/dev/shm/rR", min_size_bytes: 4096 };
        let mut stream = b"??".to_vec();
        for message in [record, Request::End, Request::Release] {
            stream.extend(message.encode().expect("short"));
        }
        let (first, rest) = Request::decode(&stream);
        assert_eq!(first, Some(record));
        let (second, rest) = Request::decode(rest);
        let (third, rest) = Request::decode(rest);
        assert_eq!((second, third, rest), (Some(Request::End), Some(Request::Release), [].as_slice()));
        for cut in 1..13 {
            let whole = record.encode().expect("short");
            assert_eq!(Request::decode(&whole[..cut]), (None, &whole[..cut]), "the rest comes later");
        }
    }

    #[test]
    fn a_directory_that_is_too_long_is_no_message() {
        let directory = std::vec![b'a'; MAX_DIRECTORY_BYTES + 1];
        assert_eq!(Request::Record { directory: &directory, min_size_bytes: 0 }.encode(), None);
        let mut bytes = std::vec![CONTROL_RECORD, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF];
        bytes.push(CONTROL_END);
        assert_eq!(Request::decode(&bytes), (Some(Request::End), [].as_slice()));
    }
}
