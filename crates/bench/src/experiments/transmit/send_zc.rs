//! Messages by io_uring's SENDMSG_ZC: by reference, with completions that come to a ring of the sender's own.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, cqueue, opcode, types};

/// Entries of the ring: more than messages are ever under way.
const ENTRIES: u32 = 64;

/// A ring with one kind of request in it.
pub struct ZeroCopyRing {
    ring: IoUring,
    /// Requests whose pages the kernel may still hold.
    held: usize,
}

impl ZeroCopyRing {
    /// A ring for one thread.
    ///
    /// # Errors
    /// What io_uring_setup(2) says, or that the kernel has no SENDMSG_ZC.
    pub fn new() -> io::Result<Self> {
        // Completions are worked on when they are waited for only. Otherwise the kernel interrupts whatever the thread is
        // waiting in, and a `recv` on a socket with SO_RCVTIMEO then ends with EINTR.
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::SendMsgZc::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { ring, held: 0 })
    }

    /// Sends a message and waits until it has been taken, not until it has been sent. Bytes taken.
    ///
    /// # Errors
    /// What sendmsg(2) says.
    ///
    /// # Safety
    /// `message` and all that it names stay as they are until [`settle`](Self::settle) has returned.
    pub unsafe fn send(&mut self, fd: RawFd, message: *const libc::msghdr) -> io::Result<usize> {
        let flags = u32::try_from(libc::MSG_WAITALL).unwrap_or(0);
        let request = opcode::SendMsgZc::new(types::Fd(fd), message).flags(flags).build();
        // SAFETY: the caller keeps `message` and all that it names as they are until the kernel has let go of them.
        unsafe { self.ring.submission().push(&request) }.map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.held += 1;
        loop {
            self.ring.submit_and_wait(1)?;
            while let Some(entry) = self.next() {
                if let Some(result) = self.note(&entry) {
                    return usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
                }
            }
        }
    }

    fn next(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// Takes note of a completion: of a request, whose result it is, or of its pages.
    fn note(&mut self, entry: &cqueue::Entry) -> Option<i32> {
        if cqueue::notif(entry.flags()) {
            self.held -= 1;
            return None;
        }
        if !cqueue::more(entry.flags()) {
            self.held -= 1;
        }
        Some(entry.result())
    }

    /// Waits until the kernel holds no pages of earlier messages.
    ///
    /// # Errors
    /// What io_uring_enter(2) says.
    pub fn settle(&mut self) -> io::Result<()> {
        while self.held > 0 {
            self.ring.submit_and_wait(1)?;
            while let Some(entry) = self.next() {
                self.note(&entry);
            }
        }
        Ok(())
    }

    /// Requests whose pages the kernel may still hold.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.held
    }
}
