//! The worker's channels: sockets and pipes whose far end is driven by bare system calls, or by a mate.

use std::collections::VecDeque;
use std::ffi::c_int;

use uncopy_tests::calls::{set_buffer_size, set_nonblocking, wait_ready};
use uncopy_tests::oracle::{self, OracleBytes};

use crate::mate::{self, Answer, Mate, Transport};
use crate::model::{Mirror, pool, pool_offset};

/// Longest message on a channel with message boundaries, in bytes.
pub const MAX_MESSAGE: usize = 150_000;
/// Maximum number of bytes in flight to the peer.
const MAX_OUTGOING: usize = 4 << 20;

/// Kind of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelKind {
    /// Unix stream socket with the default buffer sizes.
    Stream,
    /// Unix stream socket with a small send buffer, so that writes are partial.
    SmallBuffer,
    /// TCP connection over loopback.
    Tcp,
    /// Pipe that the program reads.
    PipeIn,
    /// Pipe that the program writes.
    PipeOut,
    /// Unix datagram socket (SOCK_DGRAM).
    Datagram,
    /// Unix sequenced-packet socket (SOCK_SEQPACKET).
    Packet,
}

impl ChannelKind {
    /// Every kind: a worker has one channel of each kind.
    pub const ALL: &'static [Self] = &[
        Self::Stream,
        Self::SmallBuffer,
        Self::Tcp,
        Self::PipeIn,
        Self::PipeOut,
        Self::Datagram,
        Self::Packet,
    ];

    /// Whether the kind keeps message boundaries.
    #[must_use]
    pub const fn keeps_boundaries(self) -> bool {
        matches!(self, Self::Datagram | Self::Packet)
    }

    /// Returns the transport to a mate, or `None` if a mate cannot have the far end of this kind.
    const fn transport(self) -> Option<Transport> {
        match self {
            Self::Tcp => Some(Transport::Tcp),
            Self::Stream | Self::SmallBuffer => Some(Transport::Unix),
            _ => None,
        }
    }

    /// Whether the kind supports socket calls.
    #[must_use]
    pub const fn is_socket(self) -> bool {
        !matches!(self, Self::PipeIn | Self::PipeOut)
    }
}

/// Bytes of the pool in flight to the program.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Offset in the pool.
    pub pool_offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// Owner of the channel's far end.
#[derive(Debug)]
enum FarEnd {
    /// Far end in this process: its descriptor.
    Local(c_int),
    /// Far end in a mate.
    Remote(Mate),
}

/// A channel with the bytes in flight in both directions.
#[derive(Debug)]
pub struct Channel {
    /// Kind of the channel.
    pub kind: ChannelKind,
    near: c_int,
    far: FarEnd,
    incoming: VecDeque<Chunk>,
    outgoing: Mirror,
    /// Range of `outgoing` that the peer has not received yet.
    in_flight: (usize, usize),
    messages: VecDeque<usize>,
}

impl Channel {
    /// Creates one channel of each kind.
    #[must_use]
    pub fn all() -> Vec<Self> {
        ChannelKind::ALL.iter().map(|kind| Self::new(*kind)).collect()
    }

    fn new(kind: ChannelKind) -> Self {
        match kind.transport().and_then(Mate::connect) {
            Some((mate, near)) => Self::from_ends(kind, near, FarEnd::Remote(mate)),
            None => Self::new_local(kind),
        }
    }

    /// Creates a channel with both ends in this process.
    fn new_local(kind: ChannelKind) -> Self {
        let (near, far) = match kind {
            ChannelKind::Stream | ChannelKind::SmallBuffer => pair(libc::SOCK_STREAM),
            ChannelKind::Datagram => pair(libc::SOCK_DGRAM),
            ChannelKind::Packet => pair(libc::SOCK_SEQPACKET),
            ChannelKind::Tcp => tcp(),
            ChannelKind::PipeIn => pipe(),
            ChannelKind::PipeOut => {
                let (reader, writer) = pipe();
                (writer, reader)
            }
        };
        set_nonblocking(far, true);
        Self::from_ends(kind, near, FarEnd::Local(far))
    }

    fn from_ends(kind: ChannelKind, near: c_int, far: FarEnd) -> Self {
        if kind == ChannelKind::SmallBuffer {
            set_buffer_size(near, libc::SO_SNDBUF, 20_000);
        }
        set_nonblocking(near, true);
        Self {
            kind,
            near,
            far,
            incoming: VecDeque::new(),
            outgoing: Mirror::new(MAX_OUTGOING),
            in_flight: (0, 0),
            messages: VecDeque::new(),
        }
    }

