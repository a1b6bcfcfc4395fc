//! `uncopy release PID` and `uncopy stats PID`, on programs in every state.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use uncopy_core::stats::{Counter, REASON_RELEASED};
use uncopy_tests::artifacts::{bin_dir, plain_only};
use uncopy_tests::random::seed;
use uncopy_tests::running::{Finished, Running};
use uncopy_tests::{Mode, Program, Scratch};

/// A program that waits on its standard input.
struct Told {
    running: Running,
    input: File,
    rounds: usize,
}

impl Told {
    fn start(scratch: &Scratch, scenario: &str, mode: Mode) -> Self {
        let input = scratch.join("input");
        let made = std::process::Command::new("/usr/bin/mkfifo").arg(&input).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo");
        // Opened for both, it neither waits for the other end nor is without one.
        let ours = File::options().read(true).write(true).open(&input).expect("a named pipe");
        let program = Program::new(env!("CARGO_BIN_EXE_foreign")).args([scenario, &seed(1).to_string()]);
        let running = program.mode(mode).input(&input).start(scratch, scenario);
        let _ = running.wait_for_line("ready");
        Self { running, input: ours, rounds: 0 }
    }

    /// Lets it check its memory and work on.
    fn go_on(&mut self) {
        self.input.write_all(b"go on\n").expect("told");
        let _ = self.running.wait_for_line(&format!("fine {}", self.rounds));
        self.rounds += 1;
    }

    fn end(mut self) -> Finished {
        self.input.write_all(b"end\n").expect("told");
        self.running.finish(Duration::from_secs(30)).expect_success()
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.running.live_counters().map_or(0, |counters| counters.get(counter))
    }
}

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

/// Skips what needs uncopy at work.
fn skipped() -> bool {
    if plain_only() {
        eprintln!("skipped: nothing runs under uncopy");
    }
    plain_only()
}

#[test]
fn a_process_that_holds_views() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("release");
    let mut told = Told::start(&scratch, "until_told", Mode::Always);
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
    let mut told = Told::start(&scratch, "busy_until_told", Mode::Always);
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
    let told = Told::start(&scratch, "idle_until_told", Mode::Auto);
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
    let mut told = Told::start(&scratch, "until_told", Mode::Plain);
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
