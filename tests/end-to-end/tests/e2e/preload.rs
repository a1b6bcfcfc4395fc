//! The library without the command: `LD_PRELOAD=libuncopy.so PROGRAM`, with options in the environment.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use uncopy_tests::artifacts::{bin_dir, library, packaged, skipped};
use uncopy_tests::stepped::SteppedProgram;
use uncopy_tests::{Program, Scratch};

/// Command name that no other test's process has.
const NAME: &str = "bare-preload";

/// Runs `uncopy ARGUMENTS`, expects success, and returns the output.
fn uncopy(scratch: &Scratch, arguments: &[&str]) -> String {
    let done = Program::new(bin_dir().join("uncopy")).args(arguments).run(scratch, "uncopy").expect_success();
    String::from_utf8(done.output).expect("text")
}

fn preload(program: Program, library: impl AsRef<Path>) -> Program {
    program.preload_before(library).env("LD_LIBRARY_PATH", bin_dir().canonicalize().expect("built"))
}

#[test]
fn preloaded_program_elides_is_listed_and_keeps_its_exit_status() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("preload");
    let program = scratch.join(NAME);
    fs::copy(env!("CARGO_BIN_EXE_foreign"), &program).expect("copied");
    let stats = scratch.join("stats");
    let shell = Program::shell("\"$0\" step_on_input 1; exit 9").args([&program]);
    let shell = preload(shell, "libuncopy.so").env("UNCOPY_POLICY", "always").env("UNCOPY_STATS", &stats);
    let mut stepped = SteppedProgram::start_program(&scratch, shell, "shell");

    let counters: serde_json::Value =
        serde_json::from_str(&uncopy(&scratch, &["stats", NAME])).expect("JSON");
    assert!(counters["elided_bytes"].as_u64() > Some(0), "{counters}");
    let pid = counters["pid"].as_u64().expect("a process");
    let listed: serde_json::Value = serde_json::from_str(&uncopy(&scratch, &["ps", "--json"])).expect("JSON");
    let listed = listed["processes"].as_array().expect("a list").clone();
    let entry = listed.iter().find(|entry| entry["pid"].as_u64() == Some(pid)).expect("listed");
    assert_eq!((&entry["state"], &entry["command"]), (&"active".into(), &NAME.into()));

    stepped.step();
    let done = stepped.finish();
    assert_eq!((done.status.code(), done.errors.as_str()), (Some(9), ""));
    // Without `uncopy run` no process owns the plain name, so the program appends its process
    // number. The shell has nothing to write.
    let written = fs::read_to_string(format!("{}.{pid}", stats.display())).expect("the program's counters");
    let written: serde_json::Value = serde_json::from_str(&written).expect("JSON");
    assert!(written["elided_bytes"].as_u64() >= counters["elided_bytes"].as_u64(), "{written}");
    assert!(!stats.exists());
}

/// Servers that start as root do this.
#[test]
fn a_program_that_gives_up_root_keeps_the_device() {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: a_program_that_gives_up_root_keeps_the_device: needs root");
    }
    if skipped() {
        return;
    }
    let scratch = Scratch::new("preload");
    let script = "import os\nos.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n\
                  zeroes = os.open('/dev/zero', os.O_RDONLY)\n\
                  for _ in range(8): assert os.read(zeroes, 1 << 20) == bytes(1 << 20)\n";
    let python = Program::new(packaged("/usr/bin/python3", "python3")).args(["-c", script]);
    let python = preload(python, "libuncopy.so").env("UNCOPY_POLICY", "always").env("UNCOPY_STATS", "-");
    let done = python.run(&scratch, "python").expect_success();
    let counters: serde_json::Value = serde_json::from_slice(&done.output).expect("JSON");
    assert!(counters["input_bytes"].as_u64() >= Some(8 << 20), "{counters}");
}

#[test]
fn a_set_user_id_program_does_without_it() {
    let scratch = Scratch::new("preload");
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: a_set_user_id_program_does_without_it: needs root");
    }
    let copies = ["plain", "set-user-id"].map(|name| {
        let copy = scratch.join(name);
        fs::copy("/usr/bin/grep", &copy).expect("copied");
        copy
    });
    fs::set_permissions(&copies[1], fs::Permissions::from_mode(0o4755)).expect("set");
    for (copy, status) in copies.iter().zip([0, 1]) {
        for name in [Path::new("libuncopy.so"), &library()] {
            let nobody = Program::new(packaged("/usr/bin/setpriv", "util-linux"))
                .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
                .args([copy.as_os_str(), "-q".as_ref(), "libuncopy.so".as_ref(), "/proc/self/maps".as_ref()]);
            let done = preload(nobody, name).run(&scratch, "grep");
            assert_eq!(done.status.code(), Some(status), "{}: {}", copy.display(), done.text());
        }
    }
}
