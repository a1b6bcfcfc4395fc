//! A pipe that keeps bytes received from a socket in the kernel until they are read, sent on or discarded.
//!
//! The bytes exist nowhere else, so the pipe is recognised by its inode: a mark (see [`crate::pipe`]) could
//! be that of another pipe of ours under a number that the program has closed meanwhile.

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd, ProgramFd};
use crate::errno::{Errno, check};
use crate::fd::duplicate_high;
use crate::pipe::{self, Pipe};
use crate::stream;

/// Maximum number of calls that fill a pipe.
const MAX_CALLS: usize = 64;

/// A pipe, known by its inode. Closed by [`HoldingPipe::close`], not when dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldingPipe {
    fd: i32,
    identity: (u64, u64),
}

/// Returns device and inode of the pipe with this number; `None` if the descriptor is no pipe.
fn identity(fd: i32) -> Option<(u64, u64)> {
    // SAFETY: `stat` consists of integers, for which all-zero bytes are valid.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: fstat(2) writes one `stat` to `found`, which lives through the call.
    let result = unsafe { kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) };
    (result == 0 && found.st_mode & libc::S_IFMT == libc::S_IFIFO).then_some((found.st_dev, found.st_ino))
}

impl HoldingPipe {
    /// Creates a pipe. `errno` is changed.
    ///
    /// # Errors
    /// Errors of pipe2(2), openat(2) of `/proc/self/fd` and fcntl(2); EMFILE if the user has so
    /// many pipes that this one would be tiny.
    pub fn open() -> Result<Self, Errno> {
        let fd = pipe::open_both_ways()?;
        pipe::enlarge(&fd)?;
        let identity = identity(fd.number()).ok_or(Errno(libc::EBADF))?;
        Ok(Self { fd: fd.leave_open(), identity })
    }

    /// Duplicates the pipe from the table of the process's first thread into the calling thread's own
    /// table (`pidfd_getfd`, Linux 5.6).
    ///
    /// # Errors
    /// Errors of `pidfd_open` and `pidfd_getfd`; EBADF if the number there is another file's.
    pub fn adopt(self) -> Result<Self, Errno> {
        let own = crate::fd::duplicate_from_first(self.fd)?;
        if identity(own.number()) != Some(self.identity) {
            return Err(Errno(libc::EBADF));
        }
        Ok(Self { fd: own.leave_open(), ..self })
    }

    /// Whether the number still refers to the pipe in the calling thread's table. `errno` is changed.
    #[must_use]
    pub fn is_ours(self) -> bool {
        identity(self.fd) == Some(self.identity)
    }

    /// The number as the program would name it; the hooks hide the descriptor from the program.
    #[must_use]
    pub const fn as_program(self) -> ProgramFd {
        ProgramFd::new(self.fd)
    }

