//! Two programs in Python that communicate over TCP, with lanes, as their script says.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use crate::running::Finished;
use crate::{Mode, Program, Scratch};

/// Common part of the two programs: `IS_SERVER` tells the server from the client.
const PRELUDE: &str = r#"
import hashlib, os, socket, sys, time
IS_SERVER = sys.argv[1] == "server"
def listen(*also):
    listener = socket.create_server(("127.0.0.1", 0))
    print("ready", listener.getsockname()[1], *also, flush=True)
    return listener
def connect(port):
    return socket.create_connection(("127.0.0.1", int(port)))
def receive_exactly(connection, length):
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 200000))
        assert part, "the other end closed"
        parts += part
    return bytes(parts)
def shared_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssShmem"))
"#;

/// Returns the directory in which the programs of a test find each other.
///
/// # Panics
/// When the directory cannot be made.
#[must_use]
pub fn make_lanes_dir(scratch: &Scratch) -> PathBuf {
    let path = scratch.join("room");
    std::fs::DirBuilder::new().mode(0o700).create(&path).expect("a directory");
    path
}

/// Returns the program that runs `script` with the arguments `arguments`. Everything is elided.
///
/// # Panics
/// When a path is not UTF-8.
#[must_use]
pub fn program(scratch: &Scratch, script: &str, arguments: &[&str]) -> Program {
    program_started_by(Program::new("/usr/bin/python3"), scratch, script, arguments)
}

/// As [`program`], started by another command than the interpreter alone.
///
/// # Panics
/// When a path is not UTF-8.
#[must_use]
pub fn program_started_by(command: Program, scratch: &Scratch, script: &str, arguments: &[&str]) -> Program {
    let script = scratch.write("script.py", format!("{PRELUDE}{script}"));
    let program = command.args([script.to_str().expect("UTF-8")]).args(arguments);
    let program = program.env("UNCOPY_LANES", "tcp").env("UNCOPY_LANES_DIR", scratch.join("room"));
    program.mode(Mode::Always)
}

/// Runs a server and a client; returns both results, the client's first.
///
/// # Panics
/// When either of them fails.
#[must_use]
pub fn run_pair(scratch: &Scratch, script: &str) -> [Finished; 2] {
    let _ = make_lanes_dir(scratch);
    let server = program(scratch, script, &["server"]).start(scratch, "server");
    let port = server.wait_for_line("ready ");
    let client = program(scratch, script, &["client", &port]).start(scratch, "client").finish();
    assert!(client.status.success(), "{}\nserver's {}", client.text(), server.errors());
    [client, server.finish().expect_success()]
}
