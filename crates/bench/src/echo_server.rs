//! The echo server of zIO §5.1: receives a message, copies it a number of times, touches some of
//! its pages if asked to, and sends the last copy back.
//!
//! ```text
//! recv → buffer 0 ── memcpy → buffer 1 ── memcpy → … ── memcpy → buffer N → send
//! ```
//!
//! It is an ordinary program: the buffers come from `malloc` once per connection, and `recv`,
//! `memcpy` and `send` are the C library's, called through the dynamic symbols, so that whatever
//! is preloaded sees all of them. The sizes are known at run time only; nothing is inlined.
//!
//! Peers are not trusted: whatever one does, only its own connection ends.

use std::hint::black_box;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::failure::{Result, While};
use crate::signals::Requests;
use crate::wait;

/// How long a peer may stay silent before its connection is closed.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// How often a waiting thread looks whether the server is ending.
const STOP_CHECK: Duration = Duration::from_secs(1);
/// Distance between touched pages' starts, at least.
const PAGE_BYTES: usize = 4096;

/// What the server does with each message.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Length of a message, bytes.
    pub size_bytes: usize,
    /// Copies made before the message is sent back.
    pub copies: usize,
    /// Pages of the last buffer that are read before it is sent, spread evenly.
    pub touched_pages: usize,
}

/// A block from `malloc`, freed when dropped. Its bytes are only reached through pointers: they
/// begin uninitialised.
struct Buffer {
    start: *mut libc::c_void,
}

impl Buffer {
    fn allocate(size_bytes: usize) -> io::Result<Self> {
        // SAFETY: malloc takes any size.
        let start = unsafe { libc::malloc(black_box(size_bytes)) };
        if start.is_null() { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(Self { start }) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: start came from malloc and is freed once.
        unsafe { libc::free(self.start) };
    }
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
pub fn serve(stream: &TcpStream, work: Work) -> io::Result<()> {
    let Work { size_bytes, copies, touched_pages } = work;
    let buffers = (0..=copies).map(|_| Buffer::allocate(size_bytes)).collect::<io::Result<Vec<_>>>()?;
    let (Some(first), Some(last)) = (buffers.first(), buffers.last()) else { return Ok(()) };
    let fd = stream.as_raw_fd();
    loop {
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
        touch(last, size_bytes, touched_pages);
        let sent = complete(size_bytes, |done_bytes| {
            // SAFETY: done_bytes < size_bytes, so the range is inside the last buffer, which is
            // initialised.
            unsafe {
                let rest = last.start.byte_add(done_bytes);
                libc::send(fd, rest, size_bytes - done_bytes, libc::MSG_NOSIGNAL)
            }
        })?;
        if !sent {
            return Ok(());
        }
    }
}

/// Reads one byte in each of `pages` pages of `buffer`.
fn touch(buffer: &Buffer, size_bytes: usize, pages: usize) {
    let pages = pages.min(size_bytes.div_ceil(PAGE_BYTES));
    let mut sum = 0u8;
    for page in 0..pages {
        // SAFETY: page < pages, so the offset is below size_bytes; the byte is initialised.
        sum = sum.wrapping_add(unsafe {
            buffer.start.cast::<u8>().byte_add(size_bytes / pages * page).read_volatile()
        });
    }
    black_box(sum);
}

/// What the threads share.
struct Shared {
    listener: TcpListener,
    work: Work,
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
            let _ = serve(stream, self.work);
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

/// Listens on `address`, prints `listening PORT`, and serves up to `threads` connections at a
/// time, until SIGTERM, SIGINT or SIGHUP ask for the end.
///
/// # Errors
/// [`crate::failure::Failure`] when listening or starting threads fails.
pub fn run(address: SocketAddr, work: Work, threads: usize) -> Result<()> {
    let requests = Requests::install().doing("installing signal handlers")?;
    let listener = TcpListener::bind(address).doing(format_args!("listening on {address}"))?;
    listener.set_nonblocking(true).doing("setting up the listening socket")?;
    let port = listener.local_addr().doing("asking for the port")?.port();
    let shared = Shared { listener, work, stopping: AtomicBool::new(false), open: Mutex::new(Vec::new()) };
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::{Pattern, compare};
    use std::io::Read;

    /// Runs `conversation` with a peer that `serve` serves; returns how serving ended.
    fn served(work: Work, conversation: impl FnOnce(TcpStream)) -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
        let (stream, _) = listener.accept().expect("a peer");
        for end in [&peer, &stream] {
            end.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        }
        std::thread::scope(|scope| {
            let server = scope.spawn(move || serve(&stream, work));
            conversation(peer);
            server.join().expect("no panic")
        })
    }

    #[test]
    fn every_message_comes_back_whatever_the_copies_and_pieces() {
        for (size_bytes, copies, touched_pages) in
            [(1, 0, 0), (5000, 1, 1), (70_001, 5, 1000), (524_288, 12, 3)]
        {
            served(Work { size_bytes, copies, touched_pages }, |mut peer| {
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
    fn a_peer_that_leaves_in_the_middle_ends_only_its_connection() {
        let work = Work { size_bytes: 100_000, copies: 2, touched_pages: 0 };
        served(work, |mut peer| peer.write_all(&[7; 99_999]).expect("the server reads")).expect("no error");
        // Never reads: the server's answer meets a closed connection.
        let _ = served(work, |mut peer| peer.write_all(&[7; 250_000]).expect("the server reads"));
    }

    #[test]
    fn memory_that_cannot_be_had_ends_only_the_connection() {
        let work = Work { size_bytes: isize::MAX as usize, copies: 1, touched_pages: 0 };
        let error = served(work, drop).expect_err("no such memory");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }
}
