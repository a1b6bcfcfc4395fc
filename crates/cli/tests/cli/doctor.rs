//! `uncopy doctor`: its report, its verdict, and agreement with `run`.

use crate::stage::{NOBODY, Stage, finish, is_root, skip};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the report as JSON, and the exit status.
fn report(stage: &Stage, command: &[&str]) -> (Value, Option<i32>) {
    let line = [&["doctor", "--json"], command].concat();
    let finished = finish(&mut stage.uncopy(&line));
    assert_eq!(finished.errors, "");
    (serde_json::from_str(&finished.text()).expect("JSON"), finished.code)
}

fn state<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().expect("an array");
    let check = checks.iter().find(|check| check["check"] == name);
    check.and_then(|check| check["state"].as_str()).unwrap_or("absent")
}

fn found<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().expect("an array");
    let check = checks.iter().find(|check| check["check"] == name);
    check.and_then(|check| check["found"].as_str()).unwrap_or_default()
}

#[test]
fn json_is_complete_and_its_verdict_is_the_exit_status() {
    let stage = Stage::new("doctor-json");
    let (report, status) = report(&stage, &[]);
    let checks = report["checks"].as_array().expect("an array");
    assert!(checks.len() >= 15, "{checks:?}");
    for check in checks {
        assert!(["ok", "warning", "missing"].contains(&check["state"].as_str().expect("a word")), "{check}");
        assert!(check["found"].as_str().is_some_and(|found| !found.is_empty()), "{check}");
        assert!(check["mend"].is_null() || check["mend"].is_string(), "{check}");
    }
    let active = report["active"].as_bool().expect("true or false");
    assert_eq!(active, checks.iter().all(|check| check["state"] != "missing"));
    assert!(!active, "this stage has no library");
    assert_eq!(state(&report, "libuncopy.so"), "missing");
    assert_eq!(status, Some(1));
}

#[test]
fn table_is_plain_text_and_ends_with_verdict_and_next_command() {
    let stage = Stage::new("doctor-table");
    let finished = finish(stage.uncopy(&["doctor", "--", "sh", "-c", "exit 3"]).env("NO_COLOR", "1"));
    let text = finished.text();
    assert!(!text.contains('\x1b'), "{text}");
    assert!(text.starts_with("check "), "{text}");
    let last = text.lines().last().expect("a last line");
    assert!(last.starts_with("verdict: uncopy run will be inactive for sh: "), "{last}");
    assert!(last.contains("; next: "), "{last}");
    assert!(text.contains("missing  libuncopy.so not found in "), "{text}");
    assert!(text.contains("fix: make build\n"), "{text}");
    assert_eq!(finished.code, Some(1));
}

#[test]
fn verdict_agrees_with_run() {
    let Some(stage) = Stage::with_library("doctor-run") else { return };
    let (report, status) = report(&stage, &["--", "sh"]);
    let run = finish(&mut stage.uncopy(&["run", "--", "sh", "-c", "true"]));
    assert_eq!(report["active"] == true, run.errors.is_empty(), "{report}\n{}", run.errors);
    assert_eq!(status, Some(i32::from(report["active"] != true)));
    assert_eq!(state(&report, "libuncopy.so"), "ok");
    assert_eq!(state(&report, "command"), "ok");
    assert_eq!(state(&report, "allocator"), "ok");
}

#[test]
fn verdict_agrees_with_run_without_privileges() {
    const TEST: &str = "verdict_agrees_with_run_without_privileges";
    let Some(stage) = Stage::with_library("doctor-nobody") else { return };
    let Some(mut doctor) = stage.unprivileged(TEST, &["doctor", "--json"]) else { return };
    let Some(mut run) = stage.unprivileged(TEST, &["run", "--", "true"]) else { return };
    let doctor = finish(&mut doctor);
    let report: Value = serde_json::from_str(&doctor.text()).expect("JSON");
    assert_eq!(report["active"] == true, finish(&mut run).errors.is_empty(), "{report}");
    if report["active"] == true {
        return skip(TEST, "everybody may use userfaultfd here");
    }
    assert_eq!(doctor.code, Some(1));
    let next = report["next"].as_str().expect("a command");
    assert!(next.contains("sudo") || next.contains("docker"), "{next}");
}

#[test]
fn library_that_does_not_load_is_missing() {
    let stage = Stage::new("doctor-broken");
    stage.file("libuncopy.so", b"this is no library", 0o755);
    let (report, status) = report(&stage, &[]);
    assert_eq!((state(&report, "libuncopy.so"), status), ("missing", Some(1)));
}

