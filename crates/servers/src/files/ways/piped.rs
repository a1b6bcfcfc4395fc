//! `splice`: the file's pages go into a pipe and from there into the socket.
//!
//! Invariant: a pipe in [`Tools`] is empty. What the socket did not take stays in the connection's pipe; a
//! connection that ends before takes its pipe with it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::{Link, Tools, borrowed, keep, send_behind, to_usize};

/// Bytes that a pipe is to hold: what `/proc/sys/fs/pipe-max-size` allows everybody by default.
const PIPE_BYTES: usize = 1 << 20;

/// Both ends of a pipe.
#[derive(Debug)]
pub struct Pipe {
    output: OwnedFd,
    input: OwnedFd,
}

/// A pipe, and how much of the file it holds.
#[derive(Debug)]
pub struct Piped {
    pipe: Pipe,
    held: usize,
}

impl Piped {
    pub fn new(tools: &mut Tools) -> io::Result<Self> {
        let pipe = match tools.pipes.pop() {
            Some(pipe) => pipe,
            None => {
                let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
                // Where a user has too many large ones, 64 KiB must do.
                let _ = fcntl_setpipe_size(&input, PIPE_BYTES);
                Pipe { output, input }
            }
        };
        Ok(Self { pipe, held: 0 })
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
        send_behind(link.socket, head, || {
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            if self.held == 0 {
                let mut offset = at;
                let (file, pipe) = (borrowed(file), &self.pipe.input);
                self.held = splice(file, Some(&mut offset), pipe, None, to_usize(len), flags)?;
                if self.held == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            let more = more || (self.held as u64) < len;
            let flags = if more { flags | SpliceFlags::MORE } else { flags };
            let sent = splice(&self.pipe.output, None, link.socket, None, self.held, flags)?;
            self.held -= sent;
            Ok(sent)
        })
    }

    pub fn finish(self, tools: &mut Tools) {
        if self.held == 0 {
            keep(&mut tools.pipes, self.pipe);
        }
    }
}
