//! `uncopy run` where uncopy cannot work: one line says why, and CMD runs plainly.

use crate::stage::{Stage, finish, skip};
use std::fs;

/// Script that shows whether the library is preloaded.
const SHOW: &str = "echo preload=$LD_PRELOAD fd=$UNCOPY_UFFD_FD";

/// Returns the one line on standard error.
fn line(why: &str) -> String {
    format!("uncopy: inactive: {why}; see 'uncopy doctor'\n")
}

#[test]
fn without_the_library_the_program_runs_plainly() {
    let stage = Stage::new("no-library");
    let mut command = stage.uncopy(&["run", "--", "sh", "-c", SHOW]);
    let finished = finish(command.env("UNCOPY_UFFD_FD", "77").env("LD_PRELOAD", "/old/libuncopy.so"));
    assert_eq!((finished.code, finished.text().as_str()), (Some(0), "preload= fd=\n"));
    // The loader reports the outer library that does not exist to this command and to no other.
    let ours: Vec<&str> = finished.errors.lines().filter(|line| line.starts_with("uncopy: ")).collect();
    assert_eq!(ours.len(), 1, "{}", finished.errors);
    assert!(ours[0].starts_with("uncopy: inactive: libuncopy.so not found in "), "{}", ours[0]);
    assert!(ours[0].ends_with("; see 'uncopy doctor'"), "{}", ours[0]);
}

#[test]
fn preloads_of_the_user_stay() {
    let stage = Stage::new("preloads");
    let finished = finish(stage.uncopy(&["run", "--", "sh", "-c", SHOW]).env("LD_PRELOAD", "libm.so.6"));
    assert_eq!(finished.text(), "preload=libm.so.6 fd=\n");
}

#[test]
fn library_in_a_directory_that_preloading_cannot_name_is_said() {
    let Some(plain) = Stage::with_library("plain-name") else { return };
    let stage = Stage::new("odd name");
    fs::copy(plain.path("libuncopy.so"), stage.path("libuncopy.so")).expect("copied");
    let finished = finish(&mut stage.uncopy(&["run", "--", "sh", "-c", SHOW]));
    assert_eq!(finished.text(), "preload= fd=\n");
    assert!(finished.errors.contains("LD_PRELOAD cannot hold a path with a space"), "{}", finished.errors);
}

#[test]
fn static_program_runs_plainly() {
    let Some(stage) = Stage::with_library("static") else { return };
    let source = "#include <stdio.h>\n#include <stdlib.h>\n\
                  int main(void) { const char *p = getenv(\"LD_PRELOAD\"); puts(p ? p : \"plain\"); return 7; }";
    if let Err(why) = stage.compile(&["-static"], source, "program") {
        return skip("static_program_runs_plainly", why);
    }
    let finished = finish(&mut stage.uncopy(&["run", "--", "./program"]));
    assert_eq!(finished.errors, line("\"./program\" is statically linked"));
    assert_eq!((finished.code, finished.text().as_str()), (Some(7), "plain\n"));
    let script = stage.file("script", format!("#!{}\n", stage.path("program").display()).as_bytes(), 0o755);
    let finished = finish(&mut stage.uncopy(&["run", "--", script.to_str().expect("text")]));
    assert!(finished.errors.contains("which interprets"), "{}", finished.errors);
    assert_eq!(finished.code, Some(7));
}

#[test]
fn a_sanitizers_program_runs_plainly() {
    let Some(stage) = Stage::with_library("sanitizer") else { return };
    let source = "#include <stdio.h>\n#include <stdlib.h>\n\
                  int main(void) { const char *p = getenv(\"LD_PRELOAD\"); puts(p ? p : \"plain\"); return 7; }";
    for (option, name) in
        [("address", "AddressSanitizer"), ("thread", "ThreadSanitizer"), ("leak", "LeakSanitizer")]
    {
        if let Err(why) = stage.compile(&[&format!("-fsanitize={option}")], source, "program") {
            skip("a_sanitizers_program_runs_plainly", why);
            continue;
        }
        let finished = finish(&mut stage.uncopy(&["run", "--", "./program"]));
        let why = format!("\"./program\" is built with {name}, whose library must be loaded first");
        assert_eq!(finished.errors, line(&why));
        assert_eq!((finished.code, finished.text().as_str()), (Some(7), "plain\n"));
    }
    let preload =
        stage.uncopy(&["run", "--", "true"]).env("LD_PRELOAD", "libasan.so.8").output().expect("run");
    let errors = String::from_utf8_lossy(&preload.stderr);
    assert!(errors.contains("inactive: LD_PRELOAD has libasan.so.8 of AddressSanitizer"), "{errors}");
}

