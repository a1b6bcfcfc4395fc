//! A file of which a bounded number of bytes is read.
//!
//! A sampled process can claim sections of any size in a sparse file, which costs it nothing.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering};

/// Length beyond which a file is ignored, bytes.
const MAX_FILE_BYTES: u64 = 512 << 20;
/// Maximum bytes that are read of all files together.
const MAX_ALL_BYTES: u64 = 16 << 30;

/// Bytes that were read of all files.
static ALL_BYTES: AtomicU64 = AtomicU64::new(0);

/// Reader that refuses to read more than [`MAX_FILE_BYTES`] of a file.
#[derive(Debug)]
pub struct Bounded {
    file: File,
    left: u64,
}

impl Bounded {
    pub const fn new(file: File) -> Self {
        Self { file, left: MAX_FILE_BYTES }
    }
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len() as u64;
        let all = ALL_BYTES.fetch_add(len, Ordering::Relaxed).saturating_add(len);
        if len > self.left || all > MAX_ALL_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let got = self.file.read(buffer)?;
        self.left -= got as u64;
        Ok(got)
    }
}

impl Seek for Bounded {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        // The parser asks for the length so, and reads nothing beyond it.
        if let SeekFrom::End(_) = to {
            return Ok(self.file.seek(to)?.min(MAX_FILE_BYTES));
        }
        self.file.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_bound_is_read() {
        let fd = rustix::fs::memfd_create(c"bounded", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&fd, MAX_FILE_BYTES * 4).expect("a sparse file");
        let mut file = Bounded { left: 100, ..Bounded::new(File::from(fd)) };
        assert_eq!(file.seek(SeekFrom::End(0)).expect("a length"), MAX_FILE_BYTES);
        assert_eq!(file.seek(SeekFrom::Start(7)).expect("a position"), 7);
        assert!(file.read_exact(&mut [0; 60]).is_ok());
        assert_eq!(file.read(&mut [0; 60]).expect_err("too much").kind(), io::ErrorKind::FileTooLarge);
    }
}
