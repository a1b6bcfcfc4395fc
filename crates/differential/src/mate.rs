//! The other program of a run with lanes, the mate: it has the far ends of a program's streams, and does with each what it
//! is told over a socket of packets, which is never a lane.
//!
//! ```text
//! tcp PORT, unix NAME        connects to there               0
//! feed PLACE LEN TURN        sends bytes of the pool         how many, or again
//! drain LEN TURN WAITS       receives                        how many, or again; then the bytes, in packets
//! end                        the mate ends
//! ```
//!
//! How it sends and receives follows from TURN.

use std::ffi::c_int;
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libc::iovec;
use uncopy_tests::calls::{CopyCall, InputCall, OutputCall, set_nonblocking, wait_ready};
use uncopy_tests::plain::{self, Outcome, PlainBytes, errno, raw_read, raw_write};

use crate::model::pool;

/// Most bytes that are fed or drained at once.
pub const MAX_BYTES: usize = 1 << 20;
/// Longest packet, bytes.
const MAX_PACKET: usize = 60_000;
/// Buffers of a far end, which it uses in turn.
const BUFFERS: usize = 4;
/// Bytes that the parts of a buffer may begin behind its start.
const MAX_OFFSET: usize = 8192;

/// Who the mates are.
struct Mates {
    paths: Vec<PathBuf>,
    may_end: bool,
}

static MATES: OnceLock<Mates> = OnceLock::new();

/// Streams of this process go to these mates, in turn. `may_end`: they may be killed.
pub fn meet(paths: Vec<PathBuf>, may_end: bool) {
    let _ = MATES.set(Mates { paths, may_end });
}

/// Whether mates may be killed.
#[must_use]
pub fn may_end() -> bool {
    MATES.get().is_some_and(|mates| mates.may_end)
}

/// The call, or one that lanes know of where it is a bare system call.
#[must_use]
pub fn seen_input(call: InputCall) -> InputCall {
    if call == InputCall::Raw { InputCall::Recvmsg } else { call }
}

/// The same of what is sent.
#[must_use]
pub fn seen_output(call: OutputCall) -> OutputCall {
    if call == OutputCall::Raw { OutputCall::Sendmsg } else { call }
}

/// What a stream goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP by loopback.
    Tcp,
    /// A UNIX socket.
    Unix,
}

/// What a mate answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// So many bytes.
    Bytes(usize),
    /// None just now.
    Again,
    /// Something is wrong.
    Failed(String),
    /// It has ended.
    Gone,
}

/// A stream's far end, in a mate.
#[derive(Debug)]
pub struct Mate {
    control: c_int,
    turn: usize,
}

impl Mate {
    /// A stream to one of the mates: what has its far end, and the near one. `None`: there are none, or it has ended.
    ///
    /// # Panics
    /// When sockets cannot be made.
    #[must_use]
    pub fn connect(transport: Transport) -> Option<(Self, c_int)> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mates = MATES.get().filter(|mates| !mates.paths.is_empty())?;
        let number = NEXT.fetch_add(1, Relaxed);
        let control = connect(&mates.paths[number % mates.paths.len()]);
        assert!(control.is_some() || mates.may_end, "a mate does not listen");
        let control = control?;
        let mut mate = Self { control, turn: number };
        let near = if transport == Transport::Tcp {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
            let port = listener.local_addr().expect("bound").port();
            (mate.ask(&format!("tcp {port}")) == Answer::Bytes(0)).then(|| {
                let (near, _) = listener.accept().expect("the mate");
                near.set_nodelay(true).expect("nodelay");
                near.into_raw_fd()
            })
        } else {
            let name = format!("uncopy-machine-{}-{number}", std::process::id());
            let listener = UnixListener::bind_addr(&abstract_address(&name)).expect("a name");
            (mate.ask(&format!("unix {name}")) == Answer::Bytes(0))
                .then(|| listener.accept().expect("the mate").0.into_raw_fd())
        };
        assert!(near.is_some() || mates.may_end, "a mate has ended");
        near.map(|near| (mate, near))
    }

    /// Sends `len` bytes of the pool.
    pub fn feed(&mut self, place: usize, len: usize) -> Answer {
        self.turn += 1;
        self.ask(&format!("feed {place} {len} {}", self.turn))
    }

    /// Receives up to `len` bytes, which are in `scratch` then. `waits`: until there are some.
    pub fn drain(&mut self, len: usize, waits: bool, scratch: &PlainBytes) -> Answer {
        self.turn += 1;
        let answer = self.ask(&format!("drain {} {} {}", len.min(MAX_BYTES), self.turn, u8::from(waits)));
        let Answer::Bytes(len) = answer else { return answer };
        let mut got = 0;
        while got < len {
            // SAFETY: the scratch is longer than what is drained at once.
            match uninterrupted(|| unsafe { raw_read(self.control, scratch.at(got), len - got) }) {
                Ok(0) | Err(_) => return Answer::Gone,
                Ok(more) => got += more,
            }
        }
        answer
    }

    fn ask(&mut self, command: &str) -> Answer {
        let answer = say(self.control, command).and_then(|()| hear(self.control));
        let Some(answer) = answer else { return Answer::Gone };
        match answer.parse() {
            Ok(bytes) => Answer::Bytes(bytes),
            Err(_) if answer == "again" => Answer::Again,
            Err(_) => Answer::Failed(format!("the mate: {answer}")),
        }
    }
}

