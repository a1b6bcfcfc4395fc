//! Programs whose log refers to what the service has received (`--memory-dir`), and kills while it does.

use std::path::Path;
use std::time::Duration;

use super::{PRELUDE, check_success, kernel_python};
use crate::log_only_kills::newest;
use uncopy_core::options::LogMode;
use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::skipped;
use uncopy_tests::crash_cycles::scaled_cycles;
use uncopy_tests::log_runs::LogRuns;
use uncopy_tests::net_service::{NetService, SERVICE_V4};
use uncopy_tests::random::{Random, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Program, Scratch};

/// Number of kills in tests of size 10.
const CYCLES: u64 = 8;
/// Memory of the service that is killed around: so little that freed memory is used again soon.
const MEMORY: &str = "32M";
const MESSAGES: usize = 120;

/// Writes each message to a file as it arrived, and says so. The last argument is the seed.
const WRITER: &str = r#"
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
connection, peer = listener.accept()
out = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
for number, length in enumerate(lengths(int(sys.argv[5]), int(sys.argv[4]), 1 << 21)):
    buffer = bytearray(length)
    view, at = memoryview(buffer), 0
    while at < length:
        received = connection.recv_into(view[at:])
        assert received, "the other end closed"
        at += received
    assert os.write(out, buffer) == length
    os.fsync(out)
    print("written", number, flush=True)
connection.sendall(b"x")
"#;

const SENDER: &str = r#"
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
seed = int(sys.argv[4])
try:
    for number, length in enumerate(lengths(seed, int(sys.argv[3]), 1 << 21)):
        connection.sendall(message(seed * 1000 + number, length))
    connection.recv(1)
except (BrokenPipeError, ConnectionResetError):
    pass
"#;

/// Compares a file with the messages up to a number, behind which further ones may follow, the last one cut.
const CHECK: &str = r#"
found = open(sys.argv[1], "rb").read()
seed, at = int(sys.argv[4]), 0
for number, length in enumerate(lengths(seed, int(sys.argv[2]), 1 << 21)):
    wanted = message(seed * 1000 + number, length)
    part = found[at:at + length]
    assert part == wanted[:len(part)], f"message {number} of {length} bytes at {at} is another"
    if len(part) < length:
        assert number > int(sys.argv[3]), f"message {number} has {len(part)} of {length} bytes"
        break
    at += length
assert at + len(part) >= len(found) or len(part) == 0, (at, len(found))
"#;

fn writer(runs: &LogRuns, service: &NetService, name: &str, port: &str, arguments: &[&str]) -> Running {
    let script = runs.disk().write(&format!("{name}.py"), format!("{PRELUDE}{WRITER}"));
    let net = ["--net".as_ref(), service.control().as_os_str()];
    let program = runs.program_by(&runs.disk().join(&format!("{name}.counters")), &net);
    let program = program.arg("/usr/bin/python3").args([script]).args([SERVICE_V4, port]).args(arguments);
    let running = program.mode(Mode::Plain).start(runs.disk(), name);
    let _ = running.wait_for_line("ready");
    running
}

fn sender(service: &NetService, scratch: &Scratch, name: &str, port: &str, arguments: &[&str]) -> Running {
    kernel_python(service, scratch, name, SENDER, &[&[SERVICE_V4, port], arguments].concat())
        .start(scratch, name)
}

fn check(runs: &LogRuns, path: &Path, arguments: &[&str]) {
    let script = runs.disk().write("check.py", format!("{PRELUDE}{CHECK}"));
    let program = Program::new("/usr/bin/python3").args([script.as_path(), path]).args(arguments);
    let done = program.mode(Mode::Plain).start(runs.disk(), "check").finish();
    assert!(done.status.success(), "{arguments:?}: {}", done.text());
}

