//! `uncopy-bench load` and `lab`, as briefly as possible, by the built command: every byte of every way was verified,
//! the soakers end, a measured command is left as it is. Figures are not checked.

use std::process::Output;

use serde_json::Value;
use uncopy_core::random::test_size;

use crate::command::{build_tmp, limited, program, run, scratch_in};

/// Runs `uncopy-bench` with `words` and an own directory for temporary files, which must be empty at the end.
fn bench(words: &[&str]) -> Output {
    let directory = scratch_in(build_tmp());
    run(limited(300).arg(program()).args(words), &directory)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stderr), text(&output.stdout));
    serde_json::from_str(&text(&output.stdout)).expect("JSON")
}

/// Asserts that every way delivers verified bytes over `network` at each of these rates.
fn expect_loads(network: &str, rates: &[u32]) {
    // A rate may be 0: the host may stop the machine, or soakers of other tests may hold the processors, for longer
    // than a slice. Verified bytes are those of the whole connection.
    let given: Vec<String> = rates.iter().map(u32::to_string).collect();
    let given = format!("--rates={}", given.join(","));
    let words = ["load", &given, "--rounds=2", "--seconds=0.3", "--json", "--network", network];
    let json = json(&bench(&words));
    assert_eq!(json["machine"]["network"], network);
    assert!(json["calibration"]["work_per_s"]["median"].as_f64() > Some(0.0), "{json:#}");
    assert!(json["calibration"]["soakers"].as_u64() > Some(0), "{json:#}");
    assert_eq!(json["comparisons"].as_array().map(Vec::len), Some(rates.len()));
    for comparison in json["comparisons"].as_array().into_iter().flatten() {
        assert_eq!(comparison["verified"], true, "{comparison:#}");
        for side in ["plain", "write", "sendfile", "mmap-send", "splice", "zerocopy", "twin", "uncopy"] {
            let figures = &comparison["sides"][side];
            assert!(figures["verified_bytes"].as_u64() > Some(0), "{side}: {figures:#}");
            assert!(figures["megabits_per_s"]["median"].is_f64(), "{side}: {figures:#}");
        }
    }
}

#[test]
fn every_way_delivers_verified_bytes_while_soakers_soak() {
    expect_loads("loopback", if test_size() < 10 { &[2000] } else { &[92, 2000] });
}

#[test]
#[ignore = "for make test-all: a minute of two processors"]
fn every_way_delivers_verified_bytes_across_a_link() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: load::every_way_delivers_verified_bytes_across_a_link: it needs root");
        return;
    }
    expect_loads("veth-1500", &[92, 2000]);
}

#[test]
fn a_loads_table_and_plot_have_each_way() {
    let plot = build_tmp().join(format!("load-{}.svg", std::process::id()));
    let path = plot.to_str().expect("UTF-8");
    let words = [
        "load",
        "--rates=500",
        "--ways=sendfile",
        "--rounds=1",
        "--seconds=0.05",
        "--lines=0",
        "--svg",
        path,
    ];
    let output = bench(&words);
    let drawn = std::fs::read_to_string(&plot).expect("the plot");
    std::fs::remove_file(&plot).expect("it was just read");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("\n500 Mbit/s  send ") && table.contains("\n500 Mbit/s  sendfile "), "{table}");
    assert!(table.contains("calibration: ") && drawn.contains("(loopback)"), "{table}{drawn}");
}

#[test]
fn a_measured_command_runs_unchanged() {
    let words =
        ["load", "--seconds=0.05", "--json", "--", "sh", "-c", "echo \"its $1\"; exit 7", "name", "output"];
    let output = bench(&words);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "its output\n");
    let report: Value = serde_json::from_str(&text(&output.stderr)).expect("JSON");
    assert_eq!(report["exit_status"], 7);
    assert!(report["getrusage_user_s"].is_number() && report["elapsed_s"].as_f64() > Some(0.0), "{report:#}");
    let words = ["load", "--seconds=0.05", "--", "sh", "-c", "kill -9 $$"];
    assert_eq!(bench(&words).status.code(), Some(128 + 9));
    let output = bench(&["load", "--seconds=0.05", "--", "/nonexistent/command"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nonexistent/command"));
}

#[test]
fn the_labs_file_arrives_by_each_way_and_the_times_are_explained() {
    let json = json(&bench(&["lab", "--size=3000000", "--rounds=1", "--json"]));
    let comparison = &json["comparisons"][0];
    for side in ["plain", "sendfile", "uncopy"] {
        assert_eq!(comparison["sides"][side]["verified_bytes"], 6_000_000, "{side}: {comparison:#}");
    }
    assert_eq!(json["lab"].as_array().map(Vec::len), Some(3));
    assert!(json["explanation"][0].as_str().is_some_and(|line| line.contains("was the fastest")), "{json:#}");
    let output = bench(&["lab", "--size=100000", "--rounds=1"]);
    let table = text(&output.stdout);
    assert!(table.contains("$ sendfile\nTime taken: "), "{table}");
}
