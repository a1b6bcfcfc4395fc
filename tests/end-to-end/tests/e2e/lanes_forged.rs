//! A forged peer of a program with lanes: it connects by the protocol, gets a lane, and then sends
//! impossible messages. The program continues, and every byte of its other connections is right.

#![allow(
    clippy::cast_possible_truncation,
    reason = "words of a board, and addresses and lengths, which have 64 bits here"
)]

use std::ffi::CString;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use uncopy_core::stats::Counter;
use uncopy_lanes::board::{Announcement, Board, LinkPart, Reference, Return, ReturnKind, Slot};
use uncopy_lanes::lane_thread::board_bytes;
use uncopy_lanes::pool::CHUNK_BYTES;
use uncopy_lanes::protocol::{Address, Message, Stream};
use uncopy_sys::descriptor::{Descriptor as _, OwnFd, ProgramFd};
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::SharedMemory;
use uncopy_sys::seqpacket;
use uncopy_tests::Scratch;
use uncopy_tests::lane_programs::{make_lanes_dir, program};
use uncopy_tests::random::{Random, bytes, rounds, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::{HANG_LIMIT, wait_until};

/// Number of bytes after which a receiver accepts references.
const LARGE_BYTES: usize = 200_000;
/// Length of a reference, in bytes.
const REFERENCE_BYTES: usize = 90_000;

/// An echo server, and a client of it that compares.
const ECHOING: &str = r#"
import threading
def serve(connection):
    try:
        while part := connection.recv(250000):
            if part == b"end":
                os._exit(0)
            connection.sendall(part)
    except OSError:
        pass
    connection.close()
if IS_SERVER:
    listener = listen()
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
connection = connect(sys.argv[2])
number, lanes = 0, 0
# What goes by reference lies in shared memory.
while lanes < 30:
    expected = hashlib.shake_128(str(number).encode()).digest(90000 + 7001 * (number % 5))
    connection.sendall(expected)
    assert receive_exactly(connection, len(expected)) == expected, f"message {number}"
    number, lanes = number + 1, lanes + (shared_bytes() > 300_000)
"#;

/// The program under attack: an echo server.
struct Victim {
    running: Running,
    scratch: Scratch,
    lanes_dir: PathBuf,
    port: u16,
}

impl Victim {
    fn start(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let lanes_dir = make_lanes_dir(&scratch);
        let running = program(&scratch, ECHOING, &["server"]).start(&scratch, "server");
        let port = running.wait_for_line("ready ").parse().expect("a port");
        let victim = Self { scratch, lanes_dir, running, port };
        // The first large receive makes the program connect to others.
        victim.echo(LARGE_BYTES);
        victim
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(HANG_LIMIT)).expect("a limit");
        stream.set_write_timeout(Some(HANG_LIMIT)).expect("a limit");
        stream
    }

    /// Opens a connection of its own, all of whose bytes must come back.
    fn echo(&self, len_bytes: usize) {
        exchange(&mut self.connect(), &bytes(len_bytes as u64, len_bytes));
    }

    /// Returns the path of the program's lane socket.
    fn lane_socket(&self) -> std::ffi::CString {
        let name = wait_until("the program's socket", || {
            let mut entries = std::fs::read_dir(&self.lanes_dir).expect("the room");
            entries.find_map(|entry| {
                let path = entry.expect("an entry").path();
                (path.extension()? == "lane").then(|| path.to_str().expect("UTF-8").to_owned())
            })
        });
        std::ffi::CString::new(name).expect("no NUL")
    }

    /// Returns the number of descriptors of the lanes' thread, which has its own descriptor table.
    fn descriptor_count(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.running.pid())).expect("it runs");
        let is_lanes = |task: &PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "uncopy-lanes")
        };
        let thread = tasks.flatten().map(|task| task.path()).find(is_lanes).expect("it has lanes");
        std::fs::read_dir(thread.join("fd")).expect("it runs").count()
    }

    /// Expects the program to work on, with real peers too, and ends it.
    fn finish(self) {
        let port = self.port.to_string();
        let client = program(&self.scratch, ECHOING, &["client", &port]).run(&self.scratch, "client");
        let client = client.expect_success().counters.expect("counters");
        assert!(client.get(Counter::LaneSentBytes) > 1 << 20, "{client}");
        self.connect().write_all(b"end").expect("it receives");
        let done = self.running.finish();
        assert!(done.status.success(), "{}", done.text());
    }
}

