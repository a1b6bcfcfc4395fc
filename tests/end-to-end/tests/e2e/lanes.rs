//! Programs whose connections with each other are lanes: messages of random sizes, every call, and
//! the counters.

use uncopy_core::stats::Counter;
use uncopy_lanes::protocol::Message;
use uncopy_tests::lane_programs::{make_lanes_dir, run_pair};
use uncopy_tests::random::{rounds, seed};
use uncopy_tests::running::Finished;
use uncopy_tests::{Mode, Program, Scratch};

const ECHO: &str = env!("CARGO_BIN_EXE_echo");
/// Runs server and client with every call in turn, both with lanes.
fn run_echo(transport: &str, server_mode: Mode, client_mode: Mode, messages: usize, uses_lanes: bool) {
    run_echo_in_scope(transport, "all", server_mode, client_mode, messages, uses_lanes);
}

/// Runs [`run_echo`] with lanes for the streams of `scope` only.
fn run_echo_in_scope(
    transport: &str,
    scope: &str,
    server_mode: Mode,
    client_mode: Mode,
    messages: usize,
    uses_lanes: bool,
) {
    let scratch = Scratch::new(&format!("lanes-{transport}"));
    let lanes_dir = make_lanes_dir(&scratch);
    let directory = scratch.path().to_str().expect("UTF-8");
    let seed = seed(1000);
    let messages = rounds(messages).to_string();
    let server = Program::new(ECHO)
        .args(["server", transport, directory, &(seed + 7).to_string()])
        .env("UNCOPY_LANES", scope)
        .env("UNCOPY_LANES_DIR", &lanes_dir)
        .mode(server_mode)
        .start(&scratch, "server");
    let address = server.wait_for_line("ready ");
    let client = Program::new(ECHO)
        .args(["client", transport, directory, &seed.to_string(), &address, &messages])
        .env("UNCOPY_LANES", scope)
        .env("UNCOPY_LANES_DIR", &lanes_dir)
        .mode(client_mode)
        .start(&scratch, "client");
    let client = client.finish();
    assert!(client.status.success(), "seed {seed}, client {}\nserver's {}", client.text(), server.errors());
    let bytes_by_reference = |done: &Finished| {
        let counters = done.counters.as_ref();
        counters.map_or(0, |counters| {
            counters.get(Counter::LaneReceivedBytes) + counters.get(Counter::LaneSentBytes)
        })
    };
    let bytes_by_reference =
        [client.expect_success(), server.finish().expect_success()].map(|done| bytes_by_reference(&done));
    assert_eq!(
        bytes_by_reference.iter().all(|bytes| *bytes > 1 << 20),
        uses_lanes,
        "{bytes_by_reference:?} bytes by reference"
    );
}

#[test]
fn tcp_between_programs_that_elide_everything() {
    run_echo("tcp", Mode::Always, Mode::Always, 200, true);
}

#[test]
fn tcp_with_the_default_policy() {
    run_echo("tcp", Mode::Auto, Mode::Auto, 200, true);
}

#[test]
fn tcp_while_trials_switch_references_on_and_off() {
    run_echo("tcp", Mode::Sliced, Mode::Sliced, 300, true);
}

#[test]
fn tcp_with_small_socket_buffers() {
    run_echo("tcp-small", Mode::Always, Mode::Auto, 100, true);
}

#[test]
fn unix_streams() {
    run_echo("unix", Mode::Always, Mode::Auto, 200, true);
}

#[test]
fn what_is_not_in_the_scope_is_left_alone() {
    run_echo_in_scope("tcp", "unix", Mode::Always, Mode::Always, 60, false);
    run_echo_in_scope("unix", "127.0.0.1", Mode::Always, Mode::Always, 60, false);
}

#[test]
fn what_is_no_stream_is_left_alone() {
    run_echo("fifo", Mode::Always, Mode::Always, 30, false);
    run_echo("udp", Mode::Always, Mode::Always, 60, false);
}

#[test]
fn a_plain_program_at_the_other_end() {
    run_echo("tcp", Mode::Always, Mode::Plain, 60, false);
    run_echo("unix", Mode::Plain, Mode::Always, 60, false);
}

