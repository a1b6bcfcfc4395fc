//! A program's end of a connection: a UNIX stream socket on which large parts pass by reference.

use crate::payload::Bytes;
use crate::receive_buffers::{Buffer, COPY_BELOW_BYTES};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use uncopy_lanes::ends::End;
use uncopy_lanes::message::{MIN_REFERENCE_BYTES, SendPart, SharedBuf};
use uncopy_lanes::process::{Destination, Process, Received, closed};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::socket::{self, Envelope};
use uncopy_sys::unix::FILLING_BYTES;
use uncopy_tcp::payload::Payload as _;

/// Length of the buffer for bytes from a program; the space after plain bytes is freed.
pub const READ_BYTES: usize = 1 << 20;
const MAX_PARTS: usize = 64;
/// Retries of a receive while the stream changes to a lane and back.
const MAX_TURNS: u32 = 1000;

/// Outcome of one [`Stream::pull`].
#[derive(Debug, PartialEq, Eq)]
pub enum PullResult {
    /// Some bytes were received.
    Bytes,
    /// No bytes now; an event reports the next ones.
    Nothing,
    /// No memory for a buffer now.
    NoRoom,
    /// The program's stream has ended.
    End,
    /// The program closed the stream with unread bytes, or the socket failed.
    Broken,
}

/// A program's end of a connection.
pub struct Stream {
    fd: OwnedFd,
    process: &'static Process,
    /// Bytes not yet sent to the program.
    pub to_program: VecDeque<Bytes>,
    to_program_bytes: usize,
    /// Bytes not yet accepted by TCP.
    pub from_program: VecDeque<Bytes>,
    /// Whether there may be bytes to read, according to events.
    pub is_readable: bool,
    /// Whether there may be room to write, according to events.
    pub is_writable: bool,
    /// Whether the program has closed its end.
    pub has_hung_up: bool,
    /// Whether everything that the program sent has been read.
    pub has_ended: bool,
}

impl Stream {
    /// Wraps a connected, nonblocking socket.
    #[must_use]
    pub fn new(fd: OwnedFd, process: &'static Process) -> Self {
        Self {
            fd,
            process,
            to_program: VecDeque::new(),
            to_program_bytes: 0,
            from_program: VecDeque::new(),
            is_readable: true,
            is_writable: true,
            has_hung_up: false,
            has_ended: false,
        }
    }

    fn number(&self) -> ProgramFd {
        ProgramFd::of(&self.fd)
    }

    /// Returns the number of bytes not yet sent to the program.
    #[must_use]
    pub const fn waiting_bytes(&self) -> usize {
        self.to_program_bytes
    }

    /// Queues bytes for the program.
    pub fn put(&mut self, bytes: Bytes) {
        self.to_program_bytes += bytes.len_bytes();
        if !self.to_program.back_mut().is_some_and(|last| last.try_append(&bytes)) {
            self.to_program.push_back(bytes);
        }
    }

