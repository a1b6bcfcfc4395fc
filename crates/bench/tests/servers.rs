//! Packaged web servers, proxies and caches, plain and under uncopy with everything elided, as short as can be: every
//! byte that arrives is the right one. Interrupted in the middle, nothing of them is left. Figures are not looked at.

mod command;
mod harness;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command::uncopy;
use harness::{scratch, verified};

#[test]
fn nginx_delivers_files_and_what_it_is_a_proxy_of() {
    verified(&["nginx-static", "nginx-proxied"]);
}

#[test]
fn apache_delivers_files_and_what_it_is_a_proxy_of() {
    verified(&["apache-static", "apache-proxied"]);
}

#[test]
fn lighttpd_delivers_files() {
    verified(&["lighttpd"]);
}

#[test]
fn haproxy_passes_bodies_on() {
    verified(&["haproxy"]);
}

#[test]
fn varnish_delivers_what_it_keeps() {
    verified(&["varnish"]);
}

#[test]
fn squid_delivers_what_it_keeps() {
    verified(&["squid"]);
}

#[test]
fn socat_and_stunnel_pass_messages_on() {
    verified(&["socat", "socat-short", "stunnel"]);
}

#[test]
fn icecast_sends_a_file_to_listeners() {
    verified(&["icecast-file"]);
}

#[test]
fn icecast_relays_a_stream_to_listeners() {
    verified(&["icecast-relay"]);
}

/// Processes that work in a directory below `directory`, or did before it was removed.
fn working_in(directory: &Path) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let works_there = |process: &PathBuf| {
        std::fs::read_link(process.join("cwd")).is_ok_and(|place| place.starts_with(directory))
    };
    processes.map(|entry| entry.path()).filter(works_there).collect()
}

/// Ends `bench` by SIGINT as soon as `processes` processes work for it.
fn interrupt(mut bench: Child, scratch: &Path, processes: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while working_in(scratch).len() < processes {
        assert!(bench.try_wait().expect("a child").is_none(), "it ended before it was interrupted");
        assert!(Instant::now() < deadline, "only {:?} were started", working_in(scratch));
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = i32::try_from(bench.id()).expect("a pid");
    // SAFETY: the child has not been waited for, so the pid is still its own.
    unsafe { libc::kill(pid, libc::SIGINT) };
    while bench.try_wait().expect("a child").is_none() {
        if Instant::now() > deadline {
            bench.kill().expect("it is still there");
            panic!("it did not end when it was interrupted");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = bench.wait().expect("a child");
    assert_eq!((status.code(), status.signal()), (Some(128 + libc::SIGINT), None));
    let left = working_in(scratch);
    assert!(left.is_empty(), "still there: {left:?}");
    let files: Vec<_> = std::fs::read_dir(scratch).expect("the directory").flatten().collect();
    assert!(files.is_empty(), "left behind: {files:?}");
    std::fs::remove_dir(scratch).expect("empty");
}

/// Interrupts the measurement of `case` when it has `processes` processes.
fn interrupted(case: &str, processes: usize) {
    let scratch = scratch(&format!("interrupted-{case}"));
    let bench = Command::new(uncopy())
        .args(["bench", "apps", case, "--quick", "--rounds=1000", "--seconds=60"])
        .env("TMPDIR", &scratch)
        .env_remove("LD_PRELOAD")
        .env_remove("UNCOPY_BENCH_EXE")
        .env_remove("UNCOPY_BIN_DIR")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    interrupt(bench, &scratch, processes);
}

#[test]
fn an_interrupted_varnish_leaves_neither_manager_nor_worker_nor_origin() {
    interrupted("varnish", 3);
}

#[test]
fn an_interrupted_relay_leaves_no_icecast() {
    interrupted("icecast-relay", 1);
}

#[test]
fn an_interrupted_proxy_leaves_neither_it_nor_its_origin() {
    interrupted("nginx-proxied", 2);
}
