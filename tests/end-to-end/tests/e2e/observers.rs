//! Memory with views, read from outside the program.

use std::os::unix::fs::FileExt;

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::{bin_dir, packaged, plain_only};
use uncopy_tests::random::bytes;
use uncopy_tests::running::Running;
use uncopy_tests::{Mode, Program, Scratch};

uncopy_tests::scenarios! { "observers":
    its_own_memory => [ElidedBytes, InputBytes, Faults],
    the_memory_of_a_child => [ElidedBytes, InputBytes],
    the_memory_of_the_parent => [ElidedBytes, InputBytes],
    a_traced_child => [ElidedBytes, InputBytes],
}

/// Starts a program that holds views; returns the process, the address, and the expected contents.
fn start_holder(scratch: &Scratch) -> (Running, u64, Vec<u8>) {
    let program = Program::new(env!("CARGO_BIN_EXE_observers")).args(["hold_views", "5"]).mode(Mode::Always);
    let running = program.directory(scratch.path()).start(scratch, "holder");
    let line = running.wait_for_line("ready ");
    let address = line.split(' ').next().and_then(|word| word.parse().ok()).expect("an address");
    let expected = std::fs::read(scratch.join("expected")).expect("bytes");
    (running, address, expected)
}

/// Lets the program finish, which checks its memory.
fn finish(running: Running, scratch: &Scratch) {
    scratch.write("done", b"");
    let done = running.finish().expect_success();
    assert!(done.output.ends_with(b"fine\n"), "{}", done.text());
}

fn view_count(running: &Running) -> u64 {
    running.live_counters().map_or(0, |counters| counters.get(Counter::Views))
}

/// Releases a running program, so that no views are left.
fn release(running: &Running, scratch: &Scratch) {
    if plain_only() {
        return;
    }
    assert!(view_count(running) > 0, "there are views to release");
    let program = Program::new(bin_dir().join("uncopy")).args(["release", &running.pid().to_string()]);
    let _ = program.run(scratch, "release").expect_success();
    assert_eq!(view_count(running), 0, "views after they were released");
}

/// Reads the program's memory by gdb.
fn read_by_gdb(running: &Running, address: u64, scratch: &Scratch) -> (bool, Vec<u8>) {
    let dump = scratch.join("dump");
    let command = format!("dump binary memory {} {address} {}", dump.display(), address + (1 << 20));
    let done = Program::new(packaged("/usr/bin/gdb", "gdb"))
        .args(["-q", "-batch", "-nx", "-p", &running.pid().to_string(), "-ex", &command])
        .run(scratch, "gdb");
    (done.status.success(), std::fs::read(&dump).unwrap_or_default())
}

#[test]
fn a_debugger_sees_everything_once_released() {
    let scratch = Scratch::new("debugger");
    let (running, address, expected) = start_holder(&scratch);
    release(&running, &scratch);
    let (_, seen) = read_by_gdb(&running, address, &scratch);
    assert!(seen == expected, "{} bytes seen by gdb", seen.len());
    finish(running, &scratch);
}

/// Without a release gdb cannot read absent pages, and the program continues unharmed.
#[test]
fn a_debugger_is_refused_viewed_pages() {
    let scratch = Scratch::new("debugger");
    let (running, address, expected) = start_holder(&scratch);
    let (_, seen) = read_by_gdb(&running, address, &scratch);
    assert!(seen.is_empty() || seen == expected, "{} other bytes seen by gdb", seen.len());
    finish(running, &scratch);
}

#[test]
fn a_core_file_holds_everything_once_released() {
    let scratch = Scratch::new("core");
    let (running, _, expected) = start_holder(&scratch);
    release(&running, &scratch);
    let core = scratch.join("core");
    let command = format!("generate-core-file {}", core.display());
    let done = Program::new(packaged("/usr/bin/gdb", "gdb"))
        .args(["-q", "-batch", "-nx", "-p", &running.pid().to_string(), "-ex", &command])
        .run(&scratch, "gdb");
    let bytes = std::fs::read(&core).unwrap_or_else(|error| panic!("{error}: {}", done.text()));
    // SAFETY: both slices are readable for their lengths and live through the call.
    let found =
        unsafe { libc::memmem(bytes.as_ptr().cast(), bytes.len(), expected.as_ptr().cast(), expected.len()) };
    assert!(!found.is_null(), "the buffer is in the core file of {} bytes", bytes.len());
    finish(running, &scratch);
}

/// Reads `/proc/PID/mem` of a running process.
#[test]
fn proc_mem_of_a_running_program() {
    let scratch = Scratch::new("mem");
    let (running, address, expected) = start_holder(&scratch);
    let memory = std::fs::File::open(format!("/proc/{}/mem", running.pid())).expect("mem");
    let mut seen = vec![0; expected.len()];
    // Reading absent pages fails; wrong bytes are never returned.
    match memory.read_exact_at(&mut seen, address) {
        Ok(()) => assert!(seen == expected, "before it was released"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}"),
    }
    release(&running, &scratch);
    memory.read_exact_at(&mut seen, address).expect("readable once released");
    assert!(seen == expected, "after it was released");
    finish(running, &scratch);
}

/// Valgrind runs one thread at a time: one that waits for a page would block the handler thread.
#[test]
fn valgrind_programs_run_without_uncopy() {
    let scratch = Scratch::new("valgrind");
    scratch.write("in", bytes(7, 3 << 20));
    let sum = |program: Program| program.directory(scratch.path()).run(&scratch, "sum");
    let plain = sum(Program::new("/usr/bin/sha256sum").args(["in"]));
    let arguments = ["-q", "--tool=none", "/usr/bin/sha256sum", "in"];
    let done =
        sum(Program::new(packaged("/usr/bin/valgrind", "valgrind")).args(arguments).mode(Mode::Always));
    assert!(plain.status.success() && done.status.success(), "{}", done.text());
    assert_eq!(done.output, plain.output, "{}", done.text());
    assert!(plain_only() || done.text().contains("uncopy: inactive: valgrind"), "{}", done.text());
}
