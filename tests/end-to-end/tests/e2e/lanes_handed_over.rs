//! Lanes whose connections are handed over or closed: every byte is right, whoever receives it.

use std::os::unix::fs::DirBuilderExt as _;

use uncopy_core::stats::Counter;
use uncopy_tests::running::Finished;
use uncopy_tests::{Mode, Program, Scratch};

/// A server that echoes and a client that compares; the first argument selects the event in between.
const CONVERSATION: &str = r#"
import array, hashlib, os, signal, socket, subprocess, sys, time
role, what, where = sys.argv[1:4]

def receive_exactly(connection, length, **options):
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 200000))
        assert part, f"closed after {len(parts)} of {length}"
        parts += part
    return bytes(parts)

def message(number):
    return hashlib.shake_128(str(number).encode()).digest(90000 + 70001 * (number % 5))

def echo(connection, first, last):
    for number in range(first, last):
        connection.sendall(receive_exactly(connection, len(message(number))))

def exchange(connection, first, last):
    for number in range(first, last):
        expected = message(number)
        connection.sendall(expected)
        assert receive_exactly(connection, len(expected)) == expected, f"message {number}"

# The part of a program that a connection is handed to, or that goes on with it.
def continue_conversation(connection):
    connection.sendall(b"here")
    echo(connection, 40, 80)

def hand_over(connection):
    fd = connection.fileno()
    again = [sys.executable, sys.argv[0], "again", what]
    if what == "exec":
        connection.set_inheritable(True)
        os.execv(sys.executable, again + [str(fd)])
    elif what == "spawn":
        subprocess.run(again + [str(fd)], pass_fds=[fd], check=True)
    elif what == "stdio":
        subprocess.run(again + ["0"], stdin=connection, check=True)
    elif what == "forked":
        connection.set_inheritable(True)
        child = os.fork()
        if child == 0:
            os.execv(sys.executable, again + [str(fd)])
        assert os.waitpid(child, 0)[1] == 0
    elif what == "passed":
        near, far = socket.socketpair()
        child = subprocess.Popen(again + [str(far.fileno())], pass_fds=[far.fileno()])
        socket.send_fds(near, [b"x"], [fd])
        assert child.wait() == 0
    elif what == "helper":
        connection.set_inheritable(True)
        subprocess.run(["true"], close_fds=False, check=True)
        assert os.system("true") == 0
        with os.popen("true") as pipe:
            pipe.read()
        continue_conversation(connection)
    elif what == "urgent":
        connection.send(b"!", socket.MSG_OOB)
        continue_conversation(connection)
    else:
        continue_conversation(connection)

def connect():
    if where.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(where)
        return connection
    return socket.create_connection(("127.0.0.1", int(where)))

if role == "again":
    connection = socket.socket(fileno=int(where))
    if what == "passed":
        connection = socket.socket(fileno=socket.recv_fds(connection, 1, 1)[1][0])
    continue_conversation(connection)
