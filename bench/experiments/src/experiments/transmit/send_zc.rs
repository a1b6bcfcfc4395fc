//! Messages by io_uring's SENDMSG_ZC: by reference, with completions in a ring of the sender.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, cqueue, opcode, types};

/// Entries of the ring: more than the messages in flight.
const ENTRIES: u32 = 64;

/// A ring for SENDMSG_ZC requests.
pub struct ZeroCopyRing {
    ring: IoUring,
    /// Number of requests whose pages the kernel may still hold.
    in_flight: usize,
}

impl ZeroCopyRing {
    /// Makes a ring for one thread.
    ///
    /// # Errors
    /// Errors of io_uring_setup(2), or the kernel has no SENDMSG_ZC.
    pub fn new() -> io::Result<Self> {
        // Completions are processed only in calls that wait for them. Otherwise the kernel interrupts whatever
        // call the thread waits in, and a `recv` on a socket with SO_RCVTIMEO ends with EINTR.
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::SendMsgZc::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { ring, in_flight: 0 })
    }

    /// Sends a message and waits until the kernel has accepted it, not sent it. Returns the number of bytes
    /// accepted.
    ///
    /// # Errors
    /// Errors of sendmsg(2).
    ///
    /// # Safety
    /// `message` and all memory that it refers to must stay unchanged until [`wait_all`](Self::wait_all) has returned.
    pub unsafe fn send(&mut self, fd: RawFd, message: *const libc::msghdr) -> io::Result<usize> {
        let flags = u32::try_from(libc::MSG_WAITALL).unwrap_or(0);
        let request = opcode::SendMsgZc::new(types::Fd(fd), message).flags(flags).build();
        // SAFETY: `push` requires that the request's memory stays valid until it has completed: by this function's
        // contract, `message` and all memory that it refers to stay unchanged until `settle` has returned.
        unsafe { self.ring.submission().push(&request) }.map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.in_flight += 1;
        loop {
            self.ring.submit_and_wait(1)?;
            while let Some(entry) = self.next() {
                if let Some(result) = self.process_completion(&entry) {
                    return usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
                }
            }
        }
    }

    fn next(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// Processes a completion: returns a request's result, or `None` for the release of its pages.
    fn process_completion(&mut self, entry: &cqueue::Entry) -> Option<i32> {
        if cqueue::notif(entry.flags()) {
            self.in_flight -= 1;
            return None;
        }
        if !cqueue::more(entry.flags()) {
            self.in_flight -= 1;
        }
        Some(entry.result())
    }

    /// Waits until the kernel holds no pages of earlier messages.
    ///
    /// # Errors
    /// Errors of io_uring_enter(2).
    pub fn wait_all(&mut self) -> io::Result<()> {
        while self.in_flight > 0 {
            self.ring.submit_and_wait(1)?;
            while let Some(entry) = self.next() {
                self.process_completion(&entry);
            }
        }
        Ok(())
    }

    /// Returns the number of requests whose pages the kernel may still hold.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }
}
