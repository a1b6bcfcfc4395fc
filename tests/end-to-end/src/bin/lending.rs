//! Bytes that are sent again and again, and memory that changes while they are in flight: peers
//! receive the bytes of the moment of sending.
//!
//! ```text
//! lending SCENARIO SEED
//! ```

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use libc::iovec;
use uncopy_tests::calls::{CopyCall, InputCall, OutputCall, set_buffer_size, set_nonblocking, wait_ready};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::{fork_child, wait};
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::{self, OracleBytes};
use uncopy_tests::random::Random;
use uncopy_tests::unwound::Thread;

const KIB: usize = 1 << 10;
/// Length of a message; any wire holds several messages.
const MESSAGE: usize = 100 * KIB;
/// Maximum number of bytes in flight.
const MAX_WIRE: usize = 4 << 20;

unsafe extern "C" {}

/// Kind of byte stream that carries a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WireKind {
    Tcp,
    Unix,
    Pipe,
}

const KINDS: [WireKind; 3] = [WireKind::Tcp, WireKind::Unix, WireKind::Pipe];

/// The program's end of a connection, and a peer that reads only when told to.
struct Wire {
    kind: WireKind,
    near: OwnedFd,
    far: OwnedFd,
    /// Bytes that the peer must receive.
    expected: OracleBytes,
    len: usize,
    scratch: OracleBytes,
}

impl Wire {
    fn new(kind: WireKind) -> Self {
        let (near, far) = match kind {
            WireKind::Tcp => tcp(),
            WireKind::Unix => {
                let mut ends = [0; 2];
                // SAFETY: socketpair(2) writes two descriptors, for which `ends` has room.
                let made =
                    unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) };
                assert_eq!(made, 0, "socketpair");
                ends.into()
            }
            WireKind::Pipe => {
                let mut ends = [0; 2];
                // SAFETY: the array takes two descriptors; the other call takes integers.
                unsafe {
                    assert_eq!(libc::pipe(ends.as_mut_ptr()), 0, "pipe");
                    libc::fcntl(ends[1], libc::F_SETPIPE_SZ, 1 << 20);
                }
                (ends[1], ends[0])
            }
        };
        if kind != WireKind::Pipe {
            // The size may be above the limit for unprivileged processes.
            set_buffer_size(near, libc::SO_SNDBUFFORCE, 4 << 20);
        }
        set_nonblocking(near, true);
        // SAFETY: both descriptors were opened by this function and have no other owner.
        let (near, far) = unsafe { (OwnedFd::from_raw_fd(near), OwnedFd::from_raw_fd(far)) };
        let expected = OracleBytes::new(MAX_WIRE);
        Self { kind, near, far, expected, len: 0, scratch: OracleBytes::new(MESSAGE) }
    }

    fn near(&self) -> c_int {
        use std::os::fd::AsRawFd;
        self.near.as_raw_fd()
    }

    fn far(&self) -> c_int {
        use std::os::fd::AsRawFd;
        self.far.as_raw_fd()
    }

    /// Sends a range of a buffer, all of it; the peer does not read.
    fn send(&mut self, call: OutputCall, buffer: &Buffer, at: usize, len: usize) {
        let mut done = 0;
        while done < len {
            let mut parts = [buffer.part(at + done, len - done)];
            // SAFETY: the part is inside the buffer.
            let sent = unsafe { call.output(self.near(), &mut parts, libc::MSG_NOSIGNAL) };
            let sent = sent.unwrap_or_else(|error| panic!("{call:?} on {:?}: errno {error}", self.kind));
            self.expect_bytes(buffer, at + done, sent);
            done += sent;
        }
    }

    /// Appends bytes to those that the peer must receive.
    fn expect_bytes(&mut self, buffer: &Buffer, at: usize, len: usize) {
        assert!(self.len + len <= MAX_WIRE);
        // SAFETY: `expected` has `MAX_WIRE` bytes, as asserted; the mirror has `len` bytes at `at`.
        unsafe { oracle::copy(self.expected.at(self.len), buffer.mirror_at(at), len) };
        self.len += len;
    }

    /// Has the peer read everything and compare.
    fn check_arrival(&mut self, what: &str) {
        let mut got = 0;
        while got < self.len {
            wait_ready(self.far(), libc::POLLIN);
            let want = (self.len - got).min(MESSAGE);
            // SAFETY: `scratch` has room for `MESSAGE` bytes, and `want` is at most that.
            let now = unsafe { oracle::raw_read(self.far(), self.scratch.pointer(), want) };
            let now = now.unwrap_or_else(|error| panic!("{:?}: errno {error}", self.kind));
            assert!(now > 0, "{:?}: {what}: the stream ends after {got} of {}", self.kind, self.len);
            // SAFETY: the scratch holds `now` bytes, what is expected as many.
            let wrong =
                unsafe { oracle::first_difference(self.scratch.pointer(), self.expected.at(got), now) };
            let wrong = wrong.map(|offset| got + offset);
            assert_eq!(wrong, None, "{:?}: {what}: the peer got a wrong byte (of {})", self.kind, self.len);
            got += now;
        }
        self.len = 0;
    }
}

