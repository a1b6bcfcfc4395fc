//! The way by reference without completions: all parts of a message go into a pipe of ours by one `vmsplice`, and
//! from there to the socket by one `splice`, which since Linux 6.5 is one `sendmsg` in the kernel for each 16 parts
//! of pages.
//!
//! What differs from the program's `sendmsg`, and what is done about it:
//! - `splice` waits or does not as the descriptor says, whatever MSG_DONTWAIT says. So nothing is spliced for which
//!   there is no room: then nothing ever waits, and what has no room goes the way that copies.
//! - Between two messages of the kernel's a reset may arrive, which the second would report and take away, while the
//!   program hears of the bytes of the first. So the socket is looked at in between; or, on TCP, before and after, and a
//!   reset in between is reported as if it had come before.
//! - A signal that is pending ends `splice` even where there is nothing to wait for: it is made again.
//! - It has no MSG_NOSIGNAL: SIGPIPE is held back and taken away again.
//! - What it cannot do at all (EINVAL and its like), the other way does.

use crate::bump::{AREA_BYTES, Refusal};
use crate::facts;
use crate::gather;
use crate::part::Part;
use crate::pool::{self, Taken};
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec;
use uncopy_sys::pipe::Pipe;
use uncopy_sys::signal::Quiet;
use uncopy_sys::socket::{self, Envelope, Readiness};

/// Parts of pages that the kernel hands on in one `sendmsg` (fs/splice.c, `splice_to_socket`).
pub const PAGES_AT_ONCE: usize = 16;
/// A lent part below this many bytes is copied as well: a reference to a page costs what copying some hundred bytes
/// does.
const MIN_LENT_BYTES: usize = 1024;
/// Ordinary parts up to here go along by way of the bump area; longer ones by a `sendmsg` of their own.
const MAX_BUMPED_BYTES: usize = 16 << 10;
/// Ordinary bytes that go along in one pass.
const BUMPED_AT_ONCE_BYTES: usize = AREA_BYTES / 4;
/// Parts in one pass.
const MAX_IOVECS: usize = 64;
/// Messages of the kernel's in one pass, at least as many as a pipe of 1 MiB takes.
const CHUNKS: usize = 64;
/// Signals that may come in the way of one message.
const MAX_INTERRUPTIONS: usize = 100;
/// Sent by copying where a blocking call waits for room.
const WAITING_BYTES: usize = 4096;

/// What the owner of a socket promises.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promises {
    /// See [`crate::Owner::ends_on_errors`].
    pub ends_on_errors: bool,
    /// See [`crate::Owner::sends_alone`].
    pub sends_alone: bool,
    /// See [`crate::trust_descriptors`].
    pub trusts_descriptors: bool,
}

/// What was sent, and whether any of it by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes.
    pub len_bytes: usize,
    /// Whether the kernel may hold pages.
    pub is_referred: bool,
}

/// Parts of pages that `len_bytes` bytes at `address` lie in.
const fn pages(address: usize, len_bytes: usize) -> usize {
    if len_bytes == 0 { 0 } else { (address + len_bytes - 1) / PAGE_BYTES - address / PAGE_BYTES + 1 }
}

/// How much of a send buffer's room may be filled: the kernel counts its own structures as well, about 1.3 KiB for each
/// 64 KiB and the last one whatever it is.
const fn usable(room_bytes: usize) -> usize {
    room_bytes.saturating_sub(8 << 10) / 16 * 15
}

/// Where in a message's parts the sending is.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    parts: &'a [Part],
    /// Bytes of the first part that are behind.
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn new(parts: &'a [Part]) -> Self {
        let mut cursor = Self { parts, offset: 0 };
        cursor.advance(0);
        cursor
    }

    /// What is left of the first part.
    fn first(&self) -> Option<Part> {
        self.parts.first().map(|part| part.from(self.offset))
    }

    fn advance(&mut self, mut len_bytes: usize) {
        while let Some(first) = self.first() {
            if len_bytes < first.len() {
                self.offset += len_bytes;
                return;
            }
            len_bytes -= first.len();
            self.parts = &self.parts[1..];
            self.offset = 0;
        }
    }

    fn is_at_end(&self) -> bool {
        self.parts.is_empty()
    }
}