/// The loader preloads the library into the program that is its argument.
#[test]
fn the_loader_called_by_hand_is_reached() {
    let Some(stage) = Stage::with_library("loader") else { return };
    let loader = "/lib64/ld-linux-x86-64.so.2";
    if !std::path::Path::new(loader).exists() {
        return skip("the_loader_called_by_hand_is_reached", "another machine");
    }
    let finished = finish(&mut stage.uncopy(&["run", "--", loader, "/bin/sh", "-c", SHOW]));
    assert!(finished.text().contains("libuncopy.so"), "{}{}", finished.text(), finished.errors);
}

#[test]
fn programs_that_hold_rights_run_plainly() {
    let Some(stage) = Stage::with_library("rights") else { return };
    let shell = fs::read("/bin/sh").expect("a shell");
    for (mode, why) in [(0o4755, "set-user-ID"), (0o2755, "set-group-ID")] {
        stage.file("shell", &shell, mode);
        let finished = finish(&mut stage.uncopy(&["run", "--", "./shell", "-c", SHOW]));
        assert_eq!(finished.errors, line(&format!("\"./shell\" is {why}")));
        assert_eq!(finished.text(), "preload= fd=\n");
    }
}

#[test]
fn without_permission_the_program_runs_plainly() {
    const TEST: &str = "without_permission_the_program_runs_plainly";
    let open = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    if open.trim() == "1" {
        return skip(TEST, "vm.unprivileged_userfaultfd is 1: everybody has the permission");
    }
    let Some(stage) = Stage::with_library("permission") else { return };
    let Some(mut command) = stage.unprivileged(TEST, &["run", "--", "sh", "-c", SHOW]) else { return };
    let finished = finish(&mut command);
    if finished.errors.is_empty() {
        return skip(TEST, "/dev/userfaultfd is open to this user");
    }
    assert!(finished.errors.starts_with("uncopy: inactive: "), "{}", finished.errors);
    assert_eq!(finished.errors.lines().count(), 1, "{}", finished.errors);
    assert_eq!((finished.code, finished.text().as_str()), (Some(0), "preload= fd=\n"));
}

#[test]
fn without_permission_a_log_is_kept_all_the_same() {
    const TEST: &str = "without_permission_a_log_is_kept_all_the_same";
    let Some(stage) = Stage::with_library("log-permission") else { return };
    // The log directory must belong to the user that the program runs as.
    let log = std::env::temp_dir().join(format!("uncopy-log-{}", std::process::id()));
    let show = "echo log=$UNCOPY_LOG_SOCKET heap=$UNCOPY_HEAP";
    let log_dir = log.to_str().expect("text");
    let arguments =
        ["run", "--log", log_dir, "--log-size", "16777216", "--log-emulate-dax", "--", "sh", "-c", show];
    let Some(mut command) = stage.unprivileged(TEST, &arguments) else { return };
    let finished = finish(&mut command);
    let _ = fs::remove_dir_all(&log);
    if !finished.errors.contains("userfaultfd") {
        return skip(TEST, "this user may use userfaultfd");
    }
    assert!(finished.errors.contains("\nuncopy: nothing is elided: "), "{}", finished.errors);
    assert_eq!(finished.errors.lines().count(), 2, "{}", finished.errors);
    let text = finished.text();
    assert!(text.contains("/log-") && text.ends_with(" heap=off\n"), "{text}");
}

