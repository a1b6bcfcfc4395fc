//! Ways to send a file over a TCP connection, each a call or two of the C library per chunk, as programs make them.
//!
//! | way | calls per chunk | copies of each byte |
//! |---|---|---|
//! | `send` | read, send | out of the page cache, into the socket |
//! | `write` | read, write | the same |
//! | `sendfile` | sendfile | none |
//! | `mmap-send` | send; mmap and munmap per file | into the socket |
//! | `splice` | splice, splice | none |
//! | `zerocopy` | send with MSG_ZEROCOPY, and completions | none, if the network card gathers |
//! | `twin` | send, or the transmit engine's replacement | none where that pays; read into twin memory once |
//!
//! All calls go through the C library's dynamic symbols, so that a preloaded library sees them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use clap::ValueEnum;
use libc::{c_int, c_void};
use uncopy_transmit::{Completed, Errno, ProgramFd, SocketOwner, next_completed};
use uncopy_twin::Buffer;

/// Number of sends with MSG_ZEROCOPY before their completions are read.
const COMPLETIONS_BATCH: u32 = 16;
/// Timeout of a completion, ms.
const COMPLETION_MS: c_int = 1000;

/// A way to send a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// read and send with a buffer
    Send,
    /// read and write with a buffer
    Write,
    /// sendfile from the file's descriptor
    Sendfile,
    /// mmap, send and munmap
    MmapSend,
    /// splice into a pipe and on into the socket
    Splice,
    /// mmap, send with MSG_ZEROCOPY, munmap
    Zerocopy,
    /// send from files in twin memory
    Twin,
}

/// Reads a file into twin memory.
///
/// # Errors
/// The error of the system call; [`io::ErrorKind::UnexpectedEof`] if the file has shrunk.
pub fn read_into_twin(path: &Path) -> io::Result<Buffer> {
    let mut file = File::open(path)?;
    let len_bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = Buffer::zeroed(len_bytes)?;
    io::Read::read_exact(&mut file, &mut bytes)?;
    Ok(bytes)
}

/// A connection, with the state for sending files over it.
#[derive(Debug)]
pub struct FileSender<'a> {
    way: Way,
    socket: OwnedFd,
    chunk_bytes: usize,
    buffer: Vec<u8>,
    pipe: Option<(OwnedFd, OwnedFd)>,
    /// Files in twin memory, indexed by file number.
    kept: &'a [Buffer],
    completions: Completions,
}

/// Sends with MSG_ZEROCOPY whose pages the kernel may still reference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completions {
    /// Number of sends that are not complete.
    pub pending: u32,
    /// Number of complete sends.
    pub completed: u64,
    /// Number of complete sends that the kernel copied nevertheless.
    pub copied: u64,
}

impl<'a> FileSender<'a> {
    /// Sends over `socket` by `way`, at most `chunk_bytes` per call. For [`Way::Twin`], `kept` holds each file.
    ///
    /// # Errors
    /// The error of pipe2(2), or of setsockopt(2) if the kernel has no MSG_ZEROCOPY.
    pub fn new(way: Way, socket: OwnedFd, chunk_bytes: usize, kept: &'a [Buffer]) -> io::Result<Self> {
        let mut pipe = None;
        match way {
            Way::Splice => pipe = Some(new_pipe(chunk_bytes)?),
            Way::Zerocopy => enable_zerocopy(socket.as_fd())?,
            Way::Twin => {
                uncopy_transmit::trust_descriptors();
                let owner = SocketOwner { ends_on_errors: false, sends_alone: true, reads_errors: false };
                uncopy_transmit::declare_owner(ProgramFd::of(&socket), owner);
            }
            Way::Send | Way::Write | Way::Sendfile | Way::MmapSend => {}
        }
        let buffer = if matches!(way, Way::Send | Way::Write) { vec![0; chunk_bytes] } else { Vec::new() };
        let completions = Completions::default();
        Ok(Self { way, socket, chunk_bytes, buffer, pipe, kept, completions })
    }

    /// Returns the state of sends with MSG_ZEROCOPY.
    #[must_use]
    pub fn completions(&self) -> Completions {
        self.completions
    }

