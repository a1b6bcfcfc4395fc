//! Programs whose connections with each other are lanes: messages of random sizes, by every call, and what they count.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::Duration;

use uncopy_core::stats::Counter;
use uncopy_tests::random::{rounds, seed};
use uncopy_tests::running::Finished;
use uncopy_tests::{Mode, Program, Scratch};

const ECHO: &str = env!("CARGO_BIN_EXE_echo");
const LIMIT: Duration = Duration::from_secs(90);

/// Where the programs of a test meet.
fn room(scratch: &Scratch) -> PathBuf {
    let path = scratch.join("room");
    std::fs::DirBuilder::new().mode(0o700).create(&path).expect("a directory");
    path
}

/// Server and client that use every call in turn, both with lanes.
fn converse(transport: &str, server_mode: Mode, client_mode: Mode, messages: usize, uses_lanes: bool) {
    converse_in(transport, "all", server_mode, client_mode, messages, uses_lanes);
}

/// The same with lanes of some streams.
fn converse_in(
    transport: &str,
    scope: &str,
    server_mode: Mode,
    client_mode: Mode,
    messages: usize,
    uses_lanes: bool,
) {
    let scratch = Scratch::new(&format!("lanes-{transport}"));
    let room = room(&scratch);
    let directory = scratch.path().to_str().expect("UTF-8");
    let seed = seed(1000);
    let messages = rounds(messages).to_string();
    let server = Program::new(ECHO)
        .args(["server", transport, directory, &(seed + 7).to_string()])
        .env("UNCOPY_LANES", scope)
        .env("UNCOPY_LANES_DIR", &room)
        .mode(server_mode)
        .start(&scratch, "server");
    let address = server.wait_for_line("ready ");
    let client = Program::new(ECHO)
        .args(["client", transport, directory, &seed.to_string(), &address, &messages])
        .env("UNCOPY_LANES", scope)
        .env("UNCOPY_LANES_DIR", &room)
        .mode(client_mode)
        .start(&scratch, "client");
    let client = client.finish(LIMIT);
    assert!(client.status.success(), "seed {seed}, client {}\nserver's {}", client.text(), server.errors());
    let referred = |done: &Finished| {
        let counters = done.counters.as_ref();
        counters.map_or(0, |counters| {
            counters.get(Counter::LaneReceivedBytes) + counters.get(Counter::LaneSentBytes)
        })
    };
    let referred =
        [client.expect_success(), server.finish(LIMIT).expect_success()].map(|done| referred(&done));
    assert_eq!(referred.iter().all(|bytes| *bytes > 1 << 20), uses_lanes, "{referred:?} bytes by reference");
}

#[test]
fn tcp_between_programs_that_elide_everything() {
    converse("tcp", Mode::Always, Mode::Always, 200, true);
}

#[test]
fn tcp_with_the_default_policy() {
    converse("tcp", Mode::Auto, Mode::Auto, 200, true);
}

#[test]
fn tcp_with_small_socket_buffers() {
    converse("tcp-small", Mode::Always, Mode::Auto, 100, true);
}

#[test]
fn unix_streams() {
    converse("unix", Mode::Always, Mode::Auto, 200, true);
}

#[test]
fn what_is_not_in_the_scope_is_left_alone() {
    converse_in("tcp", "unix", Mode::Always, Mode::Always, 60, false);
    converse_in("unix", "127.0.0.1", Mode::Always, Mode::Always, 60, false);
}

#[test]
fn what_is_no_stream_is_left_alone() {
    converse("fifo", Mode::Always, Mode::Always, 30, false);
    converse("udp", Mode::Always, Mode::Always, 60, false);
}

#[test]
fn a_plain_program_at_the_other_end() {
    converse("tcp", Mode::Always, Mode::Plain, 60, false);
    converse("unix", Mode::Plain, Mode::Always, 60, false);
}

/// A server that echoes and forks, and a client that compares: what comes before the fork, while the child lives, and after.
const FORKING: &str = r#"
import hashlib, os, socket, sys, time
def whole(connection, length):
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 200000))
        assert part, "the other end closed"
        parts += part
    return bytes(parts)
def message(number):
    return hashlib.shake_128(str(number).encode()).digest(90000 + 70001 * (number % 5))
if sys.argv[1] == "server":
    listener = socket.create_server(("127.0.0.1", 0))
    print("ready", listener.getsockname()[1], flush=True)
    connection = listener.accept()[0]
    child = 0
    for number in range(240):
        connection.sendall(whole(connection, len(message(number))))
        if number in (60, 150):
            child = os.fork()
            if child == 0:
                # It has the connection too, and does its own work with what it had received.
                time.sleep(0.2)
                os._exit(0 if message(3) == message(3) else 1)
        if number in (100, 200):
            assert os.waitpid(child, 0)[1] == 0
else:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    for number in range(240):
        expected = message(number)
        connection.sendall(expected)
        assert whole(connection, len(expected)) == expected, f"message {number}"
"#;

#[test]
fn a_server_that_forks_goes_on_and_every_byte_is_right() {
    let scratch = Scratch::new("lanes-forks");
    let room = room(&scratch);
    let script = scratch.write("forks.py", FORKING);
    let start = |name: &str, arguments: &[&str]| {
        let words = [&[script.to_str().expect("UTF-8")], arguments].concat();
        let program = Program::new("/usr/bin/python3")
            .args(words)
            .env("UNCOPY_LANES", "tcp")
            .env("UNCOPY_LANES_DIR", &room);
        program.mode(Mode::Always).start(&scratch, name)
    };
    let server = start("server", &["server"]);
    let port = server.wait_for_line("ready ");
    let client = start("client", &["client", &port]).finish(LIMIT).expect_success();
    let server = server.finish(LIMIT).expect_success();
    for done in [client, server] {
        let counters = done.counters.expect("counters");
        assert!(counters.get(Counter::LaneSentBytes) > 20 << 20, "{counters}");
    }
}

/// A process that links with all that meet in a directory, and says all sorts of things.
const HOSTILE: &str = r#"
import fcntl, glob, os, random, socket, struct, sys, time
room, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
random.seed(seed)
GREETING = 0x756E636F70790001
NUMBERS = [0, 1, 2, 63, 64, 1023, 1024, 2**32 - 1, 2**63, 2**64 - 1]
def memory():
    file = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.truncate(file, random.choice([0, 4096, 4 << 20, 8 << 20]))
    if random.random() < 0.7:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, random.choice([0x1, 0x2, 0x4, 0x6, 0x7, 0x10, 0x16, 0x17]))
    return file
def say(link):
    kind = random.choice([GREETING, GREETING, 2, 3, 4, random.getrandbits(64)])
    words = [random.choice(NUMBERS + [random.getrandbits(64)]) for _ in range(random.randrange(9))]
    if kind == GREETING and random.random() < 0.7:
        words = [random.getrandbits(64), random.choice([0, 5, 63, 64])]
    data = struct.pack(f"={1 + len(words)}Q", kind, *words)
    data = data[: random.choice([len(data)] * 6 + [7, len(data) - 1])]
    files = [memory() for _ in range(random.choice([0, 1, 1, 1, 2]))]
    try:
        socket.send_fds(link, [data], files)
    finally:
        for file in files:
            os.close(file)
end, refused = time.monotonic() + seconds, 0
while time.monotonic() < end:
    for name in glob.glob(room + "/*.lane"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(1)
            try:
                link.connect(name)
                for _ in range(random.randrange(1, 7)):
                    say(link)
                    time.sleep(random.choice([0, 0.001]))
            except OSError:
                refused += 1
    time.sleep(0.001)
print("refused", refused, flush=True)
"#;

#[test]
fn processes_that_say_what_cannot_be_harm_nobody() {
    let scratch = Scratch::new("lanes-hostile");
    let room = room(&scratch);
    let directory = scratch.path().to_str().expect("UTF-8");
    let (seed, script) = (seed(1000), scratch.write("hostile.py", HOSTILE));
    let messages = rounds(400).to_string();
    let start = |name: &str, words: &[&str]| {
        let program =
            Program::new(ECHO).args(words).env("UNCOPY_LANES", "all").env("UNCOPY_LANES_DIR", &room);
        program.mode(Mode::Always).start(&scratch, name)
    };
    let server = start("server", &["server", "tcp", directory, &(seed + 7).to_string()]);
    let address = server.wait_for_line("ready ");
    let hostile = Program::new("/usr/bin/python3")
        .args([script.to_str().expect("UTF-8"), room.to_str().expect("UTF-8"), &seed.to_string(), "4"])
        .mode(Mode::Plain)
        .start(&scratch, "hostile");
    let client = start("client", &["client", "tcp", directory, &seed.to_string(), &address, &messages]);
    let client = client.finish(LIMIT);
    assert!(client.status.success(), "seed {seed}, client {}\nserver's {}", client.text(), server.errors());
    let hostile = hostile.finish(LIMIT).expect_success();
    let refused: u32 = String::from_utf8_lossy(&hostile.output)
        .trim()
        .strip_prefix("refused ")
        .and_then(|number| number.parse().ok())
        .expect("a number");
    assert!(refused > 10, "{refused}");
    let counters = server.finish(LIMIT).expect_success().counters.expect("counters");
    assert!(counters.get(Counter::LaneSentBytes) > 1 << 20, "{counters}");
}