    /// Whether the channel's bytes may go over a lane: its far end is in a mate.
    #[must_use]
    pub const fn may_be_lane(&self) -> bool {
        matches!(self.far, FarEnd::Remote(_))
    }

    /// Whether a failed call, or an end of stream, at the near end is due to a killed mate. If so,
    /// the channel is replaced by a fresh one within this process.
    pub fn replace_if_mate_lost(&mut self, outcome: Result<usize, c_int>) -> bool {
        let is_lost = matches!(outcome, Ok(0) | Err(libc::ECONNRESET | libc::EPIPE));
        is_lost && mate::may_be_killed() && self.may_be_lane() && {
            *self = Self::new_local(self.kind);
            true
        }
    }

    /// Translates a mate's answer; `Ok(None)` if there is nothing now, or the mate was killed.
    fn translate_answer(&mut self, answer: Answer) -> Result<Option<usize>, String> {
        match answer {
            Answer::Bytes(bytes) => Ok(Some(bytes)),
            Answer::Again => Ok(None),
            Answer::Failed(why) => Err(format!("{:?}: {why}", self.kind)),
            Answer::Gone if self.replace_if_mate_lost(Ok(0)) => Ok(None),
            Answer::Gone => Err(format!("{:?}: the mate has ended", self.kind)),
        }
    }

    /// Returns the descriptor of the program's end.
    #[must_use]
    pub const fn near(&self) -> c_int {
        self.near
    }

    /// Returns the number of bytes waiting for the program; with boundaries, of the first message.
    #[must_use]
    pub fn waiting(&self) -> usize {
        if self.kind.keeps_boundaries() {
            self.incoming.front().map_or(0, |chunk| chunk.len)
        } else {
            self.incoming.iter().map(|chunk| chunk.len).sum()
        }
    }

    /// Returns the chunks waiting for the program, in order.
    #[must_use]
    pub const fn incoming(&self) -> &VecDeque<Chunk> {
        &self.incoming
    }

    /// Sends up to `len` bytes of the pool to the program.
    ///
    /// # Errors
    /// A failure that the mate reports.
    pub fn feed(&mut self, len: usize, seed: usize) -> Result<(), String> {
        if len == 0 || self.kind == ChannelKind::PipeOut {
            return Ok(());
        }
        let len = if self.kind.keeps_boundaries() { len.min(MAX_MESSAGE) } else { len.min(mate::MAX_BYTES) };
        let pool_offset = pool_offset(seed, len);
        let fed = match &mut self.far {
            // SAFETY: the pool has `len` bytes from `pool_offset` on, and is never freed.
            FarEnd::Local(far) => unsafe { oracle::raw_write(*far, pool().at(pool_offset), len) }.ok(),
            FarEnd::Remote(mate) => {
                let answer = mate.feed(pool_offset, len);
                self.translate_answer(answer)?
            }
        };
        self.incoming.extend(fed.map(|len| Chunk { pool_offset, len }));
        Ok(())
    }

    /// Removes `len` received bytes, or the first message, from the waiting chunks.
    pub fn consume(&mut self, len: usize) {
        if self.kind.keeps_boundaries() {
            self.incoming.pop_front();
            return;
        }
        let mut left = len;
        while left > 0 {
            let Some(first) = self.incoming.front_mut() else { return };
            let now = left.min(first.len);
            first.pool_offset += now;
            first.len -= now;
            left -= now;
            if first.len == 0 {
                self.incoming.pop_front();
            }
        }
    }

    /// Returns the number of bytes that the program may still send.
    #[must_use]
    pub const fn send_space(&self) -> usize {
        MAX_OUTGOING - self.in_flight.1
    }

    /// Records `len` bytes that the program sent, which `mirror` has at `from`.
    pub fn note_sent(&mut self, mirror: &Mirror, from: usize, len: usize) {
        self.outgoing.copy_from(self.in_flight.1, mirror, from, len);
        self.in_flight.1 += len;
    }

    /// Records the boundary of the message sent last, `len` bytes long.
    pub fn note_message_sent(&mut self, len: usize) {
        if self.kind.keeps_boundaries() {
            self.messages.push_back(len);
        }
    }

    /// Receives up to `len` bytes, or one message, at the peer, and compares the bytes with the model.
    ///
    /// # Errors
    /// A description of wrong or missing bytes.
    pub fn drain(&mut self, len: usize, scratch: &OracleBytes) -> Result<(), String> {
        self.drain_some(len, false, scratch)
    }

