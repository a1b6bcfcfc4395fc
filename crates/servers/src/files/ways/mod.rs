//! The ways to send a file.
//!
//! | way | copies of each byte | system calls for a file of one piece, after opening it |
//! |---|---|---|
//! | `read-send` | out of the page cache, into the socket | pread, sendmsg |
//! | `mmap-send` | into the socket | mmap, sendmsg, munmap |
//! | `mmap-sendfile` | none | mmap, a look at the first bytes, munmap, sendmsg, sendfile |
//! | `read-sendfile` | none | pread of the first bytes, sendmsg, sendfile |
//! | `sendfile` | none | sendmsg, sendfile |
//! | `splice` | none | sendmsg, splice, splice |
//! | `zerocopy` | none, if the network card gathers | mmap, sendmsg, sendmsg, munmap, and completions |
//! | `twin` | none; the file is read into twin memory once | sendmsg, or what [`crate::files::memory`] makes of it |
//!
//! Where nothing is copied, the receiver's kernel may still read the page cache: a file that is changed
//! in place shows in answers that are under way, as with every server that uses sendfile. Twin memory does
//! not have that: it holds what the file was.

mod mapped;
mod piped;
mod read;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use clap::ValueEnum;
use libc::c_void;

use crate::files::cache::{Cache, Stored};
use crate::files::content_type::HEADER_BYTES;
use crate::files::memory;
use crate::files::os;
use crate::files::validators::Identity;
use crate::transmit;
use mapped::{Map, Mapped};
use piped::{Pipe, Piped};
use read::Buffered;

/// Most bytes that one call sends: other connections of the thread want to be served too.
const CALL_LIMIT_BYTES: u64 = 1 << 20;
/// Pipes and buffers that a thread keeps for later use.
const SPARE_LIMIT: usize = 16;

/// A way to send a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Read into a buffer, send from it
    ReadSend,
    /// Map the file, send from the mapping
    MmapSend,
    /// Map the file and look at its first bytes, then sendfile
    MmapSendfile,
    /// Read the file's first bytes, then sendfile
    ReadSendfile,
    /// sendfile
    Sendfile,
    /// splice into a pipe and on into the socket
    Splice,
    /// Map the file, send from the mapping with MSG_ZEROCOPY until the kernel says that it copies
    Zerocopy,
    /// Keep the file in twin memory, send that by reference
    Twin,
}

/// What one thread keeps between answers.
#[derive(Debug)]
pub struct Tools {
    /// Length of a buffer of `read-send`, bytes.
    buffer_bytes: usize,
    buffers: Vec<Box<[u8]>>,
    pipes: Vec<Pipe>,
}

impl Tools {
    /// Nothing kept yet.
    pub const fn new(buffer_bytes: usize) -> Self {
        Self { buffer_bytes, buffers: Vec::new(), pipes: Vec::new() }
    }
}

/// What a connection's socket is known to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Zerocopy {
    /// Not asked yet.
    #[default]
    Unknown,
    /// MSG_ZEROCOPY is allowed; sends that are not completed.
    On(u32),
    /// It is not to be had, or the kernel copies all the same.
    Off,
}

impl Zerocopy {
    /// Takes completions from the error queue.
    pub fn complete(&mut self, socket: BorrowedFd<'_>) {
        if let Self::On(pending @ 1..) = *self {
            let done = os::completions(socket);
            *self = if done.copied { Self::Off } else { Self::On(pending.saturating_sub(done.sends)) };
        }
    }
}

/// A connection's socket.
#[derive(Debug)]
pub struct Link<'a> {
    /// The socket, which does not block.
    pub socket: BorrowedFd<'a>,
    /// What it is known to do.
    pub zerocopy: &'a mut Zerocopy,
    /// Whether the transmit engine knows what becomes of it.
    pub owned: &'a mut bool,
}

/// A file that is being sent.
#[derive(Debug)]
pub struct Content {
    file: File,
    how: How,
}

#[derive(Debug)]
enum How {
    Read(Buffered),
    Mapped(Mapped),
    Sendfile,
    Piped(Piped),
    Stored(Arc<Stored>),
}

