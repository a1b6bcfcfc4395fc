//! The ways to send a body between a header and a trailer.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths of messages, structures, options"
)]

use std::cell::RefCell;
use std::os::fd::AsRawFd;

use uncopy_transmit::{Envelope, Errno, Part, ProgramFd, next_completed};

use crate::experiments::transmit::bodies::{Bodies, checked};
use crate::experiments::transmit::send_zc::ZeroCopyRing;
use crate::kit::Side;

/// Side that uses vmsplice and splice, whatever the size.
pub const SPLICE: Side = Side::Way("spliced");
/// Side that sends the body by sendfile from a memory file.
pub const SEND_FILE: Side = Side::Way("sendfile");
/// Side that uses MSG_ZEROCOPY, whatever the size.
pub const ZERO_COPY: Side = Side::Way("zerocopy");
/// Side that uses io_uring's SENDMSG_ZC.
pub const SEND_ZC: Side = Side::Way("send_zc");
/// Length of the header before each body, bytes: that of a cache's `VALUE key flags bytes`.
pub const HEADER_BYTES: usize = 48;
/// Trailer that follows each body.
static TRAILER: OnOnePage<[u8; 7]> = OnOnePage(*b"\r\nEND\r\n");

/// Returns the trailer that follows each body.
pub fn trailer() -> &'static [u8] {
    &TRAILER.0
}

/// Bytes that do not cross the end of a page: MSG_ZEROCOPY accepts 17 pages in a datagram, and the largest body has 15.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct OnOnePage<T>(T);
/// Maximum number of messages in flight.
pub const WINDOW: usize = 8;
/// Messages between two readings of the clock.
pub const BATCH: usize = 16;

/// Sender of messages by one side's way.
pub struct Sender<'a> {
    fd: i32,
    side: Side,
    bodies: &'a Bodies,
    /// A header for each message that may be in flight, because MSG_ZEROCOPY refers to them.
    headers: [OnOnePage<[u8; HEADER_BYTES]>; WINDOW + 1],
    messages: u64,
    /// Number of MSG_ZEROCOPY completions that were not read yet.
    pending_completions: usize,
}

impl<'a> Sender<'a> {
    /// Makes a sender of `bodies` by `side`'s way to the socket `fd`.
    pub fn new(fd: i32, side: Side, bodies: &'a Bodies) -> Self {
        let headers = [OnOnePage([b' '; HEADER_BYTES]); WINDOW + 1];
        Self { fd, side, bodies, headers, messages: 0, pending_completions: 0 }
    }

    /// Returns the socket's descriptor.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Returns the length of a message, bytes.
    pub fn len(&self) -> usize {
        HEADER_BYTES + self.bodies.len + TRAILER.0.len()
    }

    /// Sends the next message.
    pub fn send(&mut self) -> std::io::Result<()> {
        let message = self.messages;
        self.messages += 1;
        let OnOnePage(header) = &mut self.headers[(message % (WINDOW as u64 + 1)) as usize];
        header[..8].copy_from_slice(&message.to_le_bytes());
        let parts = [&header[..], self.bodies.body(message), &TRAILER.0];
        let sent = match self.side {
            SEND_FILE => {
                send_file(self.fd, parts, self.bodies.file.as_raw_fd(), self.bodies.offset(message))?
            }
            Side::Plain => send_message(self.fd, parts, 0)?,
            ZERO_COPY => send_message(self.fd, parts, libc::MSG_ZEROCOPY)?,
            SEND_ZC => send_by_ring(self.fd, parts)?,
            _ => send_parts(ProgramFd::new(self.fd), parts)?,
        };
        if self.side == ZERO_COPY {
            self.pending_completions += 1;
            if self.pending_completions >= BATCH {
                self.read_completions()?;
            }
        }
        if sent == self.len() { Ok(()) } else { Err(std::io::Error::other("a blocking send was partial")) }
    }

