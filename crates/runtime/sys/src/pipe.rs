//! A pipe of our own, through which references to pages are spliced to a socket.
//!
//! The pipe is one descriptor, open for reading and writing, in the program's table. The program
//! may close it (daemons close every descriptor) or reuse its number. So the open file carries a
//! mark, which is checked before each use: no bytes enter or leave a pipe that is not ours.

use crate::PAGE_BYTES;
use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd, OwnRef, OwnSlot};
use crate::errno::{Errno, check};
use crate::iovec::Part;

/// Capacity that is asked for, bytes. All pipes of a user together may have 64 MiB
/// (`/proc/sys/fs/pipe-user-pages-soft`), of which this is little; a longer message takes several passes.
const WANTED_BYTES: usize = 256 << 10;
/// Default number of buffers, which is also what splice moves at once (fs/splice.c).
const MIN_BUFFERS: usize = 16;
/// Lowest numbers for the descriptor, tried in turn because RLIMIT_NOFILE may be low. Higher
/// numbers would enlarge the program's table of descriptors, which every fork copies.
const MIN_NUMBERS: [i32; 3] = [768, 160, 40];

/// Maximum number of calls that empty a pipe: each moves everything, unless a signal comes.
const MAX_CALLS: usize = 100;

/// The signal of an open file's owner (asm-generic/fcntl.h), which holds the mark.
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;

/// A marked pipe. Closed by [`Pipe::close`], not when dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe {
    fd: i32,
    mark: i32,
    buffers: usize,
}

impl Pipe {
    /// Creates a pipe with `mark`, which no other pipe of the process has. It is 1 to 64, because F_SETSIG takes
    /// only the numbers of signals. `errno` is changed.
    ///
    /// # Errors
    /// Errors of pipe2(2), openat(2) of `/proc/self/fd` and fcntl(2); EMFILE if the user has so
    /// many pipes that this one would be tiny.
    pub fn open(mark: i32) -> Result<Self, Errno> {
        let mut ends = [-1; 2];
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: pipe2(2) writes two descriptors, for which `ends` has room.
        check(unsafe { kernel!(Open, syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), flags)) })?;
        let [end, _other] = ends.map(OwnFd::new);
        let both = crate::file::reopen(&end, libc::O_RDWR | libc::O_NONBLOCK)?;
        let high = MIN_NUMBERS.into_iter().find_map(|least| {
            // SAFETY: fcntl(2) takes only integers and returns a new descriptor.
            let made =
                unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, &both, libc::F_DUPFD_CLOEXEC, least)) };
            OwnFd::from_result(made).ok()
        });
        Self::prepare(high.ok_or(Errno(libc::EMFILE))?, mark)
    }

    fn prepare(fd: OwnFd, mark: i32) -> Result<Self, Errno> {
        // SAFETY: these commands of fcntl(2) take only integers and act on a descriptor of ours.
        let bytes = unsafe {
            check(kernel!(Fcntl, syscall!(libc::SYS_fcntl, &fd, F_SETSIG, mark)))?;
            // If this is refused (limits of a user's pipes), the pipe keeps its capacity.
            kernel!(Fcntl, syscall!(libc::SYS_fcntl, &fd, libc::F_SETPIPE_SZ, WANTED_BYTES));
            check(kernel!(Fcntl, syscall!(libc::SYS_fcntl, &fd, libc::F_GETPIPE_SZ)))?
        };
        let buffers = bytes as usize / PAGE_BYTES;
        if buffers < MIN_BUFFERS {
            return Err(Errno(libc::EMFILE));
        }
        Ok(Self { fd: fd.leave_open(), mark, buffers })
    }

    /// Number of page fragments that the pipe holds.
    #[must_use]
    pub const fn buffers(self) -> usize {
        self.buffers
    }

    /// Whether the descriptor still refers to the marked pipe. `errno` is changed.
    #[must_use]
    pub fn is_ours(self) -> bool {
        // SAFETY: F_GETSIG takes only integers. The signal is never sent without O_ASYNC.
        unsafe { kernel!(Stat, syscall!(libc::SYS_fcntl, self.fd, F_GETSIG)) == i64::from(self.mark) }
    }

    /// Discards the `len_bytes` bytes in the pipe. Returns whether it is empty then.
    #[must_use]
    pub fn drain(self, len_bytes: usize) -> bool {
        let Some(null_device) = null_device() else { return false };
        let mut left = len_bytes;
        // A pending signal ends the call before it has moved anything.
        for _ in 0..MAX_CALLS {
            if left == 0 {
                return true;
            }
            match self.splice_to(null_device, left, false) {
                Ok(bytes) if bytes > 0 => left -= bytes,
                Err(Errno(libc::EINTR)) => {}
                _ => return false,
            }
        }
        left == 0
    }

    /// Closes the pipe, unless the program has closed or replaced it.
    pub fn close(self) {
        if self.is_ours() {
            drop(OwnFd::new(self.fd));
        }
    }

    /// Puts references to the parts' pages into the pipe, as far as there is room. Returns the byte count.
    ///
    /// # Errors
    /// Errors of vmsplice(2): EFAULT, or EAGAIN if the pipe is full.
    pub fn vmsplice(self, parts: &[Part]) -> Result<usize, Errno> {
        let flags = libc::SPLICE_F_NONBLOCK;
        // SAFETY: `parts` lives through the call; vmsplice(2) only takes references to pages, and
        // fails with EFAULT at invalid addresses.
        let put = unsafe {
            kernel!(Splice, syscall!(libc::SYS_vmsplice, self.fd, parts.as_ptr(), parts.len(), flags))
        };
        check(put).map(|bytes| bytes as usize)
    }

    /// Moves `len_bytes` bytes from the pipe to `to`; `more` announces that others follow at once
    /// (MSG_MORE). Returns the number of bytes.
    ///
    /// The call blocks only if `to` is in blocking mode. A signal that is pending at its start
    /// interrupts it, even if it would not block.
    ///
    /// # Errors
    /// Errors of splice(2): those of sendmsg(2) on a socket, and EINVAL if `to` does not support splicing.
    pub fn splice_to(self, to: impl Descriptor, len_bytes: usize, more: bool) -> Result<usize, Errno> {
        let flags = libc::SPLICE_F_NONBLOCK | if more { libc::SPLICE_F_MORE } else { 0 };
        // SAFETY: splice(2) gets no offsets, so it takes only integers.
        let passed =
            unsafe { kernel!(Splice, syscall!(libc::SYS_splice, self.fd, 0, to, 0, len_bytes, flags)) };
        check(passed).map(|bytes| bytes as usize)
    }
}

