//! `uncopy profile` and `uncopy report`, on programs with known behaviour.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use uncopy_testbed::servers::{self, Service as _};
use uncopy_tests::artifacts::{bin_dir, installed, skipped};
use uncopy_tests::redis::Redis;
use uncopy_tests::running::{Finished, Running};
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Program, Scratch};

const CHAINS: &str = env!("CARGO_BIN_EXE_chains");
const VALUE_BYTES: usize = 262_144;

fn uncopy(arguments: &[&str]) -> Program {
    Program::new(bin_dir().join("uncopy")).args(arguments)
}

/// Runs a command to its end, with any exit status.
fn run(program: &Program, scratch: &Scratch, name: &str) -> Finished {
    program.start(scratch, name).finish()
}

/// Returns the output of a command.
fn output_text(done: &Finished) -> String {
    String::from_utf8_lossy(&done.output).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Runs `uncopy profile -o OUT OPTIONS …` to its end, and also returns OUT.
fn profile(scratch: &Scratch, options: &[&str]) -> (Finished, PathBuf) {
    let out = scratch.join("out.json");
    let done = run(&uncopy(&["profile", "-o", text(&out)]).args(options), scratch, "profile");
    (done, out)
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("the profile");
    serde_json::from_str(&text).expect("JSON")
}

/// Formats a class as `NAME COUNT: app A, io B: FUNCTION(CALLS)<AFTER …`.
fn class(profile: &Value, operation: &Value) -> String {
    let number = |name: &str| operation[name].as_u64().expect("a number");
    let mut text = format!(
        "{} {}: app {}, io {}:",
        operation["name"].as_str().expect("a name"),
        number("count"),
        number("copies_in_application"),
        number("copies_at_io_stack")
    );
    for step in operation["steps"].as_array().expect("steps") {
        let site = usize::try_from(step["site"].as_u64().expect("a site")).expect("small");
        let name = profile["sites"][site]["name"].as_str().expect("a name");
        let after: Vec<String> =
            step["after"].as_array().expect("steps").iter().map(ToString::to_string).collect();
        let calls = step["calls_each"].as_f64().expect("a number");
        write!(text, " {name}({calls})<{}", after.join("+")).expect("room");
    }
    text
}

fn classes(profile: &Value) -> Vec<String> {
    let operations = profile["operations"].as_array().expect("operations");
    let mut all: Vec<String> = operations.iter().map(|operation| class(profile, operation)).collect();
    all.sort();
    all
}

#[test]
fn known_chains_are_reported_exactly() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("profile-chains");
    let expected = scratch.join("expected");
    let pprof = scratch.join("out.pb.gz");
    let (done, out) = profile(&scratch, &["--pprof", text(&pprof), "--", CHAINS, text(&expected), "only"]);
    assert!(done.status.success(), "{}", done.errors);
    assert!(done.errors.contains("wrote") && done.errors.contains("out.pb.gz"), "{}", done.errors);
    let again = run(&uncopy(&["report", text(&out), "--pprof", "-"]), &scratch, "pprof");
    assert_eq!(std::fs::read(&pprof).expect("a profile"), again.output);
    let profile = json(&out);
    assert_eq!(profile["dropped_events"], 0);
    let mut expected = [
        // `passed`.
        "file → socket 1: app 0, io 0: sendfile(1)< sendfile(1)<0",
        // `messages`.
        "datagram → datagram 1: app 0, io 2: recvmmsg(1)< send(1)<0",
        "datagram → datagram 1: app 1, io 2: recvmmsg(1)< memcpy(1)<0 send(1)<1",
        "memory → datagram 1: app 0, io 1: sendmmsg(1)<",
        // `passed`.
        "memory → file 1: app 0, io 1: write(1)<",
        // `small`.
        "memory → memory 1: app 1, io 0: memcpy(1)<",
        // Input to the links, and 100 bytes of the program's own in `scattered`.
        "memory → socket 17: app 0, io 1: write(1)<",
        // `freed`, and the rest of the dropped bytes.
        "socket → memory 2: app 0, io 1: read(1)<",
        // `fan_out`.
        "socket → socket 1: app 2, io 3: recv(1)< memcpy(2)<0 send(2)<1",
        // `scattered`.
        "socket → socket 1: app 1, io 2: readv(1)< memcpy(1)<0 writev(1)<1 writev(1)<0",
        // The part of `grown` that copies.
        "socket → socket 1: app 1, io 2: read(1)< realloc(1)<0 write(1)<1",
        // `mapped`, and the part of `grown` that moves page tables.
        "socket → socket 2: app 0, io 2: read(1)< write(1)<0",
        // `straight`, `overlap`.
        "socket → socket 2: app 2, io 2: read(1)< memcpy(1.5)<0 memmove(1)<1 write(1)<2",
        // `reuse`.
        "socket → socket 2: app 1, io 2: read(1)< memcpy(1)<0 write(1)<1",
        // `fan_in`, `threads`.
        "socket → socket 3: app 1, io 2: read(1)< memcpy(1)<0 send(1)<1",
    ];
    expected.sort_unstable();
    assert_eq!(classes(&profile), expected);
    let leaves = profile["sites"].as_array().expect("sites").iter().map(|site| &site["place"]);
    assert!(leaves.clone().any(|place| place == "chains::memmove"), "{:?}", leaves.collect::<Vec<_>>());
}