#[test]
fn library_with_symbols_that_nobody_has_is_missing() {
    const TEST: &str = "library_with_symbols_that_nobody_has_is_missing";
    let stage = Stage::new("doctor-undefined");
    let source = "int nobody_has_this(void); int uncopy(void) { return nobody_has_this(); }";
    if let Err(why) = stage.compile(&["-shared", "-fPIC"], source, "libuncopy.so") {
        return skip(TEST, why);
    }
    let (report, _) = report(&stage, &[]);
    assert_eq!(state(&report, "libuncopy.so"), "missing", "{report}");
}

#[test]
fn programs_are_told_apart() {
    let Some(stage) = Stage::with_library("doctor-programs") else { return };
    let main = "int main(void) { return 0; }";
    match stage.compile(&["-static"], main, "static") {
        Err(why) => skip("programs_are_told_apart (static)", why),
        Ok(_) => {
            let (report, status) = report(&stage, &["--", "./static"]);
            assert_eq!((state(&report, "command"), status), ("missing", Some(1)));
            assert!(found(&report, "command").contains("statically linked"));
        }
    }
    let allocator = "#include <stddef.h>\nvoid *malloc(size_t n) { (void)n; return 0; }\n\
                     void *mallocx(size_t n, int f) { (void)n; (void)f; return 0; }\n\
                     int main(void) { return 0; }";
    match stage.compile(&["-rdynamic", "-fno-builtin"], allocator, "own-malloc") {
        Err(why) => skip("programs_are_told_apart (allocator)", why),
        Ok(_) => {
            let (report, _) = report(&stage, &["--", "./own-malloc"]);
            assert_eq!(state(&report, "allocator"), "warning", "{report}");
            assert!(
                found(&report, "allocator").starts_with("linked into the program (jemalloc)"),
                "{report}"
            );
        }
    }
    stage.file("script", b"#!/usr/bin/env -S sh -e\n", 0o755);
    let (report, _) = report(&stage, &["--", "./script"]);
    assert_eq!(state(&report, "command"), "ok", "{report}");
    let found = found(&report, "command");
    assert!(found.contains("env") && found.contains("run by"), "{found}");
}

/// Returns the report on a packaged program; `None`, reported as skipped, if it is not installed.
fn of_packaged(stage: &Stage, test: &str, program: &str) -> Option<Value> {
    if !Path::new(program).exists() {
        skip(test, format!("{program} is not installed"));
        return None;
    }
    Some(report(stage, &["--", program]).0)
}

#[test]
fn packaged_programs_are_judged_by_what_they_consist_of() {
    const TEST: &str = "packaged_programs_are_judged_by_what_they_consist_of";
    let Some(stage) = Stage::with_library(TEST) else { return };
    for (program, check, part) in [
        ("/usr/sbin/nginx", "TLS", "OpenSSL (libssl.so"),
        ("/usr/bin/redis-server", "allocator", "jemalloc (libjemalloc.so"),
        // The library that curl loads has TLS, not curl itself.
        ("/usr/bin/curl", "TLS", "OpenSSL (libssl.so"),
        ("/usr/bin/openssl", "TLS", "connections with TLS gain nothing"),
        ("/usr/bin/python3", "language", "Python: "),
        ("/usr/bin/bash", "allocator", "glibc; "),
    ] {
        let Some(report) = of_packaged(&stage, TEST, program) else { continue };
        assert!(found(&report, check).contains(part), "{report:#}");
        assert!(found(&report, "calls of libc").starts_with("receives by read"), "{report:#}");
        assert_eq!(report["worth"], "worth trying", "{report:#}");
        let has_tls = state(&report, "TLS") == "warning";
        if report["active"] == true {
            let verdict = report["verdict"].as_str().expect("a sentence");
            assert!(verdict.starts_with("worth trying: uncopy reaches what "), "{verdict}");
            assert_eq!(verdict.contains("not for connections with TLS"), has_tls, "{verdict}");
            assert_eq!(report["next"], format!("uncopy profile -- {program}"));
        }
    }
    if let Some(report) = of_packaged(&stage, TEST, "/usr/bin/busybox")
        && found(&report, "command").contains("statically linked")
    {
        assert_eq!(report["worth"], "probably not");
        assert!(report["verdict"].as_str().is_some_and(|verdict| verdict.starts_with("probably not: ")));
    }
    if let Some(report) = of_packaged(&stage, TEST, "/usr/bin/true") {
        assert!(found(&report, "calls of libc").contains("calls no hooked function that receives"));
        assert_eq!(report["worth"], "probably not", "{report:#}");
    }
}

