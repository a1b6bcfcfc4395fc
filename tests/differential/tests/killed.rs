//! Programs that communicate by lanes, one of which is killed: the other continues with correct
//! bytes and keeps no resources of the killed one.

use std::path::Path;
use std::time::Duration;

use uncopy_differential::mates::Mates;
use uncopy_tests::launch::{Mode, Program as Command};
use uncopy_tests::random::{Random, rounds, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::{HANG_LIMIT, Scratch};

const MACHINE: &str = env!("CARGO_BIN_EXE_differential");
/// Maximum memory of a mate after programs were killed, in KiB: at most 64 MiB of its own shared
/// memory, and its buffers.
const MAX_KEPT_KIB: u64 = 160 << 10;

/// Starts a program of random operations whose streams go to mates.
fn start(mates: &Mates, seed: u64, name: &str, may_be_killed: bool, scratch: &Scratch) -> Running {
    let command = Command::new(MACHINE).args([
        "execute",
        "--length",
        "6000",
        "--seed",
        &seed.to_string(),
        "--progress",
    ]);
    let command = command.args([scratch.join(&format!("progress-{name}"))]);
    let may_be_killed: &[&str] = if may_be_killed { &["--mates-may-end", "yes"] } else { &[] };
    mates
        .add_to_command(command.args(may_be_killed))
        .mode(Mode::Always)
        .directory(scratch.path())
        .start(scratch, name)
}

fn pause(random: &mut Random, max_ms: usize) {
    std::thread::sleep(Duration::from_millis(random.below(max_ms) as u64));
}

#[test]
fn killed_mate_corrupts_no_bytes() {
    let first = seed(1);
    let mut random = Random::new(first);
    for round in 0..rounds(6) as u64 {
        let scratch = Scratch::new("killed-mate");
        let mates = Mates::start(Path::new(MACHINE), Mode::Always, 2, &scratch);
        let running = start(&mates, first + round, "run", true, &scratch);
        pause(&mut random, 400);
        mates.process(0).signal(libc::SIGKILL);
        let done = running.finish();
        assert!(done.status.success(), "seed {first}, round {round}: {}", done.text());
        assert_eq!(mates.end(HANG_LIMIT), None, "seed {first}, round {round}");
    }
}

/// Returns a value of `/proc/PID/status`, in KiB.
fn status_kib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn killed_programs_leak_nothing_in_their_mate() {
    let first = seed(1);
    let mut random = Random::new(first);
    let scratch = Scratch::new("killed-runs");
    let mates = Mates::start(Path::new(MACHINE), Mode::Always, 1, &scratch);
    for round in 0..rounds(8) as u64 {
        let running = start(&mates, first + round, &format!("run{round}"), false, &scratch);
        pause(&mut random, 400);
        running.signal(libc::SIGKILL);
        let _ = running.finish();
    }
    let done = start(&mates, first, "last", false, &scratch).finish();
    assert!(done.status.success(), "seed {first}: {}", done.text());
    let pid = mates.process(0).pid();
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    // Threads notice the end of their program only when they are scheduled.
    uncopy_tests::scratch::wait_until("the end of every stream", || {
        (descriptors() < 20 && status_kib(pid, "VmRSS") < MAX_KEPT_KIB).then_some(())
    });
    assert_eq!(mates.end(HANG_LIMIT), None, "seed {first}");
}
