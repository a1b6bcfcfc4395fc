//! Limits, filters and missing features, before the program starts or caused by itself while it holds
//! views. The program's output is the same as without uncopy, and uncopy prints at most one line.

use std::io::Write;
use std::path::Path;

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::{bin_dir, injecting_library, packaged, plain_only};
use uncopy_tests::running::Finished;
use uncopy_tests::{Mode, Program, Scratch, lane_programs};

const FAULTS: &str = env!("CARGO_BIN_EXE_faults");
const BOUNDS: &str = env!("CARGO_BIN_EXE_bounds");
/// Expected behaviour of uncopy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedBehaviour {
    /// Elides copies, before the condition binds or all the time.
    Works,
    /// Elides copies, and falls back where memory is refused.
    FallsBack,
    /// May elide or not, with or without a message.
    Any,
}

fn skip(test: &str, why: &str) {
    // Written directly, since the test harness would capture the line.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// Runs a program plain and in both modes, and compares the results.
fn compare_with_plain(title: &str, expected: ExpectedBehaviour, program: impl Fn(&Scratch) -> Program) {
    let scratch = Scratch::new(title);
    // Other users write their counters to this directory.
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(scratch.path(), everybody).expect("chmod");
    let run = |mode: Mode| program(&scratch).mode(mode).run(&scratch, &format!("{title}-{mode:?}"));
    let plain = run(Mode::Plain).expect_success();
    for mode in Mode::FOR_APPLICATIONS {
        let done = run(mode);
        let text = |done: &Finished| String::from_utf8_lossy(&done.output).into_owned();
        assert!(done.status.success(), "{title} {mode:?}: {}\n{}{}", done.status, text(&done), done.errors);
        assert_eq!(text(&done), text(&plain), "{title} {mode:?}: {}", done.errors);
        let uncopy_lines = done.errors.lines().filter(|line| line.starts_with("uncopy: ")).count();
        let plain_lines = plain.errors.lines().count();
        assert!(
            uncopy_lines <= 1 && done.errors.lines().count() <= uncopy_lines + plain_lines,
            "{title} {mode:?}: {}",
            done.errors
        );
        if expected != ExpectedBehaviour::Any && mode == Mode::Always && mode.effective() != Mode::Plain {
            let counters = done.counters.unwrap_or_else(|| panic!("{title}: no counters: {}", done.errors));
            counters.expect_above_zero(title, &[Counter::ElidedBytes, Counter::InputBytes]);
            if expected == ExpectedBehaviour::FallsBack {
                counters.expect_above_zero(title, &[Counter::Fallbacks]);
            }
        }
    }
}

/// Runs the workload after a shell script.
fn run_after(title: &str, expected: ExpectedBehaviour, script: &str) {
    compare_with_plain(title, expected, |_| Program::shell(&format!("{script}; exec {FAULTS} workload")));
}

/// Runs the workload in two halves, with an action of the program in between.
fn run_with_action(action: &str) {
    compare_with_plain(action, ExpectedBehaviour::Works, |_| Program::new(FAULTS).args(["between", action]));
}

#[test]
fn little_address_space_from_the_start() {
    run_after("address-space-300M", ExpectedBehaviour::Any, "ulimit -v 300000");
    run_after("address-space-2G", ExpectedBehaviour::Any, "ulimit -v 2000000");
    run_after("address-space-100G", ExpectedBehaviour::Works, "ulimit -v 100000000");
}

#[test]
fn little_data_from_the_start() {
    run_after("data-40M", ExpectedBehaviour::Any, "ulimit -d 40000");
    run_after("data-8G", ExpectedBehaviour::Works, "ulimit -d 8000000");
}

#[test]
fn few_descriptors_from_the_start() {
    run_after("descriptors-14", ExpectedBehaviour::Works, "ulimit -n 14");
    run_after("descriptors-10", ExpectedBehaviour::Any, "ulimit -n 10");
}

#[test]
fn small_and_unlimited_stacks() {
    run_after("stack-small", ExpectedBehaviour::Works, "ulimit -s 256");
    run_after("stack-unlimited", ExpectedBehaviour::Works, "ulimit -s unlimited");
}

#[test]
fn limits_that_the_program_sets_itself() {
    run_with_action("address-space");
    run_with_action("address-space-by-prlimit");
    run_with_action("data");
}

#[test]
fn descriptors_and_mappings_that_the_program_uses_up() {
    run_with_action("descriptors");
    run_with_action("mappings");
}

#[test]
fn memory_that_the_program_locks() {
    run_with_action("lock-all");
    run_with_action("lock-future");
}

#[test]
fn filters_that_the_program_installs() {
    run_with_action("filter-refusing");
    run_with_action("filter-killing");
    run_with_action("filter-by-seccomp");
}

#[test]
fn filters_from_the_start() {
    for filter in ["eperm", "enosys", "kill", "trap"] {
        compare_with_plain(&format!("under-{filter}"), ExpectedBehaviour::Any, |_| {
            Program::new(FAULTS).args(["under", filter, FAULTS, "workload"])
        });
    }
}

/// A filter kills the program for every call that it does not make itself: from then on the library
/// makes none, whatever was in progress.
#[test]
fn filters_that_know_every_call_of_the_program() {
    const OURS: [libc::c_long; 14] = [
        libc::SYS_rt_sigprocmask,
        libc::SYS_futex,
        libc::SYS_getsockopt,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_ppoll,
        libc::SYS_ioctl,
        libc::SYS_process_vm_readv,
        libc::SYS_madvise,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_clock_gettime,
        libc::SYS_statx,
        libc::SYS_prctl,
    ];
    let scratch = Scratch::new("confined");
    let mut calls = OURS.to_vec();
    #[cfg(target_arch = "x86_64")]
    calls.push(libc::SYS_poll);
    let calls: Vec<String> = calls.iter().map(ToString::to_string).collect();
    let path = |name: &str| scratch.join(name).to_str().expect("UTF-8").to_owned();
    let (file, log, sites) = (path("file"), path("log"), path("sites.txt"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/confined.py");
    let script = script.to_str().expect("UTF-8");
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .create(&log)
        .expect("a directory");
    let run = |program: Program, title: &str| program.run(&scratch, title);
    let plain_program = Program::new("/usr/bin/python3").args([script, &file]).args(&calls);
    let _ = run(plain_program, "plain").expect_success();
    if plain_only() {
        return;
    }
    let each: [&[&str]; 6] = [
        &["--off"],
        &[],
        &["--policy", "always", "--min-size", "4K"],
        &["--lanes", "all", "--policy", "always"],
        &["--log", &log, "--log-files", &file],
        &["--explain", &sites],
    ];
    for options in each {
        let program = Program::new(bin_dir().join("uncopy")).args(["run"]).args(options);
        let program = program.args(["--", "/usr/bin/python3", script, &file]).args(&calls);
        let done = run(program, "confined");
        assert!(done.status.success(), "{options:?}: {}\n{}", done.status, done.text());
    }
}

/// Runs a shell script as user nobody, by `setpriv`.
fn as_nobody(script: &str) -> Program {
    let setpriv = packaged("/usr/bin/setpriv", "util-linux");
    let user = "--reuid 65534 --regid 65534 --clear-groups";
    Program::shell(&format!("exec {} {user} sh -ec '{script}'", setpriv.display()))
}

fn is_root() -> bool {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn an_unprivileged_user() {
    if !is_root() {
        return skip("an_unprivileged_user", "only root can become another user");
    }
    compare_with_plain("nobody", ExpectedBehaviour::Any, |_| as_nobody(&format!("exec {FAULTS} workload")));
    compare_with_plain("nobody-locks", ExpectedBehaviour::Any, |_| {
        as_nobody(&format!("exec {FAULTS} between lock-all"))
    });
    compare_with_plain("nobody-locks-little", ExpectedBehaviour::Any, |_| {
        as_nobody(&format!("ulimit -l 64; exec {FAULTS} between lock-all"))
    });
}

#[test]
fn no_thread_for_the_handler() {
    if !is_root() {
        return skip("no_thread_for_the_handler", "only root can become another user");
    }
    // Another user gets a userfaultfd through an inherited device; the limit does not bind root.
    compare_with_plain("no-thread", ExpectedBehaviour::Any, |_| {
        let prlimit = packaged("/usr/bin/prlimit", "util-linux");
        let script = format!("UNCOPY_UFFD_FD=9 exec {} --nproc=1 {FAULTS} alone", prlimit.display());
        as_nobody(&script).descriptor(9, "/dev/userfaultfd")
    });
}

#[test]
fn without_proc_or_shared_memory() {
    let unshare = packaged("/usr/bin/unshare", "util-linux");
    let probe = std::process::Command::new(&unshare).args(["--mount", "true"]).output().expect("unshare");
    if !probe.status.success() {
        return skip("without_proc_or_shared_memory", "no mount namespace can be made here");
    }
    for (title, mount) in [
        ("no-proc", "mount -t tmpfs none /proc"),
        ("no-shm", "mount -t tmpfs -o ro none /dev/shm"),
        (
            "full-shm",
            "mount -t tmpfs -o size=4k none /dev/shm; head -c 4096 /dev/zero > /dev/shm/full 2>/dev/null || :",
        ),
    ] {
        let inside = format!("{mount}; exec {FAULTS} workload");
        compare_with_plain(title, ExpectedBehaviour::Works, |_| {
            Program::shell(&format!("exec {} --mount sh -ec \"{inside}\"", unshare.display()))
        });
    }
}

/// Creates a memory control group (version 2 or 1) with a limit; `None` if not possible.
fn control_group(limit_bytes: usize) -> Option<ControlGroup> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path =
        |prefix: &str| own.lines().find_map(|line| line.split_once(prefix).map(|(_, path)| path.to_owned()));
    let candidates = [
        ("/sys/fs/cgroup", path("0::"), "memory.max"),
        ("/sys/fs/cgroup", Some(String::new()), "memory.max"),
        ("/sys/fs/cgroup/memory", path(":memory:"), "memory.limit_in_bytes"),
        ("/sys/fs/cgroup/memory", Some(String::new()), "memory.limit_in_bytes"),
    ];
    candidates.into_iter().find_map(|(root, path, file)| {
        let name = format!("uncopy-test-{}-{limit_bytes}", std::process::id());
        let path = format!("{root}{}/{name}", path?.trim_end_matches('/'));
        std::fs::create_dir(&path).ok()?;
        let group = ControlGroup(path.clone());
        // In a directory that is no control group the file does not exist.
        let mut limit = std::fs::OpenOptions::new().write(true).open(format!("{path}/{file}")).ok()?;
        limit.write_all(limit_bytes.to_string().as_bytes()).ok()?;
        // Swap must not hide the limit.
        let _ = std::fs::write(format!("{path}/memory.swap.max"), "0");
        Some(group)
    })
}

struct ControlGroup(String);

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_control_group_with_little_memory() {
    let Some(group) = control_group(40 << 20) else {
        return skip("a_control_group_with_little_memory", "no memory control group can be made here");
    };
    let enter = format!("echo $$ > {}/cgroup.procs", group.0);
    run_after("control-group", ExpectedBehaviour::Works, &enter);
}

/// The reservoir of a program that has just freed everything is 1/64 of the limit; without one, 16 MiB.
#[test]
fn a_control_group_bounds_what_is_kept() {
    const LIMIT_BYTES: usize = 128 << 20;
    let Some(group) = control_group(LIMIT_BYTES) else {
        return skip("a_control_group_bounds_what_is_kept", "no memory control group can be made here");
    };
    let scratch = Scratch::new("group");
    let script = format!("echo $$ > {}/cgroup.procs; exec {BOUNDS} more_data_than_the_cap 1", group.0);
    let done = Program::shell(&script).mode(Mode::Always).run(&scratch, "group");
    if let Some(counters) = done.expect_success().expect_counters(&[Counter::InputBytes]).counters {
        assert!(counters.get(Counter::ReservoirBytes) <= LIMIT_BYTES as u64 / 64, "{counters}");
    }
}

#[test]
fn an_exhausted_reservoir() {
    compare_with_plain("exhausted", ExpectedBehaviour::FallsBack, |_| {
        let program = Program::new(FAULTS).args(["hoard"]);
        program.library(injecting_library()).env("MAX_INJECT_RESERVE", (256 << 20).to_string())
    });
}

/// A server that echoes whole messages, and a client that compares them.
const ECHO: &str = r#"
if IS_SERVER:
    connection = listen().accept()[0]
    for part in iter(lambda: connection.recv(400000), b""):
        connection.sendall(part)
else:
    connection = connect(sys.argv[2])
    for number in range(60):
        message = hashlib.shake_128(str(number).encode()).digest(300000)
        connection.sendall(message)
        assert receive_exactly(connection, 300000) == message, number
"#;

/// A filter installed before the program starts disables what it refuses, and nothing else.
#[test]
fn lanes_under_a_filter_that_lets_them_through() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("filtered");
    let _ = lane_programs::make_lanes_dir(&scratch);
    let under_filter = |arguments: &[&str]| {
        let command = Program::new(FAULTS).args(["under", "eperm", "/usr/bin/python3"]);
        lane_programs::program_started_by(command, &scratch, ECHO, arguments)
    };
    let server = under_filter(&["server"]).start(&scratch, "server");
    let port = server.wait_for_line("ready ");
    for done in [under_filter(&["client", &port]).run(&scratch, "client"), server.finish()] {
        let received = done.counters.as_ref().map_or(0, |counters| counters.get(Counter::LaneReceivedBytes));
        // The one line says that userfaultfd was refused.
        assert!(done.status.success() && received > 1 << 20, "{:?}: {}", done.counters, done.text());
    }
}
