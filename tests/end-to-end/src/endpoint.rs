//! One end of the echo conversation: receives, copies and sends messages through every call in
//! turn, over streams and datagrams, and checks every byte against mirrors.
//!
//! A message is a header of 16 bytes (length and seed of the payload) and the payload, which is
//! the stream of that seed; the server answers with the payload. A header of length 0 ends it.

use std::collections::BTreeMap;

use libc::iovec;

use crate::calls::{CopyCall, InputCall, OutputCall, set_nonblocking, wait_ready};
use crate::mirror::{Buffer, Origin};
use crate::random::Random;

const HEADER_BYTES: usize = 16;
/// Size of a buffer of the pool.
const BUFFER_BYTES: usize = (3 << 20) + 65536;

/// Descriptors of an end, and the calls and messages that they support.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// Descriptor that this end reads from.
    pub input: i32,
    /// Descriptor that this end writes to.
    pub output: i32,
    /// Whether socket calls work.
    pub socket: bool,
    /// Whether messages have no boundaries.
    pub stream: bool,
    /// Longest payload in bytes.
    pub payload_limit: usize,
}

/// Position of a payload: buffer and offset.
#[derive(Clone, Copy, Debug)]
struct Location {
    buffer: usize,
    at: usize,
}

/// One end of the conversation.
#[derive(Debug)]
pub struct Endpoint {
    channel: Channel,
    /// Decides the sizes, contents and copies of messages, whatever pieces the transport makes of them.
    content_random: Random,
    /// Decides the calls that send and receive.
    call_random: Random,
    pool: Vec<Buffer>,
    calls: BTreeMap<String, usize>,
    turns: BTreeMap<(&'static str, usize), usize>,
}

/// Whether this program's streams may be lanes, of which bare system calls know nothing.
fn has_lanes() -> bool {
    std::env::var_os("UNCOPY_LANES").is_some()
}

impl Endpoint {
    /// Makes an end with a pool of buffers of every origin.
    #[must_use]
    pub fn new(channel: Channel, seed: u64) -> Self {
        let call_random = Random::new(seed);
        let content_random = Random::new(seed ^ 0xffff);
        let mut pool: Vec<Buffer> =
            [Origin::Malloc, Origin::Malloc, Origin::Calloc, Origin::Aligned, Origin::Mapped]
                .iter()
                .map(|origin| Buffer::new(*origin, BUFFER_BYTES))
                .collect();
        pool.push(Buffer::copy_of(CopyCall::Memcpy, &pool[0], 0, BUFFER_BYTES));
        Self { channel, content_random, call_random, pool, calls: BTreeMap::new(), turns: BTreeMap::new() }
    }

    /// Echoes messages until the client ends the conversation.
    ///
    /// # Panics
    /// When a byte, a length or a result is wrong.
    pub fn serve(&mut self) {
        while let Some((location, len)) = self.receive_message() {
            let location = self.copy_around(location, len);
            self.output(location, len, None);
            self.perturb_pool();
        }
        self.check_everything();
    }

    /// Sends `messages` messages and checks the answers.
    ///
    /// # Panics
    /// When a byte, a length or a result is wrong.
    pub fn converse(&mut self, messages: usize) {
        for number in 0..messages {
            let len = self.content_random.length(self.channel.payload_limit);
            let seed = self.content_random.next_u64();
            let location = self.location(len, None);
            self.pool[location.buffer].store(location.at, len, seed);
            let location =
                if self.content_random.one_in(2) { self.copy_around(location, len) } else { location };
            self.output(location, len, Some(header(len, seed)));
            let answer = self.location(len, Some(location.buffer));
            if self.channel.stream {
                self.input(answer, len, seed, 0);
            } else {
                let prefix = Vec::new();
                self.input_datagram(answer, len, seed, &prefix);
            }
            let answer = if self.content_random.one_in(2) { self.copy_around(answer, len) } else { answer };
            self.pool[answer.buffer].check(
                answer.at,
                len,
                &format!("answer to message {number} of {len} bytes"),
            );
            self.perturb_pool();
        }
        let location = self.location(1, None);
        self.output(location, 0, Some(header(0, 0)));
        self.check_everything();
    }

