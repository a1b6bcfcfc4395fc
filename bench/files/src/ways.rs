//! The ways to send a file. docs/benchmarks.md has a table of the copies that each makes.
//!
//! Without a copy, the kernel may still read the page cache after the call: changes of a file in place show in answers
//! in flight, as with every server that uses sendfile. Twin memory keeps the earlier contents.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use clap::ValueEnum;
use rustix::fs::Stat;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::cache::{Cache, CachedFile};
use crate::mapping::Mapping;
use crate::socket::{IoBytes, Socket, send_copied, send_then, to_usize};

/// Maximum number of bytes sent by one call, so that the thread's other connections are served, too.
const MAX_CALL_BYTES: u64 = 1 << 20;
/// Length of a buffer of `read-send`, bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Requested size of a pipe, bytes: the default limit of unprivileged users in `/proc/sys/fs/pipe-max-size`.
const PIPE_BYTES: usize = 1 << 20;
/// Maximum number of pipes, and of buffers, that a thread keeps for later use.
const MAX_SPARE: usize = 16;

/// A way to send a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    ReadSend,
    MmapSend,
    MmapSendfile,
    ReadSendfile,
    Sendfile,
    Splice,
    Zerocopy,
    Twin,
}

/// Buffers and empty pipes that a thread keeps between answers.
#[derive(Default)]
pub struct SpareBuffers {
    buffers: Vec<Box<[u8]>>,
    pipes: Vec<Pipe>,
}

/// The read end and the write end of a pipe.
type Pipe = (OwnedFd, OwnedFd);

/// A file being sent.
pub struct Content {
    file: File,
    state: State,
}

enum State {
    /// A buffer, and the range of the file in it.
    Buffered(Box<[u8]>, Range<u64>),
    Mapped(Mapping),
    Sendfile,
    /// A pipe, and the number of bytes in it.
    Piped(Pipe, usize),
    CachedFile(Arc<CachedFile>),
}

impl Content {
    /// Prepares to send `file` by `way`.
    pub fn new(
        way: Way,
        cache: &Cache,
        file: File,
        stat: &Stat,
        spare: &mut SpareBuffers,
    ) -> io::Result<Self> {
        let state = match way {
            Way::ReadSend => {
                let buffer = spare.buffers.pop();
                State::Buffered(buffer.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice()), 0..0)
            }
            Way::MmapSend | Way::Zerocopy => {
                let len_bytes = u64::try_from(stat.st_size).unwrap_or(0);
                State::Mapped(Mapping::new(&file, len_bytes, way == Way::Zerocopy)?)
            }
            Way::MmapSendfile | Way::ReadSendfile | Way::Sendfile => State::Sendfile,
            Way::Splice => State::Piped(spare.pipes.pop().map_or_else(new_pipe, Ok)?, 0),
            Way::Twin => cache.get(&file, stat).map_or(State::Sendfile, State::CachedFile),
        };
        Ok(Self { file, state })
    }

    /// Sends `head`, then up to `len` bytes of the file from `at` on. Returns the number of bytes that the kernel
    /// took.
    pub fn send(&mut self, socket: &mut Socket, head: &[u8], at: u64, len: u64) -> IoBytes {
        let (file, wanted) = (&self.file, len.min(MAX_CALL_BYTES));
        match &mut self.state {
            State::Buffered(buffer, held) => {
                // Bytes that the socket did not take in the last call are still in the buffer.
                if !held.contains(&at) {
                    let room = to_usize(len).min(buffer.len());
                    *held = at..at + nonzero(file.read_at(&mut buffer[..room], at)?)? as u64;
                }
                let body = &buffer[to_usize(at - held.start)..to_usize(held.end - held.start)];
                send_copied(socket, [head, body], held.end < at + len)
            }
            State::Mapped(mapping) => mapping.send(socket, file, head, at..at + wanted, len > wanted),
            State::Piped((output, input), held) => send_then(socket, head, |socket| {
                let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
                if *held == 0 {
                    let mut offset = at;
                    *held = nonzero(splice(file, Some(&mut offset), input, None, to_usize(wanted), flags)?)?;
                }
                let more = if (*held as u64) < len { SpliceFlags::MORE } else { SpliceFlags::empty() };
                let sent = splice(output, None, &socket.fd, None, *held, flags | more)?;
                *held -= sent;
                Ok(sent)
            }),
            // All of the rest, not `wanted`: nothing is prepared for bytes that do not fit.
            State::CachedFile(stored) => stored.send(socket, head, to_usize(at)),
            State::Sendfile => send_then(socket, head, |socket| {
                let mut offset = at;
                nonzero(rustix::fs::sendfile(&socket.fd, file, Some(&mut offset), to_usize(wanted))?)
            }),
        }
    }

    /// Returns buffers and empty pipes to `spare`.
    pub fn finish(self, spare: &mut SpareBuffers) {
        match self.state {
            State::Buffered(buffer, _) if spare.buffers.len() < MAX_SPARE => spare.buffers.push(buffer),
            State::Piped(pipe, 0) if spare.pipes.len() < MAX_SPARE => spare.pipes.push(pipe),
            _ => {}
        }
    }
}

/// Reads the first bytes of a file, in those ways that do so: Icecast in zIO, section 5.3.1, validates a file's
/// header before it uses sendfile. The bytes are not used: only the cost of reading them is measured.
pub fn read_header(way: Way, file: &File, len_bytes: u64) {
    let mut header = [0; 512];
    // A file that cannot be read fails when it is sent.
    match way {
        Way::ReadSendfile => drop(file.read_at(&mut header, 0)),
        Way::MmapSendfile => drop(Mapping::new(file, len_bytes, false).map(|map| map.peek(&mut header))),
        _ => {}
    }
}

fn new_pipe() -> io::Result<Pipe> {
    let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // A user whose pipes have reached the limit gets 64 KiB.
    let _ = fcntl_setpipe_size(&input, PIPE_BYTES);
    Ok((output, input))
}

/// Returns `moved`, or an error if nothing was moved because the file has become shorter.
fn nonzero(moved: usize) -> IoBytes {
    if moved == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(moved) }
}
