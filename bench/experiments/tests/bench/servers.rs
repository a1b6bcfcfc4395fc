//! Packaged web servers, proxies and caches, plain and under uncopy with everything elided, as briefly as possible:
//! every byte received is right. An interrupted measurement leaves no process. Figures are not checked.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use uncopy_testbed::Process;
use uncopy_testbed::network::wait_until;

use crate::command::{expect_empty, program};
use crate::harness::{expect_verified, scratch};

#[test]
#[ignore = "for make test-all: e2e/nginx.rs compares every byte of the same server"]
fn nginx_delivers_files_and_what_it_is_a_proxy_of() {
    expect_verified(&["nginx-static", "nginx-proxied"]);
}

#[test]
fn apache_delivers_files_and_proxied_answers() {
    expect_verified(&["apache-static", "apache-proxied"]);
}

#[test]
fn lighttpd_delivers_files() {
    expect_verified(&["lighttpd"]);
}

#[test]
#[ignore = "for make test-all: e2e/haproxy.rs compares every byte of the same server"]
fn haproxy_passes_bodies_on() {
    expect_verified(&["haproxy"]);
}

#[test]
#[ignore = "for make test-all: e2e/varnish.rs compares every byte of the same server"]
fn varnish_delivers_what_it_keeps() {
    expect_verified(&["varnish"]);
}

#[test]
fn squid_delivers_cached_files() {
    expect_verified(&["squid"]);
}

#[test]
fn socat_and_stunnel_pass_messages_on() {
    expect_verified(&["socat", "socat-short", "stunnel"]);
}

#[test]
#[ignore = "for make test-all: e2e/icecast.rs compares every byte of the same server"]
fn icecast_sends_a_file_to_listeners() {
    expect_verified(&["icecast-file"]);
}

#[test]
#[ignore = "for make test-all: a minute of two processors"]
fn icecast_relays_a_stream_to_listeners() {
    expect_verified(&["icecast-relay"]);
}

/// Returns the processes whose working directory is below `directory`, even if that was removed.
fn working_in(directory: &Path) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let works_there = |process: &PathBuf| {
        std::fs::read_link(process.join("cwd")).is_ok_and(|place| place.starts_with(directory))
    };
    processes.map(|entry| entry.path()).filter(works_there).collect()
}

/// Interrupts the measurement of `case` once it has `processes` processes.
fn interrupt_case(case: &str, processes: usize) {
    const LIMIT: Duration = Duration::from_secs(60);
    let scratch = scratch();
    let mut command = Command::new(program());
    command.args(["apps", case, "--quick", "--rounds=1000", "--seconds=60"]);
    for variable in ["LD_PRELOAD", "UNCOPY_BENCH_EXE", "UNCOPY_BIN_DIR"] {
        command.env_remove(variable);
    }
    command.env("TMPDIR", scratch.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = Process::start(command, "uncopy-bench").expect("it starts");
    let at_work = wait_until(LIMIT, || {
        assert!(!bench.has_ended(), "it ended before it was interrupted");
        (working_in(scratch.path()).len() >= processes).then_some(())
    });
    assert!(at_work.is_some(), "only {:?} were started", working_in(scratch.path()));
    bench.signal(Signal::INT);
    let status = bench.wait(LIMIT).expect("a child").expect("it did not end when it was interrupted");
    assert_eq!((status.code(), status.signal()), (Some(128 + libc::SIGINT), None));
    let left = working_in(scratch.path());
    assert!(left.is_empty(), "still there: {left:?}");
    expect_empty(&scratch);
}

#[test]
fn an_interrupted_varnish_leaves_neither_manager_nor_worker_nor_origin() {
    interrupt_case("varnish", 3);
}

#[test]
fn an_interrupted_relay_leaves_no_icecast() {
    interrupt_case("icecast-relay", 1);
}

#[test]
fn an_interrupted_proxy_leaves_neither_it_nor_its_origin() {
    interrupt_case("nginx-proxied", 2);
}
