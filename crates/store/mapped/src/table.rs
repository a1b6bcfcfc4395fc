//! Table of the files that records belong to.
//!
//! ```text
//! entry (4,160 bytes)
//! 0            8               12        16       24      32           40            48  64
//! │ state word │ path's length │ CRC-32C │ device │ inode │ generation │ incarnation │ 0 │ path … │
//! ```
//!
//! An entry is *live* from its registration on. It is *forgotten* when the digester has taken all of the file's
//! records to the file and others may change it. It is reused when all records that refer to it are retired.

use crate::layout::{ENTRY_BYTES, Lsn, Sealed, Superblock, TABLE_AT, is_whole, keyed_word, u32_at, u64_at};
use crate::memory::LINE_BYTES;

/// Maximum length of a path, bytes.
pub const MAX_PATH_BYTES: usize = 4095;

/// Identity of a file that records belong to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Number of the device (stat(2)).
    pub device: u64,
    /// Number of the inode (stat(2)).
    pub inode: u64,
    /// Generation of the inode, or 0. Inode numbers are reused.
    pub generation: u64,
    /// Path of the file when it was registered, at most [`MAX_PATH_BYTES`].
    pub path: Vec<u8>,
}

/// A registration of a file: an entry of the table, and the sequence number at which the file got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// Index in the table of files.
    pub entry: u16,
    /// Head of the log when the file was registered; tells successive uses of an entry apart.
    pub incarnation: Lsn,
}

/// State of the table's entry that a record refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Records of the file count.
    Live(Identity),
    /// The file was forgotten: it has all bytes of its records, which no longer count.
    Forgotten,
    /// The entry is damaged, or belongs to another registration.
    Invalid,
}

/// Returns the position of an entry, bytes; `None`: there is no such entry.
#[must_use]
pub const fn entry_at(of: &Superblock, entry: u16) -> Option<usize> {
    if (entry as u32) < of.entries { Some(TABLE_AT + entry as usize * ENTRY_BYTES) } else { None }
}

/// Returns the state word of a file's entry.
#[must_use]
pub const fn entry_word(of: &Superblock, file: FileId, is_forgotten: bool) -> u64 {
    keyed_word(key(of, file.entry), file.incarnation.0, is_forgotten)
}

/// Returns the number with which hashes and checksums of an entry begin.
const fn key(of: &Superblock, entry: u16) -> u64 {
    of.log ^ (1 + entry as u64)
}

impl Identity {
    /// Encodes a live entry of the table of files: whole lines.
    pub(crate) fn encode(&self, file: FileId, of: &Superblock) -> Vec<u8> {
        let mut bytes = vec![0; (LINE_BYTES + self.path.len()).next_multiple_of(LINE_BYTES)];
        bytes[LINE_BYTES..LINE_BYTES + self.path.len()].copy_from_slice(&self.path);
        let mut sealed = Sealed(&mut bytes);
        sealed.put_u64(0, entry_word(of, file, false));
        sealed.put_u32(8, self.path.len() as u32);
        sealed.put_u64(16, self.device);
        sealed.put_u64(24, self.inode);
        sealed.put_u64(32, self.generation);
        sealed.put_u64(40, file.incarnation.0);
        sealed.seal(key(of, file.entry));
        bytes
    }

    /// Returns the length of an entry, bytes, from its first line; `None`: the path is too long.
    pub(crate) fn encoded_bytes(line: &[u8; LINE_BYTES]) -> Option<usize> {
        let path_bytes = u32_at(line, 8) as usize;
        (path_bytes <= MAX_PATH_BYTES).then(|| (LINE_BYTES + path_bytes).next_multiple_of(LINE_BYTES))
    }

    /// Returns the sequence number at which an entry says that its file was registered.
    pub(crate) fn incarnation(line: &[u8; LINE_BYTES]) -> Lsn {
        Lsn(u64_at(line, 40))
    }

    /// Decodes an entry, of [`Identity::encoded_bytes`]; `None`: it is damaged, or of another registration.
    pub(crate) fn decode(bytes: &[u8], file: FileId, of: &Superblock) -> Option<Self> {
        let path = bytes.get(LINE_BYTES..LINE_BYTES + u32_at(bytes, 8) as usize)?;
        let is_it = is_whole(bytes, key(of, file.entry)) && Lsn(u64_at(bytes, 40)) == file.incarnation;
        is_it.then(|| Self {
            device: u64_at(bytes, 16),
            inode: u64_at(bytes, 24),
            generation: u64_at(bytes, 32),
            path: path.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_decoded_again_for_their_own_registration_only() {
        let of = Superblock { log: 5, machine: 6, len_bytes: 1 << 20, entries: 8 };
        let file = FileId { entry: 1, incarnation: Lsn(64) };
        for path_bytes in [0, 1, 64, 65, MAX_PATH_BYTES] {
            let identity = Identity { device: 1, inode: 2, generation: 3, path: vec![b'a'; path_bytes] };
            let entry = identity.encode(file, &of);
            assert!(entry.len() <= ENTRY_BYTES);
            assert_eq!(Identity::encoded_bytes(entry.first_chunk().expect("a line")), Some(entry.len()));
            assert_eq!(u64_at(&entry, 0), entry_word(&of, file, false));
            for other in [FileId { entry: 2, ..file }, FileId { incarnation: Lsn(128), ..file }] {
                assert_eq!(Identity::decode(&entry, other, &of), None);
                assert_ne!(u64_at(&entry, 0), entry_word(&of, other, false));
            }
            for at in 8..entry.len() {
                let mut damaged = entry.clone();
                damaged[at] ^= 0x10;
                let len_bytes = Identity::encoded_bytes(damaged.first_chunk().expect("a line"));
                let is_same_len = len_bytes == Some(entry.len());
                assert!(!is_same_len || Identity::decode(&damaged, file, &of).is_none(), "byte {at}");
            }
            assert_eq!(Identity::decode(&entry, file, &of), Some(identity));
        }
        assert_eq!(entry_at(&of, 7).map(|at| at + ENTRY_BYTES <= of.ring_at()), Some(true));
        assert_eq!(entry_at(&of, 8), None);
    }
}
