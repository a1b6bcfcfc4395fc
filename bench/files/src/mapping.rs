//! Mapped files.
//!
//! This program never reads a mapping itself, because a truncated file would end the program by SIGBUS. The
//! kernel's own reads fail with EFAULT instead, but only from the next page on: the rest of the file's last page
//! reads as zeroes, so the length is checked before that page is sent.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

use libc::{c_int, c_void, iovec};
use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use uncopy_transmit::{PAGE_BYTES, next_completed};

use crate::socket::{IoBytes, Socket, iovec_of, message, send_then, to_usize};

/// Length below which MSG_ZEROCOPY costs more than the copy (Linux, Documentation/networking/msg_zerocopy.rst).
const MIN_ZEROCOPY_BYTES: u64 = 10 << 10;

/// A file, mapped for reading.
pub struct Mapping {
    begin: *mut c_void,
    len_bytes: u64,
    is_zerocopy: bool,
}

// SAFETY: the mapping belongs to the process, and any thread may unmap it; this program neither reads nor writes it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `len_bytes` of `file`, at least one. `is_zerocopy`: for sending with MSG_ZEROCOPY.
    pub fn new(file: &File, len_bytes: u64, is_zerocopy: bool) -> io::Result<Self> {
        let (len_bytes, read, shared) = (len_bytes.max(1), ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: without MAP_FIXED the kernel chooses addresses where nothing is, so that no other memory is affected;
        // no reference to the mapping is ever made.
        let begin = unsafe { mmap(null_mut(), to_usize(len_bytes), read, shared, file, 0) }?;
        Ok(Self { begin, len_bytes, is_zerocopy })
    }

    /// Sends `head` and the bytes in `range` of `file`. `more`: further bytes follow at once.
    pub fn send(&self, to: &mut Socket, file: &File, head: &[u8], range: Range<u64>, more: bool) -> IoBytes {
        if range.end > self.len_bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64
            && u64::try_from(fstat(file)?.st_size).unwrap_or(0) < self.len_bytes
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let flags = libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        if self.is_zerocopy && range.end - range.start >= MIN_ZEROCOPY_BYTES && allows_zerocopy(to) {
            // The head's memory is reused, so the kernel must copy it.
            let flags = flags | libc::MSG_ZEROCOPY;
            match send_then(to, head, |socket| self.send_mapped(socket, &[], &range, flags)) {
                // No memory for another completion: the kernel copies this part.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                outcome => return outcome,
            }
        }
        self.send_mapped(to, head, &range, flags)
    }

    fn send_mapped(&self, to: &Socket, head: &[u8], range: &Range<u64>, flags: c_int) -> IoBytes {
        let end = range.end.min(self.len_bytes);
        let begin = range.start.min(end);
        let body = self.begin.wrapping_byte_add(to_usize(begin));
        let mut parts = [iovec_of(head), iovec { iov_base: body, iov_len: to_usize(end - begin) }];
        let message = message(&mut parts);
        // SAFETY: the message has two parts. The head is borrowed for the length of the call, in which it is copied: it
        // is empty where `flags` have MSG_ZEROCOPY. The body lies in the mapping, which `self` keeps during the call;
        // this program never writes to it, and the kernel holds its pages, which are the file's, until the completion.
        let sent = unsafe { libc::sendmsg(to.fd.as_raw_fd(), &raw const message, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Copies the first bytes into `header`. The kernel reads the mapping, and stops at the end of a truncated file.
    pub fn peek(&self, header: &mut [u8]) {
        let len = header.len().min(to_usize(self.len_bytes));
        let local = iovec { iov_base: header.as_mut_ptr().cast(), iov_len: len };
        let remote = iovec { iov_base: self.begin, iov_len: len };
        // SAFETY: both vectors are locals with one part. The kernel writes at most `len` bytes to `header`, which is
        // borrowed mutably and has as many, and checks the other address itself.
        let _ = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly these bytes, and nothing refers to them: the kernel itself holds pages in
        // flight.
        let _ = unsafe { munmap(self.begin, to_usize(self.len_bytes)) };
    }
}

/// True if MSG_ZEROCOPY may be used on this socket, and no completion said that the kernel copies all the same.
fn allows_zerocopy(socket: &mut Socket) -> bool {
    let fd = socket.fd.as_raw_fd();
    let mut is_allowed = socket.allows_zerocopy.unwrap_or_else(|| {
        let one: c_int = 1;
        // SAFETY: the option takes an int, which is 4 bytes long, and `one` is a local int.
        let refused =
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const one).cast(), 4) };
        refused == 0
    });
    while is_allowed && let Ok(completed) = next_completed(socket.fd.as_fd()) {
        is_allowed = completed.is_none_or(|completed| !completed.was_copied);
    }
    socket.allows_zerocopy = Some(is_allowed);
    is_allowed
}
