//! `uncopy run`: state that CMD inherits, the search for CMD, and command lines that are refused.

use crate::stage::{Stage, finish, finish_started, is_root, skip};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

/// Whether `uncopy run` can be active on this machine.
fn is_active(stage: &Stage, test: &str) -> bool {
    let finished = finish(&mut stage.uncopy(&["run", "--", "true"]));
    if !finished.errors.is_empty() {
        skip(test, finished.errors.trim());
    }
    finished.errors.is_empty()
}

#[test]
fn exit_status_is_the_programs() {
    let stage = Stage::new("status");
    for status in [0, 1, 2, 37, 126, 127, 255] {
        let finished = finish(&mut stage.uncopy(&["run", "--", "sh", "-c", &format!("exit {status}")]));
        assert_eq!(finished.code, Some(status));
    }
}

#[test]
fn pid_and_signal_are_the_programs() {
    let stage = Stage::new("signal");
    let finished = finish(&mut stage.uncopy(&["run", "--", "sh", "-c", "echo $$; kill -9 $$"]));
    assert_eq!(finished.text(), format!("{}\n", finished.pid));
    assert_eq!((finished.signal, finished.code), (Some(9), None));
}

#[test]
fn programs_that_do_not_exist_or_cannot_be_executed_have_their_statuses() {
    let stage = Stage::new("statuses");
    stage.file("plain", b"", 0o644);
    stage.file("orphan", b"#!/nonexistent/interpreter\n", 0o755);
    for (command, status, message) in [
        ("no-such-program", 127, "uncopy: cannot run \"no-such-program\": not found in PATH\n"),
        ("./no-such-program", 127, "uncopy: cannot run \"./no-such-program\": no such file or directory\n"),
        ("", 127, "uncopy: cannot run \"\": not found in PATH\n"),
        ("./plain", 126, "uncopy: cannot run \"./plain\": permission denied\n"),
        ("/", 126, "uncopy: cannot run \"/\": permission denied\n"),
        ("./plain/x", 127, "uncopy: cannot run \"./plain/x\": not a directory\n"),
    ] {
        let finished = finish(&mut stage.uncopy(&["run", "--", command]));
        assert_eq!(finished.code, Some(status), "{command}");
        assert_eq!(finished.errors, message);
    }
    let finished = finish(&mut stage.uncopy(&["run", "--", "./orphan"]));
    assert_eq!(finished.code, Some(127));
    assert!(finished.errors.ends_with("its interpreter or loader does not exist\n"), "{}", finished.errors);
}

#[test]
fn scripts_with_and_without_interpreter_line_run() {
    let stage = Stage::new("scripts");
    stage.file("with", b"#!/bin/sh -e\necho with $0 $1\n", 0o755);
    stage.file("without", b"echo without $0 $1\n", 0o755);
    for name in ["with", "without"] {
        let path = format!("./{name}");
        let finished = finish(&mut stage.uncopy(&["run", "--", &path, "x"]));
        assert_eq!((finished.text(), finished.code), (format!("{name} {path} x\n"), Some(0)));
    }
}

#[test]
fn bad_values_name_the_value_and_the_range_and_nothing_runs() {
    let stage = Stage::new("values");
    let size = "a size from 4K to 1G, as 65536, 64K or 1MiB";
    let file = "a file in an existing directory, or -";
    for (option, value, legal) in [
        ("--min-size", "1", size),
        ("--min-size", "-1", size),
        ("--min-size", "16KB", size),
        ("--min-size", "99999999999999999999", size),
        ("--policy", "sometimes", "auto, always or never"),
        ("--heap", "1", "auto, on or off"),
        ("--stats", "", "a file's path, or -"),
        ("--stats", "/nonexistent/x", file),
        ("--stats", "/", file),
    ] {
        let finished = finish(&mut stage.uncopy(&["run", option, value, "--", "echo", "ran"]));
        assert_eq!(finished.errors, format!("uncopy: {option} is \"{value}\"; it must be {legal}\n"));
        assert_eq!((finished.code, finished.text().as_str()), (Some(2), ""));
    }
    for (variable, value) in
        [("UNCOPY_MIN_SIZE", "x"), ("UNCOPY_POLICY", ""), ("UNCOPY_OFF", "yes"), ("UNCOPY_UFFD_FD", "-3")]
    {
        let finished = finish(stage.uncopy(&["run", "--", "echo", "ran"]).env(variable, value));
        let start = format!("uncopy: {variable} is \"{value}\"; it must be ");
        assert!(finished.errors.starts_with(&start), "{}", finished.errors);
        assert_eq!((finished.code, finished.text().as_str()), (Some(2), ""));
    }
}