/// Returns both ends of a loopback connection, the connecting one first.
fn tcp() -> (c_int, c_int) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let near = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (far, _) = listener.accept().expect("loopback");
    near.set_nodelay(true).expect("nodelay");
    (near.into_raw_fd(), far.into_raw_fd())
}

/// Returns the calls that work on a kind of wire.
fn calls(kind: WireKind) -> &'static [OutputCall] {
    if kind == WireKind::Pipe { &OutputCall::NAMED[..2] } else { &OutputCall::NAMED }
}

/// Sends the buffer again and again.
fn send_repeatedly(wire: &mut Wire, buffer: &Buffer, random: &mut Random) {
    for _ in 0..4 {
        let call = random.pick(calls(wire.kind));
        wire.send(call, buffer, 0, buffer.len());
    }
}

/// Ways in which memory comes to hold other bytes.
const CHANGES: usize = 8;

/// Changes the content of the buffer, or frees the memory. `None` if the buffer is freed.
fn change(how: usize, mut buffer: Buffer, feeder: &mut Feeder, seed: u64) -> Option<Buffer> {
    let len = buffer.len();
    match how % CHANGES {
        0 => buffer.store(0, len, seed),
        1 => buffer.set(0, len, 0xA5),
        2 => {
            let other = feeder.received_buffer(len);
            buffer.copy_from(CopyCall::Memcpy, 0, &other, 0, len);
        }
        3 => feeder.receive(InputCall::Recv, &mut buffer, 0, len),
        4 => {
            drop(buffer);
            // The next owner of the pages overwrites them.
            let others: Vec<Buffer> = (0..8).map(|_| feeder.received_buffer(len)).collect();
            for other in &others {
                other.check_all("received after another was freed");
            }
            return None;
        }
        5 => buffer.resize(2 * len),
        6 => buffer.copy_within(CopyCall::Memmove, 0, 45, len - 45),
        _ => {
            for page in (0..len).step_by(4096) {
                buffer.store(page, 64.min(len - page), seed);
            }
        }
    }
    Some(buffer)
}

/// The peer reads only after all other steps.
fn changed_while_in_flight(seed: u64) {
    let mut random = Random::new(seed);
    let mut feeder = Feeder::new(seed);
    for round in 0..6 {
        for kind in KINDS {
            let mut wire = Wire::new(kind);
            for how in 0..CHANGES {
                let received = feeder.received_buffer(MESSAGE);
                let copy =
                    (random.one_in(2)).then(|| Buffer::copy_of(CopyCall::Memcpy, &received, 0, MESSAGE));
                send_repeatedly(&mut wire, &received, &mut random);
                let changed = change(how, received, &mut feeder, seed + round);
                if let Some(changed) = &changed {
                    changed.check_all("what was changed");
                    wire.send(OutputCall::Write, changed, 0, MESSAGE);
                }
                wire.check_arrival("changed in flight");
                if let Some(copy) = copy {
                    copy.check_all("a copy of what was sent");
                    send_repeatedly(&mut wire, &copy, &mut random);
                    drop(change(how + 1, copy, &mut feeder, seed));
                    wire.check_arrival("a copy changed in flight");
                }
            }
        }
    }
}