impl Content {
    /// Prepares to send `file` by `way`.
    ///
    /// # Errors
    /// The kernel's, where it has no memory or no descriptor left.
    pub fn new(
        way: Way,
        file: File,
        identity: &Identity,
        cache: &Cache,
        tools: &mut Tools,
    ) -> io::Result<Self> {
        let how = match way {
            Way::ReadSend => How::Read(Buffered::new(tools)),
            Way::MmapSend => How::Mapped(Mapped::new(&file, identity.len_bytes, false)?),
            Way::Zerocopy => How::Mapped(Mapped::new(&file, identity.len_bytes, true)?),
            Way::MmapSendfile | Way::ReadSendfile | Way::Sendfile => How::Sendfile,
            Way::Splice => How::Piped(Piped::new(tools)?),
            Way::Twin => cache.get(&file, identity).map_or(How::Sendfile, How::Stored),
        };
        Ok(Self { file, how })
    }

    /// Sends `head` and then bytes of the file from `at` on, up to `len`; returns how many bytes of both the
    /// kernel took. `more`: something follows these `len`.
    ///
    /// # Errors
    /// The kernel's: [`io::ErrorKind::WouldBlock`] where the socket is full,
    /// [`io::ErrorKind::UnexpectedEof`] where the file has become shorter.
    pub fn send(
        &mut self,
        link: &mut Link<'_>,
        head: &[u8],
        at: u64,
        len: u64,
        more: bool,
    ) -> io::Result<usize> {
        let wanted = len.min(CALL_LIMIT_BYTES);
        let more_of_it = more || len > wanted;
        match &mut self.how {
            How::Read(buffered) => buffered.send(link, &self.file, head, at, len, more),
            How::Mapped(mapped) => mapped.send(link, &self.file, head, at, wanted, os::more_flag(more_of_it)),
            How::Piped(piped) => piped.send(link, &self.file, head, at, wanted, more_of_it),
            How::Stored(stored) => {
                let body = usize::try_from(at).ok().and_then(|at| stored.bytes().get(at..));
                let body = body.ok_or(io::ErrorKind::UnexpectedEof)?;
                // All that is left, not `wanted`: nothing is prepared for bytes that do not fit.
                let body = &body[..usize::try_from(len).map_or(body.len(), |len| len.min(body.len()))];
                if !std::mem::replace(link.owned, true) {
                    transmit::own(link.socket, false);
                }
                memory::send(link.socket, head, body, os::more_flag(more))
            }
            How::Sendfile => send_behind(link.socket, head, || {
                let mut offset = at;
                match rustix::fs::sendfile(link.socket, &self.file, Some(&mut offset), to_usize(wanted))? {
                    0 => Err(io::ErrorKind::UnexpectedEof.into()),
                    sent => Ok(sent),
                }
            }),
        }
    }

    /// Gives back what can be used again.
    pub fn finish(self, tools: &mut Tools) {
        match self.how {
            How::Read(buffered) => buffered.finish(tools),
            How::Piped(piped) => piped.finish(tools),
            How::Mapped(_) | How::Sendfile | How::Stored(_) => {}
        }
    }
}

/// The first bytes of a file, for those ways that look at them: as zIO's Icecast (§5.3.1) validates a
/// file's header before it uses sendfile, once through a mapping and once by read. Here they say what a file
/// is whose name does not.
pub fn header(way: Way, file: &File, len_bytes: u64) -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let mut header = vec![0; to_usize(len_bytes).min(HEADER_BYTES)];
    let got = match way {
        Way::ReadSendfile => file.read_at(&mut header, 0).ok()?,
        // The whole file, as zIO's version does: what that costs is what this way is there to show.
        Way::MmapSendfile => os::peek(Map::new(file, len_bytes).ok()?.address(0), &mut header),
        _ => return None,
    };
    header.truncate(got);
    Some(header)
}

/// Sends `head` and, if all of it went, what `body` sends. Whatever became of the body: the head that went is told.
fn send_behind(
    socket: BorrowedFd<'_>,
    head: &[u8],
    body: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    if head.is_empty() {
        return body();
    }
    let sent = os::send_copied(socket, [head], true)?;
    Ok(if sent == head.len() { sent + body().unwrap_or(0) } else { sent })
}

fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// A part of a message at `address`, which may be mapped from a file.
fn part_at(address: *const c_void, len: u64) -> os::Part {
    os::Part { iov_base: address.cast_mut(), iov_len: to_usize(len) }
}

/// Keeps `spare` for later, unless there are enough.
fn keep<T>(spares: &mut Vec<T>, spare: T) {
    if spares.len() < SPARE_LIMIT {
        spares.push(spare);
    }
}

/// The descriptor of a file, for calls that take a borrowed one.
fn borrowed(file: &File) -> BorrowedFd<'_> {
    file.as_fd()
}