    /// Sends the file called `number`. `sent` gets the bytes sent after each chunk and returns whether to continue;
    /// returns its last answer.
    ///
    /// # Errors
    /// The error of the system call; [`io::ErrorKind::UnexpectedEof`] if the file has shrunk.
    pub fn send_file(
        &mut self,
        number: usize,
        file: &File,
        mut sent: impl FnMut(usize) -> bool,
    ) -> io::Result<bool> {
        let len_bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let mapping = match self.way {
            Way::MmapSend | Way::Zerocopy if len_bytes > 0 => Some(Mapping::new(file, len_bytes)?),
            _ => None,
        };
        let mut done = 0;
        while done < len_bytes {
            let len = self.chunk_bytes.min(len_bytes - done);
            let went = match self.way {
                Way::Send | Way::Write => self.read_and_send(file.as_raw_fd(), len)?,
                Way::Sendfile => self.send_from_file(file.as_raw_fd(), len)?,
                Way::Splice => self.splice(file.as_raw_fd(), len)?,
                Way::Twin => self.send_twin(number, done, len)?,
                Way::MmapSend | Way::Zerocopy => {
                    let bytes = mapping.as_ref().map_or(&[][..], Mapping::bytes);
                    self.send_mapped(&bytes[done..done + len])?
                }
            };
            if went == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += went;
            if !sent(went) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read_and_send(&mut self, file: RawFd, len: usize) -> io::Result<usize> {
        let (socket, is_write) = (self.socket.as_raw_fd(), self.way == Way::Write);
        // SAFETY: read(2) writes at most `len` bytes, which is at most `chunk_bytes`, the buffer's length.
        let got = retry_interrupted(|| unsafe { libc::read(file, self.buffer.as_mut_ptr().cast(), len) })?;
        send_all(&self.buffer[..got], |begin, len| {
            // SAFETY: write(2) and send(2) read `len` bytes from `begin`; `all` passes ranges of a borrowed slice.
            unsafe {
                if is_write { libc::write(socket, begin, len) } else { libc::send(socket, begin, len, 0) }
            }
        })
    }

    fn send_from_file(&self, file: RawFd, len: usize) -> io::Result<usize> {
        let socket = self.socket.as_raw_fd();
        // SAFETY: sendfile(2) accesses no memory of ours: the offset is null, which means the file's own offset.
        retry_interrupted(|| unsafe { libc::sendfile(socket, file, std::ptr::null_mut(), len) })
    }

    fn splice(&self, file: RawFd, len: usize) -> io::Result<usize> {
        let Some((read_end, write_end)) = &self.pipe else { return Ok(0) };
        let splice_once = |from: RawFd, to: RawFd, len| {
            let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_MORE;
            // SAFETY: splice(2) accesses no memory of ours: both offsets are null, which means the files' own offsets.
            retry_interrupted(|| unsafe {
                libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), len, flags)
            })
        };
        let filled = splice_once(file, write_end.as_raw_fd(), len)?;
        let mut left = filled;
        while left > 0 {
            match splice_once(read_end.as_raw_fd(), self.socket.as_raw_fd(), left)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                moved => left -= moved.min(left),
            }
        }
        Ok(filled)
    }

    fn send_mapped(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let socket = self.socket.as_raw_fd();
        if self.way == Way::MmapSend {
            // SAFETY: send(2) reads `len` bytes from `begin`; `all` passes ranges of a borrowed slice.
            return send_all(bytes, |begin, len| unsafe { libc::send(socket, begin, len, 0) });
        }
        loop {
            // SAFETY: the range is a borrowed slice; beyond the call the kernel references the file's pages, not the
            // mapping.
            let sent = retry_interrupted(|| unsafe {
                libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_ZEROCOPY)
            });
            match sent {
                // Pending completions exceed optmem_max, or locked pages the user's limit.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) && self.completions.pending > 0 => {
                    self.completions.wait(self.socket.as_fd())?;
                }
                Err(error) => return Err(error),
                Ok(sent) => {
                    self.completions.pending += 1;
                    if self.completions.pending >= COMPLETIONS_BATCH {
                        self.completions.read(self.socket.as_fd())?;
                    }
                    return Ok(sent);
                }
            }
        }
    }

    fn send_twin(&self, number: usize, at: usize, len: usize) -> io::Result<usize> {
        let socket = ProgramFd::of(&self.socket);
        let part = self
            .kept
            .get(number)
            .and_then(|bytes| bytes.get(at..at + len))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        // SAFETY: `all` passes ranges of the slice, and twin memory keeps bytes unchanged while in flight.
        send_all(part, |begin, len| unsafe { uncopy_twin::send::send(socket, begin, len, 0) })
    }

    /// Waits until the kernel references none of the sent pages.
    ///
    /// # Errors
    /// The error of poll(2) or of the error queue; [`io::ErrorKind::TimedOut`] if a completion does not arrive.
    pub fn finish(&mut self) -> io::Result<()> {
        while self.completions.pending > 0 {
            self.completions.wait(self.socket.as_fd())?;
        }
        Ok(())
    }
}

