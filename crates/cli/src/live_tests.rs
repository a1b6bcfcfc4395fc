//! Live counters as the library leaves them, and as an attacker might.

use super::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use uncopy_core::stats::{COUNTERS_OFFSET, Counter, PID_OFFSET};

const PID: u32 = 4321;
const NAME: StatsName = StatsName { pid: PID, namespace: INITIAL_PID_NAMESPACE };

/// A stand-in for `/dev/shm`, removed when dropped.
struct SharedMemory(PathBuf);

impl SharedMemory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uncopy-stats-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("scratch directory");
        let subject = Self(path);
        fs::create_dir(subject.directory()).expect("live directory");
        fs::set_permissions(subject.directory(), Permissions::from_mode(0o700)).expect("mode");
        subject
    }

    fn directory(&self) -> PathBuf {
        directory_of(&self.0, os::effective_user_id())
    }

    fn file(&self) -> PathBuf {
        self.directory().join(PID.to_string())
    }

    fn write(&self, pid: u32) {
        let mut bytes = vec![0; FILE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[PID_OFFSET..PID_OFFSET + 8].copy_from_slice(&u64::from(pid).to_ne_bytes());
        let faults = COUNTERS_OFFSET + 8 * Counter::Faults as usize;
        bytes[faults..faults + 8].copy_from_slice(&9u64.to_ne_bytes());
        fs::write(self.file(), bytes).expect("live file");
        fs::set_permissions(self.file(), Permissions::from_mode(0o600)).expect("mode");
    }

    fn read(&self) -> Result<Option<Snapshot>, String> {
        read_live(&self.0, os::effective_user_id(), PID, NAME).map_err(|failure| failure.to_string())
    }

    fn refusal(&self) -> String {
        self.read().expect_err("must be refused")
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn counters_of_the_library_are_read() {
    let subject = SharedMemory::new("good");
    assert_eq!(subject.read(), Ok(None), "no file yet");
    subject.write(PID);
    let snapshot = subject.read().expect("trusted").expect("there");
    assert_eq!((snapshot.pid, snapshot.get(Counter::Faults)), (u64::from(PID), 9));
    assert!(read_live(Path::new("/nonexistent"), 0, PID, NAME).is_ok_and(|found| found.is_none()));
}

#[test]
fn modes_that_let_others_write_or_read_are_refused() {
    let subject = SharedMemory::new("modes");
    subject.write(PID);
    for mode in [0o644, 0o660, 0o4600, 0o400] {
        fs::set_permissions(subject.file(), Permissions::from_mode(mode)).expect("mode");
        assert!(subject.refusal().contains("mode 0600"), "{mode:o}");
    }
    fs::set_permissions(subject.file(), Permissions::from_mode(0o600)).expect("mode");
    for mode in [0o755, 0o770, 0o1700] {
        fs::set_permissions(subject.directory(), Permissions::from_mode(mode)).expect("mode");
        assert!(subject.refusal().contains("mode 0700"), "{mode:o}");
    }
}

#[test]
fn links_are_refused() {
    let subject = SharedMemory::new("links");
    subject.write(PID);
    let other = subject.0.join("other");
    fs::hard_link(subject.file(), &other).expect("hard link");
    assert!(subject.refusal().contains("another name"));
    fs::remove_file(subject.file()).expect("removed");
    symlink(&other, subject.file()).expect("symbolic link");
    assert!(subject.refusal().contains("symbolic link"));

    let real = subject.0.join("real");
    fs::rename(subject.directory(), &real).expect("renamed");
    symlink(&real, subject.directory()).expect("symbolic link");
    assert!(subject.refusal().contains("symbolic link"));
}

#[test]
fn things_that_are_not_a_stats_file_are_refused() {
    let subject = SharedMemory::new("kinds");
    fs::create_dir(subject.file()).expect("directory");
    assert!(subject.refusal().contains("is not a file"));
    fs::remove_dir(subject.file()).expect("removed");
    subject.write(PID + 1);
    assert!(subject.refusal().contains("another process"));
    for len_bytes in [1, FILE_BYTES - 1, FILE_BYTES + 1] {
        fs::write(subject.file(), vec![0; len_bytes]).expect("live file");
        assert!(subject.refusal().contains("size"), "{len_bytes}");
    }
    fs::write(subject.file(), vec![1; FILE_BYTES]).expect("live file");
    assert!(subject.refusal().contains("this version"));

    fs::remove_dir_all(subject.directory()).expect("removed");
    fs::write(subject.directory(), "").expect("file");
    assert!(subject.refusal().contains("is not a directory"));
}

#[test]
fn a_file_that_is_still_being_made_counts_as_none() {
    let subject = SharedMemory::new("unfinished");
    subject.write(PID);
    for len_bytes in [0, FILE_BYTES] {
        fs::write(subject.file(), vec![0; len_bytes]).expect("live file");
        assert_eq!(subject.read(), Ok(None), "{len_bytes}");
    }
}

#[test]
fn pipes_are_refused_without_waiting_for_a_writer() {
    let subject = SharedMemory::new("pipe");
    let made = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(subject.file()).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    assert!(subject.refusal().contains("is not a file"));
}

#[test]
fn another_users_directory_is_refused() {
    let subject = SharedMemory::new("owner");
    let other = os::effective_user_id() + 1;
    fs::rename(subject.directory(), directory_of(&subject.0, other)).expect("renamed");
    let failure = read_live(&subject.0, other, PID, NAME).map_err(|failure| failure.to_string());
    assert!(failure.expect_err("must be refused").contains("another user"));
}

#[test]
fn process_ids_are_decimal_numbers_in_range() {
    for text in ["1", "007", "4194304"] {
        assert!(decimal_pid(text.as_ref()).is_some(), "{text}");
    }
    for text in ["", "0", "-1", "+1", "1x", " 1", "4194305", "99999999999999999999", "self"] {
        assert!(decimal_pid(text.as_ref()).is_none(), "{text}");
    }
}

#[test]
fn mappings_of_the_library_are_recognised() {
    let line = |path: &str| format!("7f00-7f01 r-xp 00000000 08:01 1   {path}").into_bytes();
    for path in ["/opt/libuncopy.so", "/opt/libuncopy.so (deleted)"] {
        assert!(is_library_path(&line(path)), "{path}");
    }
    for path in ["", "/opt/libuncopy.so.1", "/opt/notlibuncopy.so", "[heap]", "/opt/libuncopy.so/x"] {
        assert!(!is_library_path(&line(path)), "{path}");
    }
}