/// A server that echoes and forks, and a client that compares messages before the fork, during the
/// child's life, and after.
const FORKING: &str = r#"
def message(number):
    return hashlib.shake_128(str(number).encode()).digest(90000 + 70001 * (number % 5))
if IS_SERVER:
    connection = listen().accept()[0]
    child = 0
    for number in range(240):
        connection.sendall(receive_exactly(connection, len(message(number))))
        if number in (60, 150):
            child = os.fork()
            if child == 0:
                # It has the connection too, and does its own work with what it had received.
                time.sleep(0.2)
                os._exit(0 if message(3) == message(3) else 1)
        if number in (100, 200):
            assert os.waitpid(child, 0)[1] == 0
else:
    connection = connect(sys.argv[2])
    for number in range(240):
        expected = message(number)
        connection.sendall(expected)
        assert receive_exactly(connection, len(expected)) == expected, f"message {number}"
"#;

#[test]
fn a_server_that_forks_goes_on_and_every_byte_is_right() {
    let scratch = Scratch::new("lanes-forks");
    for done in run_pair(&scratch, FORKING) {
        let counters = done.counters.expect("counters");
        assert!(counters.get(Counter::LaneSentBytes) > 20 << 20, "{counters}");
    }
}

/// A server that echoes, and a client that also passes unmapped and unwritable addresses.
const BAD_ADDRESSES: &str = r#"
import ctypes, errno, select
libc = ctypes.CDLL(None, use_errno=True)
for call in (libc.recv, libc.send):
    call.restype, call.argtypes = ctypes.c_ssize_t, [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
LENGTH, PRIVATE_ANONYMOUS = 150000, 0x22
if IS_SERVER:
    connection = listen().accept()[0]
    for number in range(90):
        connection.sendall(receive_exactly(connection, LENGTH))
else:
    connection = connect(sys.argv[2])
    fixed = libc.mmap(None, LENGTH, 1, PRIVATE_ANONYMOUS, -1, 0)
    # A page that can be written, before one that cannot.
    partly = libc.mmap(None, LENGTH, 3, PRIVATE_ANONYMOUS, -1, 0)
    assert libc.mprotect(ctypes.c_void_p(partly + 4096), ctypes.c_size_t(LENGTH - 4096), 1) == 0
    def expect_fault(call, address):
        ctypes.set_errno(0)
        result = call(connection.fileno(), address, LENGTH, 0)
        assert (result, ctypes.get_errno()) == (-1, errno.EFAULT), (number, call, hex(address), result)
    for number in range(90):
        expected = hashlib.shake_128(str(number).encode()).digest(LENGTH)
        connection.sendall(expected)
        if number >= 30:
            expect_fault(libc.send, 0x1000)
            select.select([connection], [], [], 30)
            for address in (0x1000, fixed):
                expect_fault(libc.recv, address)
            got = libc.recv(connection.fileno(), partly, LENGTH, 0)
            if got > 0:
                assert got <= 4096 and ctypes.string_at(partly, got) == expected[:got], (number, got)
                rest = bytearray()
                while len(rest) < LENGTH - got:
                    rest += connection.recv(LENGTH - got - len(rest))
                assert rest == expected[got:], f"message {number}"
                continue
        assert receive_exactly(connection, LENGTH) == expected, f"message {number}"
"#;

#[test]
fn bad_addresses_are_refused_and_nothing_is_lost() {
    let scratch = Scratch::new("lanes-bad");
    let [client, _] = run_pair(&scratch, BAD_ADDRESSES);
    let counters = client.counters.expect("counters");
    assert!(counters.get(Counter::LaneReceivedBytes) > 2 << 20, "{counters}");
}

/// A server and a client that close several connections at a time, and reuse the descriptor numbers.
const CLOSED_AT_ONCE: &str = r#"
LENGTH = 150000
def close(connections):
    numbers = sorted(connection.detach() for connection in connections)
    os.closerange(numbers[0], numbers[-1] + 1)
    return numbers
listener, seen = listen() if IS_SERVER else None, set()
for turn in range(6):
    if listener:
        connections = [listener.accept()[0] for _ in range(2)]
    else:
        connections = [connect(sys.argv[2]) for _ in range(2)]
    for number in range(30):
        for at, connection in enumerate(connections):
            expected = hashlib.shake_128(f"{turn} {number} {at}".encode()).digest(LENGTH)
            if listener:
                assert receive_exactly(connection, LENGTH) == expected, (turn, number, at)
                connection.sendall(expected)
            else:
                connection.sendall(expected)
                assert receive_exactly(connection, LENGTH) == expected, (turn, number, at)
    if turn == 3:
        # The last bytes are still unread at one end, and what comes next has nothing of them.
        connections[0].sendall(bytes(LENGTH))
    seen.add(tuple(close(connections)))
assert len(seen) < 6, "no number came again"
"#;

#[test]
fn descriptors_that_are_closed_at_once_are_forgotten() {
    let scratch = Scratch::new("lanes-closed");
    for done in run_pair(&scratch, CLOSED_AT_ONCE) {
        let counters = done.counters.expect("counters");
        assert!(counters.get(Counter::LaneReceivedBytes) > 10 << 20, "{counters}");
    }
}

/// A server that hashes its input, and a client that stops the server for a while and keeps sending.
const STOPPED: &str = r#"
import signal
LENGTH, MIB = 300000, 1 << 20
if IS_SERVER:
    connection, digest = listen(os.getpid()).accept()[0], hashlib.sha256()
    connection.sendall(b"here")
    while part := connection.recv(LENGTH):
        digest.update(part)
    connection.sendall(digest.digest())
else:
    port, pid = map(int, sys.argv[2].split())
    connection, digest = connect(port), hashlib.sha256()
    assert connection.recv(4) == b"here"
    def message(number):
        content = hashlib.shake_128(str(number).encode()).digest(LENGTH)
        digest.update(content)
        return content
    for number in range(60):
        connection.sendall(message(number))
    os.kill(pid, signal.SIGSTOP)
    try:
        connection.setblocking(False)
        number, rest, sent, last = 60, b"", 0, time.monotonic()
        while time.monotonic() - last < 1:
            if not rest:
                number += 1
                rest = message(number)
            try:
                count = connection.send(rest)
                rest, sent, last = rest[count:], sent + count, time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        shared = shared_bytes()
    finally:
        os.kill(pid, signal.SIGCONT)
    # Announcements are as many at most as the ring has room for; the rest is in the socket.
    assert shared <= 70 * MIB and sent <= 80 * MIB, (shared, sent)
    connection.setblocking(True)
    connection.sendall(rest)
    for number in range(1000, 1030):
        connection.sendall(message(number))
    connection.shutdown(socket.SHUT_WR)
    received = b""
    while part := connection.recv(32 - len(received)):
        received += part
    assert received == digest.digest()
"#;

#[test]
fn a_peer_that_is_stopped_takes_no_more_than_its_share_of_memory() {
    let scratch = Scratch::new("lanes-stopped");
    let [client, _] = run_pair(&scratch, STOPPED);
    let counters = client.counters.expect("counters");
    assert!(counters.get(Counter::LaneSentBytes) > 5 << 20, "{counters}");
}

/// A server and a client that open more connections, one after the other, than a process can have
/// lanes at a time.
const MANY: &str = r#"
LENGTH, CONNECTIONS, MIB = 70000, 1100, 1 << 20
expected = hashlib.shake_128(b"many").digest(LENGTH)
def resources_in_use():
    return len(os.listdir("/proc/self/fd")), shared_bytes()
listener = listen() if IS_SERVER else None
for turn in range(CONNECTIONS):
    connection = listener.accept()[0] if listener else connect(sys.argv[2])
    with connection:
        for _ in range(4):
            if listener:
                assert receive_exactly(connection, LENGTH) == expected
                connection.sendall(expected)
            else:
                connection.sendall(expected)
                assert receive_exactly(connection, LENGTH) == expected
    if turn == 100:
        before = resources_in_use()
after = resources_in_use()
assert after[0] <= before[0] + 1 and after[1] <= before[1] + 4 * MIB, (before, after)
"#;

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let scratch = Scratch::new("lanes-many");
    for done in run_pair(&scratch, MANY) {
        let counters = done.counters.expect("counters");
        assert!(counters.get(Counter::Lanes) > 100, "{counters}");
    }
    let names = std::fs::read_dir(scratch.join("room")).expect("the room").count();
    assert_eq!(names, 0, "names of sockets are left");
}

