//! The mate: a second program in a run with lanes. A mate has the far ends of a program's streams,
//! and handles each one as commanded over a SEQPACKET control socket, which is never a lane.
//!
//! ```text
//! tcp PORT, unix NAME     connects to that address     0
//! feed OFFSET LEN TURN    sends bytes of the pool      number of bytes, or `again`
//! drain LEN TURN WAITS    receives                     number of bytes, or `again`; then the bytes
//! end                     ends the mate
//! ```
//!
//! TURN determines the call and the layout of its buffers.

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
use uncopy_tests::oracle::{self, CallResult, OracleBytes, errno, raw_read, raw_write};

use crate::model::pool;

/// Maximum number of bytes fed or drained at once.
pub const MAX_BYTES: usize = 1 << 20;
/// Longest packet on the control socket, in bytes.
const MAX_PACKET: usize = 60_000;
/// Number of buffers of a far end, which are used in turn.
const BUFFERS: usize = 4;
/// Maximum distance of the data from the start of a buffer, in bytes.
const MAX_OFFSET: usize = 8192;

/// The mates of this process.
struct Mates {
    paths: Vec<PathBuf>,
    may_be_killed: bool,
}

static MATES: OnceLock<Mates> = OnceLock::new();

/// Registers the mates that streams of this process go to, in turn; `may_be_killed` if they may be killed.
pub fn register(paths: Vec<PathBuf>, may_be_killed: bool) {
    let _ = MATES.set(Mates { paths, may_be_killed });
}

/// Whether mates may be killed.
#[must_use]
pub fn may_be_killed() -> bool {
    MATES.get().is_some_and(|mates| mates.may_be_killed)
}

/// Replaces a bare system call, which lanes cannot see, by a library call.
#[must_use]
pub fn interposed_input(call: InputCall) -> InputCall {
    if call == InputCall::Raw { InputCall::Recvmsg } else { call }
}

/// Replaces a bare system call for output, which lanes cannot see, by a library call.
#[must_use]
pub fn interposed_output(call: OutputCall) -> OutputCall {
    if call == OutputCall::Raw { OutputCall::Sendmsg } else { call }
}

/// Transport of a stream to a mate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP connection over loopback.
    Tcp,
    /// Unix stream socket with an abstract address.
    Unix,
}

/// Answer of a mate to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Number of bytes transferred.
    Bytes(usize),
    /// The transfer would block.
    Again,
    /// A call failed, as described.
    Failed(String),
    /// The mate or its end of the stream is gone.
    Gone,
}

/// Handle of a stream's far end, in a mate.
#[derive(Debug)]
pub struct Mate {
    control: c_int,
    turn: usize,
}

impl Mate {
    /// Opens a stream to one of the mates: returns the handle of the far end, and the near end.
    /// `None` if there are no mates, or the mate has ended.
    ///
    /// # Panics
    /// If sockets cannot be created.
    #[must_use]
    pub fn connect(transport: Transport) -> Option<(Self, c_int)> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mates = MATES.get().filter(|mates| !mates.paths.is_empty())?;
        let number = NEXT.fetch_add(1, Relaxed);
        let control = connect(&mates.paths[number % mates.paths.len()]);
        assert!(control.is_some() || mates.may_be_killed, "a mate does not listen");
        let control = control?;
        let mut mate = Self { control, turn: number };
        let near = if transport == Transport::Tcp {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
            let port = listener.local_addr().expect("bound").port();
            (mate.request(&format!("tcp {port}")) == Answer::Bytes(0)).then(|| {
                let (near, _) = listener.accept().expect("the mate");
                near.set_nodelay(true).expect("nodelay");
                near.into_raw_fd()
            })
        } else {
            let name = format!("uncopy-machine-{}-{number}", std::process::id());
            let listener = UnixListener::bind_addr(&abstract_address(&name)).expect("a name");
            (mate.request(&format!("unix {name}")) == Answer::Bytes(0))
                .then(|| listener.accept().expect("the mate").0.into_raw_fd())
        };
        assert!(near.is_some() || mates.may_be_killed, "a mate has ended");
        near.map(|near| (mate, near))
    }

    /// Makes the mate send `len` bytes of the pool from `pool_offset` on.
    pub fn feed(&mut self, pool_offset: usize, len: usize) -> Answer {
        self.turn += 1;
        self.request(&format!("feed {pool_offset} {len} {}", self.turn))
    }

    /// Makes the mate receive up to `len` bytes and copies them to `scratch`. With `waits`, the
    /// mate blocks until there are some.
    pub fn drain(&mut self, len: usize, waits: bool, scratch: &OracleBytes) -> Answer {
        self.turn += 1;
        let answer = self.request(&format!("drain {} {} {}", len.min(MAX_BYTES), self.turn, u8::from(waits)));
        let Answer::Bytes(len) = answer else { return answer };
        let mut got = 0;
        while got < len {
            // SAFETY: a mate returns at most the length asked for, which is within the scratch: the
            // callers clamp `len` to the scratch's length.
            match retry_on_eintr(|| unsafe { raw_read(self.control, scratch.at(got), len - got) }) {
                Ok(0) | Err(_) => return Answer::Gone,
                Ok(more) => got += more,
            }
        }
        answer
    }

    fn request(&mut self, command: &str) -> Answer {
        let answer = send_text(self.control, command).and_then(|()| receive_text(self.control));
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
        // SAFETY: this handle owns the descriptor, and nothing uses it after this.
        unsafe { libc::close(self.control) };
    }
}