impl Drop for Mate {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to this alone.
        unsafe { libc::close(self.control) };
    }
}

/// Tells the mate at `path` that it may end.
pub fn end(path: &Path) {
    if let Some(control) = connect(path) {
        let _ = say(control, "end");
        // SAFETY: the descriptor belongs to this alone.
        unsafe { libc::close(control) };
    }
}

/// Makes a call again that a signal has ended.
fn uninterrupted(mut call: impl FnMut() -> Outcome) -> Outcome {
    loop {
        let outcome = call();
        if outcome != Err(libc::EINTR) {
            return outcome;
        }
    }
}

fn say(control: c_int, text: &str) -> Option<()> {
    // SAFETY: the text can be read.
    let went = uninterrupted(|| unsafe { raw_write(control, text.as_ptr(), text.len()) });
    (went == Ok(text.len())).then_some(())
}

fn hear(control: c_int) -> Option<String> {
    let mut packet = [0u8; 512];
    // SAFETY: the packet has the room.
    let len = uninterrupted(|| unsafe { raw_read(control, packet.as_mut_ptr(), packet.len()) }).ok()?;
    (len > 0).then(|| String::from_utf8_lossy(&packet[..len]).into_owned())
}

fn abstract_address(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name).expect("a short name")
}

/// A socket of packets, and the address of a path.
fn packets(path: &Path) -> (c_int, libc::sockaddr_un) {
    // SAFETY: socket takes integers; zeroes are an address.
    let (socket, mut address): (c_int, libc::sockaddr_un) = unsafe {
        (libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0), std::mem::zeroed())
    };
    assert!(socket >= 0, "a socket: errno {}", errno());
    address.sun_family = libc::AF_UNIX.try_into().expect("small");
    let bytes = path.as_os_str().as_encoded_bytes();
    assert!(bytes.len() < address.sun_path.len(), "{} is too long", path.display());
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    (socket, address)
}

/// Length of an address of UNIX sockets.
const ADDRESS_BYTES: libc::socklen_t = 110;
const _: () = assert!(size_of::<libc::sockaddr_un>() == ADDRESS_BYTES as usize);

fn connect(path: &Path) -> Option<c_int> {
    let (socket, address) = packets(path);
    loop {
        // SAFETY: the address lives through the call.
        if unsafe { libc::connect(socket, (&raw const address).cast(), ADDRESS_BYTES) } == 0 {
            return Some(socket);
        }
        if errno() != libc::EINTR {
            // SAFETY: the descriptor belongs to this alone.
            unsafe { libc::close(socket) };
            return None;
        }
    }
}

/// Is a mate, which listens at `path`, until it is told to end.
///
/// # Panics
/// When it cannot listen.
pub fn run(path: &Path) {
    let _ = pool();
    let (listener, address) = packets(path);
    // SAFETY: the address lives through the calls.
    unsafe {
        assert_eq!(
            libc::bind(listener, (&raw const address).cast(), ADDRESS_BYTES),
            0,
            "bind: errno {}",
            errno()
        );
        assert_eq!(libc::listen(listener, 64), 0, "listen: errno {}", errno());
    }
    println!("ready");
    loop {
        // SAFETY: no address is asked for.
        let control = unsafe {
            libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
        };
        if control >= 0 {
            std::thread::spawn(move || serve(control));
        } else {
            assert_eq!(errno(), libc::EINTR, "accept");
        }
    }
}

fn serve(control: c_int) {
    let mut far: Option<Far> = None;
    while let Some(command) = hear(control) {
        if command == "end" {
            std::process::exit(0);
        }
        let (answer, sent) = obey(&command, &mut far);
        let bytes = match answer {
            Answer::Bytes(bytes) => bytes.to_string(),
            Answer::Again => "again".to_owned(),
            Answer::Failed(why) => format!("{command}: {why}"),
            Answer::Gone => break,
        };
        if say(control, &bytes).is_none() || sent.is_some_and(|(from, len)| !hand_over(control, from, len)) {
            break;
        }
    }
    drop(far);
    // SAFETY: the descriptor belongs to this alone.
    unsafe { libc::close(control) };
}

