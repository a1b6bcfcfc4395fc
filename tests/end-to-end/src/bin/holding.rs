//! Bytes that are received from TCP and sent on: peers, and the program whenever it looks, get the bytes that
//! were sent, whatever happens between the two calls.
//!
//! ```text
//! holding SCENARIO SEED
//! ```

use std::ffi::c_int;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use uncopy_tests::calls::{CopyCall, InputCall, OutputCall, set_buffer_size, set_nonblocking, wait_ready};
use uncopy_tests::forked::{fork_child, wait};
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::{self, OracleBytes};
use uncopy_tests::random::{Random, mix};

const KIB: usize = 1 << 10;
/// Maximum number of bytes under way in one direction.
const WIRE: usize = 1 << 20;
/// Time limit for a child, milliseconds.
const LIMIT_MS: c_int = 20_000;
const INPUTS: [InputCall; 3] = [InputCall::Read, InputCall::Recv, InputCall::Readv];

/// A TCP connection whose far end is driven by bare system calls.
struct Wire {
    near: OwnedFd,
    far: OwnedFd,
    scratch: OracleBytes,
    seed: u64,
}

impl Wire {
    fn new(seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let (far, _) = listener.accept().expect("loopback");
        near.set_nodelay(true).expect("nodelay");
        far.set_nodelay(true).expect("nodelay");
        for end in [near.as_raw_fd(), far.as_raw_fd()] {
            set_buffer_size(end, libc::SO_SNDBUFFORCE, 4 << 20);
            set_buffer_size(end, libc::SO_RCVBUFFORCE, 4 << 20);
        }
        // SAFETY: the descriptors were taken out of their owners on the same line.
        let [near, far] =
            [near.into_raw_fd(), far.into_raw_fd()].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        set_nonblocking(near.as_raw_fd(), true);
        Self { near, far, scratch: OracleBytes::new(WIRE), seed }
    }

    fn near(&self) -> c_int {
        self.near.as_raw_fd()
    }

    fn far(&self) -> c_int {
        self.far.as_raw_fd()
    }

