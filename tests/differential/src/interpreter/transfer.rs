//! Operations between memory and the kernel: receiving, sending, and calls that are not interposed.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr::null_mut;

use libc::iovec;
use uncopy_tests::calls::{InputCall, OutputCall, message};
use uncopy_tests::oracle::{self, call_result, errno};

use super::{MAX_PARTS_BYTES, Part, SLOTS, Verdict, Worker};
use crate::channel::{ChannelKind, Chunk, MAX_MESSAGE, pair, pipe};
use crate::mate::{interposed_input, interposed_output};
use crate::model::{pool, pool_offset};
use crate::program::NUMBERS;

impl Worker<'_> {
    /// Records in the model that `chunks` of the pool arrived in `parts`.
    fn scatter(&mut self, parts: &[Part], chunks: impl Iterator<Item = Chunk>, count: usize) {
        let mut chunks = chunks;
        let mut chunk = Chunk { pool_offset: 0, len: 0 };
        let mut left = count;
        for part in parts {
            let mut done = 0;
            while left > 0 && done < part.len {
                if chunk.len == 0 {
                    let Some(next) = chunks.next() else { return };
                    chunk = next;
                    continue;
                }
                let now = left.min(part.len - done).min(chunk.len);
                if let Some(buffer) = &mut self.slots[part.slot] {
                    buffer.mirror.copy_from_pool(part.at + done, chunk.pool_offset, now);
                }
                chunk.pool_offset += now;
                chunk.len -= now;
                done += now;
                left -= now;
            }
        }
    }

    /// Derives flags from a number, for a kind of channel.
    fn flags(number: usize, kind: ChannelKind) -> c_int {
        let mut flags = 0;
        for (bit, flag) in
            [libc::MSG_PEEK, libc::MSG_WAITALL, libc::MSG_TRUNC, libc::MSG_DONTWAIT].into_iter().enumerate()
        {
            // On Unix streams the kernel ignores MSG_TRUNC.
            let has_effect = flag != libc::MSG_TRUNC || kind.keeps_boundaries() || kind == ChannelKind::Tcp;
            if number >> bit & 1 == 1 && has_effect {
                flags |= flag;
            }
        }
        flags
    }

    pub(super) fn receive(&mut self, numbers: [usize; NUMBERS]) -> Verdict {
        let [channel, call, flags, feed, slot, at, len, count, seed] = numbers;
        let index = channel % self.channels.len();
        let kind = self.channels[index].kind;
        if kind == ChannelKind::PipeOut {
            return Ok(());
        }
        self.channels[index].feed(feed, seed)?;
        let calls = if kind.is_socket() { InputCall::SOCKET } else { InputCall::ANY };
        let call = calls[call % calls.len()];
        let call = if self.channels[index].may_be_lane() { interposed_input(call) } else { call };
        let flags = if InputCall::WITH_FLAGS.contains(&call) { Self::flags(flags, kind) } else { 0 };
        let parts = self.parts(Part { slot, at, len }, if call.is_vector() { count } else { 1 }, seed, true);
        if parts.is_empty() {
            return Ok(());
        }
        let capacity: usize = parts.iter().map(|part| part.len).sum();
        let waiting = self.channels[index].waiting();
        let mut vectors = self.vectors(&parts);
        // SAFETY: the vectors describe ranges of the worker's buffers, and live through the call.
        let got = match unsafe { call.input(self.channels[index].near(), &mut vectors, flags) } {
            lost if self.channels[index].replace_if_mate_lost(lost) => return Ok(()),
            Ok(got) => got,
            Err(libc::EAGAIN) if waiting == 0 || kind == ChannelKind::Tcp => return Ok(()),
            Err(error) => return Err(format!("{call:?} on {kind:?}: errno {error}, {waiting} bytes wait")),
        };
        let max_bytes = capacity.min(waiting);
        let (fits, stored) = if kind.keeps_boundaries() {
            (got == if flags & libc::MSG_TRUNC != 0 { waiting } else { max_bytes } && waiting > 0, max_bytes)
        } else {
            (got > 0 && got <= max_bytes, if flags & libc::MSG_TRUNC != 0 { 0 } else { got })
        };
        if !fits {
            return Err(format!(
                "{call:?} {flags:#x} on {kind:?} gave {got}: room {capacity}, {waiting} wait"
            ));
        }
        let chunks = self.channels[index].incoming().clone();
        self.scatter(&parts, chunks.into_iter(), stored);
        if flags & libc::MSG_PEEK == 0 {
            self.channels[index].consume(got);
        }
        if seed.is_multiple_of(8) {
            let part = parts[seed / 8 % parts.len()];
            let skip = seed % part.len;
            self.check_range(part.slot, part.at + skip, (part.len - skip).min(5000))?;
        }
        Ok(())
    }

    pub(super) fn receive_many(&mut self, numbers: [usize; NUMBERS]) -> Verdict {
        let [channel, flags, feed, messages, slot, at, len, count, seed] = numbers;
        let index = [ChannelKind::Datagram, ChannelKind::Packet][channel % 2] as usize;
        let kind = self.channels[index].kind;
        let messages = messages.clamp(1, 4);
        for message in 0..messages {
            self.channels[index].feed((feed / (message + 1)).max(1), seed + message)?;
        }
        // All parts are in different buffers, and are divided among the messages.
        let all = self.parts(Part { slot, at, len }, messages * count.clamp(1, 4), seed, true);
        let each = all.len().div_ceil(messages).max(1);
        let groups: Vec<Vec<Part>> = all.chunks(each).map(<[Part]>::to_vec).collect();
        if groups.is_empty() {
            return Ok(());
        }
        let mut vectors: Vec<Vec<iovec>> = groups.iter().map(|parts| self.vectors(parts)).collect();
        let mut headers: Vec<libc::mmsghdr> =
            vectors.iter_mut().map(|parts| libc::mmsghdr { msg_hdr: message(parts), msg_len: 0 }).collect();
        // With MSG_PEEK every message would be the same one; the plain receive covers that flag.
        let flags = Self::flags(flags, kind) & !libc::MSG_PEEK;
        let waiting: Vec<Chunk> = self.channels[index].incoming().iter().copied().collect();
        // SAFETY: headers, vectors and parts live through the call; recvmmsg(2) allows a null timeout.
        let got = unsafe {
            let call = black_box(libc::recvmmsg as unsafe extern "C" fn(_, _, _, _, _) -> c_int);
            let number = u32::try_from(headers.len()).expect("few");
            call_result(call(
                self.channels[index].near(),
                headers.as_mut_ptr(),
                number,
                flags,
                null_mut::<libc::timespec>(),
            ) as isize)
        };
        let got = match got {
            Ok(got) => got,
            Err(libc::EAGAIN) if waiting.is_empty() => return Ok(()),
            Err(error) => return Err(format!("recvmmsg on {kind:?}: errno {error}, {} wait", waiting.len())),
        };
        if got != waiting.len().min(headers.len()) {
            return Err(format!("recvmmsg on {kind:?} gave {got} of {} messages", waiting.len()));
        }
        for (number, parts) in groups.iter().enumerate().take(got) {
            let capacity: usize = parts.iter().map(|part| part.len).sum();
            let (message, reported) = (waiting[number], headers[number].msg_len as usize);
            let stored = capacity.min(message.len);
            let truncated = headers[number].msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let expected_len = if flags & libc::MSG_TRUNC != 0 { message.len } else { stored };
            if reported != expected_len || truncated != (message.len > capacity) {
                return Err(format!(
                    "recvmmsg on {kind:?}: message {number} of {} bytes in room for {capacity}: {reported}, flags {:#x}",
                    message.len, headers[number].msg_hdr.msg_flags
                ));
            }
            self.scatter(parts, std::iter::once(message), stored);
            self.channels[index].consume(message.len);
        }
        Ok(())
    }

    pub(super) fn send(&mut self, numbers: [usize; NUMBERS]) -> Verdict {
        let [channel, call, _flags, slot, at, len, count, seed, _] = numbers;
        let index = channel % self.channels.len();
        let kind = self.channels[index].kind;
        if kind == ChannelKind::PipeIn {
            return Ok(());
        }
        let calls = if kind.is_socket() { OutputCall::SOCKET } else { OutputCall::ANY };
        let call = calls[call % calls.len()];
        let call = if self.channels[index].may_be_lane() { interposed_output(call) } else { call };
        let len = if kind.keeps_boundaries() { len.min(MAX_MESSAGE) } else { len };
        let mut parts =
            self.parts(Part { slot, at, len }, if call.is_vector() { count } else { 1 }, seed, false);
        if kind.keeps_boundaries() {
            while parts.len() > 1 && parts.iter().map(|part| part.len).sum::<usize>() > MAX_MESSAGE {
                parts.pop();
            }
        }
        if parts.is_empty() {
            return Ok(());
        }
        if self.channels[index].send_space() < MAX_PARTS_BYTES {
            self.channels[index].drain_all(&self.scratch)?;
        }
        let total_bytes: usize = parts.iter().map(|part| part.len).sum();
        let mut vectors = self.vectors(&parts);
        // SAFETY: the vectors describe ranges of the worker's buffers, and live through the call.
        let sent = match unsafe { call.output(self.channels[index].near(), &mut vectors, libc::MSG_NOSIGNAL) }
        {
            lost if self.channels[index].replace_if_mate_lost(lost) => return Ok(()),
            Ok(sent) => sent,
            Err(libc::EAGAIN) => return Ok(()),
            Err(error) => return Err(format!("{call:?} of {total_bytes} bytes on {kind:?}: errno {error}")),
        };
        let fits =
            if kind.keeps_boundaries() { sent == total_bytes } else { sent > 0 && sent <= total_bytes };
        if !fits {
            return Err(format!("{call:?} on {kind:?} sent {sent} of {total_bytes} bytes"));
        }
        self.note_sent(index, &parts, sent);
        self.channels[index].note_message_sent(sent);
        Ok(())
    }

    fn note_sent(&mut self, index: usize, parts: &[Part], sent: usize) {
        let mut left = sent;
        for part in parts {
            let now = part.len.min(left);
            left -= now;
            if let Some(buffer) = &self.slots[part.slot] {
                self.channels[index].note_sent(&buffer.mirror, part.at, now);
            }
        }
    }

    pub(super) fn send_many(&mut self, numbers: [usize; NUMBERS]) -> Verdict {
        let [channel, messages, slot, at, len, count, seed, ..] = numbers;
        let index =
            [ChannelKind::Stream, ChannelKind::Datagram, ChannelKind::Packet, ChannelKind::SmallBuffer]
                [channel % 4] as usize;
        let kind = self.channels[index].kind;
        if self.channels[index].send_space() < 2 * MAX_PARTS_BYTES {
            self.channels[index].drain_all(&self.scratch)?;
        }
        let mut groups = Vec::new();
        for number in 0..messages.clamp(1, 4) {
            let first = Part { slot: slot + number, at, len: len.min(MAX_MESSAGE / 4) };
            let mut parts = self.parts(first, count, seed + number, false);
            while parts.len() > 1 && parts.iter().map(|part| part.len).sum::<usize>() > MAX_MESSAGE {
                parts.pop();
            }
            if !parts.is_empty() {
                groups.push(parts);
            }
        }
        if groups.is_empty() {
            return Ok(());
        }
        let mut vectors: Vec<Vec<iovec>> = groups.iter().map(|parts| self.vectors(parts)).collect();
        let mut headers: Vec<libc::mmsghdr> =
            vectors.iter_mut().map(|parts| libc::mmsghdr { msg_hdr: message(parts), msg_len: 0 }).collect();
        // SAFETY: headers, vectors and parts live through the call.
        let sent = unsafe {
            let call = black_box(libc::sendmmsg as unsafe extern "C" fn(_, _, _, _) -> c_int);
            let number = u32::try_from(headers.len()).expect("few");
            call_result(
                call(self.channels[index].near(), headers.as_mut_ptr(), number, libc::MSG_NOSIGNAL) as isize
            )
        };
        let sent = match sent {
            lost if self.channels[index].replace_if_mate_lost(lost) => return Ok(()),
            Ok(sent) => sent,
            Err(libc::EAGAIN) => return Ok(()),
            Err(error) => return Err(format!("sendmmsg on {kind:?}: errno {error}")),
        };
        if sent == 0 || sent > groups.len() {
            return Err(format!("sendmmsg on {kind:?} sent {sent} of {} messages", groups.len()));
        }
        for (number, parts) in groups.iter().enumerate().take(sent) {
            let total_bytes: usize = parts.iter().map(|part| part.len).sum();
            let reported = headers[number].msg_len as usize;
            let fits = if kind.keeps_boundaries() {
                reported == total_bytes
            } else {
                reported > 0 && reported <= total_bytes
            };
            if !fits {
                return Err(format!(
                    "sendmmsg on {kind:?}: message {number} sent {reported} of {total_bytes} bytes"
                ));
            }
            self.note_sent(index, parts, reported);
            self.channels[index].note_message_sent(reported);
        }
        Ok(())
    }

    /// Lets the kernel read or write the buffer by a call that is not interposed.
    pub(super) fn kernel_access(
        &mut self,
        how: usize,
        slot: usize,
        at: usize,
        len: usize,
        seed: usize,
    ) -> Verdict {
        let Some(buffer) = &mut self.slots[slot % SLOTS] else { return Ok(()) };
        let (at, len) = buffer.range(at, len);
        let start = buffer.at(at);
        let scratch = self.scratch.pointer();
        let local = |start: *mut u8| iovec { iov_base: start.cast::<c_void>(), iov_len: len };
        // SAFETY: the range is inside the buffer; the scratch and the pool are at least as long.
        unsafe {
            match how % 8 {
                0 | 1 => {
                    let len = len.min(60_000);
                    let (reader, writer) = pipe();
                    let result = if how.is_multiple_of(2) {
                        let wrote = oracle::raw_write(writer, start, len);
                        let got = oracle::raw_read(reader, scratch, len);
                        match (wrote, got, buffer.mirror.difference(scratch, at, len)) {
                            (Ok(wrote), Ok(got), None) if wrote == len && got == len => Ok(()),
                            other => Err(format!("bare write of {len} bytes: {other:?}")),
                        }
                    } else {
                        let pool_offset = pool_offset(seed, len);
                        let wrote = oracle::raw_write(writer, pool().at(pool_offset), len);
                        let got = oracle::raw_read(reader, start, len);
                        buffer.mirror.copy_from_pool(at, pool_offset, len);
                        if wrote == Ok(len) && got == Ok(len) {
                            Ok(())
                        } else {
                            Err(format!("bare read of {len} bytes: {wrote:?} {got:?}"))
                        }
                    };
                    libc::close(reader);
                    libc::close(writer);
                    result
                }
                2 => {
                    let size = size_of::<libc::stat>();
                    if len < size {
                        return Ok(());
                    }
                    let one = libc::syscall(libc::SYS_fstat, self.file.fd, start);
                    let two = libc::syscall(libc::SYS_fstat, self.file.fd, scratch);
                    if (one, two) != (0, 0) {
                        return Err(format!("fstat into a buffer: {one} {two} errno {}", errno()));
                    }
                    buffer.mirror.copy_from_memory(at, scratch, size);
                    Ok(())
                }
                3 => {
                    let (from, to) = (local(start), local(scratch));
                    let got = libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0);
                    if usize::try_from(got) != Ok(len) {
                        return Err(format!("process_vm_readv gave {got} of {len}, errno {}", errno()));
                    }
                    match buffer.mirror.difference(scratch, at, len) {
                        None => Ok(()),
                        Some(difference) => Err(format!("process_vm_readv: {difference}")),
                    }
                }
                4 => {
                    let pool_offset = pool_offset(seed, len);
                    let (from, to) = (local(pool().at(pool_offset)), local(start));
                    let got =
                        libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const to, 1, 0);
                    if usize::try_from(got) != Ok(len) {
                        return Err(format!("process_vm_writev gave {got} of {len}, errno {}", errno()));
                    }
                    buffer.mirror.copy_from_pool(at, pool_offset, len);
                    Ok(())
                }
                5 => {
                    let len = len.min(20_000);
                    let mut done = 0;
                    while done < len {
                        let got = libc::syscall(libc::SYS_getrandom, start.add(done), len - done, 0);
                        match usize::try_from(got) {
                            Ok(got) => done += got,
                            Err(_) if errno() == libc::EINTR => {}
                            Err(_) => return Err(format!("getrandom: errno {}", errno())),
                        }
                    }
                    buffer.mirror.copy_from_memory(at, start, len);
                    Ok(())
                }
                6 => {
                    let max_bytes = len.min(self.file.size);
                    let got = libc::syscall(libc::SYS_pread64, self.file.fd, start, len, 0);
                    if usize::try_from(got) != Ok(max_bytes) {
                        return Err(format!("bare pread gave {got} of {max_bytes}, errno {}", errno()));
                    }
                    buffer.mirror.copy_from(at, &self.file.content, 0, max_bytes);
                    Ok(())
                }
                _ => {
                    let len = len.min(50_000);
                    let stream = libc::tmpfile();
                    if stream.is_null() {
                        return Err(format!("tmpfile: errno {}", errno()));
                    }
                    let wrote = libc::fwrite(start.cast(), 1, len, stream);
                    libc::rewind(stream);
                    let got = libc::fread(scratch.cast(), 1, len, stream);
                    let difference = buffer.mirror.difference(scratch, at, len);
                    libc::rewind(stream);
                    let again = libc::fread(start.cast(), 1, len, stream);
                    libc::fclose(stream);
                    if (wrote, got, again) != (len, len, len) || difference.is_some() {
                        return Err(format!("stdio of {len}: {wrote} {got} {again} {difference:?}"));
                    }
                    Ok(())
                }
            }
        }
    }

    /// Makes calls that return zero bytes or an error, and calls at the end of a stream.
    pub(super) fn edge_case(
        &mut self,
        how: usize,
        slot: usize,
        at: usize,
        len: usize,
        seed: usize,
    ) -> Verdict {
        let Some(buffer) = &mut self.slots[slot % SLOTS] else { return Ok(()) };
        let (at, len) = buffer.range(at, len);
        let start = buffer.at(at);
        let mut parts = [iovec { iov_base: start.cast(), iov_len: len }];
        let calls = InputCall::SOCKET;
        let call = calls[seed % calls.len()];
        let outputs = OutputCall::SOCKET;
        let output = outputs[seed % outputs.len()];
        // SAFETY: the part is inside the buffer, or empty, or the call must refuse it.
        unsafe {
            let (what, got, expected) = match how % 8 {
                0 => ("input from a bad descriptor", call.input(-1, &mut parts, 0), Err(libc::EBADF)),
                1 => ("output to a bad descriptor", output.output(-1, &mut parts, 0), Err(libc::EBADF)),
                2 => {
                    parts[0].iov_len = 0;
                    let call = InputCall::ANY[seed % InputCall::ANY.len()];
                    ("input of no bytes", call.input(self.file.fd, &mut parts, 0), Ok(0))
                }
                3 => {
                    parts[0].iov_len = 0;
                    let call = OutputCall::ANY[seed % OutputCall::ANY.len()];
                    ("output of no bytes", call.output(self.file.fd, &mut parts, 0), Ok(0))
                }
                4 => {
                    let (near, far) = pair(libc::SOCK_STREAM);
                    let pool_offset = pool_offset(seed, len);
                    let fed = oracle::raw_write(far, pool().at(pool_offset), len.min(5000)).unwrap_or(0);
                    // close(2) alone does not end the stream: a child that another worker forks
                    // meanwhile has the descriptor too.
                    libc::shutdown(far, libc::SHUT_RDWR);
                    libc::close(far);
                    let first = call.input(near, &mut parts, 0);
                    if first != Ok(fed) {
                        libc::close(near);
                        return Err(format!("{call:?} before the end gave {first:?} of {fed}"));
                    }
                    buffer.mirror.copy_from_pool(at, pool_offset, fed);
                    let last = call.input(near, &mut parts, 0);
                    libc::close(near);
                    // At the end of a stream recvmmsg(2) returns one message of zero bytes.
                    ("input at the end", last, Ok(0))
                }
                5 => {
                    let (near, far) = pair(libc::SOCK_STREAM);
                    libc::shutdown(far, libc::SHUT_RDWR);
                    libc::close(far);
                    let outputs = OutputCall::WITH_FLAGS;
                    let output = outputs[seed % outputs.len()];
                    let got = output.output(near, &mut parts, libc::MSG_NOSIGNAL);
                    libc::close(near);
                    ("output to nobody", got, Err(libc::EPIPE))
                }
                6 => {
                    let (near, far) = pair(libc::SOCK_STREAM);
                    let _ = oracle::raw_write(far, pool().pointer(), 5000);
                    parts[0].iov_base = std::ptr::without_provenance_mut(0x1000);
                    let got = call.input(near, &mut parts, libc::MSG_DONTWAIT);
                    libc::close(near);
                    libc::close(far);
                    ("input to nowhere", got, Err(libc::EFAULT))
                }
                _ => {
                    parts[0].iov_base = std::ptr::without_provenance_mut(0x1000);
                    let (near, far) = pair(libc::SOCK_STREAM);
                    let got = output.output(near, &mut parts, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                    libc::close(near);
                    libc::close(far);
                    ("output from nowhere", got, Err(libc::EFAULT))
                }
            };
            if got != expected {
                return Err(format!("{what} ({call:?}, {output:?}): {got:?}, must be {expected:?}"));
            }
        }
        if seed.is_multiple_of(3) { self.check_range(slot, at, len) } else { Ok(()) }
    }
}
