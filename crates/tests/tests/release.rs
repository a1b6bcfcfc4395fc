//! `uncopy release PID` and `uncopy stats PID`, on programs in every state.

use uncopy_core::stats::{Counter, REASON_RELEASED};
use uncopy_tests::artifacts::{bin_dir, skipped};
use uncopy_tests::told::Told;
use uncopy_tests::{Mode, Program, Scratch};

const FOREIGN: &str = env!("CARGO_BIN_EXE_foreign");

/// Runs `uncopy SUBCOMMAND PID`: exit status, output, errors.
fn uncopy(scratch: &Scratch, subcommand: &str, pid: u32) -> (Option<i32>, String, String) {
    let program = Program::new(bin_dir().join("uncopy")).args([subcommand, &pid.to_string()]);
    let done = program.run(scratch, subcommand);
    (done.status.code(), String::from_utf8_lossy(&done.output).into_owned(), done.errors)
}

fn released(scratch: &Scratch, told: &Told) {
    let (pid, views) = (told.running.pid(), told.counter(Counter::Views));
    assert!(views > 0, "there are views to release");
    let (status, output, errors) = uncopy(scratch, "release", pid);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{output}");
    let text = format!("process {pid} is released: ");
    assert!(output.starts_with(&text), "{output}");
    assert!(output.ends_with(" bytes written\n") && output.lines().count() == 1, "{output}");
    expect_no_views(scratch, told);
}

/// What `uncopy stats` shows of a process that was released.
fn expect_no_views(scratch: &Scratch, told: &Told) {
    let (status, output, errors) = uncopy(scratch, "stats", told.running.pid());
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{output}");
    let json: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(json[Counter::Views.name()].as_u64(), Some(0), "{output}");
    assert_eq!(json["reason"].as_str(), Some(REASON_RELEASED), "{output}");
}

#[test]
fn a_process_that_holds_views() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("release");
    let mut told = Told::start(&scratch, FOREIGN, "until_told", Mode::Always);
    assert!(told.counter(Counter::ForeignRanges) > 0, "ranges of the program's own memory");
    released(&scratch, &told);
    let before = told.counter(Counter::ElidedBytes);
    told.go_on();
    told.go_on();
    expect_no_views(&scratch, &told);
    assert_eq!(told.counter(Counter::ElidedBytes), before, "copies that were elided once it was released");
    // Once more: there is nothing to do.
    let (pid, before) = (told.running.pid(), told.counter(Counter::MaterializedBytes));
    let again = uncopy(&scratch, "release", pid);
    assert_eq!(again, (Some(0), format!("process {pid} holds no views: {REASON_RELEASED}\n"), String::new()));
    assert_eq!(told.counter(Counter::MaterializedBytes), before);
    told.go_on();
    let _ = told.end();
}

/// Released in the midst of inputs and copies of three threads.
#[test]
fn a_process_that_is_at_work() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("release");
    let mut told = Told::start(&scratch, FOREIGN, "busy_until_told", Mode::Always);
    released(&scratch, &told);
    told.go_on();
    told.go_on();
    expect_no_views(&scratch, &told);
    let _ = told.end();
}

#[test]
fn a_process_that_has_made_no_views() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("release");
    let told = Told::start(&scratch, FOREIGN, "idle_until_told", Mode::Auto);
    let pid = told.running.pid();
    for _ in 0..2 {
        let text = format!("process {pid} has made no views yet; release it again once it has\n");
        assert_eq!(uncopy(&scratch, "release", pid), (Some(0), text, String::new()));
    }
    let _ = told.end();
}

#[test]
fn a_process_that_is_not_under_uncopy() {
    let scratch = Scratch::new("release");
    let mut told = Told::start(&scratch, FOREIGN, "until_told", Mode::Plain);
    let pid = told.running.pid();
    let (status, output, errors) = uncopy(&scratch, "release", pid);
    assert_eq!((status, output.as_str()), (Some(1), ""), "{errors}");
    assert!(errors.starts_with(&format!("uncopy: process {pid} does not run under uncopy")), "{errors}");
    told.go_on();
    let _ = told.end();
}

#[test]
fn a_process_that_does_not_exist() {
    let scratch = Scratch::new("release");
    // The largest number that Linux gives to a process is one less.
    let (status, output, errors) = uncopy(&scratch, "release", 1 << 22);
    let text = format!("uncopy: there is no process {}\n", 1 << 22);
    assert_eq!((status, output.as_str(), errors), (Some(1), "", text));
}