/// A descriptor of `/dev/null`, to which unwanted bytes of a pipe are spliced.
static NULL_DEVICE: OwnSlot = OwnSlot::empty();

/// Whether a descriptor is `/dev/null`, whoever opened it, so that nothing is lost by writing to it.
fn is_null_device(fd: impl Descriptor) -> bool {
    // SAFETY: `stat` consists of integers, for which all-zero bytes are valid.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: fstat(2) writes one `stat` to `found`, which lives through the call.
    let known = unsafe { kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) } == 0;
    known && found.st_mode & libc::S_IFMT == libc::S_IFCHR && found.st_rdev == libc::makedev(1, 3)
}

fn null_device() -> Option<OwnRef> {
    let known = NULL_DEVICE.get();
    if known.is_some_and(is_null_device) {
        return known;
    }
    let high = crate::fd::duplicate_high(&crate::file::open(c"/dev/null", libc::O_WRONLY, 0).ok()?)?;
    if !is_null_device(&high) {
        return None;
    }
    // The old number is the program's by now, or was stored by a faster thread: at most one
    // descriptor for each thread leaks, once.
    NULL_DEVICE.replace(Some(high)).map(OwnFd::leave_open);
    NULL_DEVICE.get()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_arrive_through_it() {
        let pipe = Pipe::open(11).expect("a pipe");
        assert!(pipe.is_ours() && pipe.buffers() >= 1);
        let (here, mut there) = UnixStream::pair().expect("sockets");
        let text = *b"one and two";
        let parts =
            [(0, 3), (3, 8)].map(|(at, len_bytes)| Part { address: text.as_ptr() as usize + at, len_bytes });
        assert_eq!(pipe.vmsplice(&parts), Ok(11));
        assert_eq!(pipe.splice_to(here.as_fd(), 11, false), Ok(11));
        let mut read = [0; 11];
        there.read_exact(&mut read).expect("bytes");
        assert_eq!(read, text);
        assert_eq!(pipe.vmsplice(&parts), Ok(11));
        assert!(pipe.drain(11), "what is not wanted is thrown away");
        assert_eq!(pipe.splice_to(here.as_fd(), 11, false), Err(Errno(libc::EAGAIN)));
        pipe.close();
        assert!(!pipe.is_ours());
    }

    #[test]
    fn what_the_program_puts_in_its_place_is_not_ours() {
        let pipe = Pipe::open(12).expect("a pipe");
        let (other, _end) = UnixStream::pair().expect("sockets");
        // SAFETY: dup2(2) takes only integers; the new descriptor is closed below.
        unsafe { libc::dup2(other.as_raw_fd(), pipe.fd) };
        assert!(!pipe.is_ours());
        pipe.close();
        // SAFETY: the calls take only integers; the descriptor is the test's own.
        unsafe {
            assert!(libc::fcntl(pipe.fd, libc::F_GETFD) >= 0, "the program's descriptor stays open");
            libc::close(pipe.fd);
        }
        let mut ends = [0; 2];
        // SAFETY: pipe(2) writes two descriptors, for which `ends` has room; they are closed below.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            libc::dup2(ends[1], pipe.fd);
        }
        assert!(!pipe.is_ours(), "nor is another pipe");
        drop([ends[0], ends[1], pipe.fd].map(OwnFd::new));
    }
}