/// A Redis server under `uncopy COMMAND …`.
struct Server {
    redis: Redis,
}

impl Server {
    fn start(scratch: &Scratch, command: &[&str]) -> Self {
        Self::start_as(&installed(servers::Redis::PROGRAM), scratch, command)
    }

    fn start_as(redis: &Path, scratch: &Scratch, command: &[&str]) -> Self {
        let program = uncopy(command).args(["--", text(redis)]);
        let options = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"];
        Self { redis: Redis::start_by(program, scratch, "server", &scratch.directory("data"), &options) }
    }

    fn running(&self) -> &Running {
        &self.redis.0.running
    }

    fn finish(self) -> Finished {
        self.redis.0.running.finish()
    }

    /// Sends SETs as redis-benchmark does: 45 bytes before each value.
    fn set(&self, times: usize) {
        let mut client = self.redis.client();
        let value = vec![b'x'; VALUE_BYTES];
        for _ in 0..times {
            client.set_parts(b"key:__rand_int__", &[&value]).expect("OK");
        }
    }

    fn shut_down(&self) {
        self.redis.send_shutdown();
    }
}

/// Expects the chain of a SET: Redis moves each value by memmove, then copies it to its AOF
/// buffers, then writes it to the file, for any number of reads that the kernel made of it.
fn expect_set_chain(profile: &Value, at_least: u64) -> &Value {
    let operations = profile["operations"].as_array().expect("operations");
    let is_set = |operation: &&Value| {
        let steps = operation["steps"].as_array().expect("steps");
        let names = steps.iter().map(|step| {
            let site = usize::try_from(step["site"].as_u64().expect("a site")).expect("small");
            profile["sites"][site]["name"].as_str().expect("a name")
        });
        // Bytes read after the memmove are copied from where they were read.
        names.eq(["read", "memmove", "memcpy", "memcpy", "write"])
            && (1..5).all(|index| {
                let after = steps[index]["after"].as_array().expect("steps");
                after.contains(&Value::from(index - 1)) && (after.len() == 1 || index == 2)
            })
    };
    let found: Vec<&Value> = operations.iter().filter(is_set).collect();
    let count = |operation: &&Value| operation["count"].as_u64().expect("a number");
    assert!(found.iter().map(count).sum::<u64>() >= at_least, "{:#?}", classes(profile));
    let found = found.into_iter().max_by_key(count).unwrap_or_else(|| panic!("{:#?}", classes(profile)));
    assert_eq!(found["name"], "socket → file");
    let counts = ["copies_in_application", "copies_at_io_stack"].map(|name| found[name].as_u64());
    assert_eq!(counts, [Some(3), Some(2)]);
    let steps = found["steps"].as_array().expect("steps");
    assert_eq!(steps[1]["shift"], -45);
    assert_eq!((&steps[1]["source"], &steps[1]["destination"]), (&"buffer 1".into(), &"buffer 1".into()));
    assert_eq!((&steps[3]["source"], &steps[3]["destination"]), (&"buffer 2".into(), &"buffer 3".into()));
    found
}