/// A process that connects to all sockets in the directory and sends arbitrary messages.
const HOSTILE: &str = r#"
import fcntl, glob, os, random, socket, struct, sys, time
directory, seed, seconds, GREETING = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
random.seed(seed)
NUMBERS = [0, 1, 2, 63, 64, 1023, 1024, 2**32 - 1, 2**63, 2**64 - 1]
def random_memfd():
    file = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.truncate(file, random.choice([0, 4096, 4 << 20, 8 << 20]))
    if random.random() < 0.7:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, random.choice([0x1, 0x2, 0x4, 0x6, 0x7, 0x10, 0x16, 0x17]))
    return file
def send_random_message(link):
    kind = random.choice([GREETING, GREETING, 2, 3, 4, random.getrandbits(64)])
    words = [random.choice(NUMBERS + [random.getrandbits(64)]) for _ in range(random.randrange(9))]
    if kind == GREETING and random.random() < 0.7:
        words = [random.getrandbits(64), random.choice([0, 5, 63, 64])]
    data = struct.pack(f"={1 + len(words)}Q", kind, *words)
    data = data[: random.choice([len(data)] * 6 + [7, len(data) - 1])]
    files = [random_memfd() for _ in range(random.choice([0, 1, 1, 1, 2]))]
    try:
        socket.send_fds(link, [data], files)
    finally:
        for file in files:
            os.close(file)