/// Sends what was received, in packets.
fn hand_over(control: c_int, from: *const u8, len: usize) -> bool {
    let mut done = 0;
    while done < len {
        let packet = (len - done).min(MAX_PACKET);
        // SAFETY: so many bytes were received there.
        match uninterrupted(|| unsafe { raw_write(control, from.add(done), packet) }) {
            Ok(went) => done += went,
            Err(_) => return false,
        }
    }
    true
}

/// What was received: where, and how many bytes.
type Received = Option<(*const u8, usize)>;

fn obey(command: &str, far: &mut Option<Far>) -> (Answer, Received) {
    let words: Vec<&str> = command.split(' ').collect();
    let number = |word: &str| word.parse::<usize>().unwrap_or(0);
    match (words.as_slice(), far) {
        (["tcp", port], far @ None) => {
            let Ok(stream) = TcpStream::connect(format!("127.0.0.1:{port}")) else {
                return (Answer::Gone, None);
            };
            stream.set_nodelay(true).expect("nodelay");
            *far = Some(Far::new(stream.into_raw_fd()));
            (Answer::Bytes(0), None)
        }
        (["unix", name], far @ None) => {
            let Ok(stream) = UnixStream::connect_addr(&abstract_address(name)) else {
                return (Answer::Gone, None);
            };
            *far = Some(Far::new(stream.into_raw_fd()));
            (Answer::Bytes(0), None)
        }
        (["feed", place, len, turn], Some(far)) => (far.feed(number(place), number(len), number(turn)), None),
        (["drain", len, turn, waits], Some(far)) => far.drain(number(len), number(turn), *waits == "1"),
        _ => (Answer::Failed("nobody knows that".to_owned()), None),
    }
}

/// A far end.
struct Far {
    fd: c_int,
    /// Memory of the allocator's.
    buffers: Vec<Vec<u8>>,
}

impl Far {
    fn new(fd: c_int) -> Self {
        set_nonblocking(fd, true);
        Self { fd, buffers: (0..BUFFERS).map(|_| vec![0; MAX_BYTES + MAX_OFFSET]).collect() }
    }

    /// A place with room for `MAX_BYTES`, and its range of `len` bytes in one or three parts.
    fn parts(&mut self, len: usize, turn: usize) -> (*mut u8, Vec<iovec>) {
        let start = self.buffers[turn % BUFFERS].as_mut_ptr().wrapping_add(turn * 45 % MAX_OFFSET);
        let cuts =
            if turn.is_multiple_of(3) && len > 100 { vec![0, len / 3, len / 2, len] } else { vec![0, len] };
        let part =
            |cut: &[usize]| iovec { iov_base: start.wrapping_add(cut[0]).cast(), iov_len: cut[1] - cut[0] };
        (start, cuts.windows(2).map(part).collect())
    }

    fn feed(&mut self, place: usize, len: usize, turn: usize) -> Answer {
        let (start, mut parts) = self.parts(len.min(MAX_BYTES), turn);
        let calls = OutputCall::SOCKET;
        let call = seen_output(calls[turn % calls.len()]);
        // SAFETY: both ranges are inside their memory; the parts are too.
        let sent = unsafe {
            if turn.is_multiple_of(2) {
                plain::copy(start, pool().at(place), len.min(MAX_BYTES));
            } else {
                CopyCall::Memcpy.copy(start, pool().at(place), len.min(MAX_BYTES));
            }
            call.output(self.fd, &mut parts, libc::MSG_NOSIGNAL)
        };
        match sent {
            Ok(sent) => Answer::Bytes(sent),
            Err(libc::EAGAIN) => Answer::Again,
            Err(libc::EPIPE | libc::ECONNRESET) => Answer::Gone,
            Err(error) => Answer::Failed(format!("{call:?}: errno {error}")),
        }
    }

    fn drain(&mut self, len: usize, turn: usize, waits: bool) -> (Answer, Received) {
        let fd = self.fd;
        if waits {
            wait_ready(fd, libc::POLLIN);
        }
        let (start, mut parts) = self.parts(len.clamp(1, MAX_BYTES), turn);
        let calls = InputCall::SOCKET;
        let call = seen_input(calls[turn % calls.len()]);
        // SAFETY: the parts are inside a buffer.
        match unsafe { call.input(fd, &mut parts, 0) } {
            Ok(0) | Err(libc::ECONNRESET) => (Answer::Gone, None),
            Ok(got) => (Answer::Bytes(got), Some((start.cast_const(), got))),
            Err(libc::EAGAIN) => (Answer::Again, None),
            Err(error) => (Answer::Failed(format!("{call:?}: errno {error}")), None),
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to this alone.
        unsafe { libc::close(self.fd) };
    }
}
