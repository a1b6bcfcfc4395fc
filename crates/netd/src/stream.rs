//! A program's end of a connection: a UNIX stream socket, large parts of which pass by reference.

use crate::payload::Bytes;
use crate::rooms::{MAX_FEW_BYTES, Room};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use uncopy_lanes::message::{Given, Kept, MIN_REFERENCE_BYTES};
use uncopy_lanes::process::{Process, Received, closed};
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::socket::{self, Envelope};
use uncopy_sys::unix::FILLING_BYTES;
use uncopy_tcp::payload::Payload as _;

/// Room for what a program sends, bytes: what is behind literal bytes is given back.
pub const READ_BYTES: usize = 1 << 20;
/// Parts of one send, at most.
const MAX_PARTS: usize = 64;
/// How often a stream may become a lane, and none again, while a receive begins.
const MAX_TURNS: u32 = 1000;

/// What a look for bytes of the program has found.
#[derive(Debug, PartialEq, Eq)]
pub enum Pulled {
    /// Some bytes.
    Bytes,
    /// None now: an event tells when there are.
    Nothing,
    /// There is no room for them now.
    NoRoom,
    /// The program sends no more.
    End,
    /// The program has closed it without having received everything, or the socket is of no use any more.
    Broken,
}

/// A program's end of a connection.
pub struct Stream {
    fd: OwnedFd,
    process: &'static Process,
    /// What the program has not been given yet.
    pub to_program: VecDeque<Bytes>,
    to_program_bytes: usize,
    /// What TCP has not taken yet.
    pub from_program: VecDeque<Bytes>,
    /// There may be something to read, as far as events have told.
    pub is_readable: bool,
    /// There may be room.
    pub is_writable: bool,
    /// The program has closed its end.
    pub has_hung_up: bool,
    /// Everything that the program has sent was read.
    pub has_ended: bool,
}

impl Stream {
    /// A stream that is connected and whose calls do not wait.
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

    fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Bytes that the program has not been given yet.
    #[must_use]
    pub const fn waiting_bytes(&self) -> usize {
        self.to_program_bytes
    }

    /// The program is to be given these.
    pub fn put(&mut self, bytes: Bytes) {
        self.to_program_bytes += bytes.len_bytes();
        if !self.to_program.back_mut().is_some_and(|last| last.join(&bytes)) {
            self.to_program.push_back(bytes);
        }
    }