    /// Reads the completions in the socket's error queue.
    fn read_completions(&mut self) -> std::io::Result<()> {
        loop {
            match next_completed(ProgramFd::new(self.fd)) {
                Ok(_) => self.pending_completions = 0,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno(number)) => return Err(std::io::Error::from_raw_os_error(number)),
            }
        }
    }
}

/// Sends a message by the transmit engine, with the body lent.
fn send_parts(fd: ProgramFd, [header, body, trailer]: [&[u8]; 3]) -> std::io::Result<usize> {
    let parts = [
        Part::Copied { ptr: header.as_ptr(), len: header.len() },
        Part::Lent { ptr: body.as_ptr(), len: body.len() },
        Part::Copied { ptr: trailer.as_ptr(), len: trailer.len() },
    ];
    let envelope = Envelope::default();
    let total = header.len() + body.len() + trailer.len();
    let plan = uncopy_transmit::plan(fd, total, body.len(), 0, &envelope);
    uncopy_transmit::send(fd, &parts, 0, &envelope, plan)
        .map(|sent| sent.len_bytes)
        .map_err(|Errno(number)| std::io::Error::from_raw_os_error(number))
}

fn vectors(parts: [&[u8]; 3]) -> [libc::iovec; 3] {
    parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
}

fn message_header(vectors: &mut [libc::iovec; 3]) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid `msghdr`, with null pointers and zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    message
}

thread_local! {
    /// Ring for all messages of a thread, never closed: some time after a ring is closed, the kernel dismantles
    /// it and interrupts the call that the thread waits in.
    static RING: RefCell<Option<ZeroCopyRing>> = const { RefCell::new(None) };
}

/// Sends a message by one request to the ring; after every few messages, waits until all earlier pages are free.
fn send_by_ring(fd: i32, parts: [&[u8]; 3]) -> std::io::Result<usize> {
    RING.with_borrow_mut(|ring| {
        let ring = match ring {
            Some(ring) => ring,
            none => none.insert(ZeroCopyRing::new()?),
        };
        let mut vectors = vectors(parts);
        let message = message_header(&mut vectors);
        // SAFETY: the kernel copies the header and the vectors before the request's first completion, for which
        // `send` waits (io_uring_enter(2)); the parts outlive the connection, and a header is overwritten only
        // after its message was acknowledged.
        let sent = unsafe { ring.send(fd, &raw const message) }?;
        if ring.in_flight() >= BATCH {
            ring.wait_all()?;
        }
        Ok(sent)
    })
}

/// Sends a message by one `sendmsg`.
fn send_message(fd: i32, parts: [&[u8]; 3], flags: i32) -> std::io::Result<usize> {
    let mut vectors = vectors(parts);
    let message = message_header(&mut vectors);
    // SAFETY: sendmsg(2) reads the header, the vectors and the parts, which live through the call. With MSG_ZEROCOPY
    // the parts outlive the connection, and none is overwritten before its message was acknowledged.
    checked(unsafe { libc::sendmsg(fd, &raw const message, flags) })
}

/// Sends a message by `send` with MSG_MORE, `sendfile` and `send`.
fn send_file(
    fd: i32,
    [header, body, trailer]: [&[u8]; 3],
    file: i32,
    offset: usize,
) -> std::io::Result<usize> {
    let mut at = offset as libc::off_t;
    // SAFETY: send(2) reads header and trailer, borrowed during the calls; sendfile(2) writes only to the local
    // `at`.
    unsafe {
        let mut sent = checked(libc::send(fd, header.as_ptr().cast(), header.len(), libc::MSG_MORE))?;
        while (at as usize) < offset + body.len() {
            let left = offset + body.len() - at as usize;
            sent += checked(libc::sendfile(fd, file, &raw mut at, left))?;
        }
        Ok(sent + checked(libc::send(fd, trailer.as_ptr().cast(), trailer.len(), 0))?)
    }
}