/// Sends bytes and expects them back.
fn exchange(stream: &mut TcpStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    let mut writer = stream.try_clone().expect("a descriptor");
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(expected).expect("it receives"));
        stream.read_exact(&mut got).expect("all of it");
    });
    assert!(got == expected, "{} bytes that are not those that were sent", got.len());
}

/// The forged peer and its shared memory.
struct Forged {
    link: OwnFd,
    id: u64,
    board: SharedMemory,
    chunk: SharedMemory,
    /// The program's board, and its process id in the protocol.
    victim: (SharedMemory, u64),
}

/// A connection for which both sides announced a lane.
struct Lane {
    stream: TcpStream,
    /// Number of bytes sent.
    sent: u64,
    /// Slot and lane number at the forged peer.
    slot: u32,
    lane: u32,
}

fn duplicate(fd: i32) -> i32 {
    // SAFETY: dup(2) takes an integer only.
    unsafe { libc::dup(fd) }
}

impl Forged {
    /// Connects to the program as a real peer does.
    fn connect(victim: &Victim, id: u64) -> Self {
        let link = seqpacket::connect(&victim.lane_socket()).expect("it listens");
        let board = SharedMemory::make(c"forged-board", board_bytes()).expect("memory");
        let chunk = SharedMemory::make(c"forged-lane", CHUNK_BYTES).expect("memory");
        let greeting = Message::Greeting { process: id, link: 0 }.words();
        seqpacket::send_with(&link, &greeting, board.fd()).expect("it listens");
        seqpacket::send_with(&link, &Message::Chunk { number: 0 }.words(), chunk.fd()).expect("it listens");
        let greeting = wait_until("its greeting", || match receive_message(&link) {
            Received::Message(Message::Greeting { process, .. }, Some(fd)) => Some((process, fd)),
            _ => None,
        });
        let victim = (SharedMemory::map_others(greeting.1, board_bytes()).expect("a board"), greeting.0);
        let forged = Self { link, id, board, chunk, victim };
        forged.link_part().begin(greeting.0);
        forged
    }

    fn board(&self) -> &Board {
        // SAFETY: the mapping has `board_bytes()` and lives as long as `self`; a board consists of
        // atomic words, for which zeroes are valid.
        unsafe { &*(self.board.base() as *const Board) }
    }

    fn link_part(&self) -> &LinkPart {
        &self.board().links[0]
    }

    fn slot(&self, lane: &Lane) -> &Slot {
        &self.board().slots[lane.slot as usize]
    }

    /// Returns the words of a slot, to be written without regard to the protocol.
    fn slot_words(&self, lane: &Lane) -> &[AtomicU32] {
        let words = size_of::<Slot>() / size_of::<AtomicU32>();
        // SAFETY: a slot consists of atomic words, possibly 64 bits wide, and is aligned for 32-bit
        // words; it lives as long as `self`.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self.slot(lane)).cast(), words) }
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the chunk is this process's own mapping of `CHUNK_BYTES`, writable.
        unsafe { (self.chunk.base() as *mut u8).write_bytes(byte, CHUNK_BYTES) };
    }

    fn announce_end(&self, stream: Stream, slot: u32, lane: u32) {
        seqpacket::send(&self.link, &Message::End { stream, slot, lane }.words()).expect("it listens");
    }