    /// Receives once and compares; with `waits`, waits for bytes that may arrive late (TCP).
    fn drain_some(&mut self, len: usize, waits: bool, scratch: &OracleBytes) -> Result<(), String> {
        let (start, end) = self.in_flight;
        if start == end || self.kind == ChannelKind::PipeIn {
            return Ok(());
        }
        let Some(got) = self.receive_at_peer(len.clamp(1, scratch.len()), waits, scratch)? else {
            return Ok(());
        };
        let max_bytes = if self.kind.keeps_boundaries() {
            let message = self.messages.pop_front().ok_or("a message that was never sent")?;
            if got != message {
                return Err(format!("{:?}: a message of {message} bytes came as {got}", self.kind));
            }
            message
        } else {
            end - start
        };
        if got == 0 || got > max_bytes {
            return Err(format!("{:?}: the peer got {got} bytes of {max_bytes}", self.kind));
        }
        // SAFETY: the peer received `got` bytes into the scratch, so they are readable.
        if let Some(difference) = unsafe { self.outgoing.difference(scratch.pointer(), start, got) } {
            return Err(format!(
                "{:?}: the peer got wrong bytes: {difference} (range {start}+{got})",
                self.kind
            ));
        }
        self.in_flight.0 += got;
        if self.in_flight.0 == end {
            self.in_flight = (0, 0);
        }
        Ok(())
    }

    /// Receives at the peer's end into the scratch; `None` if there is nothing to receive.
    fn receive_at_peer(
        &mut self,
        len: usize,
        waits: bool,
        scratch: &OracleBytes,
    ) -> Result<Option<usize>, String> {
        let waits = waits && self.kind == ChannelKind::Tcp;
        let got = match &mut self.far {
            FarEnd::Remote(mate) => {
                let answer = mate.drain(len, waits, scratch);
                self.translate_answer(answer)?
            }
            FarEnd::Local(far) => {
                if waits {
                    wait_ready(*far, libc::POLLIN);
                }
                let want = if self.kind.keeps_boundaries() { scratch.len() } else { len };
                // SAFETY: `want` is at most the scratch's length: `drain_some` clamps `len` to it.
                match unsafe { oracle::raw_read(*far, scratch.pointer(), want) } {
                    Ok(got) => Some(got),
                    Err(libc::EAGAIN) => None,
                    Err(error) => return Err(format!("{:?}: errno {error}", self.kind)),
                }
            }
        };
        let (start, end) = self.in_flight;
        if got.is_none() && start < end && self.kind != ChannelKind::Tcp {
            return Err(format!("{:?}: {} sent bytes, and none of them comes", self.kind, end - start));
        }
        Ok(got)
    }

    /// Receives and compares everything that was sent.
    ///
    /// # Errors
    /// A description of wrong or missing bytes.
    pub fn drain_all(&mut self, scratch: &OracleBytes) -> Result<(), String> {
        while self.in_flight.0 < self.in_flight.1 {
            self.drain_some(scratch.len(), true, scratch)?;
        }
        Ok(())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel owns both descriptors, and nothing uses them after this.
        unsafe {
            libc::close(self.near);
            if let FarEnd::Local(far) = self.far {
                libc::close(far);
            }
        }
    }
}

/// Creates two connected Unix sockets.
#[must_use]
pub fn pair(kind: c_int) -> (c_int, c_int) {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors that socketpair(2) writes.
    let returned =
        unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) };
    assert_eq!(returned, 0, "socketpair: errno {}", oracle::errno());
    (ends[0], ends[1])
}

/// Creates a pipe and returns its read end and its write end.
#[must_use]
pub fn pipe() -> (c_int, c_int) {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors that pipe2(2) writes.
    let returned = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(returned, 0, "pipe: errno {}", oracle::errno());
    // A larger pipe, if the user may have one; otherwise the default size will do.
    // SAFETY: fcntl(2) with F_SETPIPE_SZ takes integers only.
    unsafe { libc::fcntl(ends[1], libc::F_SETPIPE_SZ, 256 << 10) };
    (ends[0], ends[1])
}

/// Creates a loopback connection and returns both ends.
fn tcp() -> (c_int, c_int) {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::IntoRawFd;
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (far, _) = listener.accept().expect("loopback");
    for end in [&near, &far] {
        end.set_nodelay(true).expect("nodelay");
    }
    (near.into_raw_fd(), far.into_raw_fd())
}
