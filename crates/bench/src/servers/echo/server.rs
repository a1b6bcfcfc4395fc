//! The echo server of zIO §5.1: receives a message, copies it a number of times, touches some of
//! its pages if asked to, and sends the last copy back.
//!
//! ```text
//! recv → buffer 0 ── memcpy → buffer 1 ── memcpy → … ── memcpy → buffer N → send
//! ```
//!
//! With [`Reply::Checksum`] it is a store instead (the MongoDB case of zIO §5.4): the last buffer is
//! one of several in turn, every byte of it is read for a checksum, it is written to a file, and the
//! checksum is all that is sent back.
//!
//! It is an ordinary program: the buffers come from `malloc` once per connection, and `recv`,
//! `memcpy` and `send` are the C library's, called through the dynamic symbols, so that whatever
//! is preloaded sees all of them. The sizes are known at run time only; nothing is inlined.
//!
//! Peers are not trusted: whatever one does, only its own connection ends.

use std::ffi::CStr;
use std::hint::black_box;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::kit::processes::signals::Requests;
use crate::kit::processes::wait;
use crate::kit::{Random, Result, While, checksum};

/// How long a peer may stay silent before its connection is closed.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// How often a waiting thread looks whether the server is ending.
const STOP_CHECK: Duration = Duration::from_secs(1);
/// Length of a page, bytes.
pub const PAGE_BYTES: usize = 4096;
/// Messages that a store keeps, in memory and in its file.
const STORED: usize = 8;

/// The choice of pages of a message that are touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Spread evenly over the message
    #[default]
    Spread,
    /// From its start, one behind the other
    Sequential,
    /// Others for each message, in no order
    Random,
}

/// What is sent back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reply {
    /// The last copy.
    #[default]
    Echo,
    /// The [`crate::kit::checksum`] of the last copy, eight bytes, the lowest first.
    Checksum,
    /// The same of the last copy's last page: of no other anything is read.
    LastPage,
}

/// What the server does with each message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Length of a message, bytes.
    pub size_bytes: usize,
    /// Copies made before the message is sent back.
    pub copies: usize,
    /// Pages of the last buffer of which one byte is read before it is sent.
    pub touched_pages: usize,
    /// The choice of these pages.
    pub order: Order,
    /// Bytes from the start of the last buffer that are all read before it is sent.
    pub read_bytes: usize,
    /// How long it does not read them, and then does, by turns, ms; 0: it always reads them.
    pub phase_ms: u64,
    /// What is sent back.
    pub reply: Reply,
}

impl Work {
    /// Whether this is a time at which it reads: the same for all servers of one machine.
    fn is_reading(&self) -> bool {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let ms = now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000;
        self.phase_ms == 0 || ms / self.phase_ms % 2 == 1
    }
}

/// Pages that were touched and how long that took, over all connections.
#[derive(Debug, Default)]
pub struct Touched {
    pages: AtomicU64,
    ns: AtomicU64,
}

impl Touched {
    /// The line in which a server that ends tells them.
    fn line(&self) -> String {
        let (pages, ns) = (self.pages.load(Ordering::Relaxed), self.ns.load(Ordering::Relaxed));
        format!("touched {pages} pages in {ns} ns")
    }
}

/// The ns per page in the text that a server wrote; `None` if it touched none.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
pub fn touch_ns(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("touched "))?;
    let (pages, ns) = line.strip_suffix(" ns")?.split_once(" pages in ")?;
    let (pages, ns): (u64, u64) = (pages.parse().ok()?, ns.parse().ok()?);
    (pages > 0).then(|| ns as f64 / pages as f64)
}

/// A block from `malloc`, freed when dropped. Its bytes are only reached through pointers: they
/// begin uninitialised.
#[derive(Debug)]
pub struct Buffer {
    start: *mut libc::c_void,
}

impl Buffer {
    fn allocate(size_bytes: usize) -> io::Result<Self> {
        // SAFETY: malloc takes any size.
        let start = unsafe { libc::malloc(black_box(size_bytes)) };
        if start.is_null() { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(Self { start }) }
    }

