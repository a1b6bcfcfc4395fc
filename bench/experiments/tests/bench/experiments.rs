//! Every experiment of `uncopy-bench`, as briefly as possible, by the built command: the output is well-formed, every
//! byte was verified, nothing is left behind. Figures are not checked.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output};

use serde_json::Value;
use uncopy_testbed::TemporaryDirectory;
use uncopy_testbed::network::wait_until;

use crate::command::{build_tmp, expect_empty, limited, program, scratch_in};

/// Options of the shortest possible measurement.
const SHORT: [&str; 8] = [
    "--quick",
    "--processes=1",
    "--rounds=1",
    "--seconds=0.01",
    "--slice=0.01",
    "--warm-up=0.4",
    "--keep-disturbed",
    "--no-idle-loops",
];

/// A test's own directory for temporary files, removed after the test.
struct Scratch(TemporaryDirectory);

impl Scratch {
    fn new() -> Self {
        Self(scratch_in(build_tmp()))
    }

    fn bench(&self, words: &[&str]) -> Output {
        let mut command = limited(300);
        command.arg(program()).args(words).env("TMPDIR", self.0.path());
        command.output().expect("timeout runs")
    }

    /// Runs an experiment and returns its JSON and its plot.
    fn experiment(&self, words: &[&str]) -> (Value, String) {
        let plot = self.0.join("plot.svg");
        let form = ["--json", "--svg", plot.to_str().expect("UTF-8")];
        let output = self.bench(&[words, &form].concat());
        let (text, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{words:?}: {stderr}{text}");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        assert!(json["machine"]["kernel"].is_string(), "{json:#}");
        for comparison in comparisons(&json) {
            assert_eq!(comparison["verified"], true, "{comparison:#}");
        }
        let svg = std::fs::read_to_string(&plot).expect("the plot");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        std::fs::remove_file(&plot).expect("the plot");
        expect_empty(&self.0);
        (json, svg)
    }
}

fn comparisons(json: &Value) -> &[Value] {
    json["comparisons"].as_array().map_or(&[], Vec::as_slice)
}

fn titles(json: &Value) -> Vec<&str> {
    comparisons(json).iter().filter_map(|comparison| comparison["experiment"].as_str()).collect()
}

/// Asserts that each comparison has these sides with throughput, all latencies, processor time and verified bytes.
fn assert_figures(json: &Value, sides: &[&str]) {
    for comparison in comparisons(json) {
        for side in sides {
            let figures = &comparison["sides"][side];
            for key in [
                "operations_per_s",
                "latency_p50_us",
                "latency_p99_us",
                "server_cpu_us_per_mib",
                "server_resident_bytes",
            ] {
                assert!(
                    figures[key]["median"].as_f64().is_some_and(|value| value > 0.0),
                    "{side} {key}: {comparison:#}"
                );
            }
            assert!(
                figures["verified_bytes"].as_u64().is_some_and(|bytes| bytes > 0),
                "{side}: {comparison:#}"
            );
            let ratio = &figures["operations_per_s"]["ratio_to_plain"]["median"];
            assert_eq!(ratio.is_number(), *side != "plain", "{side}: {comparison:#}");
        }
    }
}

#[test]
fn copies_compares_every_side_with_plain_and_with_the_limit() {
    let scratch = Scratch::new();
    let words = [
        &["echo", "copies", "--copies=0,3", "--size=70000", "--sides=uncopy,heap-only,limit,always"],
        &SHORT[..],
    ];
    let (json, svg) = scratch.experiment(&words.concat());
    assert_eq!(titles(&json), ["echo 70000 B, 0 copies", "echo 70000 B, 3 copies"]);
    assert_figures(&json, &["plain", "uncopy", "heap_only", "always"]);
    let copied = &comparisons(&json)[1];
    assert_eq!(copied["parameters"]["copies"], 3.0);
    assert!(copied["sides"]["zero_copy_limit"]["operations_per_s"]["ratio_to_plain"]["median"].is_number());
    assert!(copied["sides"]["uncopy"]["operations_per_s"]["ratio_to_zero_copy_limit"]["median"].is_number());
    assert!(comparisons(&json)[0]["sides"]["zero_copy_limit"].is_null(), "plain is the limit without copies");
    for name in ["plain", "uncopy", "heap only", "0 copies", "always"] {
        assert!(svg.contains(name), "{name}");
    }
}

/// Redis copies large values more than once; nginx with sendfile copies nothing itself.
#[test]
fn copy_share_samples_plain_servers() {
    let mut probe = limited(30);
    let pid = std::process::id().to_string();
    probe.arg(program().with_file_name("uncopy")).args(["profile", "--duration", "0.001", "--pid", &pid]);
    let probed = probe.output().expect("timeout runs");
    if !probed.status.success() {
        let why = String::from_utf8_lossy(&probed.stderr);
        return eprintln!("skipped: experiments::copy_share_samples_plain_servers: {}", why.trim());
    }
    let scratch = Scratch::new();
    let words = ["copy-share", "--quick", "--seconds=1", "--sizes=524288", "redis-set", "nginx-static"];
    let (json, svg) = scratch.experiment(&words);
    assert!(comparisons(&json).is_empty(), "{json:#}");
    let rows = json["copy_share"].as_array().expect("rows");
    let titles: Vec<&str> = rows.iter().filter_map(|row| row["title"].as_str()).collect();
    assert_eq!(titles, ["redis SET 512 KiB", "nginx 64 KiB, sendfile on", "nginx 64 KiB, sendfile off"]);
    for row in rows {
        let share = |name: &str| row[name].as_f64().expect("a share");
        assert!(row["samples"].as_u64() > Some(0), "{row:#}");
        let sum = share("program") + share("kernel_in") + share("kernel_out");
        assert!((0.0..=1.0).contains(&sum) && (sum - share("copy_share")).abs() < 1e-9, "{row:#}");
    }
    let share = |row: usize| rows[row]["program"].as_f64().expect("a share");
    assert!(share(0) > 0.02 && share(0) > share(1), "{json:#}");
    assert_eq!((rows[0]["paper"].as_str(), rows[1]["paper"].as_str()), (Some("60 %"), None));
    assert!(svg.contains("redis-set") && svg.contains("nginx-static"));
}

#[test]
fn sizes_measures_each_length() {
    let scratch = Scratch::new();
    let (json, _) = scratch.experiment(&[&["echo", "sizes", "--sizes=8192,65536"], &SHORT[..]].concat());
    assert_eq!(titles(&json), ["echo 8 KiB, 5 copies", "echo 64 KiB, 5 copies"]);
    assert_figures(&json, &["plain", "uncopy", "heap_only", "zero_copy_limit"]);
}

#[test]
fn threads_reports_the_scaling_of_each_side() {
    let scratch = Scratch::new();
    let (json, _) =
        scratch.experiment(&[&["echo", "threads", "--size=65536", "--sides=uncopy"], &SHORT[..]].concat());
    assert_figures(&json, &["plain", "uncopy"]);
    let scaling = json["scaling"].as_array().expect("entries");
    assert_eq!(scaling.len(), 6);
    assert_eq!((&scaling[0]["scaling"]["median"], &scaling[0]["side"]), (&1.0.into(), &"plain".into()));
    assert!(scaling[5]["scaling"]["median"].is_number() && scaling[5]["threads"] == 2.0, "{scaling:?}");
}

#[test]
fn touched_finds_a_break_even_for_each_length_and_number_of_copies() {
    let scratch = Scratch::new();
    let words =
        ["echo", "touched", "--shares=0,100", "--sizes=65536", "--copies=1,3", "--sides=uncopy,limit"];
    let (json, _) = scratch.experiment(&[&words[..], &SHORT].concat());
    assert_figures(&json, &["plain", "uncopy", "zero_copy_limit"]);
    let found = json["break_even"].as_array().expect("entries");
    assert_eq!(found.len(), 2);
    assert!(found[1]["copies"] == 3.0 && found[1]["lowest_ratio"].is_number(), "{found:?}");
}

#[test]
fn faults_counts_faults_and_times_pages() {
    let scratch = Scratch::new();
    let (json, _) = scratch.experiment(&[&["echo", "faults", "--pages=0,3"], &SHORT[..]].concat());
    assert_eq!(comparisons(&json).len(), 4);
    assert_figures(&json, &["plain", "uncopy", "always"]);
    for touching in [1, 3] {
        let sides = &comparisons(&json)[touching]["sides"];
        assert!(sides["plain"]["server_touch_ns_per_page"]["median"].is_number());
        assert!(sides["always"]["faults_per_operation"]["median"].is_number(), "{sides:#}");
    }
    // In random order too, all pages of a message are soon known, and copied.
    let sides = &comparisons(&json)[3]["sides"];
    assert!(sides["always"]["faults_per_operation"]["median"].as_f64() > Some(0.0), "{sides:#}");
}

#[test]
fn checksum_verifies_what_the_server_stored() {
    let scratch = Scratch::new();
    let (json, _) = scratch.experiment(
        &[&["echo", "checksum", "--sizes=20000,65536", "--sides=uncopy,always"], &SHORT[..]].concat(),
    );
    assert_eq!(titles(&json), ["store 20000 B, 2 copies", "store 64 KiB, 2 copies"]);
    assert_figures(&json, &["plain", "uncopy", "always"]);
}

#[test]
fn tracking_keeps_the_stated_number_of_views_alive() {
    let scratch = Scratch::new();
    let (json, _) = scratch.experiment(&["tracking", "--views=10,3000", "--calls=100", "--rounds=1"]);
    assert_eq!(titles(&json), ["copy of 4 KiB, 10 views", "copy of 4 KiB, 3000 views"]);
    for comparison in comparisons(&json) {
        assert_eq!(comparison["notes"].as_array().map(Vec::len), Some(0), "{comparison:#}");
        assert!(
            comparison["sides"]["always"]["verified_bytes"].as_u64() >= Some(10 * 4096),
            "{comparison:#}"
        );
    }
}

#[test]
fn redis_answers_every_load_with_the_right_values() {
    let scratch = Scratch::new();
    let logged = ["redis", "--sizes=65536", "--clients=2", "--workload=set,ycsb-a", "--sides=uncopy"];
    let (json, _) = scratch.experiment(&[&logged[..], &SHORT].concat());
    assert_eq!(titles(&json), ["redis SET 64 KiB", "redis YCSB A 64 KiB"]);
    assert_figures(&json, &["plain", "plain_again", "uncopy"]);
    let words = ["redis", "--sizes=65536", "--clients=2", "--workload=get,half", "--append-only=off"];
    let (json, svg) = scratch.experiment(&[&words[..], &SHORT].concat());
    let names = ["GET", "GET and SET"].map(|load| format!("redis {load} 64 KiB, no append-only file"));
    assert_eq!(titles(&json), names);
    let sides = ["plain_again", "uncopy", "heap_only", "tuned_glibc", "mimalloc", "jemalloc"];
    assert_figures(&json, &["plain"]);
    assert_figures(&json, &sides);
    for comparison in comparisons(&json) {
        assert!(comparison["best_rival"].is_string(), "{comparison:#}");
        let counts = &comparison["sides"]["uncopy"];
        for key in ["copied", "elided", "lent"] {
            assert!(counts[format!("{key}_bytes_per_operation")]["median"].is_number(), "{key}: {counts:#}");
        }
        let plain = &comparison["sides"]["plain"];
        assert!(plain["io_calls_per_operation"]["median"].as_f64() >= Some(1.0), "{plain:#}");
        let rounds = &comparison["samples"][0]["sides"]["plain"]["cpu_ns"];
        assert!(rounds[0].as_u64() > Some(0), "{comparison:#}");
    }
    assert!(svg.contains("heap only"), "{svg}");
}

#[test]
fn small_measures_every_row() {
    let scratch = Scratch::new();
    let words = [&["small", "--starts=2", "--clients=2"], &SHORT[..]].concat();
    let (json, svg) = scratch.experiment(&words);
    let rows = [
        "memcpy of 64 B",
        "start of true",
        "start of cat",
        "redis SET 64 B",
        "redis GET 64 B",
        "memcached GET 100 B",
        "nginx 1 KiB, sendfile on",
    ];
    assert_eq!(titles(&json), rows);
    assert!(rows.iter().all(|row| svg.contains(row)), "{svg}");
}

#[test]
fn memcached_compares_twin_memory_with_plain_memcached() {
    let scratch = Scratch::new();
    let words = [&["memcached", "--sizes=100,70000"], &SHORT[..]].concat();
    if !["memcached-plain", "memcached-twin"].iter().all(|name| program().with_file_name(name).is_file()) {
        let output = scratch.bench(&words);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("run make memcached first"));
        eprintln!(
            "skipped: experiments::memcached_compares_twin_memory_with_plain_memcached: run make memcached first"
        );
        return;
    }
    let (json, svg) = scratch.experiment(&words);
    let rows = ["memcached GET 100 B", "memcached GET 70000 B", "memcached 64 KiB, 10 % SET"];
    assert_eq!(titles(&json), rows);
    assert!(rows.iter().all(|row| svg.contains(row)), "{svg}");
    assert_figures(&json, &["plain", "uncopy", "twin"]);
}

#[test]
fn files_measures_each_way_against_read_and_send() {
    let scratch = Scratch::new();
    let words = [&["files", "--sizes=1024,70000", "--threads=1", "--clients=2"], &SHORT[..]].concat();
    let (json, svg) = scratch.experiment(&words);
    assert_eq!(titles(&json), ["GET 1 KiB, 1 thread", "GET 70000 B, 1 thread"]);
    let ways = ["mmap-send", "mmap-sendfile", "read-sendfile", "sendfile", "splice", "zerocopy", "twin"];
    assert_figures(&json, &["plain", "uncopy"]);
    assert_figures(&json, &ways);
    assert_eq!(json["files"].as_array().map(Vec::len), Some(2 * (ways.len() + 3)));
    assert!(ways.iter().all(|way| svg.contains(way)), "{svg}");
}

#[test]
fn store_finds_in_files_what_was_appended_and_synced() {
    let scratch = Scratch::new();
    let directory = format!("--dir={}", scratch.0.path().display());
    let words = ["store", "--sizes=4096", "--threads=1,2", "--values=65536", "--sides=preallocated,uncopy"];
    let (json, svg) =
        scratch.experiment(&[&words[..], &["--fsync=always,everysec", &directory], &SHORT].concat());
    let rows = [
        "append 4 KiB, 1 thread",
        "append 4 KiB, 2 threads",
        "append 64 KiB, 1 thread, not synced",
        "redis SET 64 KiB, always",
        "redis SET 64 KiB, everysec",
        "redis YCSB A 64 KiB, always",
        "redis YCSB A 64 KiB, everysec",
        "sqlite, a row of 1 KiB",
    ];
    assert_eq!(titles(&json), rows);
    assert!(rows.iter().all(|row| svg.contains(row)), "{svg}");
    assert_figures(&json, &["plain", "plain_again", "uncopy"]);
    for (comparison, row) in comparisons(&json).iter().zip(rows) {
        let preallocated = &comparison["sides"]["preallocated"];
        assert_eq!(preallocated["verified_bytes"].is_number(), row.starts_with("append"), "{comparison:#}");
        let plain = &comparison["sides"]["plain"];
        assert!(plain["latency_p999_us"]["median"].as_f64() > Some(0.0), "{plain:#}");
        // Redis that syncs each second writes nothing while a sync is under way.
        let least = if row.ends_with("everysec") { 0.0 } else { 1024.0 };
        assert!(plain["written_bytes_per_operation"]["median"].as_f64() >= Some(least), "{plain:#}");
    }
}

#[test]
fn latencies_are_measured_beside_something_large() {
    let scratch = Scratch::new();
    let words = ["latency", "--stored=4194304"];
    let (json, _) = scratch.experiment(&[&words[..], &SHORT].concat());
    let rows = [
        "GET 1 KiB beside GETs of 10 MiB",
        "SET 1 KiB beside BGREWRITEAOF",
        "GET 64 KiB after 100 ms",
        "SET 1 KiB, BGSAVE of 4 MiB",
    ];
    assert_eq!(titles(&json), rows);
    assert_figures(&json, &["plain", "plain_again", "uncopy"]);
    for comparison in comparisons(&json) {
        let plain = &comparison["sides"]["plain"];
        assert!(plain["latency_p999_us"]["median"].as_f64() > Some(0.0), "{comparison:#}");
    }
}

#[test]
fn files_in_memory_are_not_synced() {
    let scratch = Scratch::new();
    let output = scratch.bench(&["store", "append", "--quick", "--dir=/dev/shm"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("uncopy: /dev/shm ") && stderr.contains("--dir"), "{stderr}");
}

#[test]
fn memory_follows_both_servers_to_the_end() {
    let scratch = Scratch::new();
    let (json, _) = scratch.experiment(&["memory", "--minutes=0.01", "--keys=10", "--largest=200000"]);
    let course = json["course"].as_array().expect("moments");
    assert!(course.len() >= 2, "{course:?}");
    for moment in course {
        for side in ["plain", "uncopy", "heap_only"] {
            assert!(moment["resident_bytes"][side].as_u64() > Some(0), "{moment}");
        }
    }
    let memory = json["memory"].as_array().expect("sides");
    assert!(memory.len() == 4 && memory[1]["highest_part_of_bound"].is_number(), "{memory:?}");
    assert!(comparisons(&json)[0]["sides"]["uncopy"]["verified_bytes"].as_u64() > Some(0));
}

#[test]
fn the_table_has_a_line_for_each_side_and_the_legend() {
    let scratch = Scratch::new();
    let words = [&["echo", "copies", "--copies=1", "--size=20000"], &SHORT[..]].concat();
    let output = scratch.bench(&words);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in
        ["plain again", "uncopy", "heap only", "0 copies", "p99 µs", "CPU µs/op", "of limit: ", "verdicts, "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_plot_that_cannot_be_written_fails_the_command() {
    let scratch = Scratch::new();
    let words =
        ["echo", "copies", "--copies=0", "--size=1000", "--sides=plain", "--svg=/nonexistent/plot.svg"];
    let output = scratch.bench(&[&words[..], &SHORT].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("uncopy: writing /nonexistent/plot.svg: "), "{stderr}");
}

#[test]
fn an_interrupted_experiment_leaves_nothing_behind() {
    let scratch = Scratch::new();
    // A session of its own, whose priority the experiment raises if the kernel has that; the shell prints it twice.
    let script = "session() { cat /proc/$$/autogroup 2>/dev/null || echo none; }
        session; \"$@\" >/dev/null 2>&1 & echo $!; wait $!; status=$?; session; exit $status";
    let mut child = Command::new("setsid")
        .args(["--wait", "sh", "-c", script, "sh"])
        .arg(program())
        .args(["echo", "copies", "--copies=0", "--seconds=60", "--rounds=1000"])
        .env("TMPDIR", scratch.0.path())
        .env_remove("LD_PRELOAD")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines =
        BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("text"));
    let before = lines.next().expect("the session");
    let pid: i32 = lines.next().expect("a pid").parse().expect("a number");
    let entries = || std::fs::read_dir(scratch.0.path()).expect("the directory").count();
    let limit = std::time::Duration::from_secs(60);
    // The server's directory is created after the signal handler is installed.
    let is_there = wait_until(limit, || {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before it was interrupted");
        (entries() > 0).then_some(())
    });
    assert!(is_there.is_some(), "it made no directory for its server");
    // SAFETY: kill(2) accesses no memory of ours; the live shell still has `pid` as its child.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    let status = wait_until(limit, || child.try_wait().expect("a child"));
    if status.is_none() {
        // SAFETY: kill(2) accesses no memory of ours; the shell has not ended, so `pid` is its child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        panic!("it did not end when it was interrupted");
    }
    assert_eq!(status.and_then(|status| status.code()), Some(128 + libc::SIGTERM));
    assert_eq!(entries(), 0);
    assert_eq!(lines.next().as_ref(), Some(&before), "its session's priority is another one");
}