    /// Opens a connection whose receiver accepts references.
    fn open_lane(&self, victim: &Victim, slot: u32, lane: u32) -> Lane {
        let mut stream = victim.connect();
        let near = stream_of(&stream);
        self.board().slots[slot as usize].clear(lane);
        let mut far_lane = None;
        // SAFETY: the program's board has `board_bytes()`, consists of atomic words, and is mapped
        // as long as `self` lives.
        let board = unsafe { &*(self.victim.0.base() as *const Board) };
        let mut sent = 0;
        wait_until("a receiver that attends", || {
            // After a large receive the program announces its end, and binds it to an end announced before.
            exchange(&mut stream, &bytes(7, LARGE_BYTES));
            sent += LARGE_BYTES as u64;
            self.announce_end(near, slot, lane);
            while let Received::Message(message, _) = receive_message(&self.link) {
                if let Message::End { stream, slot, lane } = message
                    && stream == near.mirrored()
                {
                    far_lane = Some((slot, lane));
                }
            }
            far_lane.filter(|(slot, lane)| board.slots[*slot as usize].receiving.accepts_refs(*lane))
        });
        Lane { stream, sent, slot, lane }
    }

    fn valid_reference(&self) -> Reference {
        Reference { owner: self.id, chunk: 0, run: 0, offset_bytes: 0, len_bytes: REFERENCE_BYTES as u32 }
    }
}

impl Drop for Forged {
    fn drop(&mut self) {
        for shared in [&mut self.board, &mut self.chunk, &mut self.victim.0] {
            core::mem::replace(shared, SharedMemory::NONE).unmap();
        }
    }
}

/// Result of reading from the socket.
enum Received {
    Message(Message, Option<OwnFd>),
    Nothing,
    Closed,
}

fn receive_message(link: &OwnFd) -> Received {
    let mut words = [0; seqpacket::MAX_WORDS];
    match seqpacket::receive(link, &mut words) {
        Ok(received) if received.words > 0 => Message::parse(&words[..received.words])
            .map_or(Received::Closed, |message| Received::Message(message, received.fd)),
        Err(Errno(libc::EAGAIN)) => Received::Nothing,
        _ => Received::Closed,
    }
}

/// Returns the stream as seen from this end.
fn stream_of(stream: &TcpStream) -> Stream {
    let address = |address: SocketAddr| {
        let SocketAddr::V4(address) = address else { panic!("IPv4 was asked for") };
        let ip = u128::from(address.ip().to_ipv6_mapped());
        Address { ip: [(ip >> 64) as u64, ip as u64], port: address.port() }
    };
    let near = address(stream.local_addr().expect("connected"));
    let far = address(stream.peer_addr().expect("connected"));
    Stream::Tcp {
        namespace: uncopy_sys::socket::namespace(ProgramFd::of(stream)).expect("a cookie"),
        near,
        far,
    }
}

impl Lane {
    fn send(&mut self, bytes: &[u8]) {
        // The program may have reset the connection by then.
        if self.stream.write_all(bytes).is_ok() {
            self.sent += bytes.len() as u64;
        }
    }

    /// Receives up to `len_bytes` bytes, until the connection ends.
    fn receive_up_to(&mut self, len_bytes: usize) -> Vec<u8> {
        let mut got = vec![0; len_bytes];
        let mut at = 0;
        while at < len_bytes {
            match self.stream.read(&mut got[at..]) {
                Ok(0) => break,
                Ok(more) => at += more,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("no answer: {error}"),
            }
        }
        got.truncate(at);
        got
    }
}

#[test]
fn what_a_whole_peer_announces_rightly_is_received() {
    let victim = Victim::start("forged-right");
    let forged = Forged::connect(&victim, 0xF0);
    forged.fill(b'a');
    let mut lane = forged.open_lane(&victim, 3, 9);
    for turn in 0..3 {
        let announcement = Announcement { at: lane.sent, reference: forged.valid_reference() };
        assert!(forged.slot(&lane).sending.announce(&announcement, turn));
        lane.send(&[0]);
        assert!(lane.receive_up_to(REFERENCE_BYTES) == [b'a'; REFERENCE_BYTES], "turn {turn}");
    }
    drop(lane);
    victim.finish();
}