#[test]
fn wrong_command_lines_are_refused_in_the_commands_name() {
    let stage = Stage::new("wrong");
    for line in [
        &["run"][..],
        &["run", "--"],
        &["run", "--bogus", "--", "true"],
        &["run", "--min-size"],
        &["run", "--off=1", "--", "true"],
        &["frobnicate"],
        &["stats"],
        &["completions", "tcl"],
    ] {
        let finished = finish(&mut stage.uncopy(line));
        assert_eq!(finished.code, Some(2), "{line:?}");
        assert!(finished.errors.starts_with("uncopy: "), "{line:?}: {}", finished.errors);
        assert_eq!(finished.text(), "");
    }
    let finished = finish(&mut stage.uncopy::<&str>(&[]));
    assert_eq!(finished.code, Some(2));
    assert!(finished.errors.contains("Usage: uncopy"), "{}", finished.errors);
}

#[test]
fn unknown_variables_are_one_line_and_not_fatal() {
    let stage = Stage::new("unknown");
    let mut command = stage.uncopy(&["run", "--", "echo", "ran"]);
    let finished = finish(command.env("UNCOPY_MINSIZE", "1").env(OsStr::from_bytes(b"UNCOPY_\xff"), "1"));
    assert_eq!((finished.code, finished.text().as_str()), (Some(0), "ran\n"));
    let lines: Vec<&str> = finished.errors.lines().filter(|line| !line.contains("inactive")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("uncopy: unknown variable UNCOPY_"), "{lines:?}");
    assert!(lines[0].ends_with("(and 1 more unknown)"), "{lines:?}");
}

#[test]
fn bytes_that_are_not_text_pass_through() {
    let stage = Stage::new("bytes");
    let bytes = OsStr::from_bytes(b"\xff\xfe\x80");
    let words =
        ["run", "--", "sh", "-c", "printf %s \"$1$ODD\"", "sh"].map(OsStr::new).into_iter().chain([bytes]);
    let finished = finish(stage.uncopy(&words.collect::<Vec<_>>()).env("ODD", bytes));
    assert_eq!(finished.output, [bytes.as_bytes(), bytes.as_bytes()].concat());
    for line in [
        [OsStr::new("run"), OsStr::new("--"), bytes],
        [OsStr::new("run"), bytes, OsStr::new("x")],
        [OsStr::new("stats"), OsStr::new("--"), bytes],
        [bytes, bytes, bytes],
        [OsStr::new("doctor"), OsStr::new("--"), bytes],
        [OsStr::new("run"), OsStr::new("--policy"), bytes],
    ] {
        let finished = finish(&mut stage.uncopy(&line));
        assert!(matches!(finished.code, Some(1 | 2 | 127)), "{line:?}: {finished:?}");
    }
}

#[test]
fn ignored_and_default_sigpipe_are_both_inherited() {
    let stage = Stage::new("sigpipe");
    let ignored = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(stage.command()).stdin(Stdio::null());
        finish(&mut shell).text()
    };
    let show = "grep SigIgn /proc/self/status";
    for prepare in ["", "trap '' PIPE; "] {
        let plain = ignored(&format!("{prepare}exec {show}"));
        assert!(plain.starts_with("SigIgn:"), "{plain}");
        assert_eq!(ignored(&format!("{prepare}exec \"$1\" run -- {show}")), plain);
    }
}

#[test]
fn readers_that_go_away_are_not_an_error() {
    let stage = Stage::new("pipe");
    for (line, status) in [
        (&["--help"][..], 0),
        (&["--version"], 0),
        (&["run", "--help"], 0),
        (&["completions", "bash"], 0),
        (&["man"], 0),
        (&["doctor"], 1),
        (&["doctor", "--json"], 1),
    ] {
        let (reader, writer) = std::io::pipe().expect("pipe");
        drop(reader);
        let finished = finish_started(
            stage.uncopy(line).stdout(writer).stderr(Stdio::piped()).spawn().expect("started"),
        );
        assert_eq!((finished.code, finished.errors.as_str()), (Some(status), ""), "{line:?}");
    }
    // Standard error has no reader; CMD runs all the same.
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let mut command = stage.uncopy(&["run", "--", "echo", "ran"]);
    let finished = finish_started(command.stdout(Stdio::piped()).stderr(writer).spawn().expect("started"));
    assert_eq!((finished.code, finished.text().as_str()), (Some(0), "ran\n"));
}

