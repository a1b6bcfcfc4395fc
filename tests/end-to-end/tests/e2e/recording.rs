//! Recordings of programs whose copies are known.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use uncopy_core::recording::request::Request;
use uncopy_core::recording::{Call, Event, Flags, Phase};
use uncopy_core::stats::{CONTROL_SUFFIX, Counter};
use uncopy_tests::artifacts::{library, packaged, skipped};
use uncopy_tests::programs::compile;
use uncopy_tests::recordings::{ProcessRecording, Recordings};
use uncopy_tests::scratch::wait_until;
use uncopy_tests::stepped::SteppedProgram;
use uncopy_tests::{Mode, Program, Scratch};

const FOREIGN: &str = env!("CARGO_BIN_EXE_foreign");
const CHAINS: &str = env!("CARGO_BIN_EXE_chains");
/// Upper bound for the size of the program's functions, in bytes.
const MAX_FUNCTION_BYTES: u64 = 2048;

/// The program's own account of its calls.
struct Expected {
    pid: u32,
    /// Each event without its last field, and that field: the address of the calling function.
    events: Vec<(String, u64)>,
    callers: BTreeSet<u64>,
}

impl Expected {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("written by the program");
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let pid = lines.next().and_then(|line| line.parse().ok()).expect("a pid");
        let event = |line: &str| {
            let (event, caller) = line.rsplit_once(' ').expect("fields");
            let caller = u64::from_str_radix(caller.trim_start_matches("0x"), 16).expect("an address");
            (event.to_owned(), caller)
        };
        let events: Vec<_> = lines.map(event).collect();
        let callers = events.iter().map(|(_, caller)| *caller).filter(|caller| *caller != 0).collect();
        Self { pid, events, callers }
    }
}

fn format_event(event: &Event) -> String {
    let Event { call, function, object, fd, thread, to, from, len_bytes, flags, .. } = event;
    // The program cannot know which calls are sampled.
    let flags = flags.0 & !Flags::SAMPLED.0;
    let (call, function, object) = (call.name(), function.name(), object.name());
    format!("{call} {function} {object} {fd} {thread} {to:#x} {from:#x} {len_bytes} {flags}")
}

fn expect_exactly(recorded: &ProcessRecording, expected: &Expected) {
    assert_eq!(recorded.recording.pid, expected.pid);
    assert_eq!((recorded.lost, recorded.recording.dropped), (0, 0));
    for (index, (event, (line, caller))) in recorded.events.iter().zip(&expected.events).enumerate() {
        assert_eq!((event.sequence, &format_event(event)), (index as u64, line), "event {index}");
        if *caller != 0 {
            let frames = recorded.recording.stacks.frames(event.stack);
            let innermost = *frames.first().unwrap_or_else(|| panic!("no stack of event {index}: {line}"));
            let function = expected.callers.range(..innermost).next_back();
            assert_eq!(function, Some(caller), "event {index}: {line} from {innermost:#x}");
            assert!(innermost - caller < MAX_FUNCTION_BYTES, "event {index}: {innermost:#x}");
            let (module, _) = recorded.recording.module_at(innermost).expect("a module");
            assert!(module.path.ends_with(b"/chains"), "{}", module.path.escape_ascii());
        }
        assert!(event.start_ns >= recorded.recording.began_ns, "event {index} came before the recording");
    }
    assert_eq!(recorded.events.len(), expected.events.len(), "events");
}