/// One pass through the pipe.
struct Pass {
    iovecs: [iovec::Part; MAX_IOVECS],
    count: usize,
    len_bytes: usize,
    /// Bytes of each message of the kernel's.
    chunks: [usize; CHUNKS],
    chunk_count: usize,
    pages_in_chunk: usize,
    /// A page's bytes begin at an odd place in it.
    is_odd: bool,
    /// A part could not be copied: the kernel is to say so.
    is_refused: bool,
}

impl Pass {
    const fn new() -> Self {
        Self {
            iovecs: [iovec::Part::NONE; MAX_IOVECS],
            count: 0,
            len_bytes: 0,
            chunks: [0; CHUNKS],
            chunk_count: 0,
            pages_in_chunk: PAGES_AT_ONCE,
            is_odd: false,
            is_refused: false,
        }
    }

    /// Adds as many of `len_bytes` bytes as there is room for: `buffers` parts of pages in the pipe. Bytes.
    fn push(&mut self, address: usize, len_bytes: usize, buffers: &mut usize) -> usize {
        if self.count == MAX_IOVECS {
            return 0;
        }
        let mut at = address;
        let end = address + len_bytes;
        while at < end && *buffers > 0 {
            if self.pages_in_chunk == PAGES_AT_ONCE {
                if self.chunk_count == CHUNKS {
                    break;
                }
                self.chunk_count += 1;
                self.pages_in_chunk = 0;
            }
            let piece = (PAGE_BYTES - at % PAGE_BYTES).min(end - at);
            self.is_odd |= !(self.len_bytes + at - address).is_multiple_of(2);
            self.chunks[self.chunk_count - 1] += piece;
            self.pages_in_chunk += 1;
            *buffers -= 1;
            at += piece;
        }
        let added = at - address;
        if added > 0 {
            self.iovecs[self.count] = iovec::Part { address, len_bytes: added };
            self.count += 1;
            self.len_bytes += added;
        }
        added
    }

    /// Fills the pass from `cursor` with up to `max_bytes`.
    fn fill(&mut self, cursor: Cursor<'_>, mut max_bytes: usize, taken: &mut Taken, pipe: Pipe) {
        let mut buffers = pipe.buffers();
        let mut bumped = 0;
        let mut cursor = cursor;
        while let Some(part) = cursor.first() {
            let len = part.len().min(max_bytes);
            let by_reference = part.is_lent() && part.len() >= MIN_LENT_BYTES;
            let added = if by_reference {
                self.push(part.address(), len, &mut buffers)
            } else {
                // One page at most in the pipe for a short one, two where it crosses a border, and so on.
                if !part.is_lent() && part.len() > MAX_BUMPED_BYTES
                    || bumped + len > BUMPED_AT_ONCE_BYTES
                    || pages(PAGE_BYTES - 1, len) > buffers
                    || self.count == MAX_IOVECS
                {
                    return;
                }
                bumped += len;
                match taken.tools().bump.append(part.address(), len) {
                    Ok(address) => self.push(address, len, &mut buffers),
                    Err(Refusal::Unreadable | Refusal::NoMemory) => {
                        self.is_refused = true;
                        0
                    }
                }
            };
            cursor.advance(added);
            max_bytes -= added;
            if added < len || max_bytes == 0 || added == 0 {
                return;
            }
        }
    }
}

/// Whether an error says that a descriptor cannot be spliced to, that this process may not, or that there is no memory or
/// room for it now: the other way then. All else is the connection's own, and was taken from it: the program's to hear.
const fn is_refusal(error: Errno) -> bool {
    let may_not = matches!(
        error.0,
        libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM | libc::EBADF | libc::EACCES
    );
    let cannot_now = matches!(
        error.0,
        libc::ENOMEM | libc::ENOSPC | libc::EBUSY | libc::EEXIST | libc::EAGAIN | libc::EINTR
    );
    may_not || cannot_now
}