    /// How often each call was made, as text.
    #[must_use]
    pub fn coverage(&self) -> String {
        self.calls.iter().map(|(call, count)| format!("{call}:{count} ")).collect()
    }

    /// Fails unless every call that the channel allows was made.
    ///
    /// # Panics
    /// When a call was not made.
    pub fn expect_full_coverage(&self) {
        let inputs = if self.channel.socket { InputCall::SOCKET } else { InputCall::ANY };
        let outputs = if self.channel.socket { OutputCall::SOCKET } else { OutputCall::ANY };
        let inputs = inputs.iter().map(|call| format!("in {call:?}"));
        let outputs = outputs.iter().map(|call| format!("out {call:?}"));
        let copies = CopyCall::ALL.iter().map(|call| format!("{call:?}"));
        let is_expected = |call: &String| !has_lanes() || !call.ends_with("Raw");
        for call in inputs.chain(outputs).chain(copies).filter(is_expected) {
            assert!(self.calls.contains_key(&call), "{call} was never made: {}", self.coverage());
        }
    }

    fn check_everything(&self) {
        for (number, buffer) in self.pool.iter().enumerate() {
            buffer.check_all(&format!("buffer {number} at the end"));
        }
    }

    /// The next member of `calls`, each in turn.
    fn next_call<T: Copy + std::fmt::Debug>(&mut self, kind: &'static str, calls: &[T]) -> T {
        let turn = self.turns.entry((kind, calls.len())).or_default();
        let call = loop {
            *turn += 1;
            let call = calls[*turn % calls.len()];
            if !has_lanes() || format!("{call:?}") != "Raw" {
                break call;
            }
        };
        *self.calls.entry(format!("{kind}{call:?}")).or_default() += 1;
        call
    }

    /// Returns a place for `len` bytes, not in the buffer `except`.
    fn location(&mut self, len: usize, except: Option<usize>) -> Location {
        let buffer = loop {
            let buffer = self.content_random.below(self.pool.len());
            if Some(buffer) != except {
                break buffer;
            }
        };
        let max_start = self.pool[buffer].len() - len;
        let at = match self.content_random.below(4) {
            0 => 0,
            1 => max_start.min(self.content_random.below(64)),
            2 => max_start.min(4096 * self.content_random.below(16)),
            _ => self.content_random.below(max_start + 1),
        };
        Location { buffer, at }
    }

    /// Copies a payload from buffer to buffer a few times, sometimes within a buffer.
    fn copy_around(&mut self, mut location: Location, len: usize) -> Location {
        for _ in 0..self.content_random.below(8) {
            if self.content_random.one_in(4) {
                let call = self.next_call("", CopyCall::OVERLAPPING);
                let buffer = &mut self.pool[location.buffer];
                let distance = self.content_random.pick(&[1, 45, 4095, 4096, 16384, 70_000]);
                let to = if self.content_random.one_in(2) {
                    location.at.saturating_sub(distance)
                } else {
                    (location.at + distance).min(buffer.len() - len)
                };
                buffer.copy_within(call, to, location.at, len);
                location.at = to;
            } else {
                let call = self.next_call("", CopyCall::ALL);
                let to = self.location(len, Some(location.buffer));
                let (target, source) = disjoint_pair(&mut self.pool, to.buffer, location.buffer);
                target.copy_from(call, to.at, source, location.at, len);
                location = to;
            }
        }
        location
    }

