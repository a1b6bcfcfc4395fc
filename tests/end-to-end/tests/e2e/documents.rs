//! Every JSON document has its version in the same field, with the value that the reference lists.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use uncopy_tests::artifacts::{bin_dir, skipped};
use uncopy_tests::net_service::NetService;
use uncopy_tests::{Program, Scratch};

const CHAINS: &str = env!("CARGO_BIN_EXE_chains");
const REFERENCE: &str = include_str!("../../../../docs/reference.md");

fn uncopy(scratch: &Scratch, arguments: &[&str]) -> Program {
    Program::new(bin_dir().join("uncopy")).args(arguments).env("XDG_CACHE_HOME", scratch.path())
}

/// Returns the command's standard output, or its standard error if there is none.
fn command_output(scratch: &Scratch, arguments: &[&str]) -> Vec<u8> {
    let done = uncopy(scratch, arguments).start(scratch, "uncopy").finish();
    if done.output.is_empty() { done.errors.into_bytes() } else { done.output }
}

/// Expects the document to have the version that the reference lists.
fn expect_schema(document: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let value: Value =
        serde_json::from_slice(bytes).unwrap_or_else(|why| panic!("{document}: {why}: {text}"));
    let row = REFERENCE.lines().find(|line| line.starts_with(&format!("| {document} |")));
    let row = row.unwrap_or_else(|| panic!("the reference does not list {document}"));
    let written = row.split('|').nth(2).expect("a column").trim();
    assert_eq!(value["schema"].to_string(), written, "{document}: {text}");
}

/// Returns the commands whose help lists `--json`, as typed.
fn commands_with_json() -> BTreeSet<String> {
    let help = |arguments: &[&str]| {
        let shown =
            Command::new(bin_dir().join("uncopy")).args(arguments).arg("--help").output().expect("started");
        String::from_utf8(shown.stdout).expect("text")
    };
    let subcommands = |help: &str| -> Vec<String> {
        let commands =
            help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        let arguments = commands.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        arguments.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
    };
    let mut found = BTreeSet::new();
    for command in subcommands(&help(&[])) {
        let text = help(&[&command]);
        if text.contains("--json") && subcommands(&text).is_empty() {
            found.insert(command);
            continue;
        }
        for word in subcommands(&text).iter().filter(|word| *word != "help") {
            if help(&[&command, word]).contains("--json") {
                found.insert(format!("{command} {word}"));
            }
        }
    }
    found
}

#[test]
fn every_json_document_has_its_schema_version() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("documents");
    let file = |name: &str| scratch.join(name).to_str().expect("UTF-8").to_owned();
    let read = |name: &str| std::fs::read(scratch.join(name)).expect("written");

    let tested = ["doctor", "log ls", "net ls", "net stats", "profile", "ps", "report"];
    assert_eq!(commands_with_json(), tested.map(str::to_owned).into());

    expect_schema("`ps`", &command_output(&scratch, &["ps", "--json"]));
    expect_schema("`doctor`", &command_output(&scratch, &["doctor", "--json"]));
    expect_schema("`doctor --calibrate`", &command_output(&scratch, &["doctor", "--calibrate", "--json"]));
    expect_schema("`log ls`", &command_output(&scratch, &["log", "ls", "--json", &file("")]));
    // The document is on standard error: standard output belongs to the command.
    let bench = Program::new(bin_dir().join("uncopy-bench")).args(["load", "--json", "--", "/bin/true"]);
    let done = bench.start(&scratch, "uncopy-bench").finish();
    expect_schema("`uncopy-bench`", done.errors.as_bytes());

    let (explained, stats) = (file("explained.json"), file("stats.json"));
    let (expected, profile) = (file("expected"), file("profile.json"));
    let run = ["run", "--explain", &explained, "--stats", &stats, "--", CHAINS, &expected, "only"];
    let _ = command_output(&scratch, &run);
    expect_schema("`run --explain`", &read("explained.json"));
    expect_schema("`stats`", &read("stats.json"));

    let _ = command_output(&scratch, &["profile", "-o", &profile, "--", CHAINS, &expected, "only"]);
    expect_schema("`report`", &read("profile.json"));
    expect_schema("`report`", &command_output(&scratch, &["report", "--json", &profile]));
    expect_schema(
        "`report --diff`",
        &command_output(&scratch, &["report", "--json", "--diff", &profile, &profile]),
    );

    if super::attach::may_sample("every_json_document_has_its_schema_version") {
        let pid = std::process::id().to_string();
        let sampled = command_output(&scratch, &["profile", "--json", "--duration", "0.1", "--pid", &pid]);
        expect_schema("`profile --pid`, `profile -a`", &sampled);
    }

    let service = NetService::start(&scratch, &[]);
    expect_schema("`net ls`, `net stats`", service.document("ls").to_string().as_bytes());
    expect_schema("`net ls`, `net stats`", service.document("stats").to_string().as_bytes());
}
