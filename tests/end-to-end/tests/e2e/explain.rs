//! `uncopy run --explain` and `uncopy doctor --calibrate`, on programs with known behaviour.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use serde_json::Value;
use uncopy_tests::artifacts::{bin_dir, skipped};
use uncopy_tests::running::Finished;
use uncopy_tests::{Program, Scratch};

const EXPLAINED: &str = env!("CARGO_BIN_EXE_explained");
const LEN_BYTES: u64 = 512 << 10;

/// Returns `uncopy run --explain FILE OPTIONS -- COMMAND`, with a cache of its own.
fn explain_command(scratch: &Scratch, file: &Path, options: &[&str], command: &[&str]) -> Program {
    let file = file.to_str().expect("UTF-8");
    let program = Program::new(bin_dir().join("uncopy")).args(["run", "--explain", file]);
    program.args(options).args(["--"]).args(command).env("XDG_CACHE_HOME", scratch.path())
}

/// Unlike `Finished::expect_success`, allows the warning about the tests' own variables.
fn expect_success(done: &Finished) {
    assert!(done.status.success(), "{}: {}", done.status, done.errors);
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("the report");
    serde_json::from_str(&text).expect("JSON")
}

fn run(scratch: &Scratch, how: &str, messages: &str) -> (Finished, Value) {
    let file = scratch.join("sites.json");
    let program = explain_command(scratch, &file, &["--policy", "always"], &[EXPLAINED, how, messages]);
    (program.run(scratch, "explained"), json(&file))
}

/// Expects one copying site in the process, with one copy for each message.
fn expect_copies(process: &Value, messages: u64) {
    let sites = process["sites"].as_array().expect("sites");
    let is_forward_site = |site: &&Value| {
        let function = site["function"].as_str().unwrap_or_default();
        site["kind"] == "copy" && function.contains("forward_message")
    };
    let site =
        sites.iter().find(is_forward_site).unwrap_or_else(|| panic!("no forward_message in {process:#}"));
    let number = |name: &str| site[name].as_u64().unwrap_or_else(|| panic!("{name} in {site:#}"));
    assert_eq!((number("calls"), number("bytes")), (messages, messages * LEN_BYTES), "{site:#}");
    assert!(number("elided") > 0 && number("elided_bytes") > 0, "{site:#}");
    assert!(number("elided_bytes") + number("copied_bytes") <= number("bytes"), "{site:#}");
    assert!(number("faults") > 0 && number("spent_ns") > 0, "the copies are touched: {site:#}");
    assert!(!site["reason"].as_str().unwrap_or_default().is_empty(), "{site:#}");
}

#[test]
fn report_names_functions_and_counts_every_call() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("explain");
    let (done, report) = run(&scratch, "end", "20");
    expect_success(&done);
    assert_eq!(report["ending"], "exited with status 0");
    let [process] = report["processes"].as_array().expect("processes").as_slice() else {
        panic!("{report:#}")
    };
    assert_eq!(process["name"], "explained");
    assert!(process["ending"].as_str().unwrap_or_default().starts_with("ended"), "{process:#}");
    expect_copies(process, 20);
}

#[test]
fn killed_program_is_reported_and_exit_status_is_forwarded() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("explain");
    let (done, report) = run(&scratch, "kill", "20");
    assert_eq!(done.status.signal(), Some(libc::SIGKILL), "{}", done.errors);
    assert_eq!(report["ending"], "ended by signal 9");
    let process = &report["processes"][0];
    assert!(process["ending"].as_str().unwrap_or_default().starts_with("ended by a signal"), "{process:#}");
    expect_copies(process, 20);
}

#[test]
fn forked_child_is_reported_separately() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("explain");
    let (done, report) = run(&scratch, "fork", "10");
    expect_success(&done);
    let processes = report["processes"].as_array().expect("processes");
    assert_eq!(processes.len(), 2, "{report:#}");
    for process in processes {
        expect_copies(process, 10);
    }
    assert_ne!(processes[0]["pid"], processes[1]["pid"]);
}

