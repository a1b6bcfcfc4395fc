//! Sends the same messages by the transmit engine and by libc's `sendmsg`, and compares results, error
//! numbers, and the bytes and datagrams that arrive.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes of patterns, small numbers"
)]

mod common;

use common::*;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use uncopy_transmit::{Envelope, Hold, Part, ProgramFd, set_break_even};

type Outcome = Result<usize, i32>;

fn ours(fd: i32, parts: &[Part], flags: i32) -> Outcome {
    send(fd, parts, flags).map(|sent| sent.len_bytes).map_err(|error| error.0)
}

static SIGPIPES: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_sigpipe(_signal: i32) {
    SIGPIPES.fetch_add(1, SeqCst);
}

/// Waits until the kernel has processed packets in flight between the ends of a connection that is closing.
fn settle(fd: i32) {
    let mut poll_fd = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: poll(2) accesses one entry, `poll_fd`, which outlives the call.
    unsafe { libc::poll(&raw mut poll_fd, 1, 10) };
}

/// How a connection is broken before messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    PeerCloses,
    PeerClosesWithBytesUnread,
    PeerStopsReading,
    OwnShutdown,
}

/// Returns the error numbers of messages sent on a broken connection, and the number of SIGPIPEs.
fn errors(
    family: Family,
    how: Break,
    sizes: &[usize],
    flags: i32,
    non_blocking: bool,
    send: fn(i32, &[Part], i32) -> Outcome,
) -> (Vec<i32>, usize) {
    let memory = Lendable::new(80);
    let Connection { here, there } = connect(family);
    let fd = here.as_raw_fd();
    if non_blocking {
        set_non_blocking(fd);
    }
    let mut kept = None;
    match how {
        Break::PeerCloses => drop(there),
        Break::PeerClosesWithBytesUnread => {
            assert_eq!(send_plain(fd, &[copied(b"unread")], 0), Ok(6));
            let mut poll_fd = libc::pollfd { fd: there.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: poll(2) accesses one entry, `poll_fd`, which outlives the call.
            assert_eq!(unsafe { libc::poll(&raw mut poll_fd, 1, 10_000) }, 1);
            drop(there);
        }
        Break::PeerStopsReading => {
            // SAFETY: shutdown(2) accesses no memory, and `there` is open.
            unsafe { libc::shutdown(there.as_raw_fd(), libc::SHUT_RD) };
            kept = Some(there);
        }
        Break::OwnShutdown => {
            // SAFETY: shutdown(2) accesses no memory, and `here` is open.
            unsafe { libc::shutdown(fd, libc::SHUT_WR) };
            kept = Some(there);
        }
    }
    let ends = how != Break::OwnShutdown;
    if ends {
        settle(fd);
    }
    SIGPIPES.store(0, SeqCst);
    let mut errors = Vec::new();
    for size in sizes {
        if let Err(error) = send(fd, &[copied(b"header"), memory.part(0, *size)], flags) {
            errors.push(error);
        }
        if ends {
            settle(fd);
        }
    }
    drop(kept);
    (errors, SIGPIPES.load(SeqCst))
}

#[test]
fn broken_connections_fail_like_sendmsg() {
    set_break_even(Some(1));
    // SAFETY: the handler only adds to an atomic, which is async-signal-safe.
    unsafe { libc::signal(libc::SIGPIPE, count_sigpipe as *const () as usize) };
    let all =
        [Break::PeerCloses, Break::PeerClosesWithBytesUnread, Break::PeerStopsReading, Break::OwnShutdown];
    for family in STREAMS {
        for how in all {
            if how == Break::PeerStopsReading && family != Family::Unix {
                // TCP does not notify its peer, and the bytes fill the buffers.
                continue;
            }
            for size in [40_000, 300_000] {
                for flags in [0, libc::MSG_NOSIGNAL, libc::MSG_DONTWAIT] {
                    for non_blocking in [false, true] {
                        let what =
                            format!("{family:?}, {how:?}, {size} bytes, flags {flags:#x}, {non_blocking}");
                        let sizes = [size; 4];
                        let plain = errors(family, how, &sizes, flags, non_blocking, send_plain);
                        let other = errors(family, how, &sizes, flags, non_blocking, ours);
                        // A reset may be noticed one message earlier, since it may also have arrived earlier.
                        let common = plain.0.len().min(other.0.len());
                        assert!(common > 0, "{what}: {plain:?}, {other:?}");
                        assert_eq!(plain.0[..common], other.0[..common], "{what}: {plain:?}, {other:?}");
                        for (errors, signals) in [&plain, &other] {
                            let broken = errors.iter().filter(|error| **error == libc::EPIPE).count();
                            let expected = if flags & libc::MSG_NOSIGNAL != 0 { 0 } else { broken };
                            assert_eq!(*signals, expected, "{what}: {plain:?}, {other:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn invalid_messages_fail_like_sendmsg() {
    set_break_even(Some(1));
    let memory = Lendable::new(20);
    let far = 8 as *const u8;
    let bad = Part::Copied { ptr: far, len: 100 };
    let messages: [(&str, Vec<Part>); 6] = [
        ("lent", vec![memory.part(0, 16 * PAGE_BYTES)]),
        ("too long for a datagram", vec![copied(b"head"), memory.part(0, 70_000)]),
        ("begins unreadable", vec![bad, memory.part(0, 8192)]),
        ("ends unreadable", vec![memory.part(0, 8192), bad]),
        ("a large unreadable part", vec![Part::Copied { ptr: far, len: 100_000 }, memory.part(0, 8192)]),
        ("empty parts", vec![copied(b""), memory.part(0, 8192), copied(b"")]),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let unconnected = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let stream = connect(Family::Tcp4);
    let local = connect(Family::Unix);
    let datagrams = connect(Family::Udp4);
    let (messages_here, messages_there) = std::os::unix::net::UnixDatagram::pair().expect("sockets");
    let undelivered = Connection { here: messages_here.into(), there: messages_there.into() };
    let file = std::fs::File::open("/dev/null").expect("a file");
    // SAFETY: socket(2) accesses no memory.
    let fresh = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    let sockets = [
        ("listening", listener.as_raw_fd()),
        ("unconnected UDP", unconnected.as_raw_fd()),
        ("TCP", stream.fd()),
        ("UNIX", local.fd()),
        ("UDP", datagrams.fd()),
        ("UNIX datagrams", undelivered.fd()),
        ("no socket", file.as_raw_fd()),
        ("unconnected TCP", fresh),
        ("no descriptor", -1),
        ("a closed number", 100_000),
    ];
    for (socket, fd) in sockets {
        for (message, parts) in &messages {
            for flags in [libc::MSG_NOSIGNAL, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT] {
                if fd >= 0 {
                    uncopy_transmit::declare_owner(
                        ProgramFd::new(fd),
                        uncopy_transmit::SocketOwner::default(),
                    );
                }
                let drain = |connection: &Connection| {
                    let mut bytes = vec![0u8; 1 << 20];
                    let flags = libc::MSG_DONTWAIT;
                    // SAFETY: recv(2) writes at most `bytes.len()` bytes to `bytes`, which outlives the call.
                    unsafe {
                        while libc::recv(
                            connection.there.as_raw_fd(),
                            bytes.as_mut_ptr().cast(),
                            bytes.len(),
                            flags,
                        ) > 0
                        {}
                    }
                };
                let plain = send_plain(fd, parts, flags);
                [&stream, &local, &datagrams, &undelivered].into_iter().for_each(drain);
                let other = ours(fd, parts, flags);
                [&stream, &local, &datagrams, &undelivered].into_iter().for_each(drain);
                assert_eq!(plain, other, "{socket}: {message}, {flags:#x}");
            }
        }
    }
    // SAFETY: `fresh` was opened above and nothing else uses the descriptor.
    unsafe { libc::close(fresh) };
}

#[test]
fn a_datagram_to_nobody_is_refused_alike() {
    set_break_even(Some(1));
    let memory = Lendable::new(4);
    let results = [send_plain, ours].map(|send: fn(i32, &[Part], i32) -> Outcome| {
        let port = UdpSocket::bind("127.0.0.1:0").expect("a socket").local_addr().expect("address");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(port).expect("connected");
        (0..4)
            .map(|_| {
                let result = send(socket.as_raw_fd(), &[memory.part(0, 8192)], 0);
                settle(socket.as_raw_fd());
                result
            })
            .collect::<Vec<_>>()
    });
    assert_eq!(results[0], results[1]);
    assert!(results[0].contains(&Err(libc::ECONNREFUSED)), "{results:?}");
}

/// Sends random messages on two connections of each kind, which are read in random pieces.
#[test]
fn random_messages_arrive_alike() {
    set_break_even(Some(1));
    let mut random = Random::new("random_messages_arrive_alike");
    for family in STREAMS.into_iter().chain(DATAGRAMS) {
        let connections = [connect(family), connect(family)];
        let mut memory = Lendable::new(40);
        let mut ordinary = vec![0u8; 50_000];
        let mut in_flight = 0;
        for round in 0..200 {
            let seed = random.next() as usize;
            memory.fill(|at| (at ^ (at >> 8) ^ seed) as u8);
            ordinary.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at.wrapping_mul(7) ^ seed) as u8);
            let max_bytes = match (family.is_stream(), in_flight) {
                (true, 0) => 100_000,
                (true, _) => 30_000,
                (false, _) => 70_000,
            };
            let parts = random_parts(&mut random, &memory, &ordinary, max_bytes);
            let total: usize = parts.iter().map(|part| part.len()).sum();
            let mut flags = 0;
            if random.chance(4) {
                flags |= libc::MSG_DONTWAIT;
            }
            if random.chance(4) {
                flags |= libc::MSG_NOSIGNAL;
            }
            if family.is_stream() && in_flight < 40_000 && random.chance(8) {
                flags |= libc::MSG_MORE;
            }
            let plain = send_plain(connections[0].fd(), &parts, flags);
            let other = ours(connections[1].fd(), &parts, flags);
            assert_eq!(plain, other, "{family:?}, round {round}: {total} bytes, flags {flags:#x}");
            // Overwrites what was sent before anyone reads it.
            memory.fill(|_| b'!');
            ordinary.fill(b'?');
            if family.is_stream() {
                in_flight += plain.unwrap_or(0);
                if flags & libc::MSG_MORE != 0 {
                    // The kernel may hold back the end of the message for a while.
                    continue;
                }
                let all = random.chance(2) || in_flight > 50_000;
                let len = if all { in_flight } else { random.below(in_flight + 1) };
                let read = connections.each_ref().map(|connection| connection.read(len));
                assert!(read[0] == read[1], "{family:?}, round {round}");
                in_flight -= len;
            } else if plain.is_ok() {
                let read = connections.each_ref().map(Connection::receive);
                assert!(read[0] == read[1], "{family:?}, round {round}");
            }
        }
    }
}

/// Messages that the kernel splits into datagrams of equal length (UDP_SEGMENT, udp(7)) arrive as the same
/// datagrams, whatever is sent by reference; too many fail with the same error.
#[test]
fn messages_that_are_cut_into_datagrams_arrive_alike() {
    set_break_even(Some(1));
    let mut random = Random::new("messages_that_are_cut_into_datagrams_arrive_alike");
    for family in DATAGRAMS {
        let mut memory = Lendable::new(20);
        let mut referred = 0;
        for segment_bytes in [500, 1200, 1472, 8972, 40_000] {
            let connections = [connect(family), connect(family)];
            for connection in &connections {
                set_option(connection.fd(), libc::SOL_UDP, libc::UDP_SEGMENT, segment_bytes);
            }
            let segment_bytes = segment_bytes as usize;
            for round in 0..40 {
                let seed = random.next() as usize;
                memory.fill(|at| (at ^ (at >> 8) ^ seed) as u8);
                let ordinary = [seed as u8; 3000];
                let parts = random_parts(&mut random, &memory, &ordinary, 60_000);
                let total: usize = parts.iter().map(|part| part.len()).sum();
                let plain = send_plain(connections[0].fd(), &parts, 0);
                let other = send(connections[1].fd(), &parts, 0);
                referred += usize::from(other.is_ok_and(|sent| sent.hold == Hold::Spliced));
                let other = other.map(|sent| sent.len_bytes).map_err(|error| error.0);
                assert_eq!(plain, other, "{family:?}, round {round}: {total} bytes by {segment_bytes}");
                memory.fill(|_| b'!');
                for datagram in 0..plain.unwrap_or(0).div_ceil(segment_bytes) {
                    let [plain, other] = connections.each_ref().map(Connection::receive);
                    assert_eq!(plain.len(), segment_bytes.min(total - datagram * segment_bytes));
                    assert!(
                        plain == other,
                        "{family:?}, round {round}: datagram {datagram} of {total} bytes"
                    );
                }
            }
        }
        assert!(referred > 0, "{family:?}: everything was copied");
    }
}

fn random_parts(random: &mut Random, memory: &Lendable, ordinary: &[u8], max_bytes: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut remaining_bytes = 1 + random.below(max_bytes);
    while remaining_bytes > 0 && parts.len() < 70 {
        let size = match random.below(4) {
            0 => random.below(64),
            1 => random.below(3000),
            2 => random.below(20_000),
            _ => remaining_bytes,
        };
        let len = size.min(remaining_bytes).min(ordinary.len());
        if random.chance(2) {
            parts.push(memory.part(random.below(memory.len() - len), len));
        } else {
            parts.push(copied(&ordinary[..len]));
        }
        remaining_bytes -= len;
    }
    parts
}

/// `write` behaves like libc's on files and on sockets.
#[test]
fn writing_is_the_same_everywhere() {
    set_break_even(Some(1));
    let memory = Lendable::new(10);
    let mut random = Random::new("writing_is_the_same_everywhere");
    let name = format!("{}/uncopy-transmit-{}", std::env::temp_dir().display(), std::process::id());
    let files = ["plain", "ours"].map(|which| {
        let path = format!("{name}-{which}");
        let file =
            std::fs::File::options().append(true).read(true).create_new(true).open(&path).expect("a file");
        std::fs::remove_file(path).expect("removed");
        OwnedFd::from(file)
    });
    for _ in 0..50 {
        let parts = random_parts(&mut random, &memory, &[5; 10_000], 30_000);
        let lent = parts.iter().filter(|part| part.is_lent()).map(|part| part.len()).sum();
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let vectors: Vec<_> = parts
            .iter()
            .map(|part| libc::iovec { iov_base: part.address() as *mut _, iov_len: part.len() })
            .collect();
        // SAFETY: each iovec refers to live memory, and the vector outlives writev(2).
        let plain = unsafe { libc::writev(files[0].as_raw_fd(), vectors.as_ptr(), vectors.len() as i32) };
        let fd = ProgramFd::of(&files[1]);
        let plan = uncopy_transmit::plan(fd, total, lent, 0, &Envelope::default());
        let other = uncopy_transmit::write(fd, &parts, plan).expect("written");
        assert_eq!(usize::try_from(plain), Ok(other.len_bytes));
    }
    let read = files.map(|file| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::from(file);
        let mut bytes = vec![0; file.metadata().expect("metadata").len() as usize];
        file.read_exact_at(&mut bytes, 0).expect("bytes");
        bytes
    });
    assert!(read[0] == read[1] && !read[0].is_empty());
}

/// A descriptor that was a TCP socket a moment ago now refers to something else.
#[test]
fn reused_descriptors_are_served() {
    set_break_even(Some(1));
    let memory = Lendable::new(24);
    let parts = [copied(b"head"), memory.part(0, memory.len())];
    let total = memory.len() + 4;
    let connection = connect(Family::Tcp4);
    let number = duplicate(connection.fd());
    let fd = number.as_raw_fd();
    uncopy_transmit::declare_owner(ProgramFd::new(fd), uncopy_transmit::SocketOwner::default());
    assert_eq!(ours(fd, &parts, 0), Ok(total));
    let mut ends = [0; 2];
    // SAFETY: pipe2(2) writes two descriptors to `ends`, which has room for them; the other calls access no
    // memory, and `fd` belongs to this test.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), 0), 0);
        libc::fcntl(ends[1], libc::F_SETPIPE_SZ, 1 << 20);
        assert_eq!(libc::dup2(ends[1], fd), fd);
        libc::close(ends[1]);
    }
    let plan = uncopy_transmit::plan(ProgramFd::new(fd), total, memory.len(), 0, &Envelope::default());
    assert_eq!(uncopy_transmit::write(ProgramFd::new(fd), &parts, plan).expect("written").len_bytes, total);
    let mut read = vec![0u8; total];
    // SAFETY: read(2) writes at most `total` bytes to `read`, which has that length.
    assert_eq!(unsafe { libc::read(ends[0], read.as_mut_ptr().cast(), total) } as usize, total);
    assert!(read[..4] == *b"head" && read[4..] == *memory.bytes());
    let datagrams = connect(Family::Udp4);
    // SAFETY: close(2) and dup2(2) access no memory; `fd` and `ends[0]` belong to this test.
    unsafe {
        libc::close(ends[0]);
        assert_eq!(libc::dup2(datagrams.fd(), fd), fd);
    }
    // While the descriptor is still taken for a stream, a message must remain one datagram.
    let parts = [copied(b"head"), memory.part(0, 5 * PAGE_BYTES)];
    for _ in 0..3 {
        assert_eq!(ours(fd, &parts, 0), Ok(5 * PAGE_BYTES + 4));
        assert_eq!(datagrams.receive().len(), 5 * PAGE_BYTES + 4);
    }
    let parts = [copied(b"head"), memory.part(100, 15 * PAGE_BYTES)];
    for _ in 0..3 {
        assert_eq!(ours(fd, &parts, 0), Ok(15 * PAGE_BYTES + 4));
        assert_eq!(datagrams.receive().len(), 15 * PAGE_BYTES + 4);
    }
}