/// Input continues on the page of bytes that are in flight.
fn received_on_behind(seed: u64) {
    let mut random = Random::new(seed);
    let mut feeder = Feeder::new(seed);
    for kind in KINDS {
        let mut wire = Wire::new(kind);
        for step in [1, 45, 4000, 5000, 40_000] {
            let first = MESSAGE / 2 + step;
            let mut buffer = Buffer::new(Origin::Malloc, 2 * MESSAGE);
            // A buffer with room behind the bytes: the next input is received there.
            let (stream, offered) = feeder.offer(first);
            let mut part = [buffer.part(0, 2 * MESSAGE)];
            // SAFETY: the part is inside the buffer.
            let got = unsafe { InputCall::Recv.input(feeder.near(), &mut part, 0) };
            assert_eq!(got, Ok(offered));
            buffer.note_received_stream(0, offered, stream, 0);
            for _ in 0..4 {
                let call = random.pick(calls(kind));
                wire.send(call, &buffer, 0, first);
            }
            feeder.receive(InputCall::Recv, &mut buffer, first, 2 * MESSAGE - first);
            wire.check_arrival("before the rest was received");
            for _ in 0..4 {
                let call = random.pick(calls(kind));
                wire.send(call, &buffer, 0, 2 * MESSAGE);
            }
            drop(buffer);
            drop(feeder.received_buffer(2 * MESSAGE));
            wire.check_arrival("after the rest was received");
        }
    }
}

/// Waits for a child, which must succeed in time.
fn join(pid: libc::pid_t) {
    assert_eq!(wait(pid), 0, "child {pid}");
}

/// Parent and child change memory that both have in flight, and send more of it, on common and own wires.
fn changed_in_parent_and_child(seed: u64) {
    let mut random = Random::new(seed);
    let mut feeder = Feeder::new(seed);
    for kind in KINDS {
        for how in 0..CHANGES {
            let mut wire = Wire::new(kind);
            let mut other = Wire::new(kind);
            let received = feeder.received_buffer(MESSAGE);
            let copy = Buffer::copy_of(CopyCall::Memcpy, &received, 0, MESSAGE);
            send_repeatedly(&mut wire, &received, &mut random);
            let parts_with_child = [received, copy];
            let pid = fork_child(|| {
                let mut random = Random::new(seed + how as u64);
                let mut feeder = Feeder::new(seed + 1);
                let [received, copy] = parts_with_child;
                send_repeatedly(&mut other, &received, &mut random);
                send_repeatedly(&mut other, &copy, &mut random);
                drop(change(how, received, &mut feeder, seed + 7));
                drop(change(how + 3, copy, &mut feeder, seed + 9));
                other.check_arrival("in the child");
            });
            // The peer of the child's wire must read everything; the parent continues meanwhile.
            let [received, copy] = received_and_copy(&mut feeder);
            drop((received, copy));
            join(pid);
            wire.check_arrival("sent before the fork");
        }
    }
}

fn received_and_copy(feeder: &mut Feeder) -> [Buffer; 2] {
    let received = feeder.received_buffer(MESSAGE);
    let copy = Buffer::copy_of(CopyCall::Mempcpy, &received, 0, MESSAGE);
    [received, copy]
}

/// The parent changes and frees memory that a longer-lived child has in flight as well.
fn changed_by_the_parent_of_a_sender(seed: u64) {
    let mut random = Random::new(seed);
    let mut feeder = Feeder::new(seed);
    for kind in KINDS {
        for how in 0..CHANGES {
            let mut wire = Wire::new(kind);
            let received = feeder.received_buffer(MESSAGE);
            send_repeatedly(&mut wire, &received, &mut random);
            let (mut gate, opener) = std::io::pipe().expect("pipe");
            let pid = fork_child(|| {
                let mut random = Random::new(seed);
                let mut own = Wire::new(kind);
                send_repeatedly(&mut own, &received, &mut random);
                // Waits until the parent has changed its memory.
                let mut end = [0; 1];
                std::io::Read::read_exact(&mut gate, &mut end).expect("the parent tells");
                received.check_all("in the child, after the parent changed its own");
                send_repeatedly(&mut own, &received, &mut random);
                own.check_arrival("from the child");
            });
            drop(change(how, received, &mut feeder, seed));
            std::io::Write::write_all(&mut { opener }, b"x").expect("the child waits");
            join(pid);
            wire.check_arrival("sent before the fork");
        }
    }
}

