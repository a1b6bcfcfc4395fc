//! `uncopy stats` of real processes.

use crate::stage::{Background, Stage, finish, is_root, skip};
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use uncopy_core::stats::{COUNTERS_OFFSET, Counter, FILE_BYTES, MAGIC, PID_OFFSET};

/// Live file like the library's, removed when dropped.
struct LiveFile(PathBuf);

impl LiveFile {
    /// Writes the file of `pid`; `None` if this machine has no `/dev/shm`.
    fn write(pid: u32) -> Option<Self> {
        let user = fs::metadata("/proc/self").expect("/proc").uid();
        let directory = PathBuf::from(format!("/dev/shm/uncopy-{user}"));
        fs::metadata("/dev/shm").ok()?;
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return None,
            _ => {}
        }
        let mut bytes = vec![0; FILE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[PID_OFFSET..PID_OFFSET + 8].copy_from_slice(&u64::from(pid).to_ne_bytes());
        let faults = COUNTERS_OFFSET + 8 * Counter::Faults as usize;
        bytes[faults..faults + 8].copy_from_slice(&9u64.to_ne_bytes());
        let path = directory.join(pid.to_string());
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).ok()?;
        std::io::Write::write_all(&mut file, &bytes).ok()?;
        Some(Self(path))
    }
}

impl Drop for LiveFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Starts a program that has the library mapped and waits for its input to end.
fn mapped(stage: &Stage) -> Background {
    let mut command = stage.uncopy(&["run", "--off", "--", "sh", "-c", "echo ready; read line"]);
    command.stderr(std::process::Stdio::null());
    Background::start(command)
}

#[test]
fn process_ids_that_make_no_sense_are_refused() {
    let stage = Stage::new("stats-pids");
    for pid in ["", "0", "-1", "4194305"] {
        let finished = finish(&mut stage.uncopy(&["stats", pid]));
        assert_eq!(finished.code, Some(2), "{pid}");
        assert_eq!(
            finished.errors,
            format!("uncopy: PID is \"{pid}\"; it must be a whole number from 1 to 4194304\n")
        );
    }
}

#[test]
fn a_name_that_no_process_has_is_told() {
    let stage = Stage::new("stats-names");
    let finished = finish(&mut stage.uncopy(&["stats", "no such\x1bprogram"]));
    let message =
        "uncopy: no process under uncopy is named \"no such\\u{1b}program\"; uncopy ps lists them\n";
    assert_eq!((finished.code, finished.errors.as_str()), (Some(1), message));
}

#[test]
fn several_processes_are_told_of_by_id_and_by_name() {
    let Some(stage) = Stage::with_library("stats-several") else { return };
    // A name that no other test's process has.
    let shell = stage.path("uncopy-several");
    fs::copy("/bin/sh", &shell).expect("copied");
    let shell = shell.to_str().expect("UTF-8");
    let programs = [0, 1].map(|_| {
        let mut command = stage.uncopy(&["run", "--off", "--", shell, "-c", "echo ready; read line"]);
        command.stderr(std::process::Stdio::null());
        Background::start(command)
    });
    let pids = programs.each_ref().map(|program| program.pid().to_string());
    let output_of = |line: &[&str]| {
        let finished = finish(&mut stage.uncopy(line));
        assert_eq!((finished.code, finished.errors.as_str()), (Some(0), ""), "{line:?}");
        finished.text()
    };
    let of = |text: &str| -> Vec<String> {
        let object = |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
        let mut pids: Vec<String> = text.lines().map(|line| object(line)["pid"].to_string()).collect();
        pids.sort();
        pids
    };
    let mut sorted = pids.clone();
    sorted.sort();
    let both = output_of(&["stats", &pids[0], &pids[1]]);
    assert_eq!(of(&both), sorted);
    assert_eq!(both.matches("{\"schema\": 1, ").count(), 2, "{both}");
    assert_eq!(of(&output_of(&["stats", "uncopy-several"])), sorted);
    let every = of(&output_of(&["stats", "--all"]));
    assert!(sorted.iter().all(|pid| every.contains(pid)), "{every:?}");

    let metrics = output_of(&["stats", "--openmetrics", "uncopy-several"]);
    assert_eq!(metrics.matches("uncopy_elided_bytes_total{").count(), 2, "{metrics}");
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");

    let listed = output_of(&["ps"]);
    assert!(listed.starts_with("PID") || listed.trim_start().starts_with("PID"), "{listed}");
    let json: serde_json::Value = serde_json::from_str(&output_of(&["ps", "--json"])).expect("JSON");
    for pid in &pids {
        assert!(listed.lines().any(|line| line.split_whitespace().next() == Some(pid)), "{listed}");
        let entries = json["processes"].as_array().expect("an array");
        let entry = entries.iter().find(|entry| entry["pid"].as_u64() == pid.parse().ok()).expect("listed");
        assert_eq!((&entry["state"], &entry["command"]), (&"idle".into(), &"uncopy-several".into()));
        assert!(entry["up_s"].as_u64().is_some_and(|up_s| up_s < 3600), "{entry}");
    }
}