    /// A block that begins with a page.
    ///
    /// # Errors
    /// When there is no such memory.
    pub fn aligned(size_bytes: usize) -> io::Result<Self> {
        let mut start = std::ptr::null_mut();
        // SAFETY: the block's address is written to `start`; a page is a power of two.
        match unsafe { libc::posix_memalign(&raw mut start, PAGE_BYTES, black_box(size_bytes)) } {
            0 => Ok(Self { start }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Where it begins.
    #[must_use]
    pub fn start(&self) -> *mut libc::c_void {
        self.start
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: start came from malloc or posix_memalign and is freed once.
        unsafe { libc::free(self.start) };
    }
}

/// A file in memory.
///
/// # Errors
/// When there is no memory or descriptor for it.
pub fn memory_file(name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the name is a string that ends with a zero byte.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: memfd_create succeeded, so this is an open descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls `transfer` with the bytes done so far until `size_bytes` are done. `Ok(false)`: the peer
/// ended the connection.
fn complete(size_bytes: usize, mut transfer: impl FnMut(usize) -> isize) -> io::Result<bool> {
    let mut done_bytes = 0;
    while done_bytes < size_bytes {
        match usize::try_from(transfer(done_bytes)) {
            Ok(0) => return Ok(false),
            Ok(moved_bytes) => done_bytes += moved_bytes,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(true)
}

/// Serves one connection until its peer ends it.
///
/// # Errors
/// The system's error when receiving, sending or allocating fails.
pub fn serve(stream: &impl AsRawFd, work: Work, touched: &Touched) -> io::Result<()> {
    let Work { size_bytes, copies, .. } = work;
    let mut buffers = (0..=copies).map(|_| Buffer::allocate(size_bytes)).collect::<io::Result<Vec<_>>>()?;
    let mut store = match work.reply {
        Reply::Echo | Reply::LastPage => None,
        Reply::Checksum => Some(Store::new(size_bytes, copies)?),
    };
    let mut random = Random::new(1);
    let fd = stream.as_raw_fd();
    loop {
        if let Some(store) = &mut store {
            store.exchange(&mut buffers);
        }
        let (Some(first), Some(last)) = (buffers.first(), buffers.last()) else { return Ok(()) };
        let received = complete(size_bytes, |done_bytes| {
            // SAFETY: done_bytes < size_bytes, so the range is inside the first buffer.
            unsafe { libc::recv(fd, first.start.byte_add(done_bytes), size_bytes - done_bytes, 0) }
        })?;
        if !received {
            return Ok(());
        }
        for pair in buffers.windows(2) {
            // SAFETY: both are separate buffers of size_bytes, and the source is initialised: the
            // first by recv, every later one by the copy before.
            unsafe {
                libc::memcpy(black_box(pair[1].start), black_box(pair[0].start), black_box(size_bytes))
            };
        }
        touch(last, &work, &mut random, touched);
        // SAFETY: the buffer has size_bytes, all of them initialised, and nothing changes them while
        // the slice is used.
        let message = unsafe { std::slice::from_raw_parts(last.start.cast::<u8>(), size_bytes) };
        if work.read_bytes > 0 && work.is_reading() {
            black_box(checksum::of(&message[..work.read_bytes.min(size_bytes)]));
        }
        let sum;
        let answer = match &store {
            None if work.reply == Reply::LastPage => {
                sum = checksum::of(last_page(message)).to_le_bytes();
                &sum[..]
            }
            None => message,
            Some(store) => {
                sum = checksum::of(message).to_le_bytes();
                store.write(message)?;
                &sum
            }
        };
        let sent = complete(answer.len(), |done_bytes| {
            let rest = &answer[done_bytes..];
            // SAFETY: the range is a slice.
            unsafe { libc::send(fd, rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) }
        })?;
        if !sent {
            return Ok(());
        }
    }
}

/// The last bytes of a message, at most a page.
#[must_use]
pub fn last_page(message: &[u8]) -> &[u8] {
    &message[message.len().saturating_sub(PAGE_BYTES)..]
}

/// Reads one byte in each of the work's touched pages of `buffer`.
fn touch(buffer: &Buffer, work: &Work, random: &mut Random, touched: &Touched) {
    let all = work.size_bytes.div_ceil(PAGE_BYTES);
    let pages = work.touched_pages.min(all);
    if pages == 0 {
        return;
    }
    let begin = Instant::now();
    let first = random.next();
    let mut sum = 0u8;
    for page in 0..pages {
        let offset_bytes = match work.order {
            Order::Spread => work.size_bytes / pages * page,
            Order::Sequential => page * PAGE_BYTES,
            Order::Random => shuffled(page, first, all) * PAGE_BYTES,
        };
        // SAFETY: page < pages <= all, so the offset is below size_bytes; the byte is initialised.
        sum = sum.wrapping_add(unsafe { buffer.start.cast::<u8>().byte_add(offset_bytes).read_volatile() });
    }
    black_box(sum);
    touched.pages.fetch_add(pages as u64, Ordering::Relaxed);
    let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    touched.ns.fetch_add(ns, Ordering::Relaxed);
}

/// The place of `page` in an order of `all` pages that follows from `first`: steps of a fixed odd
/// length that no common number of pages is a multiple of, so that no page comes twice.
#[must_use]
pub fn shuffled(page: usize, first: u64, all: usize) -> usize {
    const STEP: u64 = 7919;
    let all = all.max(1) as u64;
    let step = if all.is_multiple_of(STEP) { 1 } else { STEP };
    // Below `all`, which was a usize.
    usize::try_from((first % all + page as u64 * step) % all).unwrap_or(0)
}

/// Where a store keeps its messages.
struct Store {
    file: OwnedFd,
    /// Blocks that hold the messages before the one that is being received.
    kept: Vec<Buffer>,
    next: usize,
    size_bytes: usize,
}

impl Store {
    fn new(size_bytes: usize, copies: usize) -> io::Result<Self> {
        // Without copies the message is stored where it was received.
        let kept = if copies == 0 { 0 } else { STORED - 1 };
        let kept = (0..kept).map(|_| Buffer::allocate(size_bytes)).collect::<io::Result<_>>()?;
        Ok(Self { file: memory_file(c"store")?, kept, next: 0, size_bytes })
    }

    /// Keeps the last buffer and gives the oldest one kept in its place.
    fn exchange(&mut self, buffers: &mut [Buffer]) {
        self.next = self.next.wrapping_add(1);
        let index = self.next % self.kept.len().max(1);
        if let (Some(kept), Some(last)) = (self.kept.get_mut(index), buffers.last_mut()) {
            std::mem::swap(kept, last);
        }
    }

    /// Writes a message to its place in the file.
    fn write(&self, message: &[u8]) -> io::Result<()> {
        let place = self.next % STORED * self.size_bytes;
        complete(message.len(), |done_bytes| {
            let rest = &message[done_bytes..];
            let offset = libc::off_t::try_from(place + done_bytes).unwrap_or(libc::off_t::MAX);
            // SAFETY: the range is a slice; the file is open.
            unsafe { libc::pwrite(self.file.as_raw_fd(), rest.as_ptr().cast(), rest.len(), offset) }
        })
        .map(drop)
    }
}

/// What the threads share.
struct Shared {
    listener: TcpListener,
    work: Work,
    touched: Touched,
    stopping: AtomicBool,
    /// Descriptors of the connections being served; each is in the list only while it is open.
    open: Mutex<Vec<RawFd>>,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Vec<RawFd>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts and serves one connection after the other.
    fn accept_until_stopped(&self) {
        while !self.stopping.load(Ordering::Acquire) {
            if !wait::until_readable(&self.listener, Some(STOP_CHECK)).unwrap_or(false) {
                continue;
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.converse(&stream),
                // Another thread was faster.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The peer is gone already, or descriptors or memory are short: go on later.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn converse(&self, stream: &TcpStream) {
        let fd = stream.as_raw_fd();
        self.open().push(fd);
        // A stop that came before the push did not see this connection.
        if !self.stopping.load(Ordering::Acquire) && prepare(stream).is_ok() {
            // Whatever happened, it concerns this peer only, and its connection ends.
            let _ = serve(stream, self.work, &self.touched);
        }
        self.open().retain(|open| *open != fd);
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // Wakes the threads that wait for a connection.
        // SAFETY: the listener is open; shutdown closes nothing.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        for fd in self.open().iter() {
            // SAFETY: the descriptor is open while it is in the list; shutdown closes nothing.
            unsafe { libc::shutdown(*fd, libc::SHUT_RDWR) };
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_LIMIT))?;
    stream.set_write_timeout(Some(SILENCE_LIMIT))
}

/// Listens on `address`, prints `listening PORT` (and at its end, if it touched pages,
/// `touched PAGES pages in NS ns`), and serves up to `threads` connections at a
/// time, until SIGTERM, SIGINT or SIGHUP ask for the end.
///
/// # Errors
/// [`crate::kit::failure::Failure`] when listening or starting threads fails.
pub fn run(address: SocketAddr, work: Work, threads: usize) -> Result<()> {
    let requests = Requests::install().doing("installing signal handlers")?;
    let listener = TcpListener::bind(address).doing(format_args!("listening on {address}"))?;
    listener.set_nonblocking(true).doing("setting up the listening socket")?;
    let port = listener.local_addr().doing("asking for the port")?.port();
    let shared = Shared {
        listener,
        work,
        touched: Touched::default(),
        stopping: AtomicBool::new(false),
        open: Mutex::new(Vec::new()),
    };
    std::thread::scope(|scope| {
        for number in 0..threads.max(1) {
            let thread = std::thread::Builder::new().name(format!("echo {number}"));
            if let Err(error) = thread.spawn_scoped(scope, || shared.accept_until_stopped()) {
                shared.stop();
                return Err(error).doing("starting a thread");
            }
        }
        let mut stdout = io::stdout().lock();
        let announced = writeln!(stdout, "listening {port}").and_then(|()| stdout.flush());
        let ended = announced
            .doing("printing the port")
            .and_then(|()| requests.wait(None).map(drop).doing("waiting for a signal"));
        shared.stop();
        ended
    })?;
    if work.touched_pages > 0 {
        // Whoever listened may be gone.
        let _ = writeln!(io::stdout(), "{}", shared.touched.line());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::network::server_address;
    use crate::kit::pattern::{Pattern, compare};
    use std::io::Read;

    /// Runs `conversation` with a peer that `serve` serves; returns how serving ended.
    fn served(work: Work, conversation: impl FnOnce(TcpStream)) -> io::Result<()> {
        let listener = TcpListener::bind((server_address(), 0)).expect("a free port");
        let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
        let (stream, _) = listener.accept().expect("a peer");
        for end in [&peer, &stream] {
            end.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        }
        std::thread::scope(|scope| {
            let server = scope.spawn(move || serve(&stream, work, &Touched::default()));
            conversation(peer);
            server.join().expect("no panic")
        })
    }

    #[test]
    fn every_message_comes_back_whatever_the_copies_and_pieces() {
        use Order::{Random, Sequential, Spread};
        for (size_bytes, copies, touched_pages, order) in [
            (1, 0, 0, Spread),
            (1, 0, 7, Random),
            (5000, 1, 1, Sequential),
            (70_001, 5, 1000, Spread),
            (70_001, 1, 1000, Random),
            (524_288, 12, 3, Sequential),
        ] {
            let work = Work { size_bytes, copies, touched_pages, order, read_bytes: 100, ..Work::default() };
            served(work, |mut peer| {
                let mut pattern = Pattern::new(size_bytes, 4);
                let mut echo = vec![0; size_bytes];
                for _ in 0..4 {
                    let message = pattern.advance();
                    for piece in message.chunks(size_bytes.div_ceil(3)) {
                        peer.write_all(piece).expect("the server reads");
                    }
                    peer.read_exact(&mut echo).expect("the server answers");
                    assert_eq!(compare(message, &echo), Ok(()));
                }
            })
            .expect("the peer ended the connection between messages");
        }
    }

    #[test]
    fn a_store_answers_with_the_checksum_of_each_message() {
        for (size_bytes, copies) in [(1, 0), (5000, 1), (70_001, 3)] {
            let work = Work { size_bytes, copies, reply: Reply::Checksum, ..Work::default() };
            served(work, |mut peer| {
                let mut pattern = Pattern::new(size_bytes, 4);
                for _ in 0..2 * STORED + 1 {
                    let message = pattern.advance();
                    peer.write_all(message).expect("the server reads");
                    let mut sum = [0; 8];
                    peer.read_exact(&mut sum).expect("the server answers");
                    assert_eq!(u64::from_le_bytes(sum), checksum::of(message));
                }
            })
            .expect("the peer ended the connection between messages");
        }
    }

    #[test]
    fn no_page_is_touched_twice() {
        for all in [1, 2, 3, 128, 7919, 2 * 7919] {
            let mut pages: Vec<usize> = (0..all).map(|page| shuffled(page, u64::MAX - 5, all)).collect();
            pages.sort_unstable();
            assert!(pages.into_iter().eq(0..all), "{all} pages");
        }
    }

    #[test]
    fn what_the_server_tells_about_touching_is_what_is_read() {
        let touched = Touched { pages: AtomicU64::new(4), ns: AtomicU64::new(10) };
        assert_eq!(touch_ns(&format!("x\n{}\n", touched.line())), Some(2.5));
        assert_eq!(touch_ns(&Touched::default().line()), None);
        for text in ["", "touched", "touched 1 pages in ns", "touched -1 pages in 1 ns"] {
            assert_eq!(touch_ns(text), None, "{text}");
        }
    }

    #[test]
    fn a_peer_that_leaves_in_the_middle_ends_only_its_connection() {
        let work = Work { size_bytes: 100_000, copies: 2, ..Work::default() };
        served(work, |mut peer| peer.write_all(&[7; 99_999]).expect("the server reads")).expect("no error");
        // Never reads: the server's answer meets a closed connection.
        let _ = served(work, |mut peer| peer.write_all(&[7; 250_000]).expect("the server reads"));
    }

    #[test]
    fn memory_that_cannot_be_had_ends_only_the_connection() {
        let work = Work { size_bytes: isize::MAX as usize, copies: 1, ..Work::default() };
        let error = served(work, drop).expect_err("no such memory");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }
}