/// Expects whole values in a SET's copies: the first moves the value and its line end, as far as
/// one read returned them, the others the value alone, into the AOF buffers.
fn expect_whole_values(set: &Value) {
    let example = set["example"].as_array().expect("calls");
    let copies: Vec<(u64, u64)> = example
        .iter()
        .filter(|call| (1..4).contains(&call["step"].as_u64().expect("a number")))
        .map(|call| {
            (call["own_bytes"].as_u64().expect("a number"), call["bytes"].as_u64().expect("a number"))
        })
        .collect();
    let value_bytes = VALUE_BYTES as u64;
    let [(moved, _), (first, _), (second, with_header)] = copies.as_slice() else { panic!("{copies:?}") };
    // The first read of a message is not recorded if it returns less than the minimum size.
    let all_but_one_read = value_bytes - 16_384..=value_bytes + 2;
    assert!(all_but_one_read.contains(first), "{copies:?}");
    // Bytes that arrived after the memmove were read into their final place, and are copied from there.
    let is_read_behind = set["steps"][2]["after"].as_array().expect("steps").contains(&Value::from(0));
    assert!(all_but_one_read.contains(moved) || is_read_behind && moved < first, "{copies:?}");
    assert_eq!(second, first);
    assert!(*with_header > value_bytes);
}

#[test]
fn redis_set_is_reported_as_one_chain() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("profile-redis");
    let out = scratch.join("set.json");
    let server = Server::start(&scratch, &["profile", "-o", text(&out)]);
    server.set(40);
    server.shut_down();
    let done = server.finish();
    assert!(done.status.success(), "{}", done.errors);
    let profile = json(&out);
    // Some values may arrive in pieces, which make a class of their own.
    expect_whole_values(expect_set_chain(&profile, 15));
    let report = output_text(&done);
    assert!(report.contains(" times inside redis-server"), "{report}");
    assert!(report.contains("memmove by -45 in "), "{report}");
    let functions = profile["frames"].as_array().expect("frames").iter().map(|frame| &frame["function"]);
    assert!(
        functions.clone().any(|name| name == "processInputBuffer"),
        "{:?}",
        functions.collect::<Vec<_>>()
    );
}

#[test]
fn program_survives_the_end_of_its_recording() {
    if skipped() {
        return;
    }
    for (options, signal) in
        [(&["--duration", "600"][..], Some(libc::SIGINT)), (&["--duration", "0.5"], None)]
    {
        let scratch = Scratch::new("profile-end");
        let out = scratch.join("set.json");
        let command = [&["profile", "-o", text(&out)], options].concat();
        let server = Server::start(&scratch, &command);
        server.set(5);
        if let Some(signal) = signal {
            server.running().signal(signal);
        }
        wait_until("the recording to end", || (server.running().has_ended() && out.exists()).then_some(()));
        server.set(5);
        server.shut_down();
        let port = server.redis.0.port;
        let done = server.finish();
        assert!(done.status.success(), "{}", done.errors);
        assert!(done.errors.contains("goes on running as process"), "{}", done.errors);
        wait_until("Redis to end", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_err().then_some(())
        });
        assert_eq!(json(&out)["format"], "uncopy-profile");
    }
}

/// Whether at least `count` recordings requested by process `recorder` have begun.
fn have_begun(recorder: u32, count: usize) -> bool {
    let entries = std::fs::read_dir("/dev/shm").expect("shared memory").flatten();
    let prefix = format!("uncopy-profile-{recorder}-");
    let is_ours = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&prefix);
    let files = entries.filter(is_ours).filter_map(|entry| std::fs::read_dir(entry.path()).ok()).flatten();
    files.filter(|file| file.as_ref().is_ok_and(|file| has_begun(&file.path()))).count() >= count
}

/// Whether a recording's file starts with the magic bytes of a recording that has begun.
fn has_begun(file: &Path) -> bool {
    let mut magic = [0; uncopy_core::recording::MAGIC.len()];
    let read = std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == uncopy_core::recording::MAGIC
}

#[test]
fn running_server_is_recorded_by_pid() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("profile-pid");
    let server = Server::start(&scratch, &["run", "--slice-ms", "4"]);
    let measured = |pid: &str| {
        let done = run(&uncopy(&["stats", pid]), &scratch, "stats");
        serde_json::from_slice::<Value>(&done.output).expect("JSON")["trials"].clone()
    };
    wait_until("the server to measure itself", || {
        server.set(20);
        let trials = measured(&server.running().pid().to_string());
        trials.as_array().is_some_and(|trials| !trials.is_empty()).then_some(())
    });
    let out = scratch.join("set.json");
    let pid = server.running().pid().to_string();
    let recorder = uncopy(&["profile", "-o", text(&out), "--pid", &pid]).start(&scratch, "recorder");
    // Operations before the recording are not part of the profile.
    wait_until("the recording to begin", || {
        server.set(1);
        have_begun(recorder.pid(), 1).then_some(())
    });
    server.set(40);
    recorder.signal(libc::SIGINT);
    let done = recorder.finish();
    assert!(done.status.success(), "{}", done.errors);
    // The first SETs may have come before the recording.
    expect_set_chain(&json(&out), 10);
    assert_eq!(json(&out)["measured"][0]["what"], "eliding inputs and copies");
    // After the recording, the server elides again.
    server.set(5);
    server.shut_down();
    let done = server.finish();
    assert!(done.status.success(), "{}", done.errors);
}

