//! The ways to send a file over a TCP connection, each a call or two of the C library for a chunk, as a program that
//! knows of nothing else would make them.
//!
//! | way | calls for a chunk | copies of each byte |
//! |---|---|---|
//! | `send` | read, send | out of the page cache, into the socket |
//! | `write` | read, write | the same |
//! | `sendfile` | sendfile | none |
//! | `mmap-send` | send; mmap and munmap for a file | into the socket |
//! | `splice` | splice, splice | none |
//! | `zerocopy` | send with MSG_ZEROCOPY, and completions | none, if the network card gathers |
//! | `twin` | send, or what the transmit engine makes of it | none where that pays; read into twin memory once |
//!
//! All go through the C library's dynamic symbols, so that whatever is preloaded sees them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use clap::ValueEnum;
use libc::{c_int, c_void};
use uncopy_transmit::{Completed, Errno, Owner, next_completed};
use uncopy_twin::Buffer;

/// Sends with MSG_ZEROCOPY before their completions are read.
const COMPLETIONS_BATCH: u32 = 16;
/// How long a completion may take, ms.
const COMPLETION_MS: c_int = 1000;

/// A way to send a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// read, send
    Send,
    /// read, write
    Write,
    /// sendfile
    Sendfile,
    /// mmap, send, munmap
    MmapSend,
    /// splice into a pipe and on into the socket
    Splice,
    /// mmap, send with MSG_ZEROCOPY, munmap
    Zerocopy,
    /// Files are kept in twin memory and sent from there
    Twin,
}

/// Reads a file into twin memory.
///
/// # Errors
/// The kernel's; [`io::ErrorKind::UnexpectedEof`] where the file is shorter than it was.
pub fn read_into_twin(path: &Path) -> io::Result<Buffer> {
    let mut file = File::open(path)?;
    let len_bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = Buffer::zeroed(len_bytes)?;
    io::Read::read_exact(&mut file, &mut bytes)?;
    Ok(bytes)
}

/// A connection, and what is kept to send files over it.
#[derive(Debug)]
pub struct Ways<'a> {
    way: Way,
    socket: OwnedFd,
    chunk_bytes: usize,
    buffer: Vec<u8>,
    pipe: Option<(OwnedFd, OwnedFd)>,
    /// Files in twin memory, by number.
    kept: &'a [Buffer],
    completions: Completions,
}

/// Sends with MSG_ZEROCOPY whose pages the kernel may still refer to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completions {
    /// Sends that are not complete.
    pub awaited: u32,
    /// Complete ones.
    pub complete: u64,
    /// Of these, those that the kernel copied all the same.
    pub copied: u64,
}

impl<'a> Ways<'a> {
    /// Sends over `socket` by `way`, at most `chunk_bytes` in a call. `kept`: for [`Way::Twin`], each file in twin memory.
    ///
    /// # Errors
    /// The kernel's, where it has no pipe or no MSG_ZEROCOPY.
    pub fn new(way: Way, socket: OwnedFd, chunk_bytes: usize, kept: &'a [Buffer]) -> io::Result<Self> {
        let mut pipe = None;
        match way {
            Way::Splice => pipe = Some(new_pipe(chunk_bytes)?),
            Way::Zerocopy => allow_zerocopy(socket.as_fd())?,
            Way::Twin => {
                uncopy_transmit::trust_descriptors();
                let owner = Owner { ends_on_errors: false, sends_alone: true, reads_errors: false };
                uncopy_transmit::own(socket.as_raw_fd(), owner);
            }
            Way::Send | Way::Write | Way::Sendfile | Way::MmapSend => {}
        }
        let buffer = if matches!(way, Way::Send | Way::Write) { vec![0; chunk_bytes] } else { Vec::new() };
        let completions = Completions::default();
        Ok(Self { way, socket, chunk_bytes, buffer, pipe, kept, completions })
    }

    /// What became of sends with MSG_ZEROCOPY.
    #[must_use]
    pub fn completions(&self) -> Completions {
        self.completions
    }