/// Makes the call again that a pending signal ended before it began.
fn pass_on(pipe: Pipe, fd: i32, len_bytes: usize, more: bool) -> Result<usize, Errno> {
    for _ in 0..MAX_INTERRUPTIONS {
        match pipe.pass(fd, len_bytes, more) {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
    Err(Errno::EINVAL)
}

/// One message under way on a socket.
struct Sending<'a> {
    fd: i32,
    cursor: Cursor<'a>,
    flags: i32,
    promises: Promises,
    is_tcp: bool,
    /// The descriptor was asked whether it is still the stream that it was.
    is_known: bool,
    sent: Outcome,
}

/// How a step ended.
enum Step {
    /// Go on.
    On,
    /// The message ends here, with what was sent.
    End,
    /// The rest goes by copying, if nothing was sent; else it ends here.
    Copy,
}

/// Sends a message on a stream.
pub fn stream(
    fd: i32,
    parts: &[Part],
    flags: i32,
    is_tcp: bool,
    promises: Promises,
) -> Result<Outcome, Errno> {
    let copied = || {
        let sent = gather::send(fd, parts, flags, &Envelope::default())?;
        Ok(Outcome { len_bytes: sent, is_referred: false })
    };
    let Some(mut taken) = pool::take() else { return copied() };
    let quiet = Quiet::new(flags & libc::MSG_NOSIGNAL != 0 && !promises.ends_on_errors);
    let sent = Outcome { len_bytes: 0, is_referred: false };
    let is_known = promises.ends_on_errors;
    let mut sending = Sending { fd, cursor: Cursor::new(parts), flags, promises, is_tcp, is_known, sent };
    let result = sending.run(&mut taken);
    drop(quiet);
    drop(taken);
    match result {
        Ok(Step::Copy) if sending.sent.len_bytes == 0 => copied(),
        Ok(_) => Ok(sending.sent),
        Err(_) if sending.sent.len_bytes > 0 => Ok(sending.sent),
        Err(error) => Err(error),
    }
}

impl Sending<'_> {
    fn run(&mut self, taken: &mut Taken) -> Result<Step, Errno> {
        let pipe = match taken.pipe(self.promises.trusts_descriptors) {
            Ok(pipe) => pipe,
            Err(_) => return Ok(Step::Copy),
        };
        while !self.cursor.is_at_end() {
            if self.sent.len_bytes > 0
                && !self.promises.ends_on_errors
                && socket::readiness(self.fd, 0) == Readiness::Ended
            {
                return Ok(Step::End);
            }
            let room_bytes = if self.promises.ends_on_errors {
                usize::MAX
            } else {
                let Ok(room) = socket::room(self.fd) else { return Ok(Step::Copy) };
                if self.sent.len_bytes == 0 && usable(room.limit_bytes) < self.min_room() {
                    // A send buffer that is always too small.
                    return Ok(Step::Copy);
                }
                usable(room.free_bytes)
            };
            let refers = room_bytes >= self.min_room()
                && !matches!(self.cursor.first(), Some(Part::Copied { len, .. }) if len > MAX_BUMPED_BYTES);
            if !refers && !self.is_stream() {
                return Ok(Step::Copy);
            }
            let step = match self.cursor.first() {
                Some(Part::Copied { len, .. }) if len > MAX_BUMPED_BYTES => self.copy(len, room_bytes)?,
                _ if room_bytes >= self.min_room() => self.refer(room_bytes, taken, pipe)?,
                _ => self.wait_for_room()?,
            };
            if !matches!(step, Step::On) {
                return Ok(step);
            }
        }
        Ok(Step::End)
    }

    /// Whether it is a stream, whose messages may be sent in pieces.
    fn is_stream(&mut self) -> bool {
        self.is_known = self.is_known || facts::is_same(self.fd);
        self.is_known
    }

    /// Room below which nothing is spliced.
    fn min_room(&self) -> usize {
        let left: usize = self.cursor.parts.iter().map(|part| part.len()).sum::<usize>() - self.cursor.offset;
        left.min(PAGES_AT_ONCE * PAGE_BYTES)
    }

    /// Whether a call that finds no room returns at once.
    fn is_non_blocking(&self) -> bool {
        self.flags & libc::MSG_DONTWAIT != 0 || socket::is_non_blocking(self.fd)
    }

    /// Sends the first part by itself, by copying.
    fn copy(&mut self, len: usize, room_bytes: usize) -> Result<Step, Errno> {
        let Some(part) = self.cursor.first() else { return Ok(Step::End) };
        // A wait with bytes sent already must not take an error away: no more than there is room for then.
        let most = if self.sent.len_bytes > 0 && room_bytes < len {
            if room_bytes == 0 {
                return self.wait_for_room();
            }
            room_bytes
        } else {
            len
        };
        let is_last = self.cursor.parts.len() == 1 && most == len;
        let more = if is_last { self.flags } else { self.flags | libc::MSG_MORE };
        self.send_copied(part.cut(most), more)
    }

    fn send_copied(&mut self, part: Part, flags: i32) -> Result<Step, Errno> {
        let sent = gather::send(self.fd, &[part], flags, &Envelope::default())?;
        self.sent.len_bytes += sent;
        self.cursor.advance(sent);
        Ok(if sent < part.len() { Step::End } else { Step::On })
    }

    /// There is too little room for references.
    fn wait_for_room(&mut self) -> Result<Step, Errno> {
        if self.is_non_blocking() {
            return Ok(Step::Copy);
        }
        if self.sent.len_bytes == 0 {
            // The kernel waits, and says what ends the wait: with a signal it may even go on by itself.
            let Some(part) = self.cursor.first() else { return Ok(Step::End) };
            let all = self.min_room() <= WAITING_BYTES;
            let most = part.len().min(WAITING_BYTES);
            let more =
                if all && self.cursor.parts.len() == 1 { self.flags } else { self.flags | libc::MSG_MORE };
            return self.send_copied(part.cut(most), more);
        }
        let timeout_ms = socket::send_timeout_ms(self.fd).unwrap_or(-1);
        if socket::readiness(self.fd, timeout_ms) != Readiness::Room {
            return Ok(Step::End);
        }
        // Writable, and yet less room than a few pages: a send buffer that small gets copies, a piece at a time.
        match socket::room(self.fd) {
            Ok(room) if usable(room.free_bytes) >= self.min_room() => Ok(Step::On),
            Ok(_) => {
                let Some(part) = self.cursor.first() else { return Ok(Step::End) };
                let flags = self.flags | libc::MSG_DONTWAIT | libc::MSG_MORE;
                let cut = part.cut(part.len().min(PAGE_BYTES));
                match self.send_copied(cut, flags) {
                    Err(Errno::EAGAIN) => {
                        uncopy_sys::thread::pause();
                        Ok(Step::On)
                    }
                    // Fewer bytes than asked for: no room again, and no end.
                    Ok(_) => Ok(Step::On),
                    other => other,
                }
            }
            Err(_) => Ok(Step::End),
        }
    }

    /// One pass through the pipe.
    fn refer(&mut self, room_bytes: usize, taken: &mut Taken, pipe: Pipe) -> Result<Step, Errno> {
        let mut pass = Pass::new();
        if taken.tools().bump.make_room(BUMPED_AT_ONCE_BYTES).is_err() {
            return Ok(Step::Copy);
        }
        pass.fill(self.cursor, room_bytes, taken, pipe);
        if pass.len_bytes == 0 || pass.is_refused && self.sent.len_bytes == 0 {
            return Ok(Step::Copy);
        }
        let is_one_call = pass.chunk_count == 1 && !pass.is_odd && self.ends_after(pass.len_bytes);
        if !is_one_call && !self.is_stream() {
            return Ok(Step::Copy);
        }
        let put = pipe.put(&pass.iovecs[..pass.count]);
        if put != Ok(pass.len_bytes) {
            taken.tools().empty(put.unwrap_or(0));
            return Ok(Step::Copy);
        }
        // What a message in the kernel would report after another one took bytes is lost, and with it the error that
        // the program would have got. From TCP it can only be a reset, unless the peer has ended its side.
        let is_one = self.promises.ends_on_errors
            || pass.chunk_count > 1 && self.is_tcp && !socket::has_peer_ended(self.fd);
        let whole = [pass.len_bytes];
        let chunks = if is_one { &whole[..] } else { &pass.chunks[..pass.chunk_count] };
        let before_bytes = self.sent.len_bytes;
        let mut left = pass.len_bytes;
        for (index, chunk) in chunks.iter().enumerate() {
            if index > 0 && socket::readiness(self.fd, 0) == Readiness::Ended {
                taken.tools().empty(left);
                return Ok(Step::End);
            }
            let ends_here = left == *chunk && self.ends_after(*chunk);
            let more = !ends_here || self.flags & libc::MSG_MORE != 0;
            let passed = pass_on(pipe, self.fd, *chunk, more);
            if let Ok(bytes) = passed {
                left -= bytes;
                self.sent.len_bytes += bytes;
                self.sent.is_referred |= bytes > 0;
                self.cursor.advance(bytes);
            }
            if passed == Ok(*chunk) {
                continue;
            }
            taken.tools().empty(left);
            return match passed {
                // Reset while it was sent: the same as if it had been before, and nobody reads these bytes.
                Ok(_)
                    if is_one
                        && before_bytes == 0
                        && !self.promises.ends_on_errors
                        && socket::readiness(self.fd, 0) == Readiness::Ended =>
                {
                    self.sent.len_bytes = 0;
                    Err(Errno(libc::ECONNRESET))
                }
                Ok(_) => Ok(Step::End),
                Err(error) if is_refusal(error) => Ok(Step::Copy),
                Err(error) => Err(error),
            };
        }
        Ok(Step::On)
    }

    /// Whether so many bytes are all that is left.
    fn ends_after(&self, len_bytes: usize) -> bool {
        let mut cursor = self.cursor;
        cursor.advance(len_bytes);
        cursor.is_at_end()
    }
}