#[test]
fn known_chains_are_recorded_once_in_order_with_callers() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("recording");
    let recordings = Recordings::new(&scratch, "recordings");
    let file = scratch.join("expected");
    let program = Program::new(CHAINS).args([&file]).mode(Mode::Auto);
    let program = program.env("UNCOPY_RECORD", recordings.directory());
    let _ = program.run(&scratch, "chains").expect_success();
    let all = recordings.finish();
    for name in ["expected", "expected.child", "expected.again"] {
        let expected = Expected::read(&scratch.join(name));
        let found: Vec<_> = all.iter().filter(|one| one.recording.pid == expected.pid).collect();
        let [recorded] = found.as_slice() else { panic!("{} recordings of {name}", found.len()) };
        expect_exactly(recorded, &expected);
        assert_eq!(recorded.recording.phase, Phase::Exited, "{name}");
        assert_eq!(recorded.recording.name, "chains");
        assert!(recorded.recording.ended_ns.is_some());
    }
    assert_eq!(all.len(), 3, "processes");
    assert!(all.iter().all(|one| one.events.iter().all(|event| event.call != Call::Gap)));
}

fn is_root() -> bool {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn daemon_that_closes_descriptors_and_changes_its_user_is_recorded() {
    if skipped() {
        return;
    }
    if !is_root() {
        eprintln!(
            "skipped: daemon_that_closes_descriptors_and_changes_its_user_is_recorded: only root can become another user"
        );
        return;
    }
    let scratch = Scratch::new("recording");
    let recordings = Recordings::new(&scratch, "recordings");
    let file = scratch.join("expected");
    let program = Program::new(CHAINS).args([&file]).args(["daemon"]).mode(Mode::Auto);
    let program = program.env("UNCOPY_RECORD", recordings.directory());
    let _ = program.run(&scratch, "daemon").expect_success();
    let all = recordings.finish();
    let [recorded] = all.as_slice() else { panic!("{} recordings", all.len()) };
    expect_exactly(recorded, &Expected::read(&file));
}

/// Runs the chains with recordings requested in `directory`; returns the reason that nothing is recorded.
fn reason_for_no_recording(scratch: &Scratch, name: &str, directory: &Path) -> String {
    let file = scratch.join(name);
    let program = Program::new(CHAINS).args([&file]).args(["only"]).mode(Mode::Auto);
    let done = program.env("UNCOPY_RECORD", directory).run(scratch, name).expect_success();
    assert!(!Expected::read(&file).events.is_empty(), "the program did its work");
    assert_eq!(done.errors, "", "{name}");
    done.counters.as_ref().and_then(|counters| counters.reason()).unwrap_or_default().to_owned()
}

#[test]
fn shared_directory_is_rejected_and_the_program_continues() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("recording");
    let directory = |name: &str, mode: u32| -> PathBuf {
        let path = scratch.directory(name);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
        path
    };
    let open = directory("open", 0o777);
    let readable = directory("readable", 0o750);
    let sticky = directory("sticky", 0o1700);
    let own = directory("own", 0o700);
    let link = scratch.join("link");
    std::os::unix::fs::symlink(&own, &link).expect("a link");
    let file = scratch.write("file", b"");
    let mut all = vec![
        ("open", open, libc::EPERM),
        ("readable", readable, libc::EPERM),
        ("sticky", sticky, libc::EPERM),
        ("link", link, libc::ENOTDIR),
        ("file", file, libc::ENOTDIR),
        ("missing", scratch.join("missing"), libc::ENOENT),
    ];
    if is_root() {
        let foreign = directory("foreign", 0o700);
        std::os::unix::fs::chown(&foreign, Some(65534), None).expect("chown");
        all.push(("foreign", foreign, libc::EPERM));
    }
    for (name, path, errno) in all {
        let why = reason_for_no_recording(&scratch, &format!("chains-{name}"), &path);
        assert!(why.starts_with("nothing is recorded: the file could not be made"), "{name}: {why}");
        let shown = std::io::Error::from_raw_os_error(errno).to_string();
        assert!(why.contains(&errno.to_string()) || why.contains(&shown), "{name}: {why}");
        let made = std::fs::read_dir(&path).map(Iterator::count).unwrap_or(0);
        assert_eq!(made, 0, "files in {name}");
    }
}

