//! Echo server and client that use every call in turn.
//!
//! ```text
//! echo server TRANSPORT DIRECTORY SEED            prints "ready ADDRESS"
//! echo client TRANSPORT DIRECTORY SEED ADDRESS MESSAGES
//! echo pair TRANSPORT DIRECTORY SEED MESSAGES     both ends as threads of one process
//! ```
//!
//! TRANSPORT of server and client: `tcp`, `tcp-small` (small socket buffers), `unix`, `fifo`,
//! `udp`, `datagram`; of a pair: `stream`, `seqpacket`, `datagram`, `pipe`.

use std::fs::File;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

use uncopy_tests::calls::set_buffer_size;
use uncopy_tests::endpoint::{Channel, Endpoint};
use uncopy_tests::scratch::wait_until;

/// Longest payload on a stream, bytes.
const STREAM_LIMIT: usize = 3 << 20;
/// Longest payload in a datagram of a UNIX socket with a raised buffer, bytes.
const DATAGRAM_LIMIT: usize = 180_000;
/// Longest payload in a UDP datagram, behind a header of 16 bytes.
const UDP_LIMIT: usize = 65_507 - 16;

fn channel(input: impl IntoRawFd, output: impl IntoRawFd, socket: bool, limit: Option<usize>) -> Channel {
    Channel {
        input: input.into_raw_fd(),
        output: output.into_raw_fd(),
        socket,
        stream: limit.is_none(),
        payload_limit: limit.unwrap_or(STREAM_LIMIT),
    }
}

fn socket_channel(socket: impl AsRawFd + IntoRawFd, limit: Option<usize>) -> Channel {
    let fd = socket.as_raw_fd();
    if limit == Some(DATAGRAM_LIMIT) {
        set_buffer_size(fd, libc::SO_SNDBUF, 2 << 20);
    }
    channel(socket.into_raw_fd(), fd, true, limit)
}

fn shrink_send_buffer(stream: TcpStream) -> TcpStream {
    set_buffer_size(stream.as_raw_fd(), libc::SO_SNDBUF, 20_000);
    stream
}

/// Longest payload for a transport with small socket buffers, where each message takes many calls.
fn small_buffer_channel(stream: TcpStream) -> Channel {
    Channel { payload_limit: 300_000, ..socket_channel(shrink_send_buffer(stream), None) }
}

fn print_ready(address: impl std::fmt::Display) {
    println!("ready {address}");
}

fn serve(transport: &str, directory: &Path) -> Channel {
    match transport {
        "tcp" | "tcp-small" => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
            print_ready(listener.local_addr().expect("bound"));
            let (stream, _) = listener.accept().expect("a client");
            if transport == "tcp" { socket_channel(stream, None) } else { small_buffer_channel(stream) }
        }
        "unix" => {
            let listener = UnixListener::bind(directory.join("server")).expect("bind");
            print_ready("server");
            socket_channel(listener.accept().expect("a client").0, None)
        }
        "fifo" => {
            for name in ["up", "down"] {
                let path = directory.join(name);
                let path = std::ffi::CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
                // SAFETY: the path is a C string.
                assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0, "mkfifo");
            }
            print_ready("up");
            let input = File::open(directory.join("up")).expect("up");
            channel(input, File::create(directory.join("down")).expect("down"), false, None)
        }
        "udp" => {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
            print_ready(socket.local_addr().expect("bound"));
            let (_, client) = socket.peek_from(&mut [0; 16]).expect("a client");
            socket.connect(client).expect("connect");
            socket_channel(socket, Some(UDP_LIMIT))
        }
        "datagram" => {
            let socket = UnixDatagram::bind(directory.join("server")).expect("bind");
            print_ready("server");
            wait_until("the client's socket", || socket.connect(directory.join("client")).ok());
            socket_channel(socket, Some(DATAGRAM_LIMIT))
        }
        other => panic!("unknown transport {other}"),
    }
}

fn connect(transport: &str, directory: &Path, address: &str) -> Channel {
    match transport {
        "tcp" => socket_channel(TcpStream::connect(address).expect("connect"), None),
        "tcp-small" => small_buffer_channel(TcpStream::connect(address).expect("connect")),
        "unix" => socket_channel(UnixStream::connect(directory.join(address)).expect("connect"), None),
        "fifo" => {
            let output = File::create(directory.join("up")).expect("up");
            channel(File::open(directory.join("down")).expect("down"), output, false, None)
        }
        "udp" => {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
            socket.connect(address).expect("connect");
            socket_channel(socket, Some(UDP_LIMIT))
        }
        "datagram" => {
            let socket = UnixDatagram::bind(directory.join("client")).expect("bind");
            socket.connect(directory.join(address)).expect("connect");
            socket_channel(socket, Some(DATAGRAM_LIMIT))
        }
        other => panic!("unknown transport {other}"),
    }
}

fn socket_pair(kind: i32, limit: Option<usize>) -> (Channel, Channel) {
    let mut ends = [0; 2];
    // SAFETY: socketpair(2) writes two descriptors, for which `ends` has room.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0, "socketpair");
    for end in ends {
        set_buffer_size(end, libc::SO_SNDBUF, 2 << 20);
    }
    let end = |fd| Channel {
        input: fd,
        output: fd,
        socket: true,
        stream: limit.is_none(),
        payload_limit: limit.unwrap_or(STREAM_LIMIT),
    };
    (end(ends[0]), end(ends[1]))
}

fn pair(transport: &str) -> (Channel, Channel) {
    match transport {
        "stream" => socket_pair(libc::SOCK_STREAM, None),
        "seqpacket" => socket_pair(libc::SOCK_SEQPACKET, Some(DATAGRAM_LIMIT)),
        "datagram" => socket_pair(libc::SOCK_DGRAM, Some(DATAGRAM_LIMIT)),
        "pipe" => {
            let (up_end, up) = std::io::pipe().expect("pipe");
            let (down_end, down) = std::io::pipe().expect("pipe");
            (channel(up_end, down, false, None), channel(down_end, up, false, None))
        }
        other => panic!("unknown transport {other}"),
    }
}

fn finish(role: &str, end: &Endpoint, messages: usize) {
    println!("{role}: {}", end.coverage());
    if messages >= 30 {
        end.expect_full_coverage();
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["server", transport, directory, seed] => {
            let seed = seed.parse().expect("seed");
            let mut end = Endpoint::new(serve(transport, Path::new(directory)), seed);
            end.serve();
            finish("server", &end, 0);
        }
        ["client", transport, directory, seed, address, messages] => {
            let (seed, messages) = (seed.parse().expect("seed"), messages.parse().expect("count"));
            let mut end = Endpoint::new(connect(transport, Path::new(directory), address), seed);
            end.converse(messages);
            finish("client", &end, messages);
        }
        ["pair", transport, _, seed, messages] => {
            let (seed, messages): (u64, _) = (seed.parse().expect("seed"), messages.parse().expect("count"));
            let (server, client) = pair(transport);
            let serving = std::thread::spawn(move || {
                let mut end = Endpoint::new(server, seed + 1);
                end.serve();
                finish("server", &end, messages);
            });
            let mut end = Endpoint::new(client, seed);
            end.converse(messages);
            finish("client", &end, messages);
            serving.join().expect("server");
        }
        _ => panic!("see the head of this program's source: {arguments:?}"),
    }
}
