//! A pipe of our own, through which references to pages go to a socket.
//!
//! It is one descriptor, opened for reading and writing, in the program's table. The program may close it (daemons
//! close every descriptor) or put one of its own in its place. So the open file bears a mark, and is asked for
//! it before each use: bytes never go into a pipe that is not ours, nor are any taken out of one.

use crate::PAGE_BYTES;
use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use crate::socket::Vector;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Bytes that a pipe is made for. All pipes of a user together may have 64 MiB (`/proc/sys/fs/pipe-user-pages-soft`), of
/// which this takes little; a message that is longer goes in several passes.
const WANTED_BYTES: usize = 256 << 10;
/// What a pipe has by default, and the kernel hands on at once (fs/splice.c).
const MIN_BUFFERS: usize = 16;
/// Numbers below which no descriptor of ours is put, tried in turn (where RLIMIT_NOFILE is low). Higher ones would
/// make the program's table of descriptors larger, which every fork copies.
const MIN_NUMBERS: [i32; 3] = [768, 160, 40];

/// Calls by which a pipe is emptied, at most: each takes what there is, unless a signal comes.
const TRIES: usize = 100;

/// The signal of an open file's owner (asm-generic/fcntl.h): where the mark is kept.
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;

/// A pipe. Closed by [`Pipe::close`], not when dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe {
    fd: i32,
    mark: i32,
    buffers: usize,
}

fn close(fd: i32) {
    // SAFETY: callers pass descriptors that they made or that bear their mark.
    unsafe { kernel!(Close, syscall!(libc::SYS_close, fd)) };
}

impl Pipe {
    /// Makes a pipe that bears `mark`, 1 to 64: one that no other pipe of the process bears. `errno` is changed.
    ///
    /// # Errors
    /// What pipe2, openat (of `/proc/self/fd`) and fcntl say; EMFILE where the user has so many pipes that this one
    /// would be tiny.
    pub fn open(mark: i32) -> Result<Self, Errno> {
        let mut ends = [-1; 2];
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: room for two descriptors.
        check(unsafe { kernel!(Open, syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), flags)) })?;
        let both = Self::reopen(ends[0]);
        ends.into_iter().for_each(close);
        let both = both?;
        let high = MIN_NUMBERS.into_iter().find_map(|least| {
            // SAFETY: makes a descriptor, touches no memory.
            let fd = unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, both, libc::F_DUPFD_CLOEXEC, least)) };
            (fd >= 0).then_some(fd as i32)
        });
        close(both);
        let fd = high.ok_or(Errno(libc::EMFILE))?;
        let pipe = Self { fd, mark, buffers: 0 };
        pipe.prepare().inspect_err(|_| close(fd))
    }

    /// Opens the pipe whose reading end is `end` for both.
    fn reopen(end: i32) -> Result<i32, Errno> {
        // "/proc/self/fd/" and ten digits, without formatting (which may allocate).
        let mut path = *b"/proc/self/fd/0000000000\0";
        let mut rest = end;
        for digit in path[14..24].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        // The kernel takes no leading zeroes there.
        let zeroes = path[14..23].iter().take_while(|digit| **digit == b'0').count();
        path.copy_within(14 + zeroes..25, 14);
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the path is terminated.
        check(unsafe { kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0)) })
            .map(|fd| fd as i32)
    }

    fn prepare(mut self) -> Result<Self, Errno> {
        // SAFETY: fcntl on a descriptor of our own; none of these touches memory.
        let bytes = unsafe {
            check(kernel!(Fcntl, syscall!(libc::SYS_fcntl, self.fd, F_SETSIG, self.mark)))?;
            // A refusal (limits of a user's pipes) leaves the size that it has.
            kernel!(Fcntl, syscall!(libc::SYS_fcntl, self.fd, libc::F_SETPIPE_SZ, WANTED_BYTES));
            check(kernel!(Fcntl, syscall!(libc::SYS_fcntl, self.fd, libc::F_GETPIPE_SZ)))?
        };
        self.buffers = bytes as usize / PAGE_BYTES;
        if self.buffers < MIN_BUFFERS { Err(Errno(libc::EMFILE)) } else { Ok(self) }
    }

    /// Parts of pages that it holds.
    #[must_use]
    pub const fn buffers(self) -> usize {
        self.buffers
    }

    /// Whether the descriptor is the pipe that was made here. `errno` is changed.
    #[must_use]
    pub fn is_ours(self) -> bool {
        // SAFETY: touches no memory. No signal is ever sent: that takes O_ASYNC and an owner.
        unsafe { kernel!(Stat, syscall!(libc::SYS_fcntl, self.fd, F_GETSIG)) == i64::from(self.mark) }
    }

    /// Throws away the `len_bytes` bytes that are in it. Whether it is empty then.
    #[must_use]
    pub fn empty(self, len_bytes: usize) -> bool {
        let Some(nowhere) = nowhere() else { return false };
        let mut left = len_bytes;
        // A signal that is pending ends the call before it begins.
        for _ in 0..TRIES {
            if left == 0 {
                return true;
            }
            match self.pass(nowhere, left, false) {
                Ok(bytes) if bytes > 0 => left -= bytes,
                Err(Errno(libc::EINTR)) => {}
                _ => return false,
            }
        }
        left == 0
    }

    /// Closes it, unless the program has done so.
    pub fn close(self) {
        if self.is_ours() {
            close(self.fd);
        }
    }

    /// Puts references to the vectors' pages into the pipe, as far as there is room. Bytes.
    ///
    /// # Errors
    /// What vmsplice says: EFAULT, EAGAIN where there is no room at all.
    pub fn put(self, vectors: &[Vector]) -> Result<usize, Errno> {
        let flags = libc::SPLICE_F_NONBLOCK;
        // SAFETY: the kernel reads the vectors, and pages only by reference.
        let put = unsafe {
            kernel!(Splice, syscall!(libc::SYS_vmsplice, self.fd, vectors.as_ptr(), vectors.len(), flags))
        };
        check(put).map(|bytes| bytes as usize)
    }

    /// Moves `len_bytes` bytes on to `to`; `more`: others follow at once (MSG_MORE). Bytes moved.
    ///
    /// The descriptor `to` says whether the call may wait, and a signal that is pending when the call begins
    /// ends it, also where nothing would have had to wait.
    ///
    /// # Errors
    /// What splice says: what sendmsg says on a socket, and EINVAL for what cannot be spliced to.
    pub fn pass(self, to: i32, len_bytes: usize, more: bool) -> Result<usize, Errno> {
        let flags = libc::SPLICE_F_NONBLOCK | if more { libc::SPLICE_F_MORE } else { 0 };
        // SAFETY: touches no memory of the process.
        let passed =
            unsafe { kernel!(Splice, syscall!(libc::SYS_splice, self.fd, 0, to, 0, len_bytes, flags)) };
        check(passed).map(|bytes| bytes as usize)
    }
}