    /// Sends queued bytes to the program, as far as there is room.
    ///
    /// # Errors
    /// The program has closed its end.
    pub fn flush(&mut self) -> Result<(), Errno> {
        while self.is_writable && !self.to_program.is_empty() {
            match self.send_front() {
                Ok(sent) => self.drop_front(sent),
                Err(Errno(libc::EAGAIN)) => self.is_writable = false,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn send_front(&self) -> Result<usize, Errno> {
        let pieces: SmallVec<[&Bytes; 16]> = self.to_program.iter().take(MAX_PARTS).collect();
        let longest = pieces.iter().map(|piece| piece.len_bytes()).max().unwrap_or(0);
        let end = self.process.find_end(self.number());
        let sent_references = end.as_ref().and_then(|end| self.send_references(end, &pieces, longest));
        sent_references.unwrap_or_else(|| self.send_bytes(end, &pieces, longest))
    }

    fn send_references(
        &self,
        end: &Arc<End>,
        pieces: &[&Bytes],
        longest: usize,
    ) -> Option<Result<usize, Errno>> {
        if longest < MIN_REFERENCE_BYTES {
            return None;
        }
        let send_target = self.process.send_target(self.number(), end, longest)?;
        let given: SmallVec<[SendPart<'_>; 16]> = pieces.iter().map(|piece| piece.send_part()).collect();
        // MSG_DONTWAIT, because O_NONBLOCK can be cleared by others that share the open file.
        self.process.send(self.number(), &send_target, &given, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    }

    fn send_bytes(&self, end: Option<Arc<End>>, pieces: &[&Bytes], longest: usize) -> Result<usize, Errno> {
        let parts: SmallVec<[Part; 16]> = pieces.iter().map(|piece| piece.part()).collect();
        let literal = self.process.begin_literal(self.number(), end);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let sent = socket::send(self.number(), &parts, flags, &Envelope::default());
        match (literal, &sent) {
            (Some(literal), sent) => literal.finish(sent.as_ref().copied().unwrap_or(0)),
            // Large parts may go by reference from the next send on.
            (None, Ok(_)) if longest >= MIN_REFERENCE_BYTES => self.process.note_large_send(self.number()),
            (None, _) => {}
        }
        sent
    }

    /// Removes `sent_bytes` from the front of the queue.
    pub fn drop_front(&mut self, mut sent_bytes: usize) {
        self.to_program_bytes -= sent_bytes;
        while sent_bytes > 0 {
            let Some(front) = self.to_program.front_mut() else { return };
            let len_bytes = front.len_bytes();
            if len_bytes > sent_bytes {
                *front = front.slice(sent_bytes..len_bytes);
                return;
            }
            sent_bytes -= len_bytes;
            self.to_program.pop_front();
        }
        if self.to_program.is_empty() {
            // Idle connections hold no memory.
            self.to_program.shrink_to_fit();
        }
    }

    /// Ends the stream to the program.
    pub fn shutdown_write(&self) {
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// Receives bytes from the program. Reuses the buffer of [`READ_BYTES`] in `buffer`, if there is one.
    pub fn pull(&mut self, buffer: &mut Option<Buffer>) -> PullResult {
        let Some(mut taken) = buffer.take().or_else(|| Buffer::allocate(self.process, READ_BYTES)) else {
            return PullResult::NoRoom;
        };
        let part = taken.part();
        let mut references = Vec::new();
        match self.receive(part, &mut references) {
            Ok(0) => {
                *buffer = Some(taken);
                self.has_ended = true;
                PullResult::End
            }
            Ok(len_bytes) => {
                *buffer = self.queue_received(taken, &references, len_bytes);
                PullResult::Bytes
            }
            Err(errno) => {
                *buffer = Some(taken);
                match errno {
                    Errno::EAGAIN => {
                        self.is_readable = false;
                        PullResult::Nothing
                    }
                    // Tried again: nothing else would report the bytes, since events are edges.
                    Errno::EINTR => PullResult::Bytes,
                    _ => {
                        self.has_ended = true;
                        PullResult::Broken
                    }
                }
            }
        }
    }

    /// Receives into a buffer; bytes by reference are not copied but listed in `references`.
    fn receive(&self, buffer: Part, references: &mut Vec<Reference>) -> Result<usize, Errno> {
        // SAFETY: callers pass parts of `buffer`, an unfilled buffer that nobody else references.
        let receive_bytes =
            |parts: &[Part], flags: i32| unsafe { socket::receive(self.number(), parts, flags) };
        for _ in 0..MAX_TURNS {
            if let Some(plain) = self.process.begin_plain_receive(self.number()) {
                let got = receive_bytes(&[buffer], libc::MSG_DONTWAIT);
                drop(plain);
                if let Ok(got) = got {
                    self.process.received(self.number(), got);
                }
                return got;
            }
            let place = |part: Part, address: usize, keep: &dyn Fn() -> SharedBuf| {
                let bytes = Part { address, len_bytes: part.len_bytes };
                references.push(Reference {
                    at: part.address - buffer.address,
                    bytes,
                    kept: Arc::new(keep()),
                });
                true
            };
            let all = |parts: &[Part]| parts.iter().map(|part| part.len_bytes).sum();
            // SAFETY: `buffer` is an unfilled buffer, writable in full and referenced by nobody else.
            let received = unsafe {
                let to =
                    Destination { parts: &[buffer], place, read_literal: receive_bytes, writable_bytes: all };
                self.process.receive(self.number(), libc::MSG_DONTWAIT, false, to)
            };
            match received {
                Received::Passthrough => {}
                Received::Done(got) => return got,
                Received::Part(got) => return Ok(got),
                Received::Nothing => {
                    if self.peek()? == 0 {
                        return Ok(0);
                    }
                }
            }
        }
        Err(Errno(libc::ECONNRESET))
    }

    /// Returns the number of bytes available, at most one.
    fn peek(&self) -> Result<usize, Errno> {
        let mut byte = 0u8;
        let part = Part { address: (&raw mut byte) as usize, len_bytes: 1 };
        // SAFETY: `part` is one byte of this stack frame.
        unsafe { socket::receive(self.number(), &[part], libc::MSG_PEEK | libc::MSG_DONTWAIT) }
    }

    /// Queues the received bytes. Returns the buffer if nothing of it is needed.
    fn queue_received(
        &mut self,
        mut buffer: Buffer,
        references: &[Reference],
        len_bytes: usize,
    ) -> Option<Buffer> {
        let mut literal: SmallVec<[std::ops::Range<usize>; 4]> = SmallVec::new();
        let mut at = 0;
        for range in
            references.iter().map(|references| references.at..references.at + references.bytes.len_bytes)
        {
            literal.push(at..range.start);
            at = range.end;
        }
        literal.push(at..len_bytes);
        let are_small = literal.iter().all(|range| range.len() < COPY_BELOW_BYTES);
        let mut pieces: SmallVec<[Bytes; 4]> = SmallVec::new();
        let left = if are_small {
            pieces.extend(literal.into_iter().map(|range| Bytes::copy_of(&buffer.bytes()[range])));
            Some(buffer)
        } else {
            let filled = buffer.freeze(len_bytes);
            pieces.extend(literal.into_iter().map(|range| filled.slice(range)));
            None
        };
        let mut references =
            references.iter().map(|references| Bytes::shared(Arc::clone(&references.kept), references.bytes));
        for piece in pieces {
            let next = references.next();
            self.from_program
                .extend([Some(piece), next].into_iter().flatten().filter(|piece| piece.len_bytes() > 0));
        }
        left
    }

    /// True if the program has filled the socket's buffer, so that it cannot write until that is read.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        uncopy_sys::stream::unread(self.number()).is_ok_and(|unread| unread >= FILLING_BYTES)
    }

    /// Reads the filling.
    ///
    /// # Errors
    /// The error of recvmsg(2), or ECONNRESET if the program closed its end.
    pub fn drain_filling(&mut self) -> Result<(), Errno> {
        let mut zeroes = [0u8; FILLING_BYTES / 4];
        let mut left = FILLING_BYTES;
        while left > 0 {
            let part = Part { address: zeroes.as_mut_ptr() as usize, len_bytes: zeroes.len().min(left) };
            // SAFETY: `zeroes` is a local array of at least `len_bytes` bytes.
            match unsafe { socket::receive(self.number(), &[part], libc::MSG_DONTWAIT) } {
                Ok(0) => return Err(Errno(libc::ECONNRESET)),
                Ok(got) => left -= got,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Bytes received by reference.
struct Reference {
    /// Offset in the buffer at which the bytes belong.
    at: usize,
    bytes: Part,
    kept: Arc<SharedBuf>,
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        closed(self.number());
    }
}
