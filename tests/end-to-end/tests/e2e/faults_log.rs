//! Makes a system call of the library for its log, or of the log's keeper, fail: the program's output is
//! the same as without a log, or says that a sync failed, and its files have what was written.
//!
//! See [`uncopy_tests::fault_injection`] for the choice of faults.

use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::{injecting_keeper, injecting_library, skipped};
use uncopy_tests::fault_injection::{Fault, all_faults, read_call_log, select_faults, try_each};
use uncopy_tests::running::Finished;
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Program, Scratch};

const EIO: i32 = 5;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;
const ERRNOS: [i32; 7] = [EIO, EINTR, EAGAIN, ENOMEM, EACCES, EMFILE, ENOSPC];

/// Number of faults tried by `make test-all`, for each kind of call.
const SHARE: usize = 7;
/// Minimum size of a log, in bytes.
const LOG_BYTES: &str = "16777216";

/// Files and logs of a test.
struct LogTest {
    scratch: Scratch,
}

impl LogTest {
    /// Creates a scratch directory on disk, or returns `None` if the test is to be skipped.
    fn new(title: &str) -> Option<Self> {
        let scratch = Scratch::on_disk(title);
        if skipped() {
            return None;
        }
        Some(Self { scratch })
    }

    fn private_dir(&self, name: &str) -> PathBuf {
        let path = self.scratch.join(name);
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&path).expect("a directory");
        path
    }

    fn socket(&self, name: &str) -> PathBuf {
        // A socket's name has at most 107 bytes.
        self.private_dir("s").join(name)
    }

    /// Starts a keeper that lives as long as process `root`, and waits until programs can find the
    /// keeper, or it has failed.
    fn start_keeper(&self, root: u32, socket: &Path, variables: &[(&str, String)]) -> Child {
        let mut command = Command::new(injecting_keeper());
        command.arg(self.private_dir("log")).args([LOG_BYTES]).arg(socket).arg(root.to_string()).env_clear();
        command
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null());
        let mut keeper = command.spawn().expect("the keeper");
        wait_until("a keeper that begins, or ends", || {
            let has_ended = keeper.try_wait().expect("a child").is_some();
            (has_ended || socket.exists()).then_some(())
        });
        keeper
    }

    /// Returns the workload, to be run in a directory of its own.
    fn workload(&self, name: &str, arguments: &[&str]) -> Program {
        let directory = self.scratch.directory(&format!("{name}.files"));
        Program::new(env!("CARGO_BIN_EXE_faults_log")).args([directory]).args(arguments)
    }

    fn plain_output(&self) -> Vec<u8> {
        self.workload("plain", &[]).mode(Mode::Plain).run(&self.scratch, "plain").expect_success().output
    }

    /// Removes the files that a run has left.
    fn clear(&self, name: &str) {
        let _ = std::fs::remove_dir_all(self.scratch.join(&format!("{name}.files")));
        for ending in ["out", "err", "stats", "log"] {
            let _ = std::fs::remove_file(self.scratch.join(&format!("{name}.{ending}")));
        }
    }
}

/// Waits until the keepers have exited, with any status.
fn wait_for_keepers(keepers: &Mutex<Vec<(String, Child)>>) {
    for (what, mut keeper) in keepers.lock().expect("no panic").drain(..) {
        let status = wait_until(&format!("the end of {what}"), || keeper.try_wait().expect("a child"));
        assert!(status.code().is_some(), "{what}: {status}");
    }
}

/// Returns the program's output without the lines about failed syncs.
fn without_sync_failures(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    text.lines().filter(|line| !line.starts_with("sync failed: ")).map(|line| format!("{line}\n")).collect()
}

fn check_run(what: &str, done: std::thread::Result<Finished>, expected: &[u8]) -> Result<(), String> {
    let done =
        done.map_err(|hang| format!("{what}: {}", hang.downcast_ref::<String>().map_or("", |hang| hang)))?;
    let errors = done.errors_but_waits();
    let line_count = errors.lines().count();
    let is_ours = errors.lines().all(|line| line.starts_with("uncopy: "));
    let output = String::from_utf8_lossy(&done.output);
    let mut failed = output.lines().filter_map(|line| line.strip_prefix("sync failed: "));
    let are_errnos_injected = failed.all(|errno| errno.parse().is_ok_and(|errno| ERRNOS.contains(&errno)));
    // The workload and its child are two processes, each of which may print a line.
    if are_errnos_injected
        && done.status.success()
        && without_sync_failures(&done.output) == without_sync_failures(expected)
        && line_count <= 2
        && is_ours
    {
        return Ok(());
    }
    Err(format!("{what}: {}\n{}{}", done.status, done.errors, output))
}