#[test]
fn watching_ends_with_the_process() {
    let Some(stage) = Stage::with_library("stats-watch") else { return };
    let program = mapped(&stage);
    let pid = program.pid();
    let mut command = stage.uncopy(&["stats", "--watch=1", &pid.to_string()]);
    let ending = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        drop(program);
    });
    let finished = finish(&mut command);
    ending.join().expect("killed");
    let gone = format!("uncopy: there is no process {pid}\n");
    assert_eq!((finished.code, finished.errors), (Some(1), gone));
}

#[test]
fn process_that_is_not_under_uncopy_is_named() {
    let stage = Stage::new("stats-foreign");
    let pid = std::process::id();
    let finished = finish(&mut stage.uncopy(&["stats", &pid.to_string()]));
    assert_eq!(finished.code, Some(1));
    let message =
        format!("uncopy: process {pid} does not run under uncopy; start it with: uncopy run -- CMD\n");
    assert_eq!(finished.errors, message);
}

#[test]
fn process_that_does_not_exist_is_named() {
    let stage = Stage::new("stats-nobody");
    // A process that has ended and was reaped.
    let pid = finish(&mut stage.uncopy(&["--version"])).pid;
    let finished = finish(&mut stage.uncopy(&["stats", &pid.to_string()]));
    assert_eq!((finished.code, finished.errors), (Some(1), format!("uncopy: there is no process {pid}\n")));
}

#[test]
fn process_that_did_nothing_yet_has_zeros() {
    let Some(stage) = Stage::with_library("stats-zeros") else { return };
    let program = mapped(&stage);
    let finished = finish(&mut stage.uncopy(&["stats", &program.pid().to_string()]));
    assert_eq!((finished.code, finished.errors.as_str()), (Some(0), ""));
    let json: serde_json::Value = serde_json::from_str(&finished.text()).expect("JSON");
    assert_eq!(json["pid"], program.pid());
    for counter in Counter::ALL {
        assert_eq!(json[counter.name()], 0, "{}", counter.name());
    }
    assert_eq!(json["reason"], serde_json::Value::Null);
}

#[test]
fn counters_come_from_the_live_file() {
    const TEST: &str = "counters_come_from_the_live_file";
    let Some(stage) = Stage::with_library("stats-live") else { return };
    let program = mapped(&stage);
    let Some(live) = LiveFile::write(program.pid()) else {
        return skip(TEST, "no live file can be made in /dev/shm");
    };
    let line = ["stats".to_string(), program.pid().to_string()];
    let finished = finish(&mut stage.uncopy(&line));
    let json: serde_json::Value = serde_json::from_str(&finished.text()).expect("JSON");
    assert_eq!((&json["faults"], finished.code), (&9.into(), Some(0)));

    let other = stage.path("other");
    fs::rename(&live.0, &other).or_else(|_| fs::copy(&live.0, &other).map(drop)).expect("moved");
    let _ = fs::remove_file(&live.0);
    std::os::unix::fs::symlink(&other, &live.0).expect("linked");
    let finished = finish(&mut stage.uncopy(&line));
    assert_eq!(finished.code, Some(1));
    assert!(finished.errors.contains("is a symbolic link; it is not trusted"), "{}", finished.errors);
}

#[test]
fn another_users_process_is_not_readable() {
    const TEST: &str = "another_users_process_is_not_readable";
    if !is_root() {
        return skip(TEST, "needs root, to have two users");
    }
    let Some(stage) = Stage::with_library("stats-other") else { return };
    let program = mapped(&stage);
    let pid = program.pid().to_string();
    let Some(mut command) = stage.unprivileged(TEST, &["stats", &pid]) else { return };
    let finished = finish(&mut command);
    assert_eq!(finished.code, Some(1));
    assert_eq!(finished.errors, format!("uncopy: process {pid} belongs to user 0; retry with sudo\n"));
}
