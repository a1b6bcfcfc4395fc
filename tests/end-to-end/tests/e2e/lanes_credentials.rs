//! Programs with lanes that change user or lose privileges: no other user's memory stays mapped,
//! and no byte is lost.

use uncopy_core::stats::Counter;
use uncopy_tests::Scratch;
use uncopy_tests::lane_programs::{make_lanes_dir, program};

/// An echo server, a client with a secret, and a client that changes credentials amid its messages.
/// The arguments name the ways to change.
const CHANGING: &str = r#"
import ctypes, fcntl, struct, termios, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.memmem.restype = ctypes.c_void_p
libc.memmem.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
LENGTH, NOBODY, NOT_GIVEN = 300000, 65534, 77
SECRET = b"the words of "
def serve(connection):
    for part in iter(lambda: connection.recv(200000), b""):
        if part == b"end":
            os._exit(0)
        connection.sendall(part)
def message(number):
    return hashlib.shake_128(str(number).encode()).digest(LENGTH)
def exchange(connection, numbers):
    for number in numbers:
        connection.sendall(message(number))
        assert receive_exactly(connection, LENGTH) == message(number), f"message {number}"
def mappings(protection="r"):
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if "uncopy-lane" in line or "uncopy-board" in line]
    ranges = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
    return [range for line, range in zip(lines, ranges) if line[1].startswith(protection) and line[1].endswith("s")]
def contains_secret(ranges):
    words = b" another process"
    return any(libc.memmem(ctypes.c_void_p(start), end - start, words, len(words)) for start, end in ranges)
def capabilities():
    head, data = struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *[0] * 6)
    return libc.capset(head, data)
nobody = [NOBODY] * 3
ids = lambda get: list(get())
CHANGES = {
    "setuid": (lambda: libc.setuid(NOBODY), lambda: ids(os.getresuid) == nobody),
    "seteuid": (lambda: libc.seteuid(NOBODY), lambda: ids(os.getresuid) == [0, NOBODY, 0]),
    "setreuid": (lambda: libc.setreuid(NOBODY, NOBODY), lambda: ids(os.getresuid) == nobody),
    "setresuid": (lambda: libc.setresuid(*nobody), lambda: ids(os.getresuid) == nobody),
    "setfsuid": (lambda: libc.setfsuid(NOBODY), lambda: libc.setfsuid(-1) == NOBODY),
    "setgid": (lambda: libc.setgid(NOBODY), lambda: ids(os.getresgid) == nobody),
    "setegid": (lambda: libc.setegid(NOBODY), lambda: ids(os.getresgid) == [0, NOBODY, 0]),
    "setregid": (lambda: libc.setregid(NOBODY, NOBODY), lambda: ids(os.getresgid) == nobody),
    "setresgid": (lambda: libc.setresgid(*nobody), lambda: ids(os.getresgid) == nobody),
    "setfsgid": (lambda: libc.setfsgid(NOBODY), lambda: libc.setfsgid(-1) == NOBODY),
    "setgroups": (lambda: libc.setgroups(1, (ctypes.c_uint * 1)(NOBODY)), lambda: os.getgroups() == [NOBODY]),
    "initgroups": (lambda: libc.initgroups(b"nobody", NOBODY), lambda: NOBODY in os.getgroups()),
    "capset": (capabilities, lambda: "CapPrm:\t0000000000000000" in open("/proc/thread-self/status").read()),
    "dumpable": (lambda: libc.prctl(4, 0), lambda: libc.prctl(3) == 0),
    "syscall": (lambda: libc.syscall(117, *nobody), lambda: True),
    "syscall of groups": (lambda: libc.syscall(116, 1, (ctypes.c_uint * 1)(NOBODY)), lambda: True),
    "nothing": (lambda: libc.setresuid(0, -1, 0), lambda: True),
    "the same groups": (lambda: libc.setgroups(len(SAME), SAME), lambda: True),
}
SAME = (ctypes.c_uint * len(os.getgroups()))(*os.getgroups())
def exchange_until_over(connection):
    number = 1000
    while not is_over.is_set():
        exchange(connection, [number])
        number += 1
    # As the other user.
    exchange(connection, range(number, number + 20))
    connection.close()
def change_in_child(how):
    pid = os.fork()
    if pid == 0:
        done = CHANGES[how][0]() == 0 and not mappings()
        os._exit(0 if done else 1)
    return os.waitpid(pid, 0)[1]
if IS_SERVER:
    listener = listen()
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
elif sys.argv[3] == "secret":
    connection, words = connect(sys.argv[2]), (SECRET + b"another process ") * 12000
    # In memory of its own, which nobody uses again.
    while not contains_secret(mappings("rw")):
        connection.sendall(words)
        assert receive_exactly(connection, len(words)) == words
    print("said", flush=True)
    sys.stdin.read()