#[test]
fn processes_of_one_name_are_recorded_together() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("profile-name");
    // A unique name, since other tests run servers too.
    let name = format!("redis-of-{}", std::process::id());
    let redis = scratch.join(&name);
    std::fs::copy(installed(servers::Redis::PROGRAM), &redis).expect("a copy");
    let scratches = ["one", "other", "idle"].map(|title| Scratch::new(&format!("profile-name-{title}")));
    let servers = scratches.each_ref().map(|scratch| Server::start_as(&redis, scratch, &["run"]));
    let [one, other, idle] = &servers;
    one.set(20);
    other.set(20);
    let out = scratch.join("both.json");
    let recorder = uncopy(&["profile", "-o", text(&out), "--pid", &name]).start(&scratch, "recorder");
    wait_until("both recordings to begin", || {
        one.set(1);
        other.set(1);
        have_begun(recorder.pid(), 2).then_some(())
    });
    one.set(30);
    other.set(30);
    recorder.signal(libc::SIGINT);
    let done = recorder.finish();
    assert!(done.status.success(), "{}", done.errors);
    let without_work = format!("process {} has done no work yet", idle.running().pid());
    assert!(done.errors.contains(&without_work), "{}", done.errors);
    let profile = json(&out);
    expect_set_chain(&profile, 20);
    let mut pids: Vec<u64> = profile["processes"]
        .as_array()
        .expect("processes")
        .iter()
        .filter_map(|it| it["pid"].as_u64())
        .collect();
    pids.sort_unstable();
    let mut expected = [one.running().pid(), other.running().pid()].map(u64::from);
    expected.sort_unstable();
    assert_eq!(pids, expected);
    // Redis overwrites its command line, which then is no command that could be typed.
    assert_eq!(profile["command"], serde_json::json!([text(&redis)]));
    let warnings = profile["warnings"].as_array().expect("sentences");
    assert!(
        warnings.iter().any(|it| it.as_str().is_some_and(|it| it.contains(&without_work))),
        "{warnings:?}"
    );

    let done = run(&uncopy(&["profile", "--pid", &idle.running().pid().to_string()]), &scratch, "idle");
    assert_eq!(done.status.code(), Some(1), "{}", done.errors);
    let done = run(&uncopy(&["profile", "--pid", "no-such-name"]), &scratch, "nobody");
    assert_eq!(done.status.code(), Some(1));
    assert!(done.errors.contains("no process is named \"no-such-name\""), "{}", done.errors);
    for server in servers {
        server.shut_down();
        let done = server.finish();
        assert!(done.status.success(), "{}", done.errors);
    }
}