/// A descriptor of `/dev/null`, where a pipe's bytes go that nobody wants; -1: none yet.
static NOWHERE: AtomicI32 = AtomicI32::new(-1);

/// Whether a descriptor is `/dev/null`, whoever opened it: what goes there is lost by intent.
fn is_nowhere(fd: i32) -> bool {
    // SAFETY: an all-zero stat is a valid buffer for fstat to fill.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the buffer is valid.
    let known = fd >= 0 && unsafe { kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) } == 0;
    known && found.st_mode & libc::S_IFMT == libc::S_IFCHR && found.st_rdev == libc::makedev(1, 3)
}

fn nowhere() -> Option<i32> {
    let known = NOWHERE.load(Relaxed);
    if is_nowhere(known) {
        return Some(known);
    }
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: a terminated path.
    let opened = unsafe {
        kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), flags, 0)) as i32
    };
    let high = (opened >= 0).then(|| crate::fd::duplicate_high(opened)).flatten();
    if opened >= 0 {
        close(opened);
    }
    let high = high?;
    if !is_nowhere(high) {
        close(high);
        return None;
    }
    // Another thread's, if it was faster, stays open: one descriptor at most for each thread, once.
    NOWHERE.store(high, Relaxed);
    Some(high)
}

/// `vmsplice` into a pipe of the program's, waiting for room if the pipe's descriptor says so.
///
/// # Errors
/// What vmsplice says.
pub fn put_into(fd: i32, vectors: &[Vector], wait: bool) -> Result<usize, Errno> {
    let flags = if wait { 0 } else { libc::SPLICE_F_NONBLOCK };
    // SAFETY: the kernel reads the vectors, and pages only by reference.
    let put =
        unsafe { kernel!(Splice, syscall!(libc::SYS_vmsplice, fd, vectors.as_ptr(), vectors.len(), flags)) };
    check(put).map(|bytes| bytes as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_arrive_through_it() {
        let pipe = Pipe::open(11).expect("a pipe");
        assert!(pipe.is_ours() && pipe.buffers() >= 1);
        let (here, mut there) = UnixStream::pair().expect("sockets");
        let text = *b"one and two";
        let vectors = [(0, 3), (3, 8)]
            .map(|(at, len_bytes)| Vector { address: text.as_ptr() as usize + at, len_bytes });
        assert_eq!(pipe.put(&vectors), Ok(11));
        assert_eq!(pipe.pass(here.as_raw_fd(), 11, false), Ok(11));
        let mut read = [0; 11];
        there.read_exact(&mut read).expect("bytes");
        assert_eq!(read, text);
        assert_eq!(pipe.put(&vectors), Ok(11));
        assert!(pipe.empty(11), "what is not wanted is thrown away");
        assert_eq!(pipe.pass(here.as_raw_fd(), 11, false), Err(Errno(libc::EAGAIN)));
        pipe.close();
        assert!(!pipe.is_ours());
    }

    #[test]
    fn what_the_program_puts_in_its_place_is_not_ours() {
        let pipe = Pipe::open(12).expect("a pipe");
        let (other, _end) = UnixStream::pair().expect("sockets");
        // SAFETY: replaces our own descriptor by a socket's; the socket is closed below.
        unsafe { libc::dup2(other.as_raw_fd(), pipe.fd) };
        assert!(!pipe.is_ours());
        pipe.close();
        // SAFETY: touches no memory; closes what was put there.
        unsafe {
            assert!(libc::fcntl(pipe.fd, libc::F_GETFD) >= 0, "the program's descriptor stays open");
            libc::close(pipe.fd);
        }
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors; they are closed below.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            libc::dup2(ends[1], pipe.fd);
        }
        assert!(!pipe.is_ours(), "nor is another pipe");
        [ends[0], ends[1], pipe.fd].into_iter().for_each(close);
    }
}