    /// Touches, checks and replaces buffers here and there.
    fn perturb_pool(&mut self) {
        let index = self.content_random.below(self.pool.len());
        let seed = self.content_random.next_u64();
        match self.content_random.below(10) {
            0 => self.pool[index].check_all("a buffer between messages"),
            1 => {
                let (at, len) = self.content_random.range(BUFFER_BYTES / 4);
                self.pool[index].store(at, len, seed);
            }
            2 => {
                let at = self.content_random.below(BUFFER_BYTES / 2);
                self.pool[index].store(at, 1, seed);
            }
            3 => self.pool[index].check_sparsely(&mut self.content_random, "a buffer between messages"),
            4 => {
                let (at, len) = self.content_random.range(BUFFER_BYTES / 4);
                self.pool[index].set(at, len, 0xa5);
            }
            5 if Origin::HEAP.contains(&self.pool[index].origin()) => {
                let smaller = self.content_random.between(4096, BUFFER_BYTES);
                self.pool[index].resize(smaller);
                self.pool[index].resize(BUFFER_BYTES);
            }
            6 if Origin::HEAP.contains(&self.pool[index].origin()) => {
                let source = (index + 1) % self.pool.len();
                self.pool[index] = Buffer::copy_of(CopyCall::Memmove, &self.pool[source], 0, BUFFER_BYTES);
            }
            7 => {
                // Half of the pool stays with the allocator, so that there is always something to elide.
                let origins = if index < 3 { Origin::HEAP } else { Origin::ALLOCATED };
                let origin = self.content_random.pick(origins);
                self.pool[index] = Buffer::new(origin, BUFFER_BYTES);
            }
            _ => {}
        }
    }

    /// Receives header and payload. Returns `None` for the message that ends the conversation.
    fn receive_message(&mut self) -> Option<(Location, usize)> {
        let mut bytes = [0u8; HEADER_BYTES];
        if !self.channel.stream {
            // The size is learned by peeking, which must leave the datagram where it is.
            let part = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: HEADER_BYTES };
            let call = self.next_call("in ", InputCall::WITH_FLAGS);
            set_nonblocking(self.channel.input, false);
            // SAFETY: the part is the local array.
            let total_len =
                unsafe { call.input(self.channel.input, &mut [part], libc::MSG_PEEK | libc::MSG_TRUNC) };
            let (len, seed) = parse(bytes);
            assert_eq!(total_len, Ok(HEADER_BYTES + len), "{call:?} with MSG_PEEK | MSG_TRUNC");
            let location = self.location(len + HEADER_BYTES, None);
            self.input_datagram(location, len, seed, &bytes);
            return (len > 0).then_some((Location { at: location.at + HEADER_BYTES, ..location }, len));
        }
        let mut got = 0;
        while got < HEADER_BYTES {
            let part = iovec { iov_base: bytes[got..].as_mut_ptr().cast(), iov_len: HEADER_BYTES - got };
            got += self.input_once(&mut [part], 0);
        }
        let (len, seed) = parse(bytes);
        if len == 0 {
            return None;
        }
        let location = self.location(len, None);
        self.input(location, len, seed, 0);
        Some((location, len))
    }

    /// Receives the stream `seed` from its byte `skip` on until `len` bytes are at `location`.
    fn input(&mut self, location: Location, len: usize, seed: u64, skip: usize) {
        let mut got = skip;
        while got < len {
            let left = len - got;
            let want = if self.call_random.one_in(3) { self.call_random.length(left) } else { left };
            let at = location.at + got;
            if self.channel.socket && self.call_random.one_in(6) {
                let mut parts = self.parts(location.buffer, at, want);
                let peeked = self.input_once(&mut parts, libc::MSG_PEEK);
                self.pool[location.buffer].note_received_stream(at, peeked, seed, got);
                if self.call_random.one_in(2) {
                    self.pool[location.buffer].check(at, peeked, "peeked bytes");
                }
            }
            let mut parts = self.parts(location.buffer, at, want);
            let received = self.input_once(&mut parts, 0);
            self.pool[location.buffer].note_received_stream(at, received, seed, got);
            got += received;
        }
    }