#[test]
fn a_log_that_has_the_only_copy_needs_persistent_memory() {
    let Some(stage) = Stage::with_library("log-only") else { return };
    let in_memory = format!("/dev/shm/uncopy-test-log-{}", std::process::id());
    let on_disk = stage.path("log");
    let on_disk = on_disk.to_str().expect("text");
    let run = |directory: &str, options: &[&str]| {
        let mut arguments = vec!["run", "--log", directory, "--log-mode", "only", "--log-size", "16777216"];
        arguments.extend(options);
        arguments.extend(["--", "sh", "-c", "echo log=$UNCOPY_LOG_SOCKET"]);
        let finished = finish(&mut stage.uncopy(&arguments));
        assert_eq!((finished.code, finished.text().as_str()), (Some(0), "log=\n"), "{}", finished.errors);
        let reported: Vec<&str> =
            finished.errors.lines().filter(|line| line.starts_with("uncopy: no log: ")).collect();
        assert_eq!(reported.len(), 1, "{}", finished.errors);
        assert!(reported[0].ends_with("; files are synced by their file systems"), "{}", reported[0]);
        reported[0].to_owned()
    };
    let refused = run(&in_memory, &[]);
    fs::remove_dir(&in_memory).expect("made, and nothing left in it");
    assert!(refused.contains("add --log-emulate-dax"), "{refused}");
    assert!(refused.contains(&in_memory) && refused.contains("is on tmpfs"), "{refused}");
    // The directory of tests may be on tmpfs or on DAX itself.
    let refused = if is_on_a_disk(&stage.path(".")) { run(on_disk, &[]) } else { return };
    assert!(refused.contains("leave out --log-mode") && refused.contains("--log /dev/shm/log"), "{refused}");
    let refused = run(on_disk, &["--log-emulate-dax"]);
    assert!(refused.contains("such as --log /dev/shm/log"), "{refused}");
}

/// Returns whether a directory's file system is neither tmpfs nor mounted with DAX.
fn is_on_a_disk(directory: &std::path::Path) -> bool {
    let found =
        std::process::Command::new("findmnt").args(["-no", "FSTYPE,OPTIONS", "-T"]).arg(directory).output();
    let found = String::from_utf8(found.expect("findmnt of util-linux").stdout).expect("text");
    !found.starts_with("tmpfs") && !found.contains("dax")
}

#[test]
fn stats_of_an_inactive_program_say_why() {
    let stage = Stage::new("stats-file");
    let finished = finish(&mut stage.uncopy(&["run", "--stats", "out.json", "--", "true"]));
    assert_eq!(finished.code, Some(0));
    let text = fs::read_to_string(stage.path("out.json")).expect("written");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["pid"], finished.pid);
    assert_eq!(json["elided_bytes"], 0);
    let reason = json["reason"].as_str().expect("a reason");
    assert_eq!(finished.errors, line(reason));

    let finished = finish(&mut stage.uncopy(&["run", "--stats", "-", "--", "echo", "after"]));
    let text = finished.text();
    let (json, rest) = text.split_once('\n').expect("two lines");
    assert!(serde_json::from_str::<serde_json::Value>(json).is_ok_and(|json| json["reason"].is_string()));
    assert_eq!(rest, "after\n");
}

#[test]
fn stats_of_an_outer_run_are_not_overwritten_by_an_inner_one() {
    let stage = Stage::new("outer-stats");
    let mut command = stage.uncopy(&["run", "--", "true"]);
    let finished = finish(command.env("UNCOPY_STATS", stage.path("out.json")).env("UNCOPY_STATS_ROOT", "1"));
    assert_eq!(finished.code, Some(0));
    assert!(!stage.path("out.json").exists());
}

#[test]
fn stats_file_that_cannot_be_written_does_not_keep_the_program_from_running() {
    let stage = Stage::new("full-stats");
    let finished = finish(&mut stage.uncopy(&["run", "--stats", "/dev/full", "--", "echo", "ran"]));
    assert_eq!((finished.code, finished.text().as_str()), (Some(0), "ran\n"));
    assert!(finished.errors.contains("uncopy: cannot write --stats \"/dev/full\": "), "{}", finished.errors);
}