#[test]
fn active_program_has_the_library_first_and_the_device() {
    let Some(stage) = Stage::with_library("active") else { return };
    if !is_active(&stage, "active_program_has_the_library_first_and_the_device") {
        return;
    }
    let show = "echo $LD_PRELOAD; grep -c libuncopy.so /proc/self/maps; \
                test -z \"$UNCOPY_UFFD_FD\" || readlink /proc/self/fd/$UNCOPY_UFFD_FD";
    let mut command = stage.uncopy(&["run", "--", "sh", "-c", show]);
    let finished = finish(command.env("LD_PRELOAD", "libm.so.6:/old/libuncopy.so"));
    let text = finished.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], format!("{}:libm.so.6", stage.path("libuncopy.so").display()));
    assert!(lines[1].parse::<u32>().is_ok_and(|count| count > 0), "{text}");
    if is_root() {
        assert_eq!(lines.get(2), Some(&"/dev/userfaultfd"));
    }
}

#[test]
fn options_reach_the_program_as_variables() {
    let Some(stage) = Stage::with_library("options") else { return };
    let line = "run --off --min-size 8192 --policy always --heap off --stats out.json --no-follow -- sh -c";
    let mut words: Vec<&str> = line.split(' ').collect();
    words.push("echo $UNCOPY_STATS_ROOT $$; env | grep ^UNCOPY_ | grep -v UFFD_FD | sort");
    let finished = finish(stage.uncopy(&words).env("UNCOPY_MIN_SIZE", "4096"));
    let text = finished.text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(format!("{0} {0}", finished.pid).as_str()));
    let stats = format!("UNCOPY_STATS={}", stage.path("out.json").display());
    let root = format!("UNCOPY_STATS_ROOT={}", finished.pid);
    let expected = [
        "UNCOPY_HEAP=off",
        "UNCOPY_MIN_SIZE=8192",
        "UNCOPY_NO_FOLLOW=1",
        "UNCOPY_OFF=1",
        "UNCOPY_POLICY=always",
        stats.as_str(),
        root.as_str(),
    ];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
    assert_eq!(finished.errors, "");
}

#[test]
fn nothing_but_the_device_stays_open() {
    let Some(stage) = Stage::with_library("descriptors") else { return };
    let list = ["sh", "-c", "ls -l /proc/self/fd | grep -o ' [0-9]* -> .*' | grep -v /proc/ | sort"];
    let plain = finish(std::process::Command::new(list[0]).args(&list[1..]).stdin(Stdio::null())).text();
    let under = finish(&mut stage.uncopy(&[&["run", "--"], &list[..]].concat())).text();
    // The pipes differ from run to run; their numbers do not.
    let numbers = |text: &str| {
        text.lines()
            .filter(|line| !line.ends_with("/dev/userfaultfd"))
            .map(|line| line.split(" -> ").next().unwrap_or_default().trim().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers(&under), numbers(&plain));
}

#[test]
fn nested_run_without_privileges_uses_the_inherited_device() {
    const TEST: &str = "nested_run_without_privileges_uses_the_inherited_device";
    let Some(stage) = Stage::with_library("nested") else { return };
    if !is_root() {
        return skip(TEST, "needs root, to give it up");
    }
    if !is_active(&stage, TEST) || stage.unprivileged(TEST, &["--version"]).is_none() {
        return;
    }
    let command = stage.command();
    let command = command.to_str().expect("text");
    let finished = finish(&mut stage.uncopy(&[
        "run",
        "--",
        "setpriv",
        "--reuid=65534",
        "--clear-groups",
        "--",
        command,
        "run",
        "--",
        "sh",
        "-c",
        "echo $LD_PRELOAD; readlink /proc/self/fd/$UNCOPY_UFFD_FD",
    ]));
    assert_eq!(finished.errors, "");
    let library = stage.path("libuncopy.so");
    assert_eq!(finished.text(), format!("{}\n/dev/userfaultfd\n", library.display()));
}