/// Chooses faults for the calls in `log`, which `who` made.
fn select_logged_faults(who: &str, log: &Path) -> Vec<Fault> {
    let calls = read_call_log(log);
    assert!(calls.len() > 100 && calls.len() < 60_000, "{} calls", calls.len());
    let faults = all_faults(&calls, &ERRNOS);
    let total = faults.len();
    let selected = select_faults(faults, SHARE);
    eprintln!("{who}: {} of {total} faults in {} calls are tried", selected.len(), calls.len());
    selected
}

#[test]
fn every_log_call_of_a_program_may_fail() {
    let Some(test) = LogTest::new("faults-log") else { return };
    let expected = test.plain_output();
    let socket = test.socket("k");
    let mut keeper = test.start_keeper(std::process::id(), &socket, &[]);
    let program = |name: &str, arguments: &[&str]| {
        let program = test.workload(name, arguments).mode(Mode::Always).library(injecting_library());
        program.env("UNCOPY_HEAP", "off").env("UNCOPY_LOG_SOCKET", &socket)
    };
    let log = test.scratch.join("calls");
    let counted = program("counted", &["logged"]).env("INJECT_FAULT_LOG", &log);
    let counted = counted.run(&test.scratch, "counted").expect_success();
    assert_eq!(without_sync_failures(&counted.output), without_sync_failures(&expected), "without a fault");
    let _ = counted.expect_counters(&[Counter::LogSyncs, Counter::LogBytes]);
    try_each(&select_logged_faults("a program", &log), |fault: &Fault| {
        let name = format!("fault-{}{}-{}", fault.number, fault.mode, fault.errno);
        let log = test.scratch.join(&format!("{name}.log"));
        let program =
            program(&name, &[]).env("INJECT_FAULT", fault.env_value()).env("INJECT_FAULT_LOG", &log);
        let done = catch_unwind(AssertUnwindSafe(|| program.run(&test.scratch, &name)));
        let kind = read_call_log(&log).into_iter().nth(fault.number - 1).unwrap_or_default();
        let verdict =
            check_run(&format!("a program, INJECT_FAULT={} ({kind})", fault.env_value()), done, &expected);
        test.clear(&name);
        verdict
    });
    assert_eq!(keeper.try_wait().expect("a child"), None, "the keeper has ended");
    // The keeper would wait for the end of this process.
    keeper.kill().and_then(|()| keeper.wait()).expect("the keeper");
}

#[test]
fn every_keeper_call_may_fail() {
    let Some(test) = LogTest::new("faults-keeper") else { return };
    let expected = test.plain_output();
    let keepers = Mutex::new(Vec::new());
    let run = |name: &str, arguments: &[&str], variables: &[(&str, String)]| {
        let socket = test.socket(name);
        // No process has this number, so the keeper ends with the programs that found it.
        let keeper = test.start_keeper(u32::MAX >> 1, &socket, variables);
        keepers.lock().expect("no panic").push((format!("the keeper of {name}, {variables:?}"), keeper));
        let program = test.workload(name, arguments).mode(Mode::Always).env("UNCOPY_HEAP", "off");
        let program = program.env("UNCOPY_LOG_SOCKET", &socket);
        catch_unwind(AssertUnwindSafe(|| program.run(&test.scratch, name)))
    };
    let log = test.scratch.join("calls");
    let counting = [("INJECT_FAULT_LOG", log.to_string_lossy().into_owned())];
    let counted = run("counted", &["logged"], &counting).expect("no hang").expect_success();
    assert_eq!(without_sync_failures(&counted.output), without_sync_failures(&expected), "without a fault");
    let _ = counted.expect_counters(&[Counter::LogSyncs, Counter::LogBytes]);
    wait_for_keepers(&keepers);
    try_each(&select_logged_faults("a keeper", &log), |fault: &Fault| {
        let name = format!("f{}{}-{}", fault.number, fault.mode, fault.errno);
        let log = test.scratch.join(&format!("{name}.log"));
        let variables =
            [("INJECT_FAULT", fault.env_value()), ("INJECT_FAULT_LOG", log.to_string_lossy().into_owned())];
        let done = run(&name, &[], &variables);
        let kind = read_call_log(&log).into_iter().nth(fault.number - 1).unwrap_or_default();
        let verdict =
            check_run(&format!("a keeper, INJECT_FAULT={} ({kind})", fault.env_value()), done, &expected);
        test.clear(&name);
        verdict
    });
    wait_for_keepers(&keepers);
}