elif sys.argv[3] == "end":
    connect(sys.argv[2]).sendall(b"end")
else:
    how = sys.argv[3]
    connections = [connect(sys.argv[2]) for _ in range(2)]
    for connection in connections:
        exchange(connection, range(30))
    # Else this shows nothing.
    while not contains_secret(ranges_of_others := mappings()):
        exchange(connections[0], range(30, 32))
    is_child = how == "child"
    is_over = threading.Event()
    if not is_child:
        thread = threading.Thread(target=exchange_until_over, args=connections[1:])
        thread.start()
    unread = range(100, 106)
    for number in unread:
        connections[0].sendall(message(number))
    # Most of it comes by reference and is there soon; what does not may have no room in the socket.
    whole_bytes, tries = struct.pack("=i", LENGTH * len(unread)), 0
    while fcntl.ioctl(connections[0], termios.FIONREAD, b"four") != whole_bytes and tries < 2000:
        tries += 1
        time.sleep(0.001)
    # One of them in part.
    first = receive_exactly(connections[0], 100001)
    if is_child:
        assert change_in_child("setuid") == 0
    else:
        ctypes.set_errno(NOT_GIVEN)
        change, has_changed = CHANGES[how]
        result, error = change(), ctypes.get_errno()
        # That one reads files.
        assert result == 0 and has_changed(), (how, result, error)
        assert error == NOT_GIVEN or how == "initgroups", (how, error)
    is_over.set()
    if how in ("nothing", "the same groups", "child"):
        assert mappings(), "lanes ended"
    else:
        assert not mappings(), mappings()
        assert not contains_secret(ranges_of_others), "others' words are left"
    assert first + receive_exactly(connections[0], LENGTH - 100001) == message(100)
    for number in unread[1:]:
        assert receive_exactly(connections[0], LENGTH) == message(number), f"message {number}"
    exchange(connections[0], range(200, 230))
    if not is_child:
        thread.join()
    exchange(connect(sys.argv[2]), range(300, 320))
    if how not in ("nothing", "the same groups", "child"):
        assert not mappings(), "lanes have begun again"
    print("right", flush=True)
"#;

/// Changes credentials in each of these ways, one after the other in one conversation.
fn check_changes(name: &str, ways: &[&str]) {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: {name}: needs root");
    }
    // A socket's path has at most 107 bytes.
    let scratch = Scratch::new("changes");
    let _ = make_lanes_dir(&scratch);
    let server = program(&scratch, CHANGING, &["server"]).start(&scratch, "server");
    let port = server.wait_for_line("ready ");
    let fifo = scratch.join("fifo");
    let path = std::ffi::CString::new(fifo.to_str().expect("UTF-8")).expect("no NUL");
    // SAFETY: `path` is a NUL-terminated `CString` that lives through the call.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let fifo_writer = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).expect("a FIFO");
    let secret = program(&scratch, CHANGING, &["client", &port, "secret"]).input(&fifo);
    let secret = secret.start(&scratch, "secret");
    let _ = secret.wait_for_line("said");
    for way in ways {
        let client = program(&scratch, CHANGING, &["client", &port, way]).start(&scratch, "client");
        let client = client.finish();
        // The client's counters go to a file of root's, which it may be unable to write.
        let text = client.text();
        let status = client.status;
        assert!(status.success() && text.contains("right"), "{way}: {status}, {text}\n{}", server.errors());
    }
    drop(fifo_writer);
    assert!(secret.finish().expect_success().counters.is_some());
    let end = program(&scratch, CHANGING, &["client", &port, "end"]).run(&scratch, "end");
    let _ = end.expect_success();
    let counters = server.finish().expect_success().counters.expect("counters");
    assert!(counters.get(Counter::LaneSentBytes) > 10 << 20, "{counters}");
}

#[test]
fn to_another_user() {
    check_changes("to_another_user", &["setuid", "seteuid", "setreuid", "setresuid", "setfsuid", "syscall"]);
}

#[test]
fn to_other_groups() {
    let ways = ["setgid", "setegid", "setregid", "setresgid", "setfsgid", "setgroups", "initgroups"];
    check_changes("to_other_groups", &ways);
    check_changes("to_other_groups", &["syscall of groups"]);
}

#[test]
fn to_less_than_it_was_allowed() {
    check_changes("to_less_than_it_was_allowed", &["capset", "dumpable"]);
}

#[test]
fn what_changes_nothing_ends_nothing() {
    check_changes("what_changes_nothing_ends_nothing", &["nothing", "the same groups", "child"]);
}