/// Threads send parts of shared buffers, and change their own; peers read late.
fn changed_by_threads(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let common = feeder.received_buffer(MESSAGE);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let common = &common;
            scope.spawn(move || {
                let mut random = Random::new(seed + thread);
                let mut feeder = Feeder::new(seed + 10 * thread + 1);
                for round in 0..12 {
                    let kind = random.pick(&KINDS);
                    let mut wire = Wire::new(kind);
                    let own = Buffer::copy_of(CopyCall::Memcpy, common, 0, MESSAGE);
                    let received = feeder.received_buffer(MESSAGE);
                    for _ in 0..3 {
                        let call = random.pick(calls(kind));
                        wire.send(call, common, 0, MESSAGE);
                        wire.send(call, &own, 4096, MESSAGE / 2);
                        wire.send(call, &received, 0, MESSAGE);
                    }
                    let how = random.below(CHANGES);
                    // Another thread frees what this one has in flight.
                    let dropping = std::thread::spawn(move || drop(received));
                    drop(change(how, own, &mut feeder, seed + round));
                    dropping.join().expect("the thread that frees");
                    wire.check_arrival("sent by one of several threads");
                }
            });
        }
    });
    common.check_all("what all threads sent");
}

/// Small socket buffers: some calls send a part, some nothing, and blocking ones wait.
fn slow_readers(seed: u64) {
    let mut random = Random::new(seed);
    let mut feeder = Feeder::new(seed);
    for kind in KINDS {
        for blocks in [false, true] {
            let received = feeder.received_buffer(8 * MESSAGE);
            let mut wire = Wire::new(kind);
            set_nonblocking(wire.near(), !blocks);
            if kind != WireKind::Pipe {
                set_buffer_size(wire.near(), libc::SO_SNDBUF, 100_000);
            }
            let far = AtomicI32::new(wire.far());
            let is_over = AtomicBool::new(false);
            let rounds = 4;
            std::thread::scope(|scope| {
                let (is_over, received) = (&is_over, &received);
                let reader = scope.spawn(move || {
                    let scratch = OracleBytes::new(MESSAGE);
                    let far = far.load(Ordering::Relaxed);
                    let mut got = 0;
                    while got < rounds * received.len() {
                        wait_ready(far, libc::POLLIN);
                        let left = received.len() - got % received.len();
                        // SAFETY: the caller's `scratch` has room for at least 30,000 bytes.
                        let now = unsafe { oracle::raw_read(far, scratch.pointer(), left.min(30_000)) };
                        let now = now.expect("bytes");
                        assert!(now > 0, "{kind:?}: the stream ends after {got}");
                        // SAFETY: the scratch holds `now` bytes, the mirror as many.
                        let wrong = unsafe {
                            let expected = received.mirror_at(got % received.len());
                            oracle::first_difference(scratch.pointer(), expected, now)
                        };
                        assert_eq!(wrong, None, "{kind:?}, blocking {blocks}: after {got}");
                        got += now;
                    }
                    is_over.store(true, Ordering::Release);
                });
                for _ in 0..rounds {
                    let call = random.pick(calls(kind));
                    let mut done = 0;
                    while done < received.len() {
                        let mut parts = [received.part(done, received.len() - done)];
                        // SAFETY: the part is inside the buffer.
                        match unsafe { call.output(wire.near(), &mut parts, libc::MSG_NOSIGNAL) } {
                            Ok(sent) => {
                                let waits = blocks && kind != WireKind::Pipe;
                                assert!(!waits || sent == parts[0].iov_len, "{call:?} gave up after {sent}");
                                done += sent;
                            }
                            Err(libc::EAGAIN) if !blocks => wait_ready(wire.near(), libc::POLLOUT),
                            Err(error) => panic!("{call:?} on {kind:?}: errno {error}"),
                        }
                    }
                }
                reader.join().expect("the reader");
            });
            assert!(is_over.load(Ordering::Acquire));
            wire.len = 0;
        }
    }
}

