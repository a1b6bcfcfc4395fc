//! `read-send`: the file's bytes go through a buffer of the program's own. The calls are those of the C
//! library, so that `uncopy run` sees them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::{Link, Tools, keep, to_usize};
use crate::files::os;

/// A buffer and what of the file it holds.
#[derive(Debug)]
pub struct Buffered {
    buffer: Box<[u8]>,
    /// Offsets in the file; the first byte is the buffer's first.
    holds: Range<u64>,
}

impl Buffered {
    pub fn new(tools: &mut Tools) -> Self {
        let buffer = tools.buffers.pop().unwrap_or_else(|| vec![0; tools.buffer_bytes].into_boxed_slice());
        Self { buffer, holds: 0..0 }
    }

    pub fn send(
        &mut self,
        link: &mut Link<'_>,
        file: &File,
        head: &[u8],
        at: u64,
        len: u64,
        more: bool,
    ) -> io::Result<usize> {
        // What the socket did not take the last time is not read again.
        if !self.holds.contains(&at) {
            let wanted = to_usize(len).min(self.buffer.len());
            let got = file.read_at(&mut self.buffer[..wanted], at)?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.holds = at..at + got as u64;
        }
        let end = self.holds.end.min(at + len);
        let more = more || end < at + len;
        let body = &self.buffer[to_usize(at - self.holds.start)..to_usize(end - self.holds.start)];
        os::send_copied(link.socket, [head, body], more)
    }

    pub fn finish(self, tools: &mut Tools) {
        keep(&mut tools.buffers, self.buffer);
    }
}