    /// Makes one call that receives at least a byte, blocking or not, waiting where it must.
    fn input_once(&mut self, parts: &mut [iovec], flags: i32) -> usize {
        let fd = self.channel.input;
        let calls = match (self.channel.socket, flags) {
            (false, _) => InputCall::ANY,
            (true, 0) => InputCall::SOCKET,
            (true, _) => InputCall::WITH_FLAGS,
        };
        let call = self.next_call("in ", calls);
        let takes_flags = InputCall::WITH_FLAGS.contains(&call);
        let nonblocking = self.call_random.one_in(2);
        set_nonblocking(fd, nonblocking && !(takes_flags && self.call_random.one_in(2)));
        let mut all_flags = flags;
        if takes_flags && nonblocking {
            all_flags |= libc::MSG_DONTWAIT;
        }
        let wait_all = takes_flags && !nonblocking && flags == 0 && self.call_random.one_in(2);
        if wait_all {
            all_flags |= libc::MSG_WAITALL;
        }
        let capacity: usize =
            if call.is_vector() { parts.iter().map(|part| part.iov_len).sum() } else { parts[0].iov_len };
        loop {
            // SAFETY: the parts are inside buffers of the pool or the caller's array.
            match unsafe { call.input(fd, parts, all_flags) } {
                Ok(0) => panic!("{call:?}: the other end closed the connection"),
                Ok(count) => {
                    assert!(count <= capacity, "{call:?} received {count} bytes into {capacity}");
                    assert!(
                        !wait_all || count == capacity,
                        "{call:?} with MSG_WAITALL gave {count} of {capacity}"
                    );
                    return count;
                }
                Err(libc::EAGAIN) if nonblocking => wait_ready(fd, libc::POLLIN),
                Err(error) => {
                    panic!("{call:?} flags {all_flags:#x} nonblocking {nonblocking}: errno {error}")
                }
            }
        }
    }

    /// Receives one datagram: `prefix` and the payload.
    fn input_datagram(&mut self, location: Location, len: usize, seed: u64, prefix: &[u8]) {
        let total_len = prefix.len() + len;
        let space = (self.pool[location.buffer].len() - location.at).min(total_len + 100);
        let mut parts = self.parts(location.buffer, location.at, space.max(1));
        let call = loop {
            let call = self.next_call("in ", InputCall::SOCKET);
            if call.is_vector() || parts.len() == 1 {
                break call;
            }
            parts = vec![self.pool[location.buffer].part(location.at, space.max(1))];
        };
        set_nonblocking(self.channel.input, false);
        // SAFETY: the parts are inside a buffer of the pool.
        let received = unsafe { call.input(self.channel.input, &mut parts, 0) };
        assert_eq!(received, Ok(total_len), "{call:?}: a datagram must come whole");
        self.pool[location.buffer].note_received(location.at, prefix);
        self.pool[location.buffer].note_received_stream(location.at + prefix.len(), len, seed, 0);
    }

