//! Buffers that hold received data and copies of it, as uncopy's views do.

use crate::calls::{CopyCall, InputCall, OutputCall, set_buffer_size, set_nonblocking};
use crate::mirror::{Buffer, Origin};
use crate::oracle::{self, OracleBytes};
use crate::random::mix;

/// A socket pair whose far end is driven by bare system calls.
#[derive(Debug)]
pub struct Feeder {
    near: i32,
    far: i32,
    wire: OracleBytes,
    seed: u64,
}

/// Maximum number of bytes per call.
const WIRE_BYTES: usize = 1 << 20;

impl Feeder {
    /// Makes a connected pair.
    ///
    /// # Panics
    /// When socketpair(2) fails.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut ends = [0; 2];
        // SAFETY: socketpair(2) writes two descriptors, for which `ends` has room.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) };
        assert_eq!(made, 0, "socketpair");
        let [near, far] = ends;
        for end in ends {
            set_buffer_size(end, libc::SO_SNDBUF, 4 << 20);
            set_nonblocking(end, true);
        }
        Self { near, far, wire: OracleBytes::new(WIRE_BYTES), seed }
    }

    /// The end that the calls under test use.
    #[must_use]
    pub const fn near(&self) -> i32 {
        self.near
    }

    /// The end that the oracle uses.
    #[must_use]
    pub const fn far(&self) -> i32 {
        self.far
    }

    /// Makes at most `len` bytes ready to be received; returns their seed and number.
    ///
    /// # Panics
    /// When the socket accepts no byte.
    pub fn offer(&mut self, len: usize) -> (u64, usize) {
        self.seed = mix(self.seed.wrapping_add(1));
        let len = len.min(WIRE_BYTES);
        self.wire.fill(0, len, self.seed, 0);
        // SAFETY: the wire was filled with `len` bytes, at most `WIRE_BYTES`.
        let offered = unsafe { oracle::raw_write(self.far, self.wire.pointer(), len) };
        (self.seed, offered.expect("an empty socket takes bytes"))
    }

    /// Receives fresh bytes into the range of the buffer.
    ///
    /// # Panics
    /// When a call fails.
    pub fn receive(&mut self, call: InputCall, buffer: &mut Buffer, at: usize, len: usize) {
        let mut done = 0;
        while done < len {
            let (seed, offered) = self.offer(len - done);
            let mut got = 0;
            while got < offered {
                let mut part = [buffer.part(at + done + got, offered - got)];
                // SAFETY: the part is inside the buffer.
                let now = unsafe { call.input(self.near, &mut part, 0) };
                let now = now.unwrap_or_else(|error| panic!("{call:?}: errno {error}"));
                buffer.note_received_stream(at + done + got, now, seed, got);
                got += now;
            }
            done += offered;
        }
    }

    /// Returns a heap buffer all of whose bytes were received.
    #[must_use]
    pub fn received_buffer(&mut self, len: usize) -> Buffer {
        let mut buffer = Buffer::new(Origin::Malloc, len);
        self.receive(InputCall::Recv, &mut buffer, 0, len);
        buffer
    }

    /// Returns a heap buffer that is a copy of a received one, which is freed.
    #[must_use]
    pub fn copied_buffer(&mut self, len: usize) -> Buffer {
        let received = self.received_buffer(len);
        Buffer::copy_of(CopyCall::Memcpy, &received, 0, len)
    }

    /// Sends the range of the buffer and checks what arrives.
    ///
    /// # Panics
    /// When a call fails or a byte is wrong.
    pub fn send(&mut self, call: OutputCall, buffer: &Buffer, at: usize, len: usize) {
        let mut done = 0;
        while done < len {
            let mut part = [buffer.part(at + done, len - done)];
            // SAFETY: the part is inside the buffer.
            let sent = unsafe { call.output(self.near, &mut part, libc::MSG_NOSIGNAL) };
            let sent = sent.unwrap_or_else(|error| panic!("{call:?}: errno {error}"));
            self.check_arrived(buffer, at + done, sent);
            done += sent;
        }
    }

    /// Reads `len` bytes from the far end and compares them with the buffer's mirror.
    ///
    /// # Panics
    /// When a byte is wrong or missing.
    pub fn check_arrived(&mut self, buffer: &Buffer, at: usize, len: usize) {
        let mut got = 0;
        while got < len {
            let want = (len - got).min(WIRE_BYTES);
            // SAFETY: the wire has room for `WIRE_BYTES` bytes, and `want` is at most that.
            let now =
                unsafe { oracle::raw_read(self.far, self.wire.pointer(), want) }.expect("bytes on the wire");
            // SAFETY: the wire holds `now` bytes; the mirror has the range.
            let wrong =
                unsafe { oracle::first_difference(self.wire.pointer(), buffer.mirror_at(at + got), now) };
            assert_eq!(wrong, None, "a wrong byte arrived, at this offset after {} of {at}+{len}", at + got);
            got += now;
        }
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        // SAFETY: the descriptors are this value's; if a program has closed them already, close(2)
        // fails with EBADF.
        unsafe {
            libc::close(self.near);
            libc::close(self.far);
        }
    }
}