    /// Gives the program what waits, as far as there is room.
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
        self.refer(&pieces, longest).unwrap_or_else(|| self.send_literally(&pieces, longest))
    }

    fn refer(&self, pieces: &[&Bytes], longest: usize) -> Option<Result<usize, Errno>> {
        if longest < MIN_REFERENCE_BYTES {
            return None;
        }
        let outlet = self.process.outlet(self.number(), longest)?;
        let given: SmallVec<[Given<'_>; 16]> = pieces.iter().map(|piece| piece.given()).collect();
        // Whoever shares the open file may have it wait.
        self.process.send(self.number(), &outlet, &given, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    }

    fn send_literally(&self, pieces: &[&Bytes], longest: usize) -> Result<usize, Errno> {
        let parts: SmallVec<[Part; 16]> = pieces.iter().map(|piece| piece.part()).collect();
        let literal = self.process.begin_literal(self.number());
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let sent = socket::send(self.number(), &parts, flags, &Envelope::default());
        match (literal, &sent) {
            (Some(literal), sent) => literal.sent(sent.as_ref().copied().unwrap_or(0)),
            // Large parts may go by reference from the next one on.
            (None, Ok(_)) if longest >= MIN_REFERENCE_BYTES => self.process.sent(self.number()),
            (None, _) => {}
        }
        sent
    }

    /// Forgets the first bytes that wait: the program has been given them.
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
            // An idle connection keeps no room.
            self.to_program.shrink_to_fit();
        }
    }

    /// The program gets no more.
    pub fn end(&self) {
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// Looks for bytes of the program. `room`, one of [`READ_BYTES`], is used if it is there, and left there if it was not needed.
    pub fn pull(&mut self, room: &mut Option<Room>) -> Pulled {
        let Some(mut taken) = room.take().or_else(|| Room::take(self.process, READ_BYTES)) else {
            return Pulled::NoRoom;
        };
        let part = taken.part();
        let mut placed = Vec::new();
        match self.receive(part, &mut placed) {
            Ok(0) => {
                *room = Some(taken);
                self.has_ended = true;
                Pulled::End
            }
            Ok(len_bytes) => {
                *room = self.keep(taken, &placed, len_bytes);
                Pulled::Bytes
            }
            Err(errno) => {
                *room = Some(taken);
                match errno {
                    Errno::EAGAIN => {
                        self.is_readable = false;
                        Pulled::Nothing
                    }
                    Errno::EINTR => Pulled::Nothing,
                    _ => {
                        self.has_ended = true;
                        Pulled::Broken
                    }
                }
            }
        }
    }

    /// Receives into a room: literal bytes there, of references only where they belong, and who keeps them.
    fn receive(&self, room: Part, placed: &mut Vec<Placed>) -> Result<usize, Errno> {
        // SAFETY: memory of ours that nobody else knows.
        let plainly = |parts: &[Part], flags: i32| unsafe { socket::receive(self.number(), parts, flags) };
        for _ in 0..MAX_TURNS {
            if let Some(plain) = self.process.begin_plain(self.number()) {
                let got = plainly(&[room], libc::MSG_DONTWAIT);
                drop(plain);
                if let Ok(got) = got {
                    self.process.received(self.number(), got);
                }
                return got;
            }
            let place = |part: Part, address: usize, keep: &dyn Fn() -> Kept| {
                let bytes = Part { address, len_bytes: part.len_bytes };
                placed.push(Placed { at: part.address - room.address, bytes, kept: Arc::new(keep()) });
                true
            };
            let all = |parts: &[Part]| parts.iter().map(|part| part.len_bytes).sum();
            // SAFETY: memory of ours that nobody else knows.
            let received = unsafe {
                let flags = libc::MSG_DONTWAIT;
                self.process.receive(self.number(), &[room], flags, false, place, plainly, all)
            };
            match received {
                Received::Plainly => {}
                Received::Done(got) => return got,
                Received::Part(got) => return Ok(got),
                Received::Nothing => {
                    if self.look()? == 0 {
                        return Ok(0);
                    }
                }
            }
        }
        Err(Errno(libc::ECONNRESET))
    }

    /// How many of one byte could be received now.
    fn look(&self) -> Result<usize, Errno> {
        let mut byte = 0u8;
        let look = Part { address: (&raw mut byte) as usize, len_bytes: 1 };
        // SAFETY: a byte of ours.
        unsafe { socket::receive(self.number(), &[look], libc::MSG_PEEK | libc::MSG_DONTWAIT) }
    }

    /// Queues what has come into a room. The room, if nothing of it is needed.
    fn keep(&mut self, mut room: Room, placed: &[Placed], len_bytes: usize) -> Option<Room> {
        let mut literal: SmallVec<[std::ops::Range<usize>; 4]> = SmallVec::new();
        let mut at = 0;
        for range in placed.iter().map(|placed| placed.at..placed.at + placed.bytes.len_bytes) {
            literal.push(at..range.start);
            at = range.end;
        }
        literal.push(at..len_bytes);
        let are_few = literal.iter().all(|range| range.len() < MAX_FEW_BYTES);
        let mut pieces: SmallVec<[Bytes; 4]> = SmallVec::new();
        let left = if are_few {
            pieces.extend(literal.into_iter().map(|range| Bytes::copy_of(&room.bytes()[range])));
            Some(room)
        } else {
            let filled = room.filled(len_bytes);
            pieces.extend(literal.into_iter().map(|range| filled.part(range)));
            None
        };
        let mut placed = placed.iter().map(|placed| Bytes::shared(Arc::clone(&placed.kept), placed.bytes));
        for piece in pieces {
            let next = placed.next();
            self.from_program
                .extend([Some(piece), next].into_iter().flatten().filter(|piece| piece.len_bytes() > 0));
        }
        left
    }

    /// Whether the program has filled it: until that is read, the program cannot write, and closing it means a reset to the program.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        uncopy_sys::stream::unread(self.number()).is_ok_and(|unread| unread >= FILLING_BYTES)
    }

    /// Reads what it was filled with.
    ///
    /// # Errors
    /// What receiving says; the program has closed it: ECONNRESET.
    pub fn empty(&mut self) -> Result<(), Errno> {
        let mut zeroes = [0u8; FILLING_BYTES / 4];
        let mut left = FILLING_BYTES;
        while left > 0 {
            let part = Part { address: zeroes.as_mut_ptr() as usize, len_bytes: zeroes.len().min(left) };
            // SAFETY: memory of ours.
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

/// Bytes that came by reference.
struct Placed {
    /// Where they belong.
    at: usize,
    bytes: Part,
    kept: Arc<Kept>,
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