#[test]
fn libraries_are_those_that_the_loader_finds() {
    const TEST: &str = "libraries_are_those_that_the_loader_finds";
    let Some(stage) = Stage::with_library(TEST) else { return };
    let directory = stage.path("");
    let here = directory.to_str().expect("UTF-8");
    // The program needs one library, which needs another, which only its run path finds.
    let uring = "int io_uring_queue_init(void) { return 0; }";
    let between = "#include <sys/socket.h>\nint io_uring_queue_init(void);\nvoid work(char *a, char *b, unsigned long n) {\n\
                   if (recv(0, a, n, 0) > 0) __builtin_memcpy(b, a, n);\n if (send(0, b, n, 0)) io_uring_queue_init(); }";
    let main = "void work(char *, char *, unsigned long);\nint main(void) { work(0, 0, 0); return 0; }";
    let shared = |options: &[&str], source, name| {
        stage.compile(&[&["-shared", "-fPIC"], options].concat(), source, name)
    };
    let path = format!("-Wl,-rpath,{here}");
    let built = shared(&["-Wl,-soname,liburing.so.2"], uring, "liburing.so.2")
        .and_then(|first| {
            shared(&["-Wl,--no-as-needed", first.to_str().expect("UTF-8"), &path], between, "libbetween.so")
        })
        .and_then(|second| {
            // Libraries follow the source that needs them.
            stage.compile(&["-Wl,--no-as-needed", second.to_str().expect("UTF-8"), &path], main, "linked")
        });
    if let Err(why) = built {
        return skip(TEST, why);
    }
    let (report, _) = report(&stage, &["--", "./linked"]);
    assert!(found(&report, "io_uring").starts_with("liburing.so.2: "), "{report:#}");
    assert_eq!(
        found(&report, "calls of libc"),
        "receives by recv; copies by memcpy; sends by send",
        "{report:#}"
    );
}

#[test]
fn functions_that_a_program_has_itself_are_told() {
    const TEST: &str = "functions_that_a_program_has_itself_are_told";
    let Some(stage) = Stage::with_library(TEST) else { return };
    let source = "#include <stddef.h>\nvoid *memcpy(void *to, const void *from, size_t n) { (void)from; (void)n; return to; }\n\
                  int main(void) { return 0; }";
    if let Err(why) = stage.compile(&["-rdynamic", "-fno-builtin"], source, "own-memcpy") {
        return skip(TEST, why);
    }
    let (report, _) = report(&stage, &["--", "./own-memcpy"]);
    assert!(found(&report, "own functions").starts_with("defines memcpy itself"), "{report:#}");
    assert_eq!(report["worth"], "probably not", "{report:#}");
}

#[test]
fn a_stored_profile_decides_unless_the_program_is_newer_or_it_is_damaged() {
    const TEST: &str = "a_stored_profile_decides_unless_the_program_is_newer_or_it_is_damaged";
    let Some(stage) = Stage::with_library(TEST) else { return };
    let program = stage.compile(&[], "int main(void) { return 0; }", "redis-server");
    if let Err(why) = program {
        return skip(TEST, why);
    }
    let sample = include_str!("../../../profiling/profile/samples/redis-set.json");
    let (without, _) = report(&stage, &["--", "./redis-server"]);
    assert_eq!((state(&without, "profile"), &without["worth"]), ("absent", &Value::from("probably not")));

    stage.file("redis-server.profile.json", sample.as_bytes(), 0o644);
    let (saves, _) = report(&stage, &["--", "./redis-server", "--port", "1"]);
    assert!(found(&saves, "profile").contains("would save about 16 %"), "{saves:#}");
    assert_eq!(saves["worth"], "worth trying");
    if saves["active"] == true {
        assert_eq!(saves["verdict"], "worth trying: its profile predicts a saving of 16 % of its CPU time");
        assert_eq!(saves["next"], "uncopy run -- ./redis-server --port 1");
    }
    let little = sample.replacen("\"ratio\": 1.19", "\"ratio\": 1.01", 1);
    assert_ne!(little, sample);
    stage.file("redis-server.profile.json", little.as_bytes(), 0o644);
    let (little, _) = report(&stage, &["--", "./redis-server"]);
    assert_eq!(little["next"], "uncopy report redis-server.profile.json");
    assert_eq!(little["worth"], "probably not");

    stage.file("redis-server.profile.json", b"{}", 0o644);
    let (damaged, _) = report(&stage, &["--", "./redis-server"]);
    assert_eq!(state(&damaged, "profile"), "warning");
    assert!(found(&damaged, "profile").contains("is not a profile: "), "{damaged:#}");

    let old = stage.file("redis-server.profile.json", sample.as_bytes(), 0o644);
    let touched = Command::new("touch").args(["-d", "2001-01-01"]).arg(&old).status();
    assert!(touched.is_ok_and(|status| status.success()));
    let (older, _) = report(&stage, &["--", "./redis-server"]);
    assert!(found(&older, "profile").ends_with("but the program is newer than this profile"), "{older:#}");
    assert_eq!(older["worth"], "probably not", "an old profile decides nothing");
}

