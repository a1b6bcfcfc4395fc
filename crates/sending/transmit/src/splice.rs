//! Sends by reference without completions: one `vmsplice` moves all parts of a message into a pipe, and one
//! `splice` to the socket. Since Linux 6.5, the kernel makes one `sendmsg` per 16 page fragments.
//!
//! Differences from the program's `sendmsg`, and how they are handled:
//! - `splice` blocks according to the descriptor's flags, whatever MSG_DONTWAIT says. So at most the free
//!   space of the send buffer is spliced, which never blocks; the rest is copied.
//! - Between two of the kernel's messages a reset may arrive, which the second message would report and
//!   clear, although the program is told of the bytes of the first. So the socket is polled between messages.
//!   On TCP it is polled before and after instead, and a reset in between is reported as if it had arrived
//!   before.
//! - A pending signal ends `splice` even if it need not block, so the call is retried.
//! - `splice` has no MSG_NOSIGNAL, so SIGPIPE is blocked and then discarded.
//! - If `splice` does not work at all (EINVAL and the like), the message is copied.

use crate::bump::{AREA_BYTES, AppendError};
use crate::gather;
use crate::part::Part;
use crate::pool::{self, SlotGuard};
use crate::socket_cache;
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec;
use uncopy_sys::pipe::Pipe;
use uncopy_sys::sigpipe::SigpipeGuard;
use uncopy_sys::socket::{self, Envelope, Readiness};

/// Page fragments that the kernel passes on in one `sendmsg` (fs/splice.c, `splice_to_socket`).
pub const MAX_FRAGMENTS: usize = 16;
/// Lent parts shorter than this are copied: a page reference costs as much as copying some hundred bytes.
const MIN_LENT_BYTES: usize = 1024;
/// Copied parts up to this length go through the pipe; longer ones get a `sendmsg` of their own.
const MAX_BUMP_PART_BYTES: usize = 16 << 10;
/// Maximum bytes copied to the bump area per pass.
const MAX_COPIED_PER_PASS_BYTES: usize = AREA_BYTES / 4;
const MAX_IOVECS: usize = 64;
/// Maximum kernel messages per pass. A pipe of 256 KiB holds 64 page fragments, which are 4 messages.
const MAX_CHUNKS: usize = 64;
/// Maximum retries after signals per message.
const MAX_INTERRUPTIONS: usize = 100;
/// Bytes sent by copying when a blocking call must wait for space.
const BLOCKING_COPY_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug, Default)]
pub struct Promises {
    pub ends_on_errors: bool,
    pub sends_alone: bool,
    pub trusts_descriptors: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceResult {
    pub len_bytes: usize,
    /// True if the kernel may hold references to pages.
    pub holds_pages: bool,
}

/// Number of pages that `len_bytes` bytes at `address` overlap.
const fn pages(address: usize, len_bytes: usize) -> usize {
    if len_bytes == 0 { 0 } else { (address + len_bytes - 1) / PAGE_BYTES - address / PAGE_BYTES + 1 }
}

/// Returns how many of a send buffer's free bytes may be filled. The kernel also charges its own structures:
/// 1.3 KiB per 64 KiB, and the last one is accepted whatever its size.
const fn usable_bytes(room_bytes: usize) -> usize {
    room_bytes.saturating_sub(8 << 10) / 16 * 15
}

/// Position in a message's parts.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    parts: &'a [Part],
    /// Bytes already sent of the first part.
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn new(parts: &'a [Part]) -> Self {
        let mut cursor = Self { parts, offset: 0 };
        cursor.advance(0);
        cursor
    }

    /// Returns the unsent rest of the first part.
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

struct Pass {
    iovecs: [iovec::Part; MAX_IOVECS],
    count: usize,
    len_bytes: usize,
    /// Length of each kernel message in bytes.
    chunks: [usize; MAX_CHUNKS],
    chunk_count: usize,
    fragments_in_chunk: usize,
    /// True if some fragment starts at an odd offset within the pass.
    has_odd_offset: bool,
    /// True if a part was unreadable or memory ran out; the kernel then copies and reports the error.
    has_failed_copy: bool,
}

impl Pass {
    const fn new() -> Self {
        Self {
            iovecs: [iovec::Part::NONE; MAX_IOVECS],
            count: 0,
            len_bytes: 0,
            chunks: [0; MAX_CHUNKS],
            chunk_count: 0,
            fragments_in_chunk: MAX_FRAGMENTS,
            has_odd_offset: false,
            has_failed_copy: false,
        }
    }