    /// Sends a payload, behind a header if there is one.
    fn output(&mut self, location: Location, len: usize, header: Option<[u8; HEADER_BYTES]>) {
        let mut header = header.map_or_else(Vec::new, |header| header.to_vec());
        if !self.channel.stream {
            let (mut location, mut len) = (location, len);
            if location.at >= header.len() {
                // The header goes in front of the payload, in the buffer itself.
                location.at -= header.len();
                len += header.len();
                self.pool[location.buffer].store_bytes(location.at, &header);
                header.clear();
            }
            let mut parts = self.parts(location.buffer, location.at, len);
            let mut calls = OutputCall::SOCKET;
            if !header.is_empty() {
                parts.insert(0, iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() });
            }
            if parts.len() > 1 {
                calls =
                    &[OutputCall::Writev, OutputCall::Pwritev2, OutputCall::Pwritev64v2, OutputCall::Sendmsg];
                if self.call_random.one_in(5) {
                    calls = &[OutputCall::Sendmmsg];
                }
            }
            let call = self.next_call("out ", calls);
            set_nonblocking(self.channel.output, false);
            // SAFETY: the parts are inside a buffer of the pool and the header.
            let sent = unsafe { call.output(self.channel.output, &mut parts, libc::MSG_NOSIGNAL) };
            assert_eq!(sent, Ok(header.len() + len), "{call:?}: a datagram must go whole");
            return;
        }
        let total_len = header.len() + len;
        let mut sent = 0;
        while sent < total_len {
            let in_header = header.len().saturating_sub(sent);
            let from = sent.saturating_sub(header.len());
            let want = if self.call_random.one_in(3) && from < len {
                self.call_random.length(len - from)
            } else {
                len - from
            };
            let mut parts =
                if want > 0 { self.parts(location.buffer, location.at + from, want) } else { Vec::new() };
            if in_header > 0 {
                parts.insert(0, iovec { iov_base: header[sent..].as_mut_ptr().cast(), iov_len: in_header });
            }
            sent += self.output_once(&mut parts, sent + in_header + want < total_len);
        }
    }

    /// Makes one call that sends at least a byte, blocking or not, waiting where it must.
    fn output_once(&mut self, parts: &mut [iovec], more_follows: bool) -> usize {
        let fd = self.channel.output;
        let calls = if self.channel.socket { OutputCall::SOCKET } else { OutputCall::ANY };
        let call = self.next_call("out ", calls);
        let takes_flags = OutputCall::WITH_FLAGS.contains(&call);
        let nonblocking = self.call_random.one_in(2);
        set_nonblocking(fd, nonblocking && !(takes_flags && self.call_random.one_in(2)));
        let mut flags = libc::MSG_NOSIGNAL;
        if takes_flags && nonblocking {
            flags |= libc::MSG_DONTWAIT;
        }
        let total_len: usize =
            if call.is_vector() { parts.iter().map(|part| part.iov_len).sum() } else { parts[0].iov_len };
        if takes_flags && more_follows && self.call_random.one_in(2) {
            flags |= libc::MSG_MORE;
        }
        loop {
            // SAFETY: the parts are inside buffers of the pool or the header.
            match unsafe { call.output(fd, parts, flags) } {
                Ok(count) => {
                    assert!(count > 0 && count <= total_len, "{call:?} sent {count} of {total_len} bytes");
                    assert!(
                        nonblocking || count == total_len,
                        "blocking {call:?} sent {count} of {total_len} bytes"
                    );
                    return count;
                }
                Err(libc::EAGAIN) if nonblocking => wait_ready(fd, libc::POLLOUT),
                Err(error) => panic!("{call:?} flags {flags:#x} nonblocking {nonblocking}: errno {error}"),
            }
        }
    }

    /// Cuts a range of a buffer into parts.
    fn parts(&mut self, buffer: usize, at: usize, len: usize) -> Vec<iovec> {
        let count = if self.call_random.one_in(2) { 1 } else { self.call_random.between(2, 6) };
        let buffer = &self.pool[buffer];
        let mut parts = Vec::with_capacity(count);
        let mut done = 0;
        for number in 1..=count {
            let left = len - done;
            let part = if number == count { left } else { self.call_random.below(left + 1) };
            // The first part is never empty: a call that takes one part takes this one.
            let part = if number == 1 { part.max(left.min(1)) } else { part };
            if part > 0 || (number > 1 && self.call_random.one_in(4)) {
                parts.push(buffer.part(at + done, part));
            }
            done += part;
        }
        if parts.is_empty() {
            parts.push(buffer.part(at, 0));
        }
        parts
    }
}

fn header(len: usize, seed: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&(len as u64).to_le_bytes());
    bytes[8..].copy_from_slice(&seed.to_le_bytes());
    bytes
}

fn parse(bytes: [u8; HEADER_BYTES]) -> (usize, u64) {
    let word = u128::from_le_bytes(bytes);
    let len = usize::try_from(word & u128::from(u64::MAX)).expect("64 bits");
    assert!(len <= BUFFER_BYTES, "header of {len} bytes");
    (len, u64::try_from(word >> 64).expect("64 bits"))
}

/// Two different members of a slice.
fn disjoint_pair(pool: &mut [Buffer], target: usize, source: usize) -> (&mut Buffer, &Buffer) {
    let [target, source] = pool.get_disjoint_mut([target, source]).expect("different buffers");
    (target, source)
}
