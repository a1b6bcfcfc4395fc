//! The echo server of zIO §5.1: receives a message, copies it a number of times, touches some of
//! its pages if asked to, and sends the last copy back.
//!
//! ```text
//! recv → buffer 0 ── memcpy → buffer 1 ── memcpy → … ── memcpy → buffer N → send
//! ```
//!
//! With [`Reply::Checksum`] the server is a store instead (the MongoDB case of zIO §5.4): the last buffer is one of
//! several in turn. The server computes a checksum of all its bytes, writes it to a file, and sends the checksum only.
//!
//! The server is an ordinary program: the buffers come from `malloc` once per connection, and `recv`, `memcpy` and
//! `send` are the C library's, called through the dynamic symbols, so that a preloaded library sees all of them. The
//! sizes are known at run time only; nothing is inlined.
//!
//! Peers are not trusted: misbehaviour of a peer ends only its own connection.

use std::hint::black_box;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uncopy_testbed::clients::Place;

use crate::kit::processes::signals::Requests;
use crate::kit::{Random, Result, While, checksum, cli_name, copies_parser, print, size_parser};

/// Maximum silence of a peer before its connection is closed.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Page size assumed for touching, bytes.
pub const PAGE_BYTES: usize = 4096;
/// Number of messages that a store keeps, in memory and in its file.
const STORED_MESSAGES: usize = 8;

/// The choice of pages of a message that are touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PageOrder {
    /// Spread evenly over the message
    #[default]
    Spread,
    /// From the start of the message, one after another
    Sequential,
    /// Different pages for each message, in random order
    Random,
}

/// Reply of the server to a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Reply {
    /// The last copy itself
    #[default]
    Echo,
    /// The checksum of the last copy, which the server also stores in a file in memory
    Checksum,
    /// The checksum of the last copy's last page; no other page is read
    LastPage,
}

/// The server's work for each message.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct EchoWork {
    /// Message size, in bytes
    #[arg(long = "size", value_name = "SIZE", value_parser = size_parser())]
    pub size_bytes: usize,
    /// Number of copies per message before it is sent back
    #[arg(long, value_name = "N", value_parser = copies_parser())]
    pub copies: usize,
    /// Number of pages of the last copy from which one byte each is read before it is sent
    #[arg(long = "touch", value_name = "PAGES", default_value = "0")]
    pub touched_pages: usize,
    /// Order in which these pages are chosen
    #[arg(long, value_enum, default_value_t)]
    pub order: PageOrder,
    /// Number of bytes read from the start of the last copy before it is sent
    #[arg(long = "read", value_name = "SIZE", default_value = "0")]
    pub read_bytes: usize,
    /// Alternate between not reading and reading these bytes, for this long each; 0: always read them
    #[arg(long = "phase", value_name = "MS", default_value = "0")]
    pub phase_ms: u64,
    /// Reply of the server
    #[arg(long, value_enum, default_value_t)]
    pub reply: Reply,
}

impl EchoWork {
    /// Returns the command line's options for this work.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        vec![
            format!("--size={}", self.size_bytes),
            format!("--copies={}", self.copies),
            format!("--touch={}", self.touched_pages),
            format!("--order={}", cli_name(&self.order)),
            format!("--read={}", self.read_bytes),
            format!("--phase={}", self.phase_ms),
            format!("--reply={}", cli_name(&self.reply)),
        ]
    }

    /// True in phases of reading, which are the same for all servers of one machine.
    fn is_reading(&self) -> bool {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let ms = now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000;
        self.phase_ms == 0 || ms / self.phase_ms % 2 == 1
    }
}

/// Pages touched and the time taken, over all connections: a server prints them as a line of JSON when it ends.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Touched {
    pages: AtomicU64,
    ns: AtomicU64,
}

/// Returns the time per page in a server's output, ns; `None` if the server touched none.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
pub fn touch_ns(text: &str) -> Option<f64> {
    let Touched { pages, ns } = text.lines().find_map(|line| serde_json::from_str(line).ok())?;
    let (pages, ns) = (pages.into_inner(), ns.into_inner());
    (pages > 0).then(|| ns as f64 / pages as f64)
}

/// A block from `malloc`, freed when dropped. The bytes are uninitialised, so they are accessed by pointers only.
#[derive(Debug)]
pub struct Buffer {
    start: *mut libc::c_void,
}

impl Buffer {
    fn allocate(size_bytes: usize) -> io::Result<Self> {
        // SAFETY: malloc(3) takes any size, and returns null when memory is short.
        let start = unsafe { libc::malloc(black_box(size_bytes)) };
        if start.is_null() { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(Self { start }) }
    }