/// Tells the mate at `path` to exit.
pub fn end(path: &Path) {
    if let Some(control) = connect(path) {
        let _ = send_text(control, "end");
        // SAFETY: `control` was opened above and is used nowhere else.
        unsafe { libc::close(control) };
    }
}

/// Retries a call that a signal interrupted.
fn retry_on_eintr(mut call: impl FnMut() -> CallResult) -> CallResult {
    loop {
        let outcome = call();
        if outcome != Err(libc::EINTR) {
            return outcome;
        }
    }
}

fn send_text(control: c_int, text: &str) -> Option<()> {
    // SAFETY: `text` is readable for `text.len()` bytes.
    let written = retry_on_eintr(|| unsafe { raw_write(control, text.as_ptr(), text.len()) });
    (written == Ok(text.len())).then_some(())
}

fn receive_text(control: c_int) -> Option<String> {
    let mut packet = [0u8; 512];
    // SAFETY: `packet` is writable for `packet.len()` bytes.
    let len = retry_on_eintr(|| unsafe { raw_read(control, packet.as_mut_ptr(), packet.len()) }).ok()?;
    (len > 0).then(|| String::from_utf8_lossy(&packet[..len]).into_owned())
}

fn abstract_address(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name).expect("a short name")
}

/// Creates a SEQPACKET socket, and the Unix address of a path.
fn seqpacket_socket(path: &Path) -> (c_int, libc::sockaddr_un) {
    // SAFETY: socket(2) takes integers only; an all-zero `sockaddr_un` is a valid value.
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

/// Size of a Unix socket address, in bytes.
const ADDRESS_BYTES: libc::socklen_t = 110;
const _: () = assert!(size_of::<libc::sockaddr_un>() == ADDRESS_BYTES as usize);

fn connect(path: &Path) -> Option<c_int> {
    let (socket, address) = seqpacket_socket(path);
    loop {
        // SAFETY: `address` is readable for `ADDRESS_BYTES`, its size, and lives through the call.
        if unsafe { libc::connect(socket, (&raw const address).cast(), ADDRESS_BYTES) } == 0 {
            return Some(socket);
        }
        if errno() != libc::EINTR {
            // SAFETY: `socket` was created above and is used nowhere else.
            unsafe { libc::close(socket) };
            return None;
        }
    }
}

/// Runs a mate that listens at `path`, until a process sends `end`.
///
/// # Panics
/// If the socket cannot be bound.
pub fn run(path: &Path) {
    let _ = pool();
    let (listener, address) = seqpacket_socket(path);
    // SAFETY: `address` is readable for `ADDRESS_BYTES`, its size, and lives through bind(2);
    // listen(2) takes integers only.
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
        // SAFETY: accept4(2) allows a null address and length: nothing is written.
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
    let mut far: Option<RemoteEnd> = None;
    while let Some(command) = receive_text(control) {
        if command == "end" {
            std::process::exit(0);
        }
        let (answer, sent) = execute(&command, &mut far);
        let bytes = match answer {
            Answer::Bytes(bytes) => bytes.to_string(),
            Answer::Again => "again".to_owned(),
            Answer::Failed(why) => format!("{command}: {why}"),
            Answer::Gone => break,
        };
        if send_text(control, &bytes).is_none()
            || sent.is_some_and(|(from, len)| !send_received(control, from, len))
        {
            break;
        }
    }
    drop(far);
    // SAFETY: this thread owns `control`, and nothing uses it after this.
    unsafe { libc::close(control) };
}

/// Sends the received bytes over the control socket, in packets.
fn send_received(control: c_int, from: *const u8, len: usize) -> bool {
    let mut done = 0;
    while done < len {
        let packet = (len - done).min(MAX_PACKET);
        // SAFETY: `from` has `len` received bytes, and `done + packet` is at most `len`.
        match retry_on_eintr(|| unsafe { raw_write(control, from.add(done), packet) }) {
            Ok(written) => done += written,
            Err(_) => return false,
        }
    }
    true
}

/// Start and length of the received bytes.
type ReceivedRange = Option<(*const u8, usize)>;

fn execute(command: &str, far: &mut Option<RemoteEnd>) -> (Answer, ReceivedRange) {
    let words: Vec<&str> = command.split(' ').collect();
    let number = |word: &str| word.parse::<usize>().unwrap_or(0);
    match (words.as_slice(), far) {
        (["tcp", port], far @ None) => {
            let Ok(stream) = TcpStream::connect(format!("127.0.0.1:{port}")) else {
                return (Answer::Gone, None);
            };
            stream.set_nodelay(true).expect("nodelay");
            *far = Some(RemoteEnd::new(stream.into_raw_fd()));
            (Answer::Bytes(0), None)
        }
        (["unix", name], far @ None) => {
            let Ok(stream) = UnixStream::connect_addr(&abstract_address(name)) else {
                return (Answer::Gone, None);
            };
            *far = Some(RemoteEnd::new(stream.into_raw_fd()));
            (Answer::Bytes(0), None)
        }
        (["feed", pool_offset, len, turn], Some(far)) => {
            (far.feed(number(pool_offset), number(len), number(turn)), None)
        }
        (["drain", len, turn, waits], Some(far)) => far.drain(number(len), number(turn), *waits == "1"),
        _ => (Answer::Failed("nobody knows that".to_owned()), None),
    }
}

/// The mate's side of a stream.
struct RemoteEnd {
    fd: c_int,
    /// Receive and send buffers, from the allocator.
    buffers: Vec<Vec<u8>>,
}

impl RemoteEnd {
    fn new(fd: c_int) -> Self {
        set_nonblocking(fd, true);
        Self { fd, buffers: (0..BUFFERS).map(|_| vec![0; MAX_BYTES + MAX_OFFSET]).collect() }
    }

    /// Chooses an address in a buffer and divides its `len` bytes into one or three parts.
    fn parts(&mut self, len: usize, turn: usize) -> (*mut u8, Vec<iovec>) {
        let start = self.buffers[turn % BUFFERS].as_mut_ptr().wrapping_add(turn * 45 % MAX_OFFSET);
        let cuts =
            if turn.is_multiple_of(3) && len > 100 { vec![0, len / 3, len / 2, len] } else { vec![0, len] };
        let part =
            |cut: &[usize]| iovec { iov_base: start.wrapping_add(cut[0]).cast(), iov_len: cut[1] - cut[0] };
        (start, cuts.windows(2).map(part).collect())
    }

    fn feed(&mut self, pool_offset: usize, len: usize, turn: usize) -> Answer {
        let (start, mut parts) = self.parts(len.min(MAX_BYTES), turn);
        let calls = OutputCall::SOCKET;
        let call = interposed_output(calls[turn % calls.len()]);
        // SAFETY: `start` is writable and the pool readable for `len` bytes, at most `MAX_BYTES`;
        // the parts divide these bytes, and live through the call.
        let sent = unsafe {
            if turn.is_multiple_of(2) {
                oracle::copy(start, pool().at(pool_offset), len.min(MAX_BYTES));
            } else {
                CopyCall::Memcpy.copy(start, pool().at(pool_offset), len.min(MAX_BYTES));
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

    fn drain(&mut self, len: usize, turn: usize, waits: bool) -> (Answer, ReceivedRange) {
        let fd = self.fd;
        if waits {
            wait_ready(fd, libc::POLLIN);
        }
        let (start, mut parts) = self.parts(len.clamp(1, MAX_BYTES), turn);
        let calls = InputCall::SOCKET;
        let call = interposed_input(calls[turn % calls.len()]);
        // SAFETY: the parts lie inside one of the buffers, which this thread alone uses.
        match unsafe { call.input(fd, &mut parts, 0) } {
            Ok(0) | Err(libc::ECONNRESET) => (Answer::Gone, None),
            Ok(got) => (Answer::Bytes(got), Some((start.cast_const(), got))),
            Err(libc::EAGAIN) => (Answer::Again, None),
            Err(error) => (Answer::Failed(format!("{call:?}: errno {error}")), None),
        }
    }
}

impl Drop for RemoteEnd {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor, and nothing uses it after this.
        unsafe { libc::close(self.fd) };
    }
}