#[test]
fn table_is_private_and_reports_inactive_processes() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("explain");
    let file = scratch.join("sites");
    let done = explain_command(&scratch, &file, &[], &["/bin/sh", "-c", "exit 3"]).run(&scratch, "nothing");
    assert_eq!(done.status.code(), Some(3), "{}", done.errors);
    let table = std::fs::read_to_string(&file).expect("the report");
    assert!(table.starts_with("/bin/sh -c exit 3: exited with status 3\n"), "{table}");
    assert_eq!(std::fs::metadata(&file).expect("the report").permissions().mode() & 0o777, 0o600);
    let done = explain_command(&scratch, &file, &["--off"], &[EXPLAINED, "end", "2"]).run(&scratch, "off");
    expect_success(&done);
    let table = std::fs::read_to_string(&file).expect("the report");
    assert!(table.contains("\ninactive: off: UNCOPY_OFF is set\n"), "{table}");
}

#[test]
fn signals_are_forwarded_to_the_program() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("explain");
    let file = scratch.join("sites");
    let script = "trap 'exit 7' TERM; echo ready; i=0; while [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done";
    let running = explain_command(&scratch, &file, &[], &["/bin/sh", "-c", script]).start(&scratch, "trap");
    let _ = running.wait_for_line("ready");
    running.signal(libc::SIGTERM);
    let done = running.finish();
    assert_eq!(done.status.code(), Some(7), "{}", done.errors);
    assert!(file.exists(), "the report");
}

#[test]
fn programs_use_costs_measured_by_doctor() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("explain");
    let doctor = Program::new(bin_dir().join("uncopy")).args(["doctor", "--calibrate", "--json"]);
    let done = doctor.env("XDG_CACHE_HOME", scratch.path()).run(&scratch, "calibrate");
    expect_success(&done);
    let stored: Value = serde_json::from_slice(&done.output).expect("JSON");
    let path = scratch.path().join("uncopy/costs");
    assert_eq!(stored["stored"].as_str(), path.to_str());
    let costs = stored["costs_ns"].as_object().expect("costs");
    let used = |report: &Value| report["processes"][0]["costs"].as_str().expect("costs").to_owned();
    let (_, report) = run(&scratch, "end", "2");
    for (name, ns) in costs {
        let field = format!("{name}={ns}");
        assert!(used(&report).split(',').any(|used| *used == field), "{field} in {report:#}");
    }
    // Figures of another machine are not used, and with this policy nothing is measured either.
    let text = std::fs::read_to_string(&path).expect("stored");
    let other = text.replace("kernel: ", "kernel: 1.").replace("fault=", "fault=3");
    std::fs::write(&path, other).expect("written");
    let (_, report) = run(&scratch, "end", "2");
    assert_eq!(used(&report), uncopy_core::policy::Costs::DEFAULT.to_text());
}

/// Sends large parts over a Unix socket pair, and over a TCP connection of the program to itself.
const STREAMS: &str = "
import socket
def transfer(near, far):
    for number in range(4):
        near.sendall(bytes(60000))
        assert far.recv(60000, socket.MSG_WAITALL) == bytes(60000)
listener = socket.create_server(('127.0.0.1', 0))
near = socket.create_connection(listener.getsockname())
transfer(near, listener.accept()[0])
transfer(*socket.socketpair())
";

#[test]
fn reasons_for_streams_without_lanes_are_reported() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("explain");
    let lanes_dir = scratch.join("room");
    let options = ["--lanes", "tcp", "--lanes-dir", lanes_dir.to_str().expect("UTF-8")];
    let explain = |file: &Path| {
        let done = explain_command(&scratch, file, &options, &["/usr/bin/python3", "-c", STREAMS]);
        expect_success(&done.run(&scratch, "streams"));
    };
    let file = scratch.join("sites.json");
    explain(&file);
    let report = json(&file);
    let process = report["processes"].as_array().expect("processes").last().expect("a process");
    let streams =
        |name: &str| process["streams"][name].as_u64().unwrap_or_else(|| panic!("{name} in {process:#}"));
    assert_eq!((streams("lanes"), streams("unpaired")), (0, 2), "{process:#}");
    assert!(streams("out_of_scope") > 0, "{process:#}");
    let file = scratch.join("sites");
    explain(&file);
    let table = std::fs::read_to_string(&file).expect("the report");
    assert!(table.contains("streams with large parts: 2 not: their other end is not"), "{table}");
    assert!(table.contains("not: --lanes does not name them"), "{table}");
}
