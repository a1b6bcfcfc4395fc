//! Single-threaded programs that change credentials by system calls for the calling thread alone:
//! no thread of uncopy keeps more privileges.

use uncopy_tests::{Mode, Program, Scratch};

const CHANGING: &str = r#"
import ctypes, glob, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
NOBODY, NO_CAPABILITIES, how = 65534, "0" * 16, sys.argv[1]
zeroes = os.open("/dev/zero", os.O_RDONLY)
def elide():
    for _ in range(8):
        assert os.read(zeroes, 1 << 20) == bytes(1 << 20)
def threads(field):
    lines = [open(task + "/status").read().split("\n" + field + ":")[1].split("\n")[0] for task in glob.glob("/proc/self/task/*")]
    return set(lines), len(lines)
elide()
count = threads("Uid")[1]
if how == "capset":
    assert libc.capset(struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *[0] * 6)) == 0
    assert threads("CapPrm")[0] == {"\t" + NO_CAPABILITIES}, threads("CapPrm")
else:
    number = {"setresuid": 117, "setreuid": 113, "setuid": 105}[how]
    assert libc.syscall(number, NOBODY, NOBODY, NOBODY) == 0
    assert threads("Uid")[0] == {"\t" + "\t".join(4 * [str(NOBODY)])}, threads("Uid")
# libc has all threads do these, and ends a process of which not all come to the same.
for call in (libc.setuid, libc.setgid, libc.seteuid):
    ctypes.set_errno(0)
    assert call(5) == -1 and ctypes.get_errno() == 1, (call, ctypes.get_errno())
assert libc.syscall(110) == os.getppid() and libc.syscall(102) == os.getuid()
elide()
print("threads", count, flush=True)
"#;

/// Changes credentials in a mode and returns the number of threads before.
fn change_credentials(mode: Mode, how: &str) -> usize {
    let scratch = Scratch::new("credentials");
    let script = scratch.write("changing.py", CHANGING);
    let python = Program::new("/usr/bin/python3").args([script.to_str().expect("UTF-8"), how]);
    let done = python.mode(mode).run(&scratch, "python");
    assert!(done.status.success(), "{how}: {}", done.text());
    let text = String::from_utf8_lossy(&done.output).into_owned();
    let count = text.lines().find_map(|line| line.strip_prefix("threads "));
    count.and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn every_thread_becomes_what_the_programs_own_became() {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: every_thread_becomes_what_the_programs_own_became: needs root");
    }
    for how in ["capset", "setresuid", "setreuid", "setuid"] {
        assert_eq!(change_credentials(Mode::Plain, how), 1, "{how}");
        assert!(
            change_credentials(Mode::Always, how) > 1,
            "{how}: there is no thread of uncopy's, so this shows nothing"
        );
    }
}