impl Completions {
    /// Waits for at least one completion.
    fn wait(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let before = self.pending;
        let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: poll(2) accesses one pollfd, which lives through the call. POLLERR needs no request.
        retry_interrupted(|| unsafe { libc::poll(&raw mut poll, 1, COMPLETION_MS) } as isize)?;
        self.read(socket)?;
        if self.pending < before { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Reads all completions from the socket's error queue (Documentation/networking/msg_zerocopy.rst).
    fn read(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            match next_completed(socket) {
                Ok(None) | Err(Errno::EINTR) => {}
                Ok(Some(Completed { first, last, was_copied })) => {
                    let sends = last.wrapping_sub(first).wrapping_add(1);
                    self.pending = self.pending.saturating_sub(sends);
                    self.completed += u64::from(sends);
                    self.copied += if was_copied { u64::from(sends) } else { 0 };
                }
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno(number)) => return Err(io::Error::from_raw_os_error(number)),
            }
        }
    }
}

/// A read-only mapping of a file.
#[derive(Debug)]
struct Mapping {
    begin: *mut c_void,
    len_bytes: usize,
}

impl Mapping {
    fn new(file: &File, len_bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: without MAP_FIXED, mmap(2) picks an unused address range, so no existing mapping changes.
        let begin =
            unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, file.as_raw_fd(), 0) };
        if begin == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { begin, len_bytes })
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the range was mapped readable in `new` and is unmapped by the drop only, which ends the borrow;
        // nothing writes to or truncates the files that are sent.
        unsafe { std::slice::from_raw_parts(self.begin.cast(), self.len_bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped in `new` and is unmapped once; slices of it borrow `self`, so none is left.
        unsafe { libc::munmap(self.begin, self.len_bytes) };
    }
}

/// Allows `socket` to send with MSG_ZEROCOPY.
///
/// # Errors
/// The error of setsockopt(2).
pub fn enable_zerocopy(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: c_int = 1;
    let len_bytes = libc::socklen_t::try_from(size_of_val(&on)).unwrap_or(0);
    let (socket, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: setsockopt(2) reads `len_bytes` from `on`, which is the size of that live integer.
    let set =
        unsafe { libc::setsockopt(socket, level, libc::SO_ZEROCOPY, (&raw const on).cast(), len_bytes) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn new_pipe(chunk_bytes: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: pipe2(2) writes two descriptors to `ends`, an array of two.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: pipe2 succeeded, so these are open descriptors that nothing else owns.
    let ends = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // Room for a chunk at any offset in a page; a smaller pipe only takes more calls.
    let wanted = c_int::try_from(chunk_bytes + 4096).unwrap_or(c_int::MAX);
    // SAFETY: F_SETPIPE_SZ takes an integer argument and accesses no memory of ours.
    unsafe { libc::fcntl(ends.1.as_raw_fd(), libc::F_SETPIPE_SZ, wanted) };
    Ok(ends)
}

/// Repeats `call` while it fails with EINTR.
fn retry_interrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Sends all of `bytes`, and returns their number.
fn send_all(bytes: &[u8], mut send: impl FnMut(*const c_void, usize) -> isize) -> io::Result<usize> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match retry_interrupted(|| send(rest.as_ptr().cast(), rest.len()))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => rest = &rest[sent.min(rest.len())..],
        }
    }
    Ok(bytes.len())
}
