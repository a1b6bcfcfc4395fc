//! The service's control socket and files: invalid clients, and the access rights of others.

use std::os::unix::fs::PermissionsExt as _;
use uncopy_tests::artifacts::{plain_only, script};
use uncopy_tests::net_service::NetService;
use uncopy_tests::{Mode, Program, Scratch};

/// Returns the protocol version, from the source in `crates/netstack/net`.
fn protocol_version() -> &'static str {
    let source = include_str!("../../../../../crates/netstack/net/src/message.rs");
    let line = source.lines().find_map(|line| line.strip_prefix("const VERSION: u64 = "));
    line.and_then(|line| line.strip_suffix(';')).expect("a version")
}

/// Runs a scenario of `net_hostile.py`, after which the service must have the same resources.
fn run_hostile_scenario(scenario: &str) {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-hostile");
    let service = NetService::start(&scratch, &[]);
    let pid = service.list()["pid"].to_string();
    let done = Program::new("/usr/bin/python3")
        .args([script("net_hostile.py")])
        .args([scenario.as_ref(), service.control().as_os_str()])
        .args([pid.as_str(), protocol_version()])
        .mode(Mode::Plain)
        .start(&scratch, "hostile")
        .finish();
    assert!(done.status.success() && done.text().contains("well"), "{scenario}: {}", done.text());
    service.wait_until_no_connections();
    service.stop();
}

#[test]
fn several_descriptors_in_one_message_close_the_control_connection() {
    run_hostile_scenario("several descriptors");
}

#[test]
fn malformed_requests_close_only_their_control_connection() {
    run_hostile_scenario("garbage");
}

#[test]
fn clients_killed_at_each_step_leak_nothing() {
    run_hostile_scenario("deaths");
}

#[test]
fn connections_passed_over_a_control_connection_are_bounded() {
    run_hostile_scenario("lent");
}

#[test]
fn service_out_of_descriptors_refuses_connections() {
    run_hostile_scenario("exhausted");
}

#[test]
fn other_users_connection_accesses_nothing_of_others() {
    run_hostile_scenario("another user");
}

#[test]
fn files_of_the_service_are_private() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-modes");
    let capture = scratch.join("packets");
    let service = NetService::start(&scratch, &["--pcap", capture.to_str().expect("UTF-8")]);
    let directory = service.control().parent().expect("a directory").to_owned();
    let mode = |path: &std::path::Path| path.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&capture), mode(&directory)), (0o600, 0o700));
    for folder in ["l", "lanes"] {
        assert_eq!(mode(&directory.join(folder)), 0o700, "{folder}");
    }
    service.stop();
    assert!(capture.metadata().expect("there").len() >= 24, "a header at least");
}
