//! A program with a lane is killed as it enters any system call: its peer receives nothing that was
//! not sent, and continues.

use std::path::PathBuf;

use uncopy_core::stats::Counter;
use uncopy_tests::lane_programs::{make_lanes_dir, program};
use uncopy_tests::random::{Random, seed};
use uncopy_tests::{Mode, Program, Scratch};

const TRACER: &str = env!("CARGO_BIN_EXE_tracer");
/// Number of calls at which each side is killed, unless `UNCOPY_TEST_KILLS=all`.
const KILLS: usize = 12;

/// A server that echoes and a client that compares a few messages; either may be killed.
const SCRIPT: &str = r#"
def message(number):
    return hashlib.shake_128(str(number).encode()).digest(90000 + 70001 * (number % 3))
def compare(connection, expected):
    got = 0
    while got < len(expected):
        part = connection.recv(min(len(expected) - got, 200000))
        if not part:
            raise EOFError
        assert part == expected[got : got + len(part)], "wrong bytes"
        got += len(part)
ENDS = (EOFError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError)
if IS_SERVER:
    listener, kind = listen(), b""
    while kind != b"l":
        with listener.accept()[0] as connection:
            try:
                kind = connection.recv(1)
                for number in range(12):
                    compare(connection, message(number))
                    connection.sendall(message(number))
                assert connection.recv(1) == b""
            except ENDS:
                # Killed: another client comes, and all is as it was.
                assert kind != b"l"
else:
    try:
        with connect(sys.argv[2]) as connection:
            connection.sendall(sys.argv[3].encode()[:1])
            for number in range(12):
                connection.sendall(message(number))
                compare(connection, message(number))
            print("all", flush=True)
    except ENDS:
        print("ended", flush=True)
"#;

/// Starts the script under the tracer, which kills it at call `number`. Also returns the path of
/// the file with the number of calls.
fn traced(scratch: &Scratch, arguments: &[&str], number: u64) -> (Program, PathBuf) {
    let script = scratch.join("script.py");
    let _ = program(scratch, SCRIPT, &[]);
    let file = scratch.join("calls");
    let program = Program::new(TRACER)
        .args([file.to_str().expect("UTF-8"), &number.to_string(), "/usr/bin/python3"])
        .args([script.to_str().expect("UTF-8")])
        .args(arguments)
        .env("UNCOPY_LANES", "tcp")
        .env("UNCOPY_LANES_DIR", scratch.join("room"));
    (program.mode(Mode::Always), file)
}

/// Kills a server at call `number` of a conversation, and returns the number of calls.
fn kill_server(number: u64) -> u64 {
    let scratch = Scratch::new("lanes-killed-server");
    let _ = make_lanes_dir(&scratch);
    let (server, file) = traced(&scratch, &["server"], number);
    let server = server.start(&scratch, "server");
    let port = server.wait_for_line("ready ");
    let client = program(&scratch, SCRIPT, &["client", &port, "last"]).start(&scratch, "client").finish();
    assert!(client.status.success(), "killed at {number}: {}", client.text());
    let output = String::from_utf8_lossy(&client.output).trim().to_owned();
    assert!(output == "all" || (output == "ended" && number > 0), "killed at {number}: {output:?}");
    if number == 0 {
        let counters = client.counters.as_ref().expect("counters");
        assert!(counters.get(Counter::LaneReceivedBytes) > 200_000, "{counters}");
    }
    server.finish();
    std::fs::read_to_string(file).expect("the count").parse().expect("a number")
}

/// Kills a client at call `number` of a conversation, then runs another client with the same
/// server. Returns the number of calls.
fn kill_client(number: u64) -> u64 {
    let scratch = Scratch::new("lanes-killed-client");
    let _ = make_lanes_dir(&scratch);
    let server = program(&scratch, SCRIPT, &["server"]).start(&scratch, "server");
    let port = server.wait_for_line("ready ");
    let (client, file) = traced(&scratch, &["client", &port, "first"], number);
    let client = client.start(&scratch, "client").finish();
    assert!(client.status.success(), "the tracer: {}", client.text());
    let other = program(&scratch, SCRIPT, &["client", &port, "last"]).start(&scratch, "other").finish();
    assert!(other.status.success(), "after one killed at {number}: {}", other.text());
    assert_eq!(String::from_utf8_lossy(&other.output).trim(), "all", "after one killed at {number}");
    let server = server.finish();
    assert!(server.status.success(), "client killed at {number}: {}", server.text());
    std::fs::read_to_string(file).expect("the count").parse().expect("a number")
}

/// Kills at calls spread over all calls of a run, or at all of them.
fn kill_everywhere(kill: impl Fn(u64) -> u64) {
    let calls = kill(0);
    assert!(calls > 50, "{calls} calls");
    let is_all = std::env::var_os("UNCOPY_TEST_KILLS").is_some_and(|value| value == "all");
    let step = if is_all { 1 } else { calls.div_ceil(KILLS as u64) };
    let seed = seed(3);
    let mut random = Random::new(seed);
    let mut at = 0;
    while at < calls {
        let number = at + 1 + random.below(usize::try_from(step).expect("few calls")) as u64;
        println!("seed {seed}: killed at call {number} of {calls}");
        kill(number);
        at += step;
    }
}

#[test]
fn a_server_that_is_killed_at_any_call_sends_nothing_wrong() {
    kill_everywhere(kill_server);
}

#[test]
fn a_client_that_is_killed_at_any_call_leaves_a_server_that_goes_on() {
    kill_everywhere(kill_client);
}