end, refused = time.monotonic() + seconds, 0
while time.monotonic() < end:
    for name in glob.glob(directory + "/*.lane"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(1)
            try:
                link.connect(name)
                for _ in range(random.randrange(1, 7)):
                    send_random_message(link)
                    time.sleep(random.choice([0, 0.001]))
            except OSError:
                refused += 1
    time.sleep(0.001)
print("refused", refused, flush=True)
"#;

#[test]
fn processes_that_say_what_cannot_be_harm_nobody() {
    let scratch = Scratch::new("lanes-hostile");
    let lanes_dir = make_lanes_dir(&scratch);
    let directory = scratch.path().to_str().expect("UTF-8");
    let (seed, script) = (seed(1000), scratch.write("hostile.py", HOSTILE));
    let messages = rounds(400).to_string();
    let start = |name: &str, arguments: &[&str]| {
        let program =
            Program::new(ECHO).args(arguments).env("UNCOPY_LANES", "all").env("UNCOPY_LANES_DIR", &lanes_dir);
        program.mode(Mode::Always).start(&scratch, name)
    };
    let server = start("server", &["server", "tcp", directory, &(seed + 7).to_string()]);
    let address = server.wait_for_line("ready ");
    let hostile = Program::new("/usr/bin/python3")
        .args([script.to_str().expect("UTF-8"), lanes_dir.to_str().expect("UTF-8"), &seed.to_string(), "4"])
        .args([Message::Greeting { process: 1, link: 0 }.words()[0].to_string()])
        .mode(Mode::Plain)
        .start(&scratch, "hostile");
    let client = start("client", &["client", "tcp", directory, &seed.to_string(), &address, &messages]);
    let client = client.finish();
    assert!(client.status.success(), "seed {seed}, client {}\nserver's {}", client.text(), server.errors());
    let hostile = hostile.finish().expect_success();
    let refused: u32 = String::from_utf8_lossy(&hostile.output)
        .trim()
        .strip_prefix("refused ")
        .and_then(|number| number.parse().ok())
        .expect("a number");
    assert!(refused > 10, "{refused}");
    let counters = server.finish().expect_success().counters.expect("counters");
    assert!(counters.get(Counter::LaneSentBytes) > 1 << 20, "{counters}");
}