    /// Allocates a block that begins at a page boundary.
    ///
    /// # Errors
    /// ENOMEM when memory is short.
    pub fn aligned(size_bytes: usize) -> io::Result<Self> {
        let mut start = std::ptr::null_mut();
        // SAFETY: posix_memalign(3) writes the block's address to `start`, which lives through the call; the alignment
        // is a power of two and a multiple of the pointer size.
        match unsafe { libc::posix_memalign(&raw mut start, PAGE_BYTES, black_box(size_bytes)) } {
            0 => Ok(Self { start }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> *mut libc::c_void {
        self.start
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `start` came from malloc or posix_memalign, and the buffer is its only owner, so it is freed once.
        unsafe { libc::free(self.start) };
    }
}

/// Calls `transfer` with the bytes done so far until all are done. `Ok(false)` if the peer ended the connection.
fn transfer_all(size_bytes: usize, mut transfer: impl FnMut(usize) -> isize) -> io::Result<bool> {
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
/// The error of receiving, sending or allocating.
pub fn serve(stream: &impl AsRawFd, work: EchoWork, touched: &Touched) -> io::Result<()> {
    let EchoWork { size_bytes, copies, .. } = work;
    let mut buffers = (0..=copies).map(|_| Buffer::allocate(size_bytes)).collect::<io::Result<Vec<_>>>()?;
    let mut store = match work.reply {
        Reply::Echo | Reply::LastPage => None,
        Reply::Checksum => Some(Store::new(size_bytes, copies)?),
    };
    let mut random = Random::new(1);
    let fd = stream.as_raw_fd();
    loop {
        if let Some(store) = &mut store {
            store.rotate_buffer(&mut buffers);
        }
        let (Some(first), Some(last)) = (buffers.first(), buffers.last()) else { return Ok(()) };
        let received = transfer_all(size_bytes, |done_bytes| {
            // SAFETY: recv(2) writes at most `size_bytes - done_bytes` bytes; done_bytes < size_bytes, so the range is
            // inside the first buffer.
            unsafe { libc::recv(fd, first.start.byte_add(done_bytes), size_bytes - done_bytes, 0) }
        })?;
        if !received {
            return Ok(());
        }
        for pair in buffers.windows(2) {
            // SAFETY: memcpy needs two disjoint valid ranges: both are separate buffers of size_bytes. The source is
            // initialised: the first by recv, every later one by the copy before.
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
        let sent = transfer_all(answer.len(), |done_bytes| {
            let rest = &answer[done_bytes..];
            // SAFETY: send(2) reads `rest.len()` bytes from `rest`, a borrowed slice.
            unsafe { libc::send(fd, rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) }
        })?;
        if !sent {
            return Ok(());
        }
    }
}

/// Returns the last bytes of a message, at most a page.
#[must_use]
pub fn last_page(message: &[u8]) -> &[u8] {
    &message[message.len().saturating_sub(PAGE_BYTES)..]
}

/// Reads one byte in each of the work's touched pages of `buffer`.
fn touch(buffer: &Buffer, work: &EchoWork, random: &mut Random, touched: &Touched) {
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
            PageOrder::Spread => work.size_bytes / pages * page,
            PageOrder::Sequential => page * PAGE_BYTES,
            PageOrder::Random => shuffled(page, first, all) * PAGE_BYTES,
        };
        // SAFETY: page < pages <= all, so the offset is below size_bytes; the byte is initialised.
        sum = sum.wrapping_add(unsafe { buffer.start.cast::<u8>().byte_add(offset_bytes).read_volatile() });
    }
    black_box(sum);
    touched.pages.fetch_add(pages as u64, Ordering::Relaxed);
    let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    touched.ns.fetch_add(ns, Ordering::Relaxed);
}

/// Returns the position of `page` in an order of `all` pages that begins at `first`. The order has steps of a fixed
/// odd length that shares no factor with common page counts, so that no page comes twice.
#[must_use]
pub fn shuffled(page: usize, first: u64, all: usize) -> usize {
    const STEP: u64 = 7919;
    let all = all.max(1) as u64;
    let step = if all.is_multiple_of(STEP) { 1 } else { STEP };
    // The remainder is below `all`, which was a usize.
    usize::try_from((first % all + page as u64 * step) % all).unwrap_or(0)
}

/// Storage of a store's messages.
struct Store {
    file: OwnedFd,
    /// Buffers with the messages before the one that is being received.
    stored: Vec<Buffer>,
    next: usize,
    size_bytes: usize,
}

impl Store {
    fn new(size_bytes: usize, copies: usize) -> io::Result<Self> {
        // Without copies, the message is stored in the buffer that received it.
        let stored = if copies == 0 { 0 } else { STORED_MESSAGES - 1 };
        let stored = (0..stored).map(|_| Buffer::allocate(size_bytes)).collect::<io::Result<_>>()?;
        Ok(Self { file: memfd_create("store", MemfdFlags::CLOEXEC)?, stored, next: 0, size_bytes })
    }

    /// Keeps the last buffer, and replaces it by the oldest kept one.
    fn rotate_buffer(&mut self, buffers: &mut [Buffer]) {
        self.next = self.next.wrapping_add(1);
        let index = self.next % self.stored.len().max(1);
        if let (Some(stored), Some(last)) = (self.stored.get_mut(index), buffers.last_mut()) {
            std::mem::swap(stored, last);
        }
    }

    /// Writes a message to its slot in the file.
    fn write(&self, message: &[u8]) -> io::Result<()> {
        let slot_bytes = self.next % STORED_MESSAGES * self.size_bytes;
        transfer_all(message.len(), |done_bytes| {
            let rest = &message[done_bytes..];
            let offset = libc::off_t::try_from(slot_bytes + done_bytes).unwrap_or(libc::off_t::MAX);
            // SAFETY: pwrite(2) reads `rest.len()` bytes from `rest`, a borrowed slice.
            unsafe { libc::pwrite(self.file.as_raw_fd(), rest.as_ptr().cast(), rest.len(), offset) }
        })
        .map(drop)
    }
}

fn configure_stream(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(MAX_SILENCE))?;
    stream.set_write_timeout(Some(MAX_SILENCE))
}

/// Listens at `address`, prints `listening PORT` or `listening PATH`, and serves up to `threads` connections at a time
/// until SIGTERM, SIGINT or SIGHUP. Prints [`Touched`] at the end if pages were touched.
///
/// # Errors
/// [`crate::kit::failure::Failure`] when listening or starting threads fails.
pub fn run(address: &Place, work: EchoWork, threads: usize) -> Result<()> {
    let what = format!("listening on {address}");
    match address {
        Place::Tcp(address) => {
            let listener = TcpListener::bind(address).doing(&what)?;
            let port = listener.local_addr().doing(&what)?.port();
            let accept = move || {
                let (stream, _) = listener.accept()?;
                configure_stream(&stream).map(|()| stream)
            };
            serve_all(&port.to_string(), accept, work, threads)
        }
        Place::Unix(path) => {
            let listener = UnixListener::bind(path).doing(&what)?;
            serve_all(&address.to_string(), move || Ok(listener.accept()?.0), work, threads)
        }
    }
}

/// Serves connections from `accept` until a signal asks for the end. The threads end with the process.
fn serve_all<S: AsRawFd>(
    address_text: &str,
    accept: impl Fn() -> io::Result<S> + Send + Sync + 'static,
    work: EchoWork,
    threads: usize,
) -> Result<()> {
    let requests = Requests::install().doing("installing signal handlers")?;
    let shared = Arc::new((accept, Touched::default()));
    for number in 0..threads.max(1) {
        let shared = Arc::clone(&shared);
        let serve_each = move || {
            let (accept, touched) = &*shared;
            loop {
                match accept() {
                    // An error concerns this peer only, whose connection ends.
                    Ok(stream) => drop(serve(&stream, work, touched)),
                    // The peer is gone already, or descriptors or memory are short: retry later.
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("echo {number}"));
        thread.spawn(serve_each).doing("starting a thread")?;
    }
    print(&format!("listening {address_text}\n"))?;
    requests.wait(None).doing("waiting for a signal")?;
    if work.touched_pages > 0 { print(&format!("{}\n", json!(shared.1))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::network::server_address;
    use crate::kit::pattern::{Pattern, compare};
    use std::io::{Read, Write};

    /// Runs `conversation` with a peer served by `serve`, and returns the result of serving.
    fn served(work: EchoWork, conversation: impl FnOnce(TcpStream)) -> io::Result<()> {
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
        use PageOrder::{Random, Sequential, Spread};
        for (size_bytes, copies, touched_pages, order) in [
            (1, 0, 0, Spread),
            (1, 0, 7, Random),
            (5000, 1, 1, Sequential),
            (70_001, 5, 1000, Spread),
            (70_001, 1, 1000, Random),
            (524_288, 12, 3, Sequential),
        ] {
            let work =
                EchoWork { size_bytes, copies, touched_pages, order, read_bytes: 100, ..EchoWork::default() };
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
            let work = EchoWork { size_bytes, copies, reply: Reply::Checksum, ..EchoWork::default() };
            served(work, |mut peer| {
                let mut pattern = Pattern::new(size_bytes, 4);
                for _ in 0..2 * STORED_MESSAGES + 1 {
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
    fn touch_reports_are_read_as_they_are_written() {
        let touched = Touched { pages: AtomicU64::new(4), ns: AtomicU64::new(10) };
        assert_eq!(touch_ns(&format!("x\n{}\n", json!(touched))), Some(2.5));
        assert_eq!((touch_ns(&json!(Touched::default()).to_string()), touch_ns("x")), (None, None));
    }

    #[test]
    fn a_peer_that_leaves_in_the_middle_ends_only_its_connection() {
        let work = EchoWork { size_bytes: 100_000, copies: 2, ..EchoWork::default() };
        served(work, |mut peer| peer.write_all(&[7; 99_999]).expect("the server reads")).expect("no error");
        // The peer never reads: the server's answer meets a closed connection.
        let _ = served(work, |mut peer| peer.write_all(&[7; 250_000]).expect("the server reads"));
    }

    #[test]
    fn failed_allocations_end_only_the_connection() {
        let work = EchoWork { size_bytes: isize::MAX as usize, copies: 1, ..EchoWork::default() };
        let error = served(work, drop).expect_err("no such memory");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }
}