/// The peer closes with bytes in flight: calls return the same as without uncopy.
fn peers_that_go_away(seed: u64) {
    let mut random = Random::new(seed);
    let mut feeder = Feeder::new(seed);
    let received = feeder.received_buffer(MESSAGE);
    for kind in KINDS {
        for resets in [false, true] {
            let mut wire = Wire::new(kind);
            send_repeatedly(&mut wire, &received, &mut random);
            if resets && kind == WireKind::Tcp {
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                // SAFETY: the value lives through the call.
                let set = unsafe {
                    let len = libc::socklen_t::try_from(size_of::<libc::linger>()).expect("small");
                    libc::setsockopt(
                        wire.far(),
                        libc::SOL_SOCKET,
                        libc::SO_LINGER,
                        (&raw const linger).cast(),
                        len,
                    )
                };
                assert_eq!(set, 0);
            }
            let Wire { near, far, .. } = wire;
            drop(far);
            if kind == WireKind::Tcp {
                wait_ready(std::os::fd::AsRawFd::as_raw_fd(&near), libc::POLLHUP);
            }
            let mut results = Vec::new();
            // SIGPIPE is ignored by Rust's runtime.
            for _ in 0..3 {
                let mut parts = [received.part(0, MESSAGE)];
                // SAFETY: the part is inside the buffer.
                results.push(unsafe {
                    OutputCall::Write.output(std::os::fd::AsRawFd::as_raw_fd(&near), &mut parts, 0)
                });
            }
            println!("{kind:?} {resets}: {results:?}");
            assert!(results.iter().all(Result::is_err), "{results:?}");
        }
    }
    received.check_all("sent to peers that went away");
}

static BLOCKED_ON: AtomicI32 = AtomicI32::new(-1);
static BLOCKED_WITH: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Sends forever, to a peer that does not read.
extern "C-unwind" fn send_to_nobody(_argument: *mut c_void) -> *mut c_void {
    let send = std::hint::black_box(libc::send as unsafe extern "C" fn(_, *const c_void, _, _) -> isize);
    loop {
        // SAFETY: the buffer has as many bytes, and lives longer than the thread.
        unsafe {
            send(
                BLOCKED_ON.load(Ordering::Relaxed),
                BLOCKED_WITH.load(Ordering::Relaxed).cast_const(),
                MESSAGE,
                0,
            );
        }
    }
}

/// A thread that waits for room can be cancelled.
fn cancelled_senders(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let received = feeder.received_buffer(MESSAGE);
    for kind in [WireKind::Tcp, WireKind::Unix] {
        for _ in 0..3 {
            let mut wire = Wire::new(kind);
            send_repeatedly(&mut wire, &received, &mut Random::new(seed));
            set_nonblocking(wire.near(), false);
            BLOCKED_ON.store(wire.near(), Ordering::Relaxed);
            BLOCKED_WITH.store(received.at(0).cast(), Ordering::Relaxed);
            // SAFETY: the thread uses the wire and the buffer, and ends before they do.
            let thread = unsafe { Thread::start(send_to_nobody, std::ptr::null_mut()) };
            // A full wire means that the thread is inside its call.
            uncopy_tests::scratch::wait_until("a full wire", || {
                let mut poll = libc::pollfd { fd: wire.near(), events: libc::POLLOUT, revents: 0 };
                // SAFETY: the kernel reads and fills one pollfd, which lives through the call.
                (unsafe { libc::poll(&raw mut poll, 1, 0) } == 0).then_some(())
            });
            thread.cancel();
        }
    }
    received.check_all("sent by cancelled threads");
}

