//! Programs that wait for edges (EPOLLET, epoll(7)) take a short count to mean that the send buffer is full, and that an
//! edge tells them when it is not any more.
#![cfg(target_os = "linux")]

mod common;

use common::*;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use uncopy_transmit::{Part, set_break_even};

/// Time limit for an edge, milliseconds.
const LIMIT_MS: i32 = 10_000;
const MESSAGES: usize = 12;
/// Number of messages to a peer that reads all the time.
const PACED_MESSAGES: usize = 200;

type Send = fn(i32, &[Part]) -> Result<usize, i32>;

/// A socket in non-blocking mode whose owner waits for edges.
struct EdgeSocket {
    fd: i32,
    epoll: OwnedFd,
    /// Family and buffer, for the messages of failed checks.
    what: String,
}

impl EdgeSocket {
    /// Prepares this end of a connection, and takes the first edge.
    fn new(connection: &Connection, family: Family, buffer_bytes: i32) -> Self {
        let fd = connection.fd();
        set_non_blocking(fd);
        set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, buffer_bytes);
        // SAFETY: epoll_create1(2) returns a descriptor that nobody else has; epoll_ctl(2) reads `event`, which is alive.
        let epoll = unsafe {
            let epoll = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
            let mut event = libc::epoll_event { events: (libc::EPOLLOUT | libc::EPOLLET) as u32, u64: 0 };
            assert_eq!(libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
            epoll
        };
        let socket = Self { fd, epoll, what: format!("{family:?}, buffer of {buffer_bytes}") };
        assert!(socket.has_edge(), "an empty buffer has room: {}", socket.what);
        socket
    }

    /// Waits for an edge.
    fn has_edge(&self) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: epoll_wait(2) writes at most one event, for which there is room.
        unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, LIMIT_MS) == 1 }
    }

    /// Sends the beginning of `memory`. Calls `wait` with the number of bytes sent so far before each wait: after a short
    /// count, or when the buffer is full.
    fn send(&self, memory: &Lendable, len_bytes: usize, send: Send, mut wait: impl FnMut(usize)) {
        let mut sent_bytes = 0;
        while sent_bytes < len_bytes {
            let wanted_bytes = len_bytes - sent_bytes;
            let result = send(self.fd, &[memory.part(sent_bytes, wanted_bytes)]);
            let what = format!("{}, message of {len_bytes}: {result:?} of {wanted_bytes}", self.what);
            assert!(result.is_ok() || result == Err(libc::EAGAIN), "{what}");
            sent_bytes += result.unwrap_or(0);
            if result != Ok(wanted_bytes) {
                wait(sent_bytes);
                assert!(self.has_edge(), "no edge: {what}");
            }
        }
    }
}

/// Sends messages of different lengths to a peer that reads while this end waits. Returns the number of waits.
fn send_in_turns(family: Family, buffer_bytes: i32, send: Send) -> usize {
    let memory = Lendable::new(600);
    let connection = connect(family);
    let socket = EdgeSocket::new(&connection, family, buffer_bytes);
    let mut waits = 0;
    for number in 0..MESSAGES {
        let len_bytes = memory.len() - number * 40_961;
        let mut read_bytes = 0;
        socket.send(&memory, len_bytes, send, |sent_bytes| {
            waits += 1;
            connection.read(sent_bytes - read_bytes);
            read_bytes = sent_bytes;
        });
        connection.read(len_bytes - read_bytes);
    }
    waits
}

/// Sends messages of different lengths while a thread reads all the time.
fn send_beside_a_reader(family: Family, buffer_bytes: i32, send: Send) {
    let memory = Lendable::new(600);
    let connection = connect(family);
    let socket = EdgeSocket::new(&connection, family, buffer_bytes);
    let Connection { here, there } = connection;
    let reader = std::thread::spawn(move || {
        let mut there = std::fs::File::from(there);
        let mut bytes = vec![0; 20_000];
        while there.read(&mut bytes).expect("bytes in time") > 0 {}
    });
    for number in 0..PACED_MESSAGES {
        let len_bytes = memory.len() - number % 50 * 40_961;
        socket.send(&memory, len_bytes, send, |_| ());
    }
    drop(here);
    reader.join().expect("no panic");
}

const PLAIN: Send = |fd, parts| send_plain(fd, parts, 0);
const OURS: Send = |fd, parts| send(fd, parts, 0).map(|sent| sent.len_bytes).map_err(|error| error.0);

#[test]
fn a_short_count_beside_a_reader_is_followed_by_an_edge() {
    set_break_even(Some(1));
    for family in STREAMS {
        for buffer_bytes in [50_000, 70_000, 90_000, 110_000, 200_000] {
            send_beside_a_reader(family, buffer_bytes, PLAIN);
            send_beside_a_reader(family, buffer_bytes, OURS);
        }
    }
}

#[test]
fn a_short_count_is_followed_by_an_edge() {
    set_break_even(Some(1));
    for family in STREAMS {
        for buffer_bytes in [100_000, 400_000] {
            assert!(send_in_turns(family, buffer_bytes, PLAIN) > 0);
            assert!(send_in_turns(family, buffer_bytes, OURS) > 0);
        }
    }
}