/// Expected result of a trick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The connection is reset.
    Reset,
    /// At most this many bytes arrive, or a reset.
    AtMost(usize),
}

#[test]
fn references_to_what_is_not_there_end_their_connection_and_no_other() {
    let victim = Victim::start("forged-references");
    let forged = Forged::connect(&victim, 0xF0);
    forged.fill(b'a');
    let valid = forged.valid_reference();
    let bad = [
        Reference { owner: 0xF1, ..valid },
        Reference { owner: 0, ..valid },
        Reference { owner: forged.victim.1, chunk: 77, ..valid },
        Reference { owner: forged.victim.1, offset_bytes: u32::MAX, ..valid },
        Reference { chunk: 1, ..valid },
        Reference { chunk: u32::MAX, ..valid },
        Reference { len_bytes: 0, ..valid },
        Reference { len_bytes: CHUNK_BYTES as u32 + 1, ..valid },
        Reference { offset_bytes: CHUNK_BYTES as u32 - 1, ..valid },
        Reference { offset_bytes: u32::MAX, len_bytes: u32::MAX, ..valid },
    ];
    for (number, reference) in bad.into_iter().enumerate() {
        // With and without plain bytes before the reference, which take different paths through a receive.
        for before in [0, 5] {
            let mut lane = forged.open_lane(&victim, 2, 2 * number as u32 + u32::from(before > 0) + 1);
            let announcement = Announcement { at: lane.sent + before, reference };
            assert!(forged.slot(&lane).sending.announce(&announcement, 0));
            lane.send(&[0; 6][..before as usize + 1]);
            let got = lane.receive_up_to(before as usize + 1);
            assert!(
                got.len() <= before as usize,
                "{reference:?}, {before} bytes before it: {} came",
                got.len()
            );
            victim.echo(LARGE_BYTES);
        }
    }
    drop(forged);
    victim.finish();
}

/// Announces something invalid, sends, and returns the expected result.
type Trick = fn(&Forged, &mut Lane) -> Expected;

fn announce(forged: &Forged, lane: &Lane, at: u64, reference: Reference) {
    assert!(forged.slot(lane).sending.announce(&Announcement { at, reference }, 0));
}

/// Indices of words in a slot.
const PRODUCED: usize = 1;
const BUSY: usize = 2;

