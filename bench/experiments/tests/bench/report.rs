//! `uncopy-bench report` by the built command: its pages exist, follow from results.json alone, and report failures.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::command::{limited, program};
use serde_json::Value;

/// A directory that is removed after the test.
struct ScratchDirectory(PathBuf);

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a directory");
    path
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn report(words: &[&str], out: &Path, path: Option<&str>) -> Output {
    let mut command = limited(300);
    command.arg(program()).args(["report"]).args(words).arg("--out").arg(out);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    command.output().expect("timeout runs")
}

fn read(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Files of the report, relative to its directory.
const FILES: [&str; 3] = ["results.md", "results/details.md", "results/chart.svg"];

#[test]
fn pages_follow_from_the_results_and_runs_are_kept() {
    let directory = ScratchDirectory(scratch("report-pages"));
    let (first, second) = (directory.0.join("first"), directory.0.join("second"));
    for runs in 1..=2 {
        let output = report(&["--quick", "--only", "tracking"], &first, None);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(stderr.contains("uncopy: 1 of 1, "), "{stderr}");
        let json: Value = serde_json::from_str(&read(&first, "results/results.json")).expect("JSON");
        assert_eq!(json["runs"].as_array().map(Vec::len), Some(runs), "{json:#}");
        let tracking = &json["runs"][runs - 1]["experiments"][0];
        assert_eq!((&tracking["id"], &tracking["failure"]), (&"tracking".into(), &Value::Null));
        assert!(tracking["cases"].as_array().is_some_and(|cases| !cases.is_empty()), "{tracking:#}");
    }
    // Entries of an interrupted run that have figures are not measured again.
    let output = report(&["--quick", "--only", "tracking", "--resume"], &first, None);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(0) && !stderr.contains("of 1"), "{stderr}");

    let details = read(&first, "results/details.md");
    assert!(details.contains("Cost of tracking a copy") && details.contains("zIO, §5.2.1"), "{details}");
    assert!(details.contains("`uncopy-bench tracking --quick`"), "{details}");
    assert!(details.contains("<!-- table: tracking -->\n```text\n"), "{details}");
    let page = read(&first, "results.md");
    assert!(page.contains("Run 2: ") && page.contains("(results/chart.svg)"), "{page}");
    assert!(read(&first, "results/chart.svg").starts_with("<svg"));

    let from = first.join("results/results.json");
    let output = report(&["--from", from.to_str().expect("UTF-8")], &second, None);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for name in FILES {
        let (page, again) = (read(&first, name), read(&second, name));
        let differing = page.lines().zip(again.lines()).find(|(line, other)| line != other);
        assert!(differing.is_none() && page.len() == again.len(), "{name}: {differing:#?}");
    }
    let output = report(&["--only", "tracking"], &first, None);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && stderr.contains("differ in --quick"), "{stderr}");
}

#[test]
fn a_failed_experiment_is_reported_and_the_others_are_measured() {
    let directory = ScratchDirectory(scratch("report-failure"));
    let empty = directory.0.join("empty");
    std::fs::create_dir_all(&empty).expect("a directory");
    let words = ["--quick", "--only", "redis-get,tracking"];
    let output = report(&words, &directory.0, Some(empty.to_str().expect("UTF-8")));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("no results for redis-get"), "{stderr}");
    let (page, details) = (read(&directory.0, "results.md"), read(&directory.0, "results/details.md"));
    assert!(page.contains("Redis GET 1 MiB: "), "{page}");
    assert!(
        details.contains("**No results**: ") && details.contains("uncopy-bench tracking --quick"),
        "{details}"
    );
}

#[test]
fn results_of_something_else_are_refused() {
    let directory = ScratchDirectory(scratch("report-refused"));
    let other = directory.0.join("other.json");
    std::fs::write(&other, "{\"format\": \"uncopy-profile\"}").expect("a file");
    let output = report(&["--from", other.to_str().expect("UTF-8")], &directory.0, None);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("other.json: not a results file"), "{stderr}");
    assert!(!directory.0.join("results.md").exists());
}