elif role == "server":
    if where.startswith("/"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(where)
        listener.listen()
        print("ready", where, flush=True)
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        print("ready", listener.getsockname()[1], flush=True)
    connection = listener.accept()[0]
    if what == "exit":
        # What was sent before the end is received after it.
        for number in range(60):
            echo(connection, number, number + 1)
        for number in range(60, 64):
            connection.sendall(message(number))
        os._exit(0)
    elif what == "kill":
        connection.sendall(str(os.getpid()).zfill(9).encode())
        echo(connection, 0, 1000)
    elif what == "control":
        echo(connection, 0, 40)
        for number in range(40, 80):
            connection.sendall(receive_exactly(connection, len(message(number))))
            with open("/dev/null") as file:
                socket.send_fds(connection, [b"descriptor"], [file.fileno()])
    elif what == "small":
        for turn in range(6):
            echo(connection, 0, 20)
            for _ in range(300):
                connection.sendall(receive_exactly(connection, 100))
    else:
        echo(connection, 0, 40)
        assert receive_exactly(connection, 5) == b"yours"
        hand_over(connection)
else:
    connection = connect()
    if what == "exit":
        exchange(connection, 0, 60)
        time.sleep(1.5)
        for number in range(60, 64):
            assert receive_exactly(connection, len(message(number))) == message(number), f"message {number}"
        assert connection.recv(1) == b""
    elif what == "kill":
        server = int(receive_exactly(connection, 9))
        exchange(connection, 0, 40)
        expected = message(3)
        connection.sendall(expected)
        os.kill(server, signal.SIGKILL)
        got = bytearray()
        try:
            while len(got) < len(expected):
                part = connection.recv(50000)
                if not part:
                    break
                got += part
        except ConnectionResetError:
            pass
        assert expected.startswith(bytes(got))
    elif what == "control":
        exchange(connection, 0, 40)
        for number in range(40, 80):
            expected = message(number)
            connection.sendall(expected)
            parts, descriptors = bytearray(), []
            while len(parts) < len(expected) + len(b"descriptor"):
                part, control, _, _ = connection.recvmsg(200000, socket.CMSG_SPACE(4))
                assert part
                parts += part
                for _, _, data in control:
                    descriptors += array.array("i", data)
            assert bytes(parts) == expected + b"descriptor", f"message {number}"
            assert len(descriptors) == 1, descriptors
            os.close(descriptors[0])
    elif what == "small":
        for turn in range(6):
            exchange(connection, 0, 20)
            for number in range(300):
                connection.sendall(b"%100d" % number)
                assert receive_exactly(connection, 100) == b"%100d" % number
    else:
        exchange(connection, 0, 40)
        if what == "truncate":
            for number in range(4):
                connection.sendall(b"yours" if number == 0 else message(39 + number))
                rest = len(b"here") if number == 0 else len(message(39 + number))
                while rest:
                    rest -= len(connection.recv(min(rest, 300000), socket.MSG_TRUNC))
            exchange(connection, 43, 80)
        else:
            connection.sendall(b"yours")
            assert receive_exactly(connection, 4) == b"here"
            exchange(connection, 40, 80)
"#;

/// Runs both under uncopy, each with lanes, and returns the finished client.
fn run_conversation(what: &str, is_unix: bool) -> Finished {
    let scratch = Scratch::new(&format!("handed-{what}"));
    let lanes_dir = scratch.join("room");
    std::fs::DirBuilder::new().mode(0o700).create(&lanes_dir).expect("a directory");
    let script = scratch.write("conversation.py", CONVERSATION);
    let name = scratch.join("name");
    let start = |role: &str, address: &str| {
        let program = Program::new("/usr/bin/python3")
            .args([script.to_str().expect("UTF-8"), role, what, address])
            .env("UNCOPY_LANES", "all")
            .env("UNCOPY_LANES_DIR", &lanes_dir);
        program.mode(Mode::Always).start(&scratch, role)
    };
    let address = if is_unix { name.to_str().expect("UTF-8") } else { "0" };
    let server = start("server", address);
    let address = server.wait_for_line("ready ");
    let client = start("client", &address).finish();
    let server = server.finish();
    assert!(client.status.success(), "client: {}\nserver: {}", client.text(), server.text());
    if what != "kill" {
        assert!(server.status.success(), "server: {}", server.text());
    }
    let counters = client.counters.as_ref().expect("counters");
    let (sent, received) = (counters.get(Counter::LaneSentBytes), counters.get(Counter::LaneReceivedBytes));
    assert!(
        sent > 1 << 20 && received > 1 << 20,
        "{what}: {sent} bytes sent, {received} received by reference"
    );
    client
}

#[test]
fn to_the_program_that_takes_this_ones_place() {
    run_conversation("exec", false);
    run_conversation("exec", true);
}

#[test]
fn to_a_program_that_is_started() {
    run_conversation("spawn", false);
    run_conversation("stdio", false);
    run_conversation("forked", false);
    run_conversation("forked", true);
}

#[test]
fn to_another_process_over_a_socket() {
    run_conversation("passed", false);
    run_conversation("passed", true);
}

#[test]
fn to_a_helper_that_never_looks_at_it() {
    run_conversation("helper", false);
    run_conversation("helper", true);
}

#[test]
fn bytes_out_of_band_and_bytes_that_are_discarded() {
    run_conversation("urgent", false);
    run_conversation("truncate", false);
}

#[test]
fn descriptors_come_between_the_bytes() {
    run_conversation("control", true);
}

#[test]
fn small_messages_between_large_ones() {
    run_conversation("small", false);
    run_conversation("small", true);
}

#[test]
fn what_was_sent_before_the_end_is_received() {
    run_conversation("exit", false);
    run_conversation("exit", true);
}

#[test]
fn a_killed_server_sends_nothing_wrong() {
    run_conversation("kill", false);
    run_conversation("kill", true);
}