    /// Sends the file called `number`. `sent` is told how many bytes went after each chunk, and whether to go on is asked
    /// of it; returns its last answer.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::UnexpectedEof`] where the file is shorter than it was.
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
        // SAFETY: len is at most chunk_bytes, which is how many the buffer has.
        let got = retried(|| unsafe { libc::read(file, self.buffer.as_mut_ptr().cast(), len) })?;
        all(&self.buffer[..got], |begin, len| {
            // SAFETY: `all` passes ranges of the slice.
            unsafe {
                if is_write { libc::write(socket, begin, len) } else { libc::send(socket, begin, len, 0) }
            }
        })
    }

    fn send_from_file(&self, file: RawFd, len: usize) -> io::Result<usize> {
        let socket = self.socket.as_raw_fd();
        // SAFETY: no pointer is passed but null, which means the file's own offset.
        retried(|| unsafe { libc::sendfile(socket, file, std::ptr::null_mut(), len) })
    }

    fn splice(&self, file: RawFd, len: usize) -> io::Result<usize> {
        let Some((read_end, write_end)) = &self.pipe else { return Ok(0) };
        let move_ = |from: RawFd, to: RawFd, len| {
            let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_MORE;
            // SAFETY: no pointer is passed but null, which means the files' own offsets.
            retried(|| unsafe {
                libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), len, flags)
            })
        };
        let filled = move_(file, write_end.as_raw_fd(), len)?;
        let mut left = filled;
        while left > 0 {
            match move_(read_end.as_raw_fd(), self.socket.as_raw_fd(), left)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                moved => left -= moved.min(left),
            }
        }
        Ok(filled)
    }

    fn send_mapped(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let socket = self.socket.as_raw_fd();
        if self.way == Way::MmapSend {
            // SAFETY: `all` passes ranges of the slice.
            return all(bytes, |begin, len| unsafe { libc::send(socket, begin, len, 0) });
        }
        loop {
            // SAFETY: the range is a slice of a mapping of a file; the kernel refers to the file's pages themselves.
            let sent = retried(|| unsafe {
                libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_ZEROCOPY)
            });
            match sent {
                // The kernel keeps account of as many as it has room for.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) && self.completions.awaited > 0 => {
                    self.completions.wait(self.socket.as_fd())?;
                }
                Err(error) => return Err(error),
                Ok(sent) => {
                    self.completions.awaited += 1;
                    if self.completions.awaited >= COMPLETIONS_BATCH {
                        self.completions.read(self.socket.as_fd())?;
                    }
                    return Ok(sent);
                }
            }
        }
    }

    fn send_twin(&self, number: usize, at: usize, len: usize) -> io::Result<usize> {
        let socket = self.socket.as_raw_fd();
        let part = self
            .kept
            .get(number)
            .and_then(|bytes| bytes.get(at..at + len))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        // SAFETY: `all` passes ranges of the slice; twin memory sees to it that what the kernel may hold does not change.
        all(part, |begin, len| unsafe { uncopy_twin::send::send(socket, begin, len, 0) })
    }

    /// Waits until the kernel refers to nothing any more.
    ///
    /// # Errors
    /// The kernel's, or a completion that does not come.
    pub fn finish(&mut self) -> io::Result<()> {
        while self.completions.awaited > 0 {
            self.completions.wait(self.socket.as_fd())?;
        }
        Ok(())
    }
}

impl Completions {
    /// Waits for at least one.
    fn wait(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let before = self.awaited;
        let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one structure is passed, and told to be one. The error queue is told of without being asked for.
        retried(|| unsafe { libc::poll(&raw mut poll, 1, COMPLETION_MS) } as isize)?;
        self.read(socket)?;
        if self.awaited < before { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Takes what the socket's error queue holds (Documentation/networking/msg_zerocopy.rst).
    fn read(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            match next_completed(socket.as_raw_fd()) {
                Ok(None) | Err(Errno::EINTR) => {}
                Ok(Some(Completed { first, last, was_copied })) => {
                    let sends = last.wrapping_sub(first).wrapping_add(1);
                    self.awaited = self.awaited.saturating_sub(sends);
                    self.complete += u64::from(sends);
                    self.copied += if was_copied { u64::from(sends) } else { 0 };
                }
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno(number)) => return Err(io::Error::from_raw_os_error(number)),
            }
        }
    }
}

/// A file in memory.
#[derive(Debug)]
struct Mapping {
    begin: *mut c_void,
    len_bytes: usize,
}

impl Mapping {
    fn new(file: &File, len_bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a mapping at an address of the kernel's choice changes no other memory.
        let begin =
            unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, file.as_raw_fd(), 0) };
        if begin == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { begin, len_bytes })
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for reading in `new` and until the drop; nobody changes or cuts files that are sent.
        unsafe { std::slice::from_raw_parts(self.begin.cast(), self.len_bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; no slice of it is left.
        unsafe { libc::munmap(self.begin, self.len_bytes) };
    }
}

fn allow_zerocopy(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: c_int = 1;
    let len_bytes = libc::socklen_t::try_from(size_of_val(&on)).unwrap_or(0);
    let (socket, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: a number of the length told is passed.
    let set =
        unsafe { libc::setsockopt(socket, level, libc::SO_ZEROCOPY, (&raw const on).cast(), len_bytes) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn new_pipe(chunk_bytes: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: pipe2 writes two descriptors to the array of two.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: pipe2 succeeded, so these are open descriptors that nothing else owns.
    let ends = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // As much as a chunk, at whatever place of a page it begins; a smaller pipe only takes more calls.
    let wanted = c_int::try_from(chunk_bytes + 4096).unwrap_or(c_int::MAX);
    // SAFETY: the command takes a number.
    unsafe { libc::fcntl(ends.1.as_raw_fd(), libc::F_SETPIPE_SZ, wanted) };
    Ok(ends)
}

/// Calls again where a signal came in between.
fn retried(mut call: impl FnMut() -> isize) -> io::Result<usize> {
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

/// Sends all of `bytes`; returns how many they are.
fn all(bytes: &[u8], mut send: impl FnMut(*const c_void, usize) -> isize) -> io::Result<usize> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match retried(|| send(rest.as_ptr().cast(), rest.len()))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => rest = &rest[sent.min(rest.len())..],
        }
    }
    Ok(bytes.len())
}