    /// Number of the descriptor.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.fd
    }

    /// Returns the pipe under another number, without closing this one; `None` if no number is free.
    #[must_use]
    pub fn renumbered(self) -> Option<Self> {
        duplicate_high(self.as_program()).map(|fd| Self { fd: fd.leave_open(), ..self })
    }

    /// Closes the descriptor, unless the program has closed or replaced it.
    pub fn close(self) {
        if self.is_ours() {
            drop(OwnFd::new(self.fd));
        }
    }

    /// Moves up to `len_bytes` received bytes of a socket, which has so many, into the pipe, as far as there
    /// is room. Returns their number. Waits only if the socket is in blocking mode and its bytes are gone.
    ///
    /// # Errors
    /// Errors of splice(2); EAGAIN if there are no bytes. Nothing was received then.
    pub fn receive(self, socket: ProgramFd, len_bytes: usize) -> Result<usize, Errno> {
        let splice = |got_bytes| {
            pipe::splice(socket.number(), self.as_program(), len_bytes - got_bytes, libc::SPLICE_F_MOVE)
        };
        let mut got_bytes = splice(0)?;
        if got_bytes == 0 || got_bytes == len_bytes {
            return Ok(got_bytes);
        }
        // One call moves as many bytes as the pipe has room for if every page fragment is a page long (fs/splice.c,
        // `do_splice_read`, Linux 6.5), but those of a socket are up to 32 KiB long.
        for _ in 0..MAX_CALLS {
            // A socket in blocking mode would wait for bytes that another reader has taken meanwhile.
            if !stream::unread(socket).is_ok_and(|unread_bytes| unread_bytes >= len_bytes - got_bytes) {
                break;
            }
            match splice(got_bytes) {
                Ok(more_bytes @ 1..) if got_bytes + more_bytes < len_bytes => got_bytes += more_bytes,
                Ok(more_bytes) => return Ok(got_bytes + more_bytes),
                Err(_) => break,
            }
        }
        Ok(got_bytes)
    }

    /// Reads up to `len_bytes` bytes to `to`. Returns their number.
    ///
    /// # Errors
    /// Errors of read(2); EAGAIN if the pipe is empty.
    ///
    /// # Safety
    /// `to` must be writable for `len_bytes` bytes, which no other thread uses.
    pub unsafe fn read(self, to: usize, len_bytes: usize) -> Result<usize, Errno> {
        // SAFETY: the caller promises that `to` is writable for `len_bytes` bytes.
        let got = unsafe { kernel!(Read, syscall!(libc::SYS_read, self.fd, to, len_bytes)) };
        check(got).map(|bytes| bytes as usize)
    }

    /// Puts references to the first `len_bytes` bytes into another pipe as well, as far as that has room.
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// Errors of tee(2); EAGAIN if one pipe is empty or the other full.
    pub fn duplicate_to(self, to: Pipe, len_bytes: usize) -> Result<usize, Errno> {
        let flags = libc::SPLICE_F_NONBLOCK;
        // SAFETY: tee(2) takes only integers.
        let put = unsafe { kernel!(Splice, syscall!(libc::SYS_tee, self.fd, to.number(), len_bytes, flags)) };
        check(put).map(|bytes| bytes as usize)
    }

    /// Discards the `len_bytes` bytes in the pipe. Returns whether it is empty then.
    #[must_use]
    pub fn drain(self, len_bytes: usize) -> bool {
        pipe::drain(self.fd, len_bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        (client, listener.accept().expect("accepted").0)
    }

    #[test]
    fn received_bytes_are_sent_again_and_read() {
        let (mut client, server) = connection();
        client.write_all(b"head and body").expect("sent");
        let mut first = [0];
        server.peek(&mut first).expect("arrived");
        let held = HoldingPipe::open().expect("a pipe");
        assert_eq!(held.receive(ProgramFd::of(&server), 100), Ok(13));
        let out = Pipe::open(13).expect("a pipe");
        assert_eq!(held.duplicate_to(out, 8), Ok(8));
        assert!(out.drain(5), "the head is not wanted");
        assert_eq!(out.splice_to(ProgramFd::of(&server), 3, false), Ok(3));
        let mut answer = [0; 3];
        client.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, *b"and");
        let mut all = [0u8; 20];
        // SAFETY: `all` has 20 bytes and belongs to the test.
        assert_eq!(unsafe { held.read(all.as_mut_ptr() as usize, 20) }, Ok(13));
        assert_eq!(&all[..13], b"head and body");
        client.write_all(b"unwanted").expect("sent");
        server.peek(&mut first).expect("arrived");
        assert_eq!(held.receive(ProgramFd::of(&server), 100), Ok(8));
        assert!(held.drain(8));
        out.close();
        held.close();
        assert!(!held.is_ours());
    }

    #[test]
    fn another_thread_with_its_own_table_adopts_it() {
        let (mut client, server) = connection();
        let held = HoldingPipe::open().expect("a pipe");
        client.write_all(b"bytes").expect("sent");
        server.peek(&mut [0]).expect("arrived");
        assert_eq!(held.receive(ProgramFd::of(&server), 5), Ok(5));
        let thread = std::thread::spawn(move || {
            // SAFETY: unshare(2) takes only integers; this thread opens no file before it ends.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            held.close();
            let own = held.adopt().expect("the first thread's");
            let mut bytes = [0u8; 5];
            // SAFETY: `bytes` has 5 bytes and belongs to the test.
            assert_eq!(unsafe { own.read(bytes.as_mut_ptr() as usize, 5) }, Ok(5));
            bytes
        });
        assert_eq!(thread.join().expect("no panic"), *b"bytes");
        assert!(held.is_ours());
        held.close();
        assert_eq!(held.adopt(), Err(Errno(libc::EBADF)));
    }
}