const TRICKS: [(&str, Trick); 12] = [
    ("an offset that was passed", |forged, lane| {
        announce(forged, lane, lane.sent - 10, forged.valid_reference());
        lane.send(&[0]);
        Expected::Reset
    }),
    ("an offset far ahead", |forged, lane| {
        announce(forged, lane, lane.sent + (1 << 40), forged.valid_reference());
        lane.send(&[0]);
        Expected::AtMost(1)
    }),
    ("an offset half around", |forged, lane| {
        announce(forged, lane, lane.sent.wrapping_add(1 << 63), forged.valid_reference());
        lane.send(&[0]);
        Expected::Reset
    }),
    ("two references for one token", |forged, lane| {
        announce(forged, lane, lane.sent, forged.valid_reference());
        announce(forged, lane, lane.sent, forged.valid_reference());
        lane.send(&[0, 0]);
        Expected::AtMost(REFERENCE_BYTES)
    }),
    ("references that overlap", |forged, lane| {
        announce(forged, lane, lane.sent, forged.valid_reference());
        announce(
            forged,
            lane,
            lane.sent + 1,
            Reference { offset_bytes: 100, run: 9, ..forged.valid_reference() },
        );
        lane.send(&[0, 0]);
        Expected::AtMost(2 * REFERENCE_BYTES)
    }),
    ("one that is taken back although it was sent", |forged, lane| {
        announce(forged, lane, lane.sent, forged.valid_reference());
        forged.slot(lane).sending.withdraw_last(1);
        lane.send(&[0]);
        Expected::AtMost(1)
    }),
    ("many more announcements than there is room for", |forged, lane| {
        announce(forged, lane, lane.sent, forged.valid_reference());
        forged.slot_words(lane)[PRODUCED].store(1_000_000, Relaxed);
        lane.send(&[0]);
        Expected::AtMost(1)
    }),
    ("more announcements than were made", |forged, lane| {
        announce(forged, lane, lane.sent, forged.valid_reference());
        forged.slot_words(lane)[PRODUCED].store(32, Relaxed);
        lane.send(&[0, 0, 0]);
        Expected::AtMost(REFERENCE_BYTES)
    }),
    ("a sender that is busy for ever", |forged, lane| {
        forged.slot_words(lane)[BUSY].store(1, Relaxed);
        lane.send(&[7; 3]);
        Expected::AtMost(3)
    }),
    ("a slot that is another end's by then", |forged, lane| {
        announce(forged, lane, lane.sent, forged.valid_reference());
        forged.slot(lane).clear(lane.lane + 1);
        lane.send(&[0]);
        Expected::AtMost(1)
    }),
    ("a second end for one stream", |forged, lane| {
        forged.announce_end(stream_of(&lane.stream), lane.slot + 1, lane.lane);
        announce(forged, lane, lane.sent, forged.valid_reference());
        lane.send(&[0]);
        Expected::AtMost(REFERENCE_BYTES)
    }),
    ("returns of what is not held", |forged, lane| {
        for run in [0, 5, u32::MAX] {
            for what in [
                ReturnKind::Released,
                ReturnKind::Shared(forged.victim.1),
                ReturnKind::NotShared(7),
                ReturnKind::Shared(0),
            ] {
                let _ = forged.link_part().push_return(&Return { chunk: run / 2, run, kind: what }, 0);
            }
        }
        announce(forged, lane, lane.sent, forged.valid_reference());
        lane.send(&[0]);
        Expected::AtMost(REFERENCE_BYTES)
    }),
];

#[test]
fn tricks_with_offsets_counts_and_slots_harm_nobody() {
    let victim = Victim::start("forged-tricks");
    for (number, (name, trick)) in TRICKS.into_iter().enumerate() {
        let forged = Forged::connect(&victim, 0xF000 + number as u64);
        forged.fill(b'a');
        let mut lane = forged.open_lane(&victim, 2, 1);
        match trick(&forged, &mut lane) {
            Expected::Reset => assert_eq!(lane.receive_up_to(1).len(), 0, "{name}"),
            Expected::AtMost(max_bytes) => {
                // The shutdown ends a wait for bytes that never come.
                let _ = lane.stream.shutdown(std::net::Shutdown::Write);
                let got = lane.receive_up_to(4 * REFERENCE_BYTES).len();
                assert!(got <= max_bytes, "{name}: {got} bytes");
            }
        }
        victim.echo(LARGE_BYTES);
        // The socket closes before the connection, or after it.
        if number % 2 == 0 {
            drop(forged);
        }
        drop(lane);
        victim.echo(LARGE_BYTES);
    }
    victim.finish();
}