/// Returns the names of the service's files in the log's directory: those of its own, and those of logs.
fn names(runs: &LogRuns) -> [usize; 2] {
    let entries = std::fs::read_dir(runs.log()).expect("the directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    let names: Vec<String> = names.filter(|name| name.ends_with(".memory")).collect();
    let of_logs = names.iter().filter(|name| name.contains('-')).count();
    [names.len() - of_logs, of_logs]
}

fn start(runs: &LogRuns, memory: &str) -> NetService {
    let directory = runs.log();
    let directory = directory.to_str().expect("UTF-8");
    NetService::start(runs.disk(), &["--memory-dir", directory, "--memory", memory])
}

fn runs(test: &str) -> Option<LogRuns> {
    let runs = LogRuns::new(LogMode::Only, "net-log");
    (!skipped() && runs.can_log(test)).then_some(runs)
}

#[test]
fn records_refer_to_what_the_service_has_received() {
    let Some(runs) = runs("records_refer_to_what_the_service_has_received") else { return };
    let service = start(&runs, "64M");
    let path = runs.disk().join("file");
    let messages = MESSAGES.to_string();
    let seed = seed(3).to_string();
    let server =
        writer(&runs, &service, "writer", "7300", &[path.to_str().expect("UTF-8"), &messages, &seed]);
    let client = sender(&service, runs.disk(), "sender", "7300", &[&messages, &seed]);
    check_success(client.finish(), &server);
    let done = server.finish().expect_counters(&[Counter::LogReferencedBytes]);
    assert!(done.status.success(), "{}", done.text());
    runs.wait_until_kept();
    check(&runs, &path, &[&messages, &messages, &seed]);
    let [own, of_logs] = names(&runs);
    assert!(own > 0 && of_logs == 0, "{own} {of_logs}");
    runs.expect_settled(runs.disk().path());
    service.wait_until_no_connections();
    service.stop();
    assert_eq!(names(&runs), [0, 0]);
}

/// Kills a program, and its keeper too, while records that are not digested refer to the service's memory, which others
/// then use as far as they may.
#[test]
fn what_records_refer_to_survives_the_program_and_its_keeper() {
    let Some(runs) = runs("what_records_refer_to_survives_the_program_and_its_keeper") else { return };
    let service = start(&runs, MEMORY);
    let seed = seed(4);
    eprintln!("seed {seed}");
    let mut random = Random::new(seed);
    let mut was_referred_to = 0;
    for cycle in 0..scaled_cycles(CYCLES) {
        let with_keeper = cycle % 2 == 0;
        let own_seed = (seed % 1_000_000 + cycle).to_string();
        let path = runs.disk().join(&format!("file{cycle}"));
        let (port, messages) = (&(7310 + cycle).to_string(), "2000");
        let arguments = [path.to_str().expect("UTF-8"), messages, &own_seed];
        let server = writer(&runs, &service, &format!("writer{cycle}"), port, &arguments);
        let client = sender(&service, runs.disk(), &format!("sender{cycle}"), port, &[messages, &own_seed]);
        wait_until("messages", || (newest(&server) >= 100).then_some(()));
        let [keeper] = runs.keepers()[..] else { panic!("keepers: {:?}", runs.keepers()) };
        let signal = |pid: i32, signal: i32| {
            // SAFETY: kill(2) accesses no memory; the process is this test's own, or its keeper.
            assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        };
        // It digests nothing from here on.
        signal(keeper, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(50 + random.below(200) as u64));
        if with_keeper {
            signal(keeper, libc::SIGKILL);
        }
        signal(server.pid().cast_signed(), libc::SIGKILL);
        wait_until("the program's end", || server.has_ended().then_some(()));
        let acknowledged = newest(&server).to_string();
        drop(client.finish());
        was_referred_to += names(&runs)[1];
        // Others use what is free.
        let script = runs.disk().write("other.py", format!("{PRELUDE}{WRITER}"));
        let other =
            Program::new("/usr/bin/python3").args([script.to_str().expect("UTF-8"), SERVICE_V4, "7400"]);
        let other = other.args([runs.memory().join("other")]).args(["400", "7"]);
        let other = service.program(other, Mode::Auto).start(runs.disk(), "other");
        let _ = other.wait_for_line("ready");
        let feeder = sender(&service, runs.disk(), "feeder", "7400", &["400", "7"]);
        check_success(feeder.finish(), &other);
        assert!(other.finish().status.success());
        if with_keeper {
            let recovered = runs.log_command(&["recover"]);
            assert!(!recovered.contains("damaged"), "{recovered}");
        } else {
            signal(keeper, libc::SIGCONT);
        }
        runs.wait_until_kept();
        check(&runs, &path, &[messages, &acknowledged, &own_seed]);
        assert_eq!(names(&runs)[1], 0, "cycle {cycle}");
        std::fs::remove_file(&path).expect("removed");
    }
    assert!(was_referred_to > 0, "no record referred to memory");
    service.wait_until_no_connections();
    service.stop();
}