/// Small parts of old messages are kept while each message is in flight: the rest is freed.
fn parts_kept_of_what_is_in_flight(seed: u64) {
    let mut random = Random::new(seed);
    let mut feeder = Feeder::new(seed);
    let mut kept = Vec::new();
    for _ in 0..40 {
        let mut wire = Wire::new(random.pick(&KINDS[..2]));
        let received = feeder.received_buffer(MESSAGE);
        kept.push(Buffer::copy_of(CopyCall::Memcpy, &received, 40_000, 24_000));
        send_repeatedly(&mut wire, &received, &mut random);
        drop(received);
        drop(feeder.received_buffer(MESSAGE));
        wire.check_arrival("of which a part is kept");
    }
    for part in &kept {
        part.check_all("a part of what was in flight");
    }
}

const CONSTANT_BYTES: usize = 80 * KIB;

const fn constants() -> [u8; CONSTANT_BYTES] {
    let mut bytes = [0; CONSTANT_BYTES];
    let mut at = 0;
    while at < CONSTANT_BYTES {
        bytes[at] = ((at * 7 + at / 251) % 251).to_le_bytes()[0];
        at += 1;
    }
    bytes
}

static CONSTANTS: [u8; CONSTANT_BYTES] = constants();

/// The program's constants are sent, made writable, changed, and sent again.
fn constants_that_are_made_writable(_seed: u64) {
    let start = std::hint::black_box(&raw const CONSTANTS) as usize;
    let at = std::ptr::with_exposed_provenance_mut::<u8>(start);
    let send = |wire: &mut Wire, expected: &OracleBytes| {
        let mut parts = [iovec { iov_base: at.cast(), iov_len: CONSTANT_BYTES }];
        // SAFETY: the constants are as long; what is expected has room for a copy.
        unsafe {
            let sent = OutputCall::Write.output(wire.near(), &mut parts, 0);
            assert_eq!(sent, Ok(CONSTANT_BYTES), "{:?}", wire.kind);
            oracle::copy(wire.expected.at(wire.len), expected.pointer(), CONSTANT_BYTES);
        }
        wire.len += CONSTANT_BYTES;
    };
    let copy = OracleBytes::new(CONSTANT_BYTES);
    // SAFETY: `copy` and the constant at `at` have `CONSTANT_BYTES` bytes each.
    unsafe { oracle::copy(copy.pointer(), at, CONSTANT_BYTES) };
    let mut wires: Vec<Wire> = KINDS.iter().map(|kind| Wire::new(*kind)).collect();
    for _ in 0..3 {
        wires.iter_mut().for_each(|wire| send(wire, &copy));
    }
    // A page in the middle, twice: the second time the kernel need not replace the page.
    let page = (start + CONSTANT_BYTES / 2) / 4096 * 4096;
    for value in [0xC3, 0x3C] {
        // SAFETY: a page of the constants, which nothing but this function uses.
        unsafe {
            let pointer = std::ptr::with_exposed_provenance_mut::<u8>(page);
            let protect = |protection| libc::mprotect(pointer.cast(), 4096, protection);
            assert_eq!(protect(libc::PROT_READ | libc::PROT_WRITE), 0, "mprotect");
            for offset in 0..4096 {
                pointer.add(offset).write_volatile(value);
            }
            assert_eq!(protect(libc::PROT_READ), 0, "mprotect");
            oracle::set(copy.at(page - start), 4096, value);
        }
        wires.iter_mut().for_each(|wire| send(wire, &copy));
    }
    wires.iter_mut().for_each(|wire| wire.check_arrival("constants"));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "changed_while_in_flight" => changed_while_in_flight(seed),
        "received_on_behind" => received_on_behind(seed),
        "changed_in_parent_and_child" => changed_in_parent_and_child(seed),
        "changed_by_the_parent_of_a_sender" => changed_by_the_parent_of_a_sender(seed),
        "changed_by_threads" => changed_by_threads(seed),
        "slow_readers" => slow_readers(seed),
        "peers_that_go_away" => peers_that_go_away(seed),
        "cancelled_senders" => cancelled_senders(seed),
        "constants_that_are_made_writable" => constants_that_are_made_writable(seed),
        "parts_kept_of_what_is_in_flight" => parts_kept_of_what_is_in_flight(seed),
        other => panic!("unknown scenario {other}"),
    }
}