#[test]
fn exit_statuses_and_files_match_the_manual() {
    let scratch = Scratch::new("profile-status");
    let status = |done: &Finished| done.status.code();
    let (done, out) = profile(&scratch, &["--", "sh", "-c", "exit 7"]);
    assert_eq!(status(&done), Some(7), "{}", done.errors);
    assert!(output_text(&done).starts_with("sh moved nothing of 16K or more"), "{}", output_text(&done));
    assert_eq!(json(&out)["ending"], "the program exited with status 7");
    // Run again with the same file, which is now a profile and may be replaced.
    assert_eq!(status(&profile(&scratch, &["--", "true"]).0), Some(0));
    let foreign = scratch.write("foreign", b"precious");
    for (options, expected) in [
        (&["-o", text(&foreign), "--", "true"][..], 2),
        (&["-o", "/nonexistent/x", "--", "true"], 2),
        (&["--duration", "-1", "--", "true"], 2),
        (&["--min-size", "0", "--", "true"], 2),
        (&["--pid", "0"], 2),
        (&["--pid", "4194303"], 1),
        (&[], 2),
        (&["--pprof", "nowhere/out.pb.gz", "--", "true"], 2),
        (&["--pprof", ".", "--", "true"], 2),
        (&["-o", "same", "--pprof", "./same", "--", "true"], 2),
        (&["--", "/nonexistent/program"], 127),
        (&["--", "/etc/passwd"], 126),
    ] {
        let command = [&["profile"], options].concat();
        let done = run(&uncopy(&command).directory(scratch.path()), &scratch, "wrong");
        assert_eq!(status(&done), Some(expected), "{options:?}: {}", done.errors);
        assert!(done.errors.starts_with("uncopy: "), "{options:?}: {}", done.errors);
    }
    assert_eq!(std::fs::read(&foreign).expect("there"), b"precious");
    let entries = std::fs::read_dir("/dev/shm").expect("shared memory").flatten();
    let is_abandoned = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid =
            name.strip_prefix("uncopy-profile-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    assert_eq!(entries.filter(is_abandoned).count(), 0, "directories are left behind");
}

#[test]
fn saved_profile_is_shown_again_and_invalid_files_are_rejected() {
    let scratch = Scratch::new("report");
    let sample =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/profiling/profile/samples/redis-set.json");
    let report = |options: &[&str]| run(&uncopy(&["report"]).args(options), &scratch, "report");
    let shown = report(&[text(&sample)]);
    assert!(
        shown.status.success() && output_text(&shown).starts_with("Each socket → file operation"),
        "{}",
        output_text(&shown)
    );
    let (html, folded) = (scratch.join("page.html"), scratch.join("stacks.folded"));
    let done = report(&[text(&sample), "--html", text(&html), "--flamegraph", text(&folded)]);
    assert!(done.status.success() && done.output.is_empty(), "{}", done.errors);
    assert!(std::fs::read_to_string(&html).expect("a page").starts_with("<!DOCTYPE html>"));
    let folded = std::fs::read_to_string(&folded).expect("stacks");
    assert!(
        folded
            .lines()
            .all(|line| line.rsplit_once(' ').is_some_and(|(_, bytes)| bytes.parse::<u64>().is_ok()))
    );
    let pprof = scratch.join("profile.pb.gz");
    let done = report(&[text(&sample), "--pprof", text(&pprof)]);
    assert!(done.status.success() && done.output.is_empty(), "{}", done.errors);
    let printed = report(&[text(&sample), "--pprof", "-"]).output;
    assert!(printed.starts_with(&[0x1f, 0x8b]), "not compressed by gzip");
    assert_eq!(std::fs::read(&pprof).expect("a profile"), printed);
    let again = report(&[text(&sample), "--json"]);
    let value: Value = serde_json::from_slice(&again.output).expect("JSON");
    // The sample is from uncopy 0.1, which had the version in another field only.
    let mut expected = json(&sample);
    expected["schema"] = expected["version"].clone();
    assert_eq!(value, expected);

    let sample_text = std::fs::read_to_string(&sample).expect("there");
    let invalid = [
        String::new(),
        "{}".to_owned(),
        sample_text[..sample_text.len() / 2].to_owned(),
        sample_text.replacen("\"stack\": 0", "\"stack\": 4294967295", 1),
        sample_text.replacen("\"bytes\": ", "\"bytes\": -", 1),
        "[".repeat(100_000),
    ];
    for bytes in invalid {
        let file = scratch.write("hostile.json", bytes.as_bytes());
        let done = report(&[text(&file)]);
        assert_eq!(done.status.code(), Some(1), "{}", done.errors);
        assert!(done.errors.contains("hostile.json\" is "), "{}", done.errors);
    }
    // Impossible numbers are shown, and do no harm.
    let max_number = u64::MAX.to_string();
    let extreme = sample_text
        .replace("\"events\": 20000", &format!("\"events\": {max_number}"))
        .replace("\"count\": 20000", &format!("\"count\": {max_number}"))
        .replace("\"bytes_each\": 262189.0", "\"bytes_each\": 1e300");
    assert_ne!(extreme, sample_text);
    let file = scratch.write("extreme.json", extreme.as_bytes());
    let done = report(&[text(&file)]);
    assert!(done.status.success(), "{}", done.errors);
    assert_eq!(report(&["/nonexistent"]).status.code(), Some(1));
    assert_eq!(report(&["/dev/zero"]).status.code(), Some(1));
}

#[test]
fn comparable_profiles_are_diffed_and_others_rejected() {
    let scratch = Scratch::new("report-diff");
    let sample =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/profiling/profile/samples/redis-set.json");
    let sample_text = std::fs::read_to_string(&sample).expect("there");
    let diff = |options: &[&str]| run(&uncopy(&["report", "--diff"]).args(options), &scratch, "diff");
    let changed = sample_text.replace("\"place\": \"sdsrange\"", "\"place\": \"sdsnew\"");
    assert_ne!(changed, sample_text);
    let after = scratch.write("after.json", changed.as_bytes());
    let shown = diff(&[text(&sample), text(&after)]);
    assert!(shown.status.success(), "{}", shown.errors);
    let shown = output_text(&shown);
    assert!(
        shown.starts_with("Copies take 18 % of the CPU time of redis-server in A and 18 % in B"),
        "{shown}"
    );
    for line in ["memmove in sdsrange", "memmove in sdsnew"] {
        let row = shown.lines().find(|row| row.contains(line)).unwrap_or_else(|| panic!("{line}: {shown}"));
        assert_eq!(row.matches('–').count(), 3, "{shown}");
    }
    let html = scratch.join("diff.html");
    let comparison = diff(&[text(&sample), text(&after), "--json", "--html", text(&html)]);
    let comparison: Value = serde_json::from_slice(&comparison.output).expect("JSON");
    assert_eq!((&comparison["format"], &comparison["schema"]), (&"uncopy-profile-diff".into(), &1.into()));
    let only = |side: &str| {
        let sites = comparison["sites"].as_array().expect("sites").iter();
        sites
            .filter(|site| site[side].is_null())
            .map(|site| site["name"].as_str().expect("a name"))
            .collect::<Vec<_>>()
    };
    assert_eq!((only("b"), only("a")), (vec!["memmove in sdsrange"], vec!["memmove in sdsnew"]));
    assert!(std::fs::read_to_string(&html).expect("a page").contains("memmove in sdsnew"));

    let other_size = sample_text.replacen("\"min_size_bytes\": 16384", "\"min_size_bytes\": 4096", 1);
    let other_program =
        sample_text.replace("redis-server", "nginx").replace("\"place\": \"", "\"place\": \"ngx_");
    for (name, bytes, why) in [
        ("size.json", other_size.as_str(), "record both with the same --min-size"),
        ("program.json", &other_program, "no call is in both"),
        ("damaged.json", &sample_text[..sample_text.len() / 2], "damaged.json\" is not a profile: "),
        ("other.json", "{\"format\": \"uncopy-profile-diff\", \"version\": 1}", "its format is another"),
    ] {
        assert_ne!(bytes, sample_text);
        let file = scratch.write(name, bytes.as_bytes());
        for order in [[text(&sample), text(&file)], [text(&file), text(&sample)]] {
            let done = diff(&order);
            assert_eq!(done.status.code(), Some(1), "{name}: {}", done.errors);
            assert!(
                done.errors.starts_with("uncopy: ") && done.errors.contains(why),
                "{name}: {}",
                done.errors
            );
            assert!(done.output.is_empty());
        }
    }
    for wrong in [
        &[text(&sample)][..],
        &[text(&sample), text(&after), "--flamegraph", "-"],
        &[text(&sample), text(&after), "--pprof", "-"],
        &[],
    ] {
        assert_eq!(diff(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// A program that sends and receives over a TCP connection to itself.
const NEAR: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
near = socket.create_connection(listener.getsockname())
far = listener.accept()[0]
for number in range(20):
    near.sendall(bytes(100000))
    assert far.recv(100000, socket.MSG_WAITALL) == bytes(100000)
    near.sendall(bytes(20000))
    assert far.recv(20000, socket.MSG_WAITALL) == bytes(20000)
";

#[test]
fn profile_predicts_savings_of_lanes() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("profile");
    let (done, out) = profile(&scratch, &["--", "/usr/bin/python3", "-c", NEAR]);
    assert!(done.status.success(), "{}", done.errors);
    let profile = json(&out);
    let number =
        |name: &str| profile["prediction"]["lanes"][name].as_u64().unwrap_or_else(|| panic!("{name}"));
    // A receive that waits for all bytes may take several calls.
    assert!(number("of_bytes") >= 20 * 2 * 100_000 && number("of_bytes") <= 20 * 2 * 120_000, "{profile:#}");
    assert!(number("bytes") >= 20 * 100_000 && number("bytes") <= 20 * 2 * 100_000, "{profile:#}");
    assert!(number("saved_ns") > 100_000, "{profile:#}");
    let report = run(&uncopy(&["report", text(&out)]), &scratch, "report");
    assert!(output_text(&report).contains("--lanes at both ends"), "{}", output_text(&report));
}