#[test]
fn go_program_is_named_as_such() {
    const TEST: &str = "go_program_is_named_as_such";
    let Some(stage) = Stage::with_library("doctor-go") else { return };
    let source = stage.file("main.go", b"package main\nfunc main() {}\n", 0o644);
    let mut build = std::process::Command::new("go");
    build.args(["build", "-o"]).arg(stage.path("program")).arg(source).env("GOFLAGS", "-mod=mod");
    build
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache"))
        .current_dir(stage.path("."));
    match build.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => return skip(TEST, String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => return skip(TEST, format!("go: {error}")),
    }
    let (report, status) = report(&stage, &["--", "./program"]);
    assert_eq!(status, Some(1));
    assert!(found(&report, "command").ends_with("(a Go program)"), "{report}");
}

#[test]
fn command_that_does_not_exist_is_missing() {
    let stage = Stage::new("doctor-nothing");
    let (report, status) = report(&stage, &["--", "no-such-program"]);
    assert_eq!((state(&report, "command"), status), ("missing", Some(1)));
}

#[test]
fn variables_that_run_refuses_are_missing() {
    let stage = Stage::new("doctor-variables");
    for (variable, value, expected) in
        [("UNCOPY_POLICY", "x", "missing"), ("UNCOPY_OFF", "1", "missing"), ("UNCOPY_X", "1", "warning")]
    {
        let finished = finish(stage.uncopy(&["doctor", "--json"]).env(variable, value));
        let report: Value = serde_json::from_str(&finished.text()).expect("JSON");
        assert_eq!(state(&report, "UNCOPY_ variables"), expected, "{variable}={value}");
    }
}

#[test]
fn address_space_that_is_too_small_is_missing() {
    let Some(stage) = Stage::with_library("doctor-limit") else { return };
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -v 65536; exec \"$1\" doctor --json", "sh"]).arg(stage.command());
    let finished = finish(&mut shell);
    let report: Value = serde_json::from_str(&finished.text()).expect("JSON");
    assert_eq!((state(&report, "resource limits"), finished.code), ("missing", Some(1)));
}

#[test]
fn a_member_of_the_devices_group_may_use_it() {
    const TEST: &str = "a_member_of_the_devices_group_may_use_it";
    // Any group that the user would not be in otherwise.
    const GROUP: &str = "61234";
    if !is_root() {
        return skip(TEST, "needs root, to make a device");
    }
    let Some(stage) = Stage::with_library("doctor-group") else { return };
    let minor = fs::read_to_string("/proc/misc").unwrap_or_default();
    let minor = minor.lines().find_map(|line| line.trim().strip_suffix(" userfaultfd").map(str::to_owned));
    let Some(minor) = minor.filter(|_| Path::new("/dev/userfaultfd").exists()) else {
        return skip(TEST, "there is no /dev/userfaultfd");
    };
    // Does as 60-uncopy.rules does, on a file system in this test's mount namespace.
    let device = format!(
        "mount -t tmpfs none /mnt; mknod -m 660 /mnt/device c 10 {}; chgrp {GROUP} /mnt/device; \
         mount --bind /mnt/device /dev/userfaultfd",
        minor.trim()
    );
    let may_make_it = Command::new("unshare").args(["--mount", "sh", "-ec", &device]).status();
    if !may_make_it.is_ok_and(|status| status.success()) {
        return skip(TEST, "no device can be made here");
    }
    let script = format!(
        "{device}; exec setpriv --reuid={NOBODY} --regid={NOBODY} --groups=\"$1\" -- \"$0\" doctor --json"
    );
    let command = stage.command();
    let command = command.to_str().expect("UTF-8");
    let opened = |groups: &str| {
        let mut unshared = Command::new("unshare");
        unshared.args(["--mount", "sh", "-ec", &script, command, groups]).current_dir("/");
        let finished = finish(&mut unshared);
        let report: Value = serde_json::from_str(&finished.text()).unwrap_or_else(|_| panic!("{finished:?}"));
        (state(&report, "/dev/userfaultfd").to_owned(), report)
    };
    let (as_member, report) = opened(GROUP);
    assert_eq!(as_member, "ok", "{report}");
    assert_eq!(report["active"], true, "{report}");
    assert_ne!(opened(NOBODY).0, "ok");
}