/// A program that gains privileges ignores its environment.
#[test]
fn set_user_id_program_is_not_recorded() {
    if skipped() {
        return;
    }
    if !is_root() {
        eprintln!("skipped: set_user_id_program_is_not_recorded: only root can make such a program");
        return;
    }
    let scratch = Scratch::new("recording");
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).expect("directory");
    let path = compile(&scratch, "recorded", &[library().to_str().expect("UTF-8")]);
    for (name, mode, expected) in [("ordinary", 0o755, 1), ("privileged", 0o4755, 0)] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("program");
        let directory = scratch.directory(name);
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).expect("mode");
        let program = if expected == 0 {
            Program::new(packaged("/usr/bin/setpriv", "util-linux"))
                .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
                .args([&path])
        } else {
            Program::new(&path)
        };
        let done = program.env("UNCOPY_RECORD", &directory).run(&scratch, name).expect_success();
        let users = if expected == 0 { b"65534 0\n" } else { b"0 0\n".as_slice() };
        assert_eq!(done.output, users, "{}", done.errors);
        assert_eq!(std::fs::read_dir(&directory).expect("a directory").count(), expected, "{name}");
    }
}

/// Sends a request to a process, as `uncopy profile --pid` does.
fn send_request(pid: u32, request: &Request<'_>) {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    let names = ["/dev/shm", "/tmp"].map(|root| format!("{root}/uncopy-{user}/{pid}{CONTROL_SUFFIX}"));
    let pipe = names.iter().find_map(|name| std::fs::File::options().write(true).open(name).ok());
    let message = request.encode().expect("short");
    pipe.expect("its pipe").write_all(&message).expect("asked");
}

fn record_running_process(scenario: &str) {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("recording");
    let mut stepped = SteppedProgram::start(&scratch, FOREIGN, scenario, Mode::Always);
    let pid = stepped.running.pid();
    let reason = |stepped: &SteppedProgram| {
        let counters = stepped.running.live_counters();
        counters.and_then(|counters| counters.reason().map(str::to_owned)).unwrap_or_default()
    };
    // Record twice: the second recording reuses the memory of the first.
    for name in ["first", "second"] {
        let before = stepped.counter(Counter::Views);
        let recordings = Recordings::new(&scratch, name);
        let directory = recordings.directory().as_os_str().as_encoded_bytes().to_vec();
        send_request(pid, &Request::Record { directory: &directory, min_size_bytes: 65536 });
        wait_until("nothing is elided", || reason(&stepped).contains("it is recorded").then_some(()));
        if name == "first" {
            assert!(before > 0 && stepped.counter(Counter::Views) > 0, "views that were there still are");
        }
        // The program checks the contents of its views.
        stepped.step();
        stepped.step();
        let during = stepped.counter(Counter::ElidedInputs);
        send_request(pid, &Request::End);
        wait_until("it goes on", || reason(&stepped).is_empty().then_some(()));
        stepped.step();
        assert!(stepped.counter(Counter::ElidedInputs) > during, "inputs are elided again");
        let all = recordings.finish();
        let [recorded] = all.as_slice() else { panic!("{} recordings", all.len()) };
        let ProcessRecording { recording, events, lost } = recorded;
        assert_eq!((recording.pid, recording.phase, *lost), (pid, Phase::Ended, 0));
        assert_eq!((recording.min_size_bytes, recording.dropped), (65536, 0));
        assert!(recording.costs.is_some(), "the costs are known");
        for call in [Call::Input, Call::Copy] {
            assert!(events.iter().any(|event| event.call == call), "{call:?}");
        }
        for event in events {
            assert!(event.len_bytes >= 65536, "{event:?}");
            assert!(
                event.call == Call::Forget || !recording.stacks.frames(event.stack).is_empty(),
                "{event:?}"
            );
        }
    }
    let _ = stepped.finish_successfully();
}

#[test]
fn running_process_is_recorded_temporarily_and_elides_again() {
    record_running_process("step_on_input");
}

/// Three threads receive and copy continuously.
#[test]
fn busy_process_is_recorded_temporarily() {
    record_running_process("busy_step_on_input");
}