    /// Sends fresh bytes to the program, which it can receive when this returns; returns their seed.
    fn feed(&mut self, len: usize) -> u64 {
        self.seed = mix(self.seed.wrapping_add(1));
        self.scratch.fill(0, len, self.seed, 0);
        let mut done = 0;
        while done < len {
            // SAFETY: `scratch` holds `len` bytes.
            done +=
                unsafe { oracle::raw_write(self.far(), self.scratch.at(done), len - done) }.expect("room");
        }
        let mut waiting: c_int = 0;
        for _ in 0..10_000 {
            // SAFETY: FIONREAD stores one int.
            unsafe { libc::ioctl(self.near(), libc::FIONREAD, &raw mut waiting) };
            if usize::try_from(waiting).is_ok_and(|waiting| waiting >= len) {
                return self.seed;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        panic!("{waiting} of {len} bytes arrived");
    }

    /// Receives `len` fresh bytes, which arrive in pieces of up to `piece` bytes.
    fn receive(&mut self, call: InputCall, buffer: &mut Buffer, at: usize, len: usize, piece: usize) {
        let mut done = 0;
        while done < len {
            let now = piece.min(len - done);
            let seed = self.feed(now);
            let mut got = 0;
            while got < now {
                // Room for the whole message, as a program asks for it.
                let mut parts = [buffer.part(at + done + got, len - done - got)];
                // SAFETY: the part is inside the buffer.
                let result = unsafe { call.input(self.near(), &mut parts, 0) };
                let count = result.unwrap_or_else(|error| panic!("{call:?}: errno {error}"));
                assert!(count > 0 && got + count <= now, "{call:?} gave {count} of {}", now - got);
                buffer.note_received_stream(at + done + got, count, seed, got);
                got += count;
            }
            done += now;
        }
    }

    /// Sends a range of a buffer, of which the peer reads when the socket is full, and compares.
    fn send(&mut self, call: OutputCall, buffer: &Buffer, at: usize, len: usize) {
        let (mut sent, mut read) = (0, 0);
        while read < len {
            if sent < len {
                let mut parts = [buffer.part(at + sent, len - sent)];
                // SAFETY: the part is inside the buffer.
                match unsafe { call.output(self.near(), &mut parts, libc::MSG_NOSIGNAL) } {
                    Ok(count) => sent += count,
                    Err(libc::EAGAIN) => {}
                    Err(error) => panic!("{call:?}: errno {error}"),
                }
            }
            read += self.compare(buffer, at + read, sent - read);
        }
    }

    /// Has the peer read `len` bytes and compare them.
    fn compare(&mut self, buffer: &Buffer, at: usize, len: usize) -> usize {
        let mut done = 0;
        while done < len {
            let want = (len - done).min(WIRE);
            // SAFETY: the scratch has `WIRE` bytes, the mirror the range.
            unsafe {
                let got = oracle::raw_read(self.far(), self.scratch.pointer(), want).expect("bytes");
                assert!(got > 0, "the stream ends");
                let wrong =
                    oracle::first_difference(self.scratch.pointer(), buffer.mirror_at(at + done), got);
                assert_eq!(wrong, None, "a wrong byte at this offset after {} arrived", at + done);
                done += got;
            }
        }
        len
    }
}

fn received(wire: &mut Wire, len: usize) -> Buffer {
    let mut buffer = Buffer::new(Origin::Malloc, len);
    wire.receive(InputCall::Recv, &mut buffer, 0, len, len);
    buffer
}

/// A random range of a buffer, often all of it.
fn range(random: &mut Random, len: usize) -> (usize, usize) {
    if random.one_in(2) {
        return (0, len);
    }
    let at = random.below(len);
    (at, 1 + random.below(len - at))
}

/// Random operations on a few buffers, each beside its mirror.
fn relayed_in_any_order(seed: u64) {
    let mut random = Random::new(seed);
    let mut wires = [Wire::new(seed), Wire::new(seed + 1)];
    let mut buffers: Vec<Buffer> = (0..6).map(|_| received(&mut wires[0], 300 * KIB)).collect();
    for step in 0..1500 {
        let index = random.below(buffers.len());
        let wire = &mut wires[random.below(2)];
        let len = buffers[index].len();
        let (at, count) = range(&mut random, len);
        match random.below(16) {
            0..6 => {
                let piece = *[WIRE, 100 * KIB, 40_000].get(random.below(3)).expect("three");
                wire.receive(random.pick(&INPUTS), &mut buffers[index], at, count, piece);
            }
            6..10 => wire.send(random.pick(&OutputCall::NAMED), &buffers[index], at, count),
            10 => {
                let other = Buffer::copy_of(CopyCall::Memcpy, &buffers[index], at, count);
                if random.one_in(2) {
                    wire.send(OutputCall::Send, &other, 0, count);
                }
                let slot = random.below(buffers.len());
                buffers[slot] = other;
            }
            11 => {
                let to = random.below(len - count + 1);
                buffers[index].copy_within(CopyCall::Memmove, to, at, count);
            }
            12 => buffers[index].store(at, count.min(5000), seed + step),
            13 => buffers[index].check(at, count.min(5000), "a part"),
            14 => buffers[index].resize(100 * KIB + random.below(400 * KIB)),
            _ if random.one_in(8) => {
                let child = fork_child(|| buffers.iter().for_each(|buffer| buffer.check_all("in a child")));
                assert_eq!(wait(child), 0, "step {step}");
            }
            _ => buffers[index] = received(wire, 100 * KIB + random.below(400 * KIB)),
        }
    }
    buffers.iter().for_each(|buffer| buffer.check_all("at the end"));
}

/// One message goes to several receivers, each with a header of its own, and is then looked at.
fn sent_to_several(seed: u64) {
    let mut wires: Vec<Wire> = (0..4).map(|number| Wire::new(seed + number)).collect();
    let mut random = Random::new(seed);
    for round in 0..40 {
        let len = 200 * KIB + random.below(300 * KIB);
        let message = received(&mut wires[0], len);
        for wire in &mut wires {
            let mut header = Buffer::new(Origin::Malloc, 100);
            header.store(0, 100, seed + round);
            let mut parts = [header.part(0, 100), message.part(0, len)];
            // SAFETY: the parts are inside the buffers.
            let sent = unsafe { OutputCall::Writev.output(wire.near(), &mut parts, 0) }.expect("room");
            assert!(sent > 100, "{sent} of {len}");
            wire.compare(&header, 0, 100);
            wire.compare(&message, 0, sent - 100);
            wire.send(OutputCall::Send, &message, sent - 100, len - (sent - 100));
        }
        message.check_sparsely(&mut random, "after it was sent");
    }
}

/// A daemon closes every descriptor, by libc and by system calls of its own, or takes their numbers.
fn closed_descriptors(seed: u64) {
    let mut wire = Wire::new(seed);
    let mut kept = [wire.near(), wire.far()];
    kept.sort_unstable();
    for round in 0..6 {
        let message = received(&mut wire, 300 * KIB);
        let other = received(&mut wire, 300 * KIB);
        // SAFETY: the calls take only integers; no descriptor of the test but those of `wire` is in the range.
        unsafe {
            match round {
                0 => (700..1000).for_each(|fd| _ = libc::close(fd)),
                1 => _ = libc::close_range(700, u32::MAX, 0),
                2 => (700..1000).for_each(|fd| _ = libc::dup2(kept[0], fd)),
                3 => (700..1000).for_each(|fd| _ = libc::close(fd)),
                4 => (768..800).for_each(|fd| _ = libc::syscall(libc::SYS_close, fd)),
                _ => (768..800).for_each(|fd| _ = libc::syscall(libc::SYS_dup2, kept[0], fd)),
            }
        }
        wire.send(OutputCall::Send, &message, 0, message.len());
        message.check_all("descriptors were closed");
        other.check_all("descriptors were closed, nothing was sent");
        // SAFETY: closes numbers that only this function has opened.
        unsafe {
            if round == 2 || round == 5 {
                (700..1000).for_each(|fd| _ = libc::close(fd));
            }
        }
    }
}

/// A receive ends at an urgent byte.
fn urgent_bytes(seed: u64) {
    for is_inline in [false, true] {
        let mut wire = Wire::new(seed);
        let on = c_int::from(is_inline);
        let size = libc::socklen_t::try_from(size_of::<c_int>()).expect("small");
        // SAFETY: the option is an int, which lives through the call.
        let set = unsafe {
            libc::setsockopt(wire.near(), libc::SOL_SOCKET, libc::SO_OOBINLINE, (&raw const on).cast(), size)
        };
        assert_eq!(set, 0, "SO_OOBINLINE");
        let (before, after) = (150 * KIB, 120 * KIB);
        let first = wire.feed(before);
        // SAFETY: one byte of a constant.
        assert_eq!(unsafe { libc::send(wire.far(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
        wait_ready(wire.near(), libc::POLLPRI);
        wire.seed = mix(wire.seed.wrapping_add(1));
        let second = wire.seed;
        wire.scratch.fill(0, after, second, 0);
        // SAFETY: `scratch` holds so many bytes.
        assert_eq!(unsafe { oracle::raw_write(wire.far(), wire.scratch.pointer(), after) }, Ok(after));
        std::thread::sleep(Duration::from_millis(20));
        let mut buffer = Buffer::new(Origin::Malloc, 400 * KIB);
        let receive = |at: usize, room: usize| {
            let mut parts = [buffer.part(at, room)];
            // SAFETY: the part is inside the buffer.
            unsafe { InputCall::Recv.input(wire.near(), &mut parts, 0) }.expect("bytes")
        };
        let mut got = 0;
        while got < before {
            got += receive(got, 400 * KIB - got);
        }
        assert_eq!(got, before, "a receive does not pass the mark (inline: {is_inline})");
        let whole = before + after + usize::from(is_inline);
        while got < whole {
            got += receive(got, 400 * KIB - got);
        }
        buffer.note_received_stream(0, before, first, 0);
        if is_inline {
            buffer.note_received(before, b"!");
        }
        buffer.note_received_stream(before + usize::from(is_inline), after, second, 0);
        buffer.check(0, whole, "around an urgent byte");
    }
}

/// A program that waits by edge-triggered epoll relays to a peer that reads slowly, and is never left waiting.
fn edge_triggered(seed: u64) {
    let mut wire = Wire::new(seed);
    set_buffer_size(wire.near(), libc::SO_SNDBUF, 200 << 10);
    // SAFETY: epoll calls with valid arguments; the descriptor is this function's.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let events = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET | libc::EPOLLRDHUP).cast_unsigned();
    let mut event = libc::epoll_event { events, u64: 0 };
    // SAFETY: the event lives through the call.
    unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, wire.near(), &raw mut event) };
    for round in 0..20 {
        let message = received(&mut wire, 700 * KIB);
        let far = wire.far();
        let len = message.len();
        let reader = std::thread::spawn(move || {
            let mut scratch = OracleBytes::new(64 * KIB);
            let mut got = 0;
            let mut sum = 0u64;
            while got < len {
                std::thread::sleep(Duration::from_micros(200));
                // SAFETY: the scratch has 64 KiB.
                let now = unsafe { oracle::raw_read(far, scratch.pointer(), 64 * KIB) }.expect("bytes");
                sum = scratch
                    .slice(0, now)
                    .iter()
                    .fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
                got += now;
            }
            scratch.fill(0, 1, 0, 0);
            sum
        });
        let mut sent = 0;
        while sent < len {
            let mut parts = [message.part(sent, len - sent)];
            // SAFETY: the part is inside the buffer.
            match unsafe { OutputCall::Send.output(wire.near(), &mut parts, 0) } {
                Ok(count) if sent + count == len => sent += count,
                result => {
                    // As programs do: a short count means that the socket is full.
                    sent += result.unwrap_or(0);
                    // SAFETY: room for one event.
                    let ready = unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, LIMIT_MS) };
                    assert_eq!(ready, 1, "round {round}: no event after {sent} of {len}");
                }
            }
        }
        let expected = message
            .mirror(0, len)
            .iter()
            .fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        assert_eq!(reader.join().expect("no panic"), expected, "round {round}");
    }
}

/// Blocking calls wait, time out, and end as without.
fn blocking_calls(seed: u64) {
    for round in 0..10 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let mut far = listener.accept().expect("loopback").0;
        near.set_read_timeout(Some(Duration::from_millis(10))).expect("an option");
        let mut buffer = Buffer::new(Origin::Malloc, 500 * KIB);
        let call = INPUTS[round % 3];
        let receive = |buffer: &Buffer, at: usize| {
            let mut parts = [buffer.part(at, buffer.len() - at)];
            // SAFETY: the part is inside the buffer.
            unsafe { call.input(near.as_raw_fd(), &mut parts, 0) }
        };
        assert_eq!(receive(&buffer, 0), Err(libc::EAGAIN), "no bytes in time");
        near.set_read_timeout(None).expect("an option");
        let seed = mix(seed + round as u64);
        let writer = std::thread::spawn(move || {
            let mut bytes = OracleBytes::new(500 * KIB);
            bytes.fill(0, 500 * KIB, seed, 0);
            for piece in bytes.slice(0, 500 * KIB).chunks(130 * KIB) {
                std::thread::sleep(Duration::from_millis(1));
                far.write_all(piece).expect("sent");
            }
            let mut answer = vec![0; 500 * KIB];
            far.read_exact(&mut answer).expect("an answer");
            assert!(answer == bytes.slice(0, 500 * KIB), "a wrong answer");
        });
        let mut got = 0;
        while got < buffer.len() {
            let now = receive(&buffer, got).expect("bytes");
            assert!(now > 0, "the end after {got}");
            got += now;
        }
        buffer.note_received_stream(0, got, seed, 0);
        let mut sent = 0;
        while sent < got {
            let mut parts = [buffer.part(sent, got - sent)];
            // SAFETY: the part is inside the buffer.
            sent += unsafe { OutputCall::Send.output(near.as_raw_fd(), &mut parts, 0) }.expect("sent");
        }
        assert_eq!(sent, got, "a blocking send takes everything");
        writer.join().expect("no panic");
        assert_eq!(receive(&buffer, 0), Ok(0), "the end of the stream");
        buffer.check_all("after it was sent");
        near.flush().expect("nothing to flush");
    }
}

/// Peers reset the connection while held bytes are sent.
fn peers_that_go_away(seed: u64) {
    for round in 0..30 {
        let mut wire = Wire::new(seed + round);
        let mut target = Wire::new(seed);
        let message = received(&mut wire, 400 * KIB);
        let mut parts = [message.part(0, message.len())];
        if round % 2 == 0 {
            // SAFETY: the part is inside the buffer.
            unsafe { OutputCall::Send.output(target.near(), &mut parts, libc::MSG_NOSIGNAL) }.expect("sent");
        }
        // Unread bytes make the close a reset.
        drop(std::mem::replace(&mut target.far, wire.far.try_clone().expect("a descriptor")));
        wait_ready(target.near(), libc::POLLIN);
        let results: Vec<_> = (0..3)
            .map(|_| {
                let mut parts = [message.part(0, message.len())];
                // SAFETY: the part is inside the buffer.
                unsafe { OutputCall::Send.output(target.near(), &mut parts, libc::MSG_NOSIGNAL) }
            })
            .collect();
        assert_eq!(results[2], Err(libc::EPIPE), "{results:?}");
        message.check_all("after the peer went away");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "relayed_in_any_order" => relayed_in_any_order(seed),
        "sent_to_several" => sent_to_several(seed),
        "closed_descriptors" => closed_descriptors(seed),
        "urgent_bytes" => urgent_bytes(seed),
        "edge_triggered" => edge_triggered(seed),
        "blocking_calls" => blocking_calls(seed),
        "peers_that_go_away" => peers_that_go_away(seed),
        other => panic!("unknown scenario {other}"),
    }
}