/// Sets a flag when dropped, also by a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_board_that_changes_while_it_is_read_harms_nobody() {
    let victim = Victim::start("forged-changing");
    let seed = seed(3000);
    let mut random = Random::new(seed);
    for turn in 0..rounds(12) {
        let forged = Forged::connect(&victim, 0xF000 + turn as u64);
        forged.fill(b'a');
        let mut lane = forged.open_lane(&victim, 2, 1);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (words, mut random_words) = (forged.slot_words(&lane), Random::new(random.next_u64()));
            let (over, sent) = (SetOnDrop(&is_over), lane.sent as u32);
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    let any = random_words.next_u64() as u32;
                    let word = random_words.pick(&[0, 1, 2, 31, 32, 0xF000, sent, u32::MAX, any]);
                    // The word that names the lane changes rarely, since nothing is read without it.
                    let index = random_words.below(words.len()).max(usize::from(!random_words.one_in(50)));
                    words[index].store(word, Relaxed);
                }
            });
            for _ in 0..200 {
                lane.send(&[0; 40][..random.between(1, 40)]);
            }
            let _ = lane.stream.shutdown(std::net::Shutdown::Write);
            // Any bytes will do, but the stream must end.
            while !lane.receive_up_to(1 << 20).is_empty() {}
            drop(over);
        });
        victim.echo(LARGE_BYTES);
    }
    eprintln!("seed {seed}");
    victim.finish();
}

#[test]
fn memory_that_could_become_shorter_is_not_taken() {
    let victim = Victim::start("forged-memory");
    // A file as those of the service of user-level TCP, which may pass them.
    let scratch = Scratch::in_memory("forged-file");
    let file = scratch.write("file", "");
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("its permissions");
    let file = CString::new(file.as_os_str().as_bytes()).expect("no NUL");
    for what in ["unsealed", "short", "file"] {
        let forged = Forged::connect(&victim, 0xF0);
        // SAFETY: the names are NUL-terminated; the descriptors are the test's own.
        unsafe {
            let fd = match what {
                "file" => libc::open(file.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC),
                _ => libc::memfd_create(c"forged".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING),
            };
            let len_bytes = if what == "short" { CHUNK_BYTES - 4096 } else { CHUNK_BYTES };
            assert_eq!(libc::ftruncate(fd, len_bytes as libc::off_t), 0);
            if what == "short" {
                assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
            }
            seqpacket::send_with(
                &forged.link,
                &Message::Chunk { number: 1 }.words(),
                Some(ProgramFd::new(fd)),
            )
            .expect("it listens");
            libc::close(fd);
        }
        wait_until("the end of the link", || {
            matches!(receive_message(&forged.link), Received::Closed).then_some(())
        });
        victim.echo(LARGE_BYTES);
    }
    victim.finish();
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let victim = Victim::start("forged-descriptors");
    let before = victim.descriptor_count();
    for count in [1, 2, 3, 16] {
        for _ in 0..50 {
            let link = seqpacket::connect(&victim.lane_socket()).expect("it listens");
            let words = Message::Greeting { process: 5, link: 0 }.words();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            send_descriptors(&link, &bytes, &vec![duplicate(0); count]);
            wait_until("the end of the link", || {
                matches!(receive_message(&link), Received::Closed).then_some(())
            });
        }
    }
    let after = wait_until("descriptors that are closed", || {
        Some(victim.descriptor_count()).filter(|now| *now <= before)
    });
    assert!(after <= before);
    victim.finish();
}

/// Sends bytes with descriptors, and closes the descriptors.
fn send_descriptors(link: &OwnFd, bytes: &[u8], descriptors: &[i32]) {
    let len_bytes = size_of_val(descriptors) as u32;
    // SAFETY: the parts and the control data live through the call; the control data has room for
    // one header with all descriptors.
    unsafe {
        let mut control = vec![0u64; libc::CMSG_SPACE(len_bytes) as usize / 8];
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut header: libc::msghdr = core::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = (control.len() * 8) as _;
        let head = libc::CMSG_FIRSTHDR(&raw const header);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(len_bytes) as _;
        core::ptr::copy_nonoverlapping(descriptors.as_ptr(), libc::CMSG_DATA(head).cast(), descriptors.len());
        assert_eq!(libc::sendmsg(link.number(), &raw const header, libc::MSG_NOSIGNAL), bytes.len() as isize);
        libc::close(descriptors[0]);
    }
}