    /// Adds up to `len_bytes` bytes, as far as iovecs, chunks and pipe `buffers` (one per page fragment)
    /// allow. Returns the number of bytes added.
    fn push(&mut self, address: usize, len_bytes: usize, buffers: &mut usize) -> usize {
        if self.count == MAX_IOVECS {
            return 0;
        }
        let mut at = address;
        let end = address + len_bytes;
        while at < end && *buffers > 0 {
            if self.fragments_in_chunk == MAX_FRAGMENTS {
                if self.chunk_count == MAX_CHUNKS {
                    break;
                }
                self.chunk_count += 1;
                self.fragments_in_chunk = 0;
            }
            let piece = (PAGE_BYTES - at % PAGE_BYTES).min(end - at);
            self.has_odd_offset |= !(self.len_bytes + at - address).is_multiple_of(2);
            self.chunks[self.chunk_count - 1] += piece;
            self.fragments_in_chunk += 1;
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

    /// Fills the pass from `cursor` with up to `max_bytes` bytes.
    fn fill(&mut self, cursor: Cursor<'_>, mut max_bytes: usize, slot: &mut SlotGuard, pipe: Pipe) {
        let mut buffers = pipe.buffers();
        let mut copied_bytes = 0;
        let mut cursor = cursor;
        while let Some(part) = cursor.first() {
            let len = part.len().min(max_bytes);
            let by_reference = part.is_lent() && part.len() >= MIN_LENT_BYTES;
            let added = if by_reference {
                self.push(part.address(), len, &mut buffers)
            } else {
                // A copied part needs one pipe buffer per page that it may overlap.
                if !part.is_lent() && part.len() > MAX_BUMP_PART_BYTES
                    || copied_bytes + len > MAX_COPIED_PER_PASS_BYTES
                    || pages(PAGE_BYTES - 1, len) > buffers
                    || self.count == MAX_IOVECS
                {
                    return;
                }
                copied_bytes += len;
                match slot.resources().bump.append(part.address(), len) {
                    Ok(address) => self.push(address, len, &mut buffers),
                    Err(AppendError::Unreadable | AppendError::NoMemory) => {
                        self.has_failed_copy = true;
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

/// True if an error means that the descriptor cannot be spliced to, that the process lacks permission, or
/// that memory or space is short; the message is then copied. All other errors are the connection's own,
/// which the kernel has now cleared, so they must be reported to the program.
const fn should_copy(error: Errno) -> bool {
    let unsupported = matches!(
        error.0,
        libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM | libc::EBADF | libc::EACCES
    );
    let transient = matches!(
        error.0,
        libc::ENOMEM | libc::ENOSPC | libc::EBUSY | libc::EEXIST | libc::EAGAIN | libc::EINTR
    );
    unsupported || transient
}

/// Splices, retrying if a pending signal ended the call before it began.
fn splice_retrying(pipe: Pipe, fd: ProgramFd, len_bytes: usize, more: bool) -> Result<usize, Errno> {
    for _ in 0..MAX_INTERRUPTIONS {
        match pipe.splice_to(fd, len_bytes, more) {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
    Err(Errno::EINVAL)
}

struct StreamSend<'a> {
    fd: ProgramFd,
    cursor: Cursor<'a>,
    flags: i32,
    promises: Promises,
    is_tcp: bool,
    /// True if the descriptor is known to still be the stream that it was.
    is_verified: bool,
    sent: SpliceResult,
}

enum Step {
    Continue,
    /// End the message here and report the bytes sent.
    End,
    /// Copy the message if nothing was sent yet; otherwise end it here.
    Copy,
}

pub fn stream(
    fd: ProgramFd,
    parts: &[Part],
    flags: i32,
    is_tcp: bool,
    promises: Promises,
) -> Result<SpliceResult, Errno> {
    let copied = || {
        let sent = gather::send(fd, parts, flags, &Envelope::default())?;
        Ok(SpliceResult { len_bytes: sent, holds_pages: false })
    };
    let Some(mut slot) = pool::acquire() else { return copied() };
    let sigpipe_guard = SigpipeGuard::new(flags & libc::MSG_NOSIGNAL != 0 && !promises.ends_on_errors);
    let sent = SpliceResult { len_bytes: 0, holds_pages: false };
    let is_verified = promises.ends_on_errors;
    let mut sending =
        StreamSend { fd, cursor: Cursor::new(parts), flags, promises, is_tcp, is_verified, sent };
    let result = sending.run(&mut slot);
    drop(sigpipe_guard);
    drop(slot);
    match result {
        Ok(Step::Copy) if sending.sent.len_bytes == 0 => copied(),
        Ok(Step::Copy) => {
            sending.copy_rest();
            Ok(sending.sent)
        }
        Ok(_) => Ok(sending.sent),
        Err(_) if sending.sent.len_bytes > 0 => Ok(sending.sent),
        Err(error) => Err(error),
    }
}

impl StreamSend<'_> {
    fn run(&mut self, slot: &mut SlotGuard) -> Result<Step, Errno> {
        let pipe = match slot.open_pipe(self.promises.trusts_descriptors) {
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
                if self.sent.len_bytes == 0 && usable_bytes(room.limit_bytes) < self.min_room() {
                    // The send buffer is too small, even when empty.
                    return Ok(Step::Copy);
                }
                usable_bytes(room.free_bytes)
            };
            let refers = room_bytes >= self.min_room()
                && !matches!(self.cursor.first(), Some(Part::Copied { len, .. }) if len > MAX_BUMP_PART_BYTES);
            if !refers && !self.is_stream() {
                return Ok(Step::Copy);
            }
            let step = match self.cursor.first() {
                Some(Part::Copied { len, .. }) if len > MAX_BUMP_PART_BYTES => self.copy(len, room_bytes)?,
                _ if room_bytes >= self.min_room() => self.splice_pass(room_bytes, slot, pipe)?,
                _ => self.wait_for_room()?,
            };
            if !matches!(step, Step::Continue) {
                return Ok(step);
            }
        }
        Ok(Step::End)
    }

    /// True if the descriptor is still a stream, whose messages may be sent in pieces.
    fn is_stream(&mut self) -> bool {
        self.is_verified = self.is_verified || socket_cache::is_same(self.fd);
        self.is_verified
    }

    /// Free bytes below which nothing is spliced.
    fn min_room(&self) -> usize {
        let remaining: usize =
            self.cursor.parts.iter().map(|part| part.len()).sum::<usize>() - self.cursor.offset;
        remaining.min(MAX_FRAGMENTS * PAGE_BYTES)
    }

    fn is_non_blocking(&self) -> bool {
        self.flags & libc::MSG_DONTWAIT != 0 || socket::is_non_blocking(self.fd)
    }

    /// Copies the first part in a `sendmsg` of its own.
    fn copy(&mut self, len: usize, room_bytes: usize) -> Result<Step, Errno> {
        let Some(part) = self.cursor.first() else { return Ok(Step::End) };
        // Once bytes were sent, a blocking call could consume a pending error, so send only what has space.
        let limit = if self.sent.len_bytes > 0 && room_bytes < len {
            if room_bytes == 0 {
                return self.wait_for_room();
            }
            room_bytes
        } else {
            len
        };
        let is_last = self.cursor.parts.len() == 1 && limit == len;
        let more = if is_last { self.flags } else { self.flags | libc::MSG_MORE };
        self.send_copied(part.cut(limit), more)
    }

    fn send_copied(&mut self, part: Part, flags: i32) -> Result<Step, Errno> {
        let sent = gather::send(self.fd, &[part], flags, &Envelope::default())?;
        self.sent.len_bytes += sent;
        self.cursor.advance(sent);
        Ok(if sent < part.len() { Step::End } else { Step::Continue })
    }

    /// Copies what is left of a message whose beginning was sent, as far as there is room.
    ///
    /// Programs that wait for edges (epoll(7)) rely on it: the kernel reports one only if a send has found no room
    /// (SOCK_NOSPACE, net/core/stream.c). An error is left to the next call.
    fn copy_rest(&mut self) {
        let flags = self.flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        while let Some(part) = self.cursor.first().filter(|_| self.is_stream()) {
            let more = if self.cursor.parts.len() == 1 { 0 } else { libc::MSG_MORE };
            if socket::readiness(self.fd, 0) == Readiness::Ended
                || !matches!(self.send_copied(part, flags | more), Ok(Step::Continue))
            {
                return;
            }
        }
    }

    /// Handles a send buffer with too little free space for references.
    fn wait_for_room(&mut self) -> Result<Step, Errno> {
        if self.is_non_blocking() {
            return Ok(Step::Copy);
        }
        if self.sent.len_bytes == 0 {
            // Let the kernel block: it decides what ends the wait, and may restart the call after a signal.
            let Some(part) = self.cursor.first() else { return Ok(Step::End) };
            let all = self.min_room() <= BLOCKING_COPY_BYTES;
            let limit = part.len().min(BLOCKING_COPY_BYTES);
            let more =
                if all && self.cursor.parts.len() == 1 { self.flags } else { self.flags | libc::MSG_MORE };
            return self.send_copied(part.cut(limit), more);
        }
        let timeout_ms = socket::send_timeout_ms(self.fd).unwrap_or(-1);
        if socket::readiness(self.fd, timeout_ms) != Readiness::Room {
            return Ok(Step::End);
        }
        // Writable, yet with less than `min_room` free: copy a page at a time to such a small send buffer.
        match socket::room(self.fd) {
            Ok(room) if usable_bytes(room.free_bytes) >= self.min_room() => Ok(Step::Continue),
            Ok(_) => {
                let Some(part) = self.cursor.first() else { return Ok(Step::End) };
                let flags = self.flags | libc::MSG_DONTWAIT | libc::MSG_MORE;
                let cut = part.cut(part.len().min(PAGE_BYTES));
                match self.send_copied(cut, flags) {
                    Err(Errno::EAGAIN) => {
                        uncopy_sys::thread::pause();
                        Ok(Step::Continue)
                    }
                    // A short count means that the buffer is full again, not that the message ends.
                    Ok(_) => Ok(Step::Continue),
                    other => other,
                }
            }
            Err(_) => Ok(Step::End),
        }
    }

    fn splice_pass(&mut self, room_bytes: usize, slot: &mut SlotGuard, pipe: Pipe) -> Result<Step, Errno> {
        let mut pass = Pass::new();
        if slot.resources().bump.reserve(MAX_COPIED_PER_PASS_BYTES).is_err() {
            return Ok(Step::Copy);
        }
        pass.fill(self.cursor, room_bytes, slot, pipe);
        if pass.len_bytes == 0 || pass.has_failed_copy && self.sent.len_bytes == 0 {
            return Ok(Step::Copy);
        }
        let is_one_call = pass.chunk_count == 1 && !pass.has_odd_offset && self.ends_after(pass.len_bytes);
        if !is_one_call && !self.is_stream() {
            return Ok(Step::Copy);
        }
        let put = pipe.vmsplice(&pass.iovecs[..pass.count]);
        if put != Ok(pass.len_bytes) {
            slot.resources().drain(put.unwrap_or(0));
            return Ok(Step::Copy);
        }
        // If a later kernel message fails after an earlier one took bytes, the error is lost to the program.
        // On TCP the only such error is a reset, unless the peer has shut down its side.
        let in_one_splice = self.promises.ends_on_errors
            || pass.chunk_count > 1 && self.is_tcp && !socket::has_peer_ended(self.fd);
        let whole = [pass.len_bytes];
        let chunks = if in_one_splice { &whole[..] } else { &pass.chunks[..pass.chunk_count] };
        let before_bytes = self.sent.len_bytes;
        let mut remaining = pass.len_bytes;
        for (index, chunk) in chunks.iter().enumerate() {
            if index > 0 && socket::readiness(self.fd, 0) == Readiness::Ended {
                slot.resources().drain(remaining);
                return Ok(Step::End);
            }
            let ends_here = remaining == *chunk && self.ends_after(*chunk);
            let more = !ends_here || self.flags & libc::MSG_MORE != 0;
            let passed = splice_retrying(pipe, self.fd, *chunk, more);
            if let Ok(bytes) = passed {
                remaining -= bytes;
                self.sent.len_bytes += bytes;
                self.sent.holds_pages |= bytes > 0;
                self.cursor.advance(bytes);
            }
            if passed == Ok(*chunk) {
                continue;
            }
            slot.resources().drain(remaining);
            return match passed {
                // A reset during the send is reported as an earlier one: the peer never reads these bytes.
                Ok(_)
                    if in_one_splice
                        && before_bytes == 0
                        && !self.promises.ends_on_errors
                        && socket::readiness(self.fd, 0) == Readiness::Ended =>
                {
                    self.sent.len_bytes = 0;
                    Err(Errno(libc::ECONNRESET))
                }
                Ok(_) => Ok(Step::End),
                Err(error) if should_copy(error) => Ok(Step::Copy),
                Err(error) => Err(error),
            };
        }
        Ok(Step::Continue)
    }

    /// True if `len_bytes` bytes complete the message.
    fn ends_after(&self, len_bytes: usize) -> bool {
        let mut cursor = self.cursor;
        cursor.advance(len_bytes);
        cursor.is_at_end()
    }
}

pub fn datagram(
    fd: ProgramFd,
    parts: &[Part],
    flags: i32,
    envelope: &Envelope,
    promises: Promises,
) -> Result<SpliceResult, Errno> {
    let copied = || {
        let sent = gather::send(fd, parts, flags, envelope)?;
        Ok(SpliceResult { len_bytes: sent, holds_pages: false })
    };
    let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let is_corked = !envelope.is_blank();
    if is_corked && !promises.sends_alone {
        return copied();
    }
    // A splice must not block with a partial datagram queued, and whether it blocks is up to the descriptor.
    if !promises.ends_on_errors
        && socket::room(fd).map_or(0, |room| usable_bytes(room.free_bytes)) < len_bytes
    {
        return copied();
    }
    let Some(mut slot) = pool::acquire() else { return copied() };
    let Ok(pipe) = slot.open_pipe(promises.trusts_descriptors) else { return copied() };
    if slot.resources().bump.reserve(MAX_COPIED_PER_PASS_BYTES).is_err() {
        return copied();
    }
    // If the datagram has an address, the first part is sent by `sendmsg`, which can pass the address.
    let (first, rest) = match parts.split_first() {
        Some((first, rest)) if is_corked && !first.is_lent() && !first.is_empty() => (Some(*first), rest),
        _ if is_corked => return copied(),
        _ => (None, parts),
    };
    let mut pass = Pass::new();
    pass.fill(Cursor::new(rest), usize::MAX, &mut slot, pipe);
    let first_bytes = first.map_or(0, Part::len);
    // Where the kernel computes the checksum in software (no offload, corked sockets), every fragment must
    // start at an even offset relative to the first (`skb_splice_from_iter`, Linux 6.5 to 6.18). Otherwise
    // the checksum is wrong and the peer drops the datagram.
    if pass.has_odd_offset || pass.chunk_count != 1 || pass.len_bytes + first_bytes != len_bytes {
        // The descriptor may have become a stream.
        socket_cache::invalidate(fd);
        return copied();
    }
    let put = pipe.vmsplice(&pass.iovecs[..pass.count]);
    if put != Ok(pass.len_bytes) {
        slot.resources().drain(put.unwrap_or(0));
        return copied();
    }
    if let Some(first) = first
        && let Err(error) = gather::send(fd, &[first], flags | libc::MSG_MORE, envelope)
    {
        slot.resources().drain(pass.len_bytes);
        return Err(error);
    }
    // The descriptor may have become a stream, which can raise SIGPIPE.
    let sigpipe_guard = SigpipeGuard::new(flags & libc::MSG_NOSIGNAL != 0 && !promises.ends_on_errors);
    let passed = splice_retrying(pipe, fd, pass.len_bytes, flags & libc::MSG_MORE != 0);
    drop(sigpipe_guard);
    match passed {
        Ok(bytes) if bytes == pass.len_bytes => Ok(SpliceResult { len_bytes, holds_pages: true }),
        Ok(bytes) => {
            slot.resources().drain(pass.len_bytes - bytes);
            Ok(SpliceResult { len_bytes: first_bytes + bytes, holds_pages: true })
        }
        Err(error) => {
            slot.resources().drain(pass.len_bytes);
            if should_copy(error) && first.is_none() { copied() } else { Err(error) }
        }
    }
}