/// Sends one datagram.
pub fn datagram(
    fd: i32,
    parts: &[Part],
    flags: i32,
    envelope: &Envelope,
    promises: Promises,
) -> Result<Outcome, Errno> {
    let copied = || {
        let sent = gather::send(fd, parts, flags, envelope)?;
        Ok(Outcome { len_bytes: sent, is_referred: false })
    };
    let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let is_corked = !envelope.is_blank();
    if is_corked && !promises.sends_alone {
        return copied();
    }
    // Nothing of it may wait with a datagram half put together, and whether it may at all is the descriptor's to say.
    if !promises.ends_on_errors && socket::room(fd).map_or(0, |room| usable(room.free_bytes)) < len_bytes {
        return copied();
    }
    let Some(mut taken) = pool::take() else { return copied() };
    let Ok(pipe) = taken.pipe(promises.trusts_descriptors) else { return copied() };
    if taken.tools().bump.make_room(BUMPED_AT_ONCE_BYTES).is_err() {
        return copied();
    }
    // With an address, the first part goes ahead by a call that can say it.
    let (first, rest) = match parts.split_first() {
        Some((first, rest)) if is_corked && !first.is_lent() && !first.is_empty() => (Some(*first), rest),
        _ if is_corked => return copied(),
        _ => (None, parts),
    };
    let mut pass = Pass::new();
    pass.fill(Cursor::new(rest), usize::MAX, &mut taken, pipe);
    let first_bytes = first.map_or(0, Part::len);
    // Where the kernel makes the checksum itself (a device that does not; a corked socket), it takes every page of a
    // splice to begin where the first did, up to a multiple of two (`skb_splice_from_iter`, Linux 6.5 to 6.18): with one
    // that does not, the checksum is wrong and the peer drops the datagram.
    if pass.is_odd || pass.chunk_count != 1 || pass.len_bytes + first_bytes != len_bytes {
        // Or it is a stream by now.
        facts::doubt(fd);
        return copied();
    }
    let put = pipe.put(&pass.iovecs[..pass.count]);
    if put != Ok(pass.len_bytes) {
        taken.tools().empty(put.unwrap_or(0));
        return copied();
    }
    if let Some(first) = first
        && let Err(error) = gather::send(fd, &[first], flags | libc::MSG_MORE, envelope)
    {
        taken.tools().empty(pass.len_bytes);
        return Err(error);
    }
    // The number may stand for a stream by now.
    let quiet = Quiet::new(flags & libc::MSG_NOSIGNAL != 0 && !promises.ends_on_errors);
    let passed = pass_on(pipe, fd, pass.len_bytes, flags & libc::MSG_MORE != 0);
    drop(quiet);
    match passed {
        Ok(bytes) if bytes == pass.len_bytes => Ok(Outcome { len_bytes, is_referred: true }),
        Ok(bytes) => {
            taken.tools().empty(pass.len_bytes - bytes);
            Ok(Outcome { len_bytes: first_bytes + bytes, is_referred: true })
        }
        Err(error) => {
            taken.tools().empty(pass.len_bytes);
            if is_refusal(error) && first.is_none() { copied() } else { Err(error) }
        }
    }
}
