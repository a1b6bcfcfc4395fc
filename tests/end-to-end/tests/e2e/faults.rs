//! Makes the Nth system call of the library fail: the program's output must be the same as without uncopy.
//!
//! See [`uncopy_tests::fault_injection`] for the choice of faults.

use std::panic::{AssertUnwindSafe, catch_unwind};

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::injecting_library;
use uncopy_tests::fault_injection::{Fault, all_faults, read_call_log, select_faults, try_each};
use uncopy_tests::{Mode, Program, Scratch};

const EPERM: i32 = 1;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ENOSPC: i32 = 28;
const ERRNOS: [i32; 7] = [ENOMEM, EAGAIN, ENOSPC, EEXIST, EBUSY, EPERM, EINTR];

/// Number of faults tried by `make test-all`, for each kind of call.
const SHARE: usize = 24;

fn workload(mode: Mode) -> Program {
    let program = Program::new(env!("CARGO_BIN_EXE_faults")).args(["workload"]).mode(mode);
    if mode == Mode::Plain { program } else { program.library(injecting_library()) }
}

/// Returns the kinds of the system calls that a run of the workload makes, in order.
fn record_calls(scratch: &Scratch, mode: Mode, expected: &[u8]) -> Vec<String> {
    let log = scratch.join("calls");
    let done = workload(mode).env("INJECT_FAULT_LOG", &log).run(scratch, "counted").expect_success();
    assert_eq!(String::from_utf8_lossy(&done.output), String::from_utf8_lossy(expected), "without a fault");
    if mode == Mode::Always {
        let _ = done.expect_counters(&[
            Counter::ElidedBytes,
            Counter::InputBytes,
            Counter::OutputBytes,
            Counter::Faults,
            Counter::LentBytes,
            Counter::DroppedBytes,
        ]);
    }
    let calls = read_call_log(&log);
    assert!(calls.len() > 100 && calls.len() < 60_000, "{} calls", calls.len());
    calls
}

fn try_one(scratch: &Scratch, mode: Mode, fault: &Fault, expected: &[u8]) -> Result<(), String> {
    let name = format!("fault-{}{}-{}", fault.number, fault.mode, fault.errno);
    let log = scratch.join(&format!("{name}.log"));
    let program = workload(mode).env("INJECT_FAULT", fault.env_value()).env("INJECT_FAULT_LOG", &log);
    let done = catch_unwind(AssertUnwindSafe(|| program.run(scratch, &name)));
    // The order of threads varies, and so does the kind of call N.
    let kind = read_call_log(&log).into_iter().nth(fault.number - 1).unwrap_or_default();
    let what = format!("INJECT_FAULT={} ({kind})", fault.env_value());
    for ending in ["out", "err", "stats", "log"] {
        // The files have been read by now.
        let _ = std::fs::remove_file(scratch.join(&format!("{name}.{ending}")));
    }
    let done =
        done.map_err(|hang| format!("{what}: {}", hang.downcast_ref::<String>().map_or("", |hang| hang)))?;
    // A failure to write the requested counters is reported in addition to other messages.
    let is_of_counters = |line: &&str| line.starts_with("uncopy: the counters could not be written");
    let line_count = done.errors.lines().filter(|line| !is_of_counters(line)).count();
    let is_ours = done.errors.lines().all(|line| line.starts_with("uncopy: "));
    if done.status.success() && done.output == expected && line_count <= 1 && is_ours {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&done.output);
    let differs = if done.output == expected { "" } else { output.as_ref() };
    Err(format!("{what}: {}\n{}{differs}", done.status, done.errors))
}

fn every_call_may_fail(mode: Mode, title: &str) {
    let scratch = Scratch::new(title);
    let expected = workload(Mode::Plain).run(&scratch, "plain").expect_success().output;
    let calls = record_calls(&scratch, mode, &expected);
    let all = all_faults(&calls, &ERRNOS);
    let total = all.len();
    let selected = select_faults(all, SHARE);
    eprintln!("{title}: {} of {total} faults in {} calls are tried", selected.len(), calls.len());
    try_each(&selected, |fault| try_one(&scratch, mode, fault, &expected));
}

#[test]
fn every_call_may_fail_where_everything_is_elided() {
    every_call_may_fail(Mode::Always, "faults-always");
}

#[test]
fn every_call_may_fail_under_the_default_policy() {
    every_call_may_fail(Mode::Auto, "faults-auto");
}
