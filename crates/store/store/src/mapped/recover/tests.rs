//! Recovery of logs on tmpfs whose program and keeper were killed.

use super::*;
use crate::mapped::file as mapped_file;
use crate::mapped::file::NO_CHUNKS;
use crate::mapped::testing::{Directory, no_forks};
use crate::state::FileSlot;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd as _;
use std::sync::RwLockReadGuard;
use std::time::{Duration, SystemTime};
use uncopy_mapped::digest::Digester;
use uncopy_mapped::layout::Lsn;
use uncopy_mapped::log::Log;
use uncopy_mapped::memory::Persistent as _;
use uncopy_mapped::parts::Part;
use uncopy_mapped::table::MAX_PATH_BYTES;

const LOG_BYTES: u64 = 4 << 20;

/// A log with a writer, and files that are marked as if a keeper held them.
struct Killed {
    directory: Directory,
    log_path: PathBuf,
    files: Vec<(PathBuf, File, FileId)>,
    _guard: RwLockReadGuard<'static, ()>,
}

fn marked(directory: &Path, name: &str, log: &MappedLog) -> (PathBuf, File, Identity) {
    let path = directory.join(name);
    let opened = OpenOptions::new().write(true).create_new(true).open(&path).expect("a file");
    let log_id = Reader::open(log.memory()).expect("a log").superblock().log;
    mark::set(opened.as_fd(), &Owner { log: log_id, path: log.path.clone() }).expect("marked");
    let status = file::status(opened.as_fd()).expect("known");
    let generation = file::generation(opened.as_fd());
    let name = mark::path_of(opened.as_fd()).expect("a path");
    assert!(name.len() <= MAX_PATH_BYTES);
    (path, opened, Identity { device: status.device, inode: status.inode, generation, path: name })
}

/// Writes `records` (file, offset, bytes) to a new log, committed up to the last `written` ones, and leaves it.
fn killed(name: &str, count: usize, records: &[(usize, u64, &[u8])], written: usize) -> Killed {
    let guard = no_forks();
    let directory = Directory::new(name);
    let log = mapped_file::open_or_create_empty(&directory.0, LOG_BYTES, true, &|| true).expect("a log");
    let recovery = Recovery::open(log.memory(), NO_CHUNKS, boot()).expect("a log");
    let mut writer = Log::attach(recovery.finish().expect("empty"), boot(), 7);
    let mut files = Vec::new();
    for index in 0..count {
        let (path, opened, identity) = marked(&directory.0, &format!("file{index}"), &log);
        files.push((path, opened, writer.register(&identity).expect("a free entry")));
    }
    for (index, (number, offset, bytes)) in records.iter().enumerate() {
        writer.append(NO_CHUNKS, files[*number].2, *offset, &[Part::Bytes(bytes)]).expect("room");
        if index + written < records.len() {
            writer.commit();
        }
    }
    Digester::open(log.memory()).expect("a log").heartbeat(clock::wall_ns());
    let log_path = log.path.clone();
    Killed { directory, log_path, files, _guard: guard }
}

impl Killed {
    fn recover(&self, ways: &RecoveryOptions) -> Outcome {
        recover(&self.log_path, ways).expect("no error")
    }

    fn read(&self, index: usize) -> Vec<u8> {
        fs::read(&self.files[index].0).expect("read")
    }

    fn is_marked(&self, index: usize) -> bool {
        mark::is_marked(self.files[index].1.as_fd()).expect("known")
    }

    fn checkpoint(&self) -> Checkpoint {
        inspect(&self.log_path).expect("a log").checkpoint
    }
}

fn of(outcome: Outcome) -> Recovered {
    match outcome {
        Outcome::Recovered(recovered) => recovered,
        other => panic!("{other:?}"),
    }
}

const WAYS: RecoveryOptions = RecoveryOptions { search: Vec::new(), overwrites: false, gives_up: false };

#[test]
fn all_that_was_written_before_a_kill_is_recovered() {
    let killed = killed("kill", 3, &[(0, 0, b"abc"), (1, 5, b"de"), (0, 3, b"fg"), (0, 1, b"B")], 2);
    let found = inspect(&killed.log_path).expect("a log");
    assert_eq!((found.records, found.bytes, found.files.len()), (4, 8, 3));
    assert_eq!((found.is_in_use, found.damage, found.backing), (false, None, Backing::Emulated));
    assert!(may_have(&Owner { log: found.superblock.log, path: killed.log_path.clone() }));
    let recovered = of(killed.recover(&WAYS));
    assert_eq!((recovered.records, recovered.bytes, recovered.files), (4, 8, 3));
    assert_eq!(
        (killed.read(0), killed.read(1), killed.read(2)),
        (b"aBcfg".to_vec(), b"\0\0\0\0\0de".to_vec(), vec![])
    );
    assert!((0..3).all(|index| !killed.is_marked(index)));
    assert_eq!(killed.checkpoint().process, 0);
    assert_eq!(killed.recover(&WAYS), Outcome::Empty);
    let found = inspect(&killed.log_path).expect("a log");
    assert_eq!((found.records, found.files.len()), (0, 0));
    assert!(!may_have(&Owner { log: found.superblock.log, path: killed.log_path.clone() }));
    let again =
        mapped_file::open_or_create_empty(&killed.directory.0, LOG_BYTES, true, &|| true).expect("a log");
    assert_eq!(again.path, killed.log_path, "reused");
    assert_eq!(killed.recover(&WAYS), Outcome::InUse);
    assert!(is_in_use(&killed.log_path) && inspect(&killed.log_path).expect("a log").is_in_use);
    assert_eq!(remove(&killed.log_path, true), Err(Errno::EAGAIN));
    drop(again);
    assert_eq!(remove(&killed.log_path, false), Ok(()));
    assert!(!killed.log_path.exists());
}

#[test]
fn a_file_that_others_modified_is_left_alone_until_its_owner_says_so() {
    let killed = killed("modified", 2, &[(0, 0, b"abc"), (1, 0, b"abc")], 0);
    fs::write(&killed.files[0].0, b"newer").expect("written");
    let later = SystemTime::now() + Duration::from_nanos(2 * MAX_SILENCE_NS);
    killed.files[0].1.set_modified(later).expect("its owner");
    for _ in 0..2 {
        let recovered = of(killed.recover(&WAYS));
        assert_eq!(recovered.unresolved.len(), 1);
        assert_eq!((killed.read(0), killed.read(1)), (b"newer".to_vec(), b"abc".to_vec()));
        assert!(killed.is_marked(0) && !killed.is_marked(1));
        assert_eq!(remove(&killed.log_path, false), Err(Errno(libc::ENOTEMPTY)));
    }
    // The other file has left the log.
    fs::write(&killed.files[1].0, b"others").expect("written");
    let recovered = of(killed.recover(&RecoveryOptions { overwrites: true, ..WAYS }));
    assert_eq!((recovered.records, recovered.gone_records), (1, 1));
    assert_eq!((killed.read(0), killed.read(1)), (b"abcer".to_vec(), b"others".to_vec()));
    assert!(!killed.is_marked(0) && killed.recover(&WAYS) == Outcome::Empty);
}

#[test]
fn records_of_a_lost_file_are_given_up_only_on_request() {
    let killed = killed("lost", 2, &[(0, 0, b"abc"), (1, 0, b"abc")], 0);
    fs::remove_file(&killed.files[0].0).expect("removed");
    let elsewhere = killed.directory.0.join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    fs::rename(&killed.files[1].0, elsewhere.join("x")).expect("renamed");
    assert_eq!(of(killed.recover(&WAYS)).unresolved.len(), 2);
    let search = vec![elsewhere.clone()];
    assert_eq!(of(killed.recover(&RecoveryOptions { search, ..WAYS })).unresolved.len(), 1);
    assert_eq!(fs::read(elsewhere.join("x")).expect("read"), b"abc");
    let recovered = of(killed.recover(&RecoveryOptions { gives_up: true, ..WAYS }));
    assert_eq!(recovered.unresolved.len(), 1);
    assert_eq!(killed.recover(&WAYS), Outcome::Empty);
}

#[test]
fn a_damaged_log_is_unchanged_until_it_is_given_up() {
    let killed = killed("damaged", 1, &[(0, 0, b"abc"), (0, 3, b"def"), (0, 6, b"ghi")], 0);
    let log = MappedLog::open(&killed.log_path).expect("a log");
    let reader = Reader::open(log.memory()).expect("a log");
    let first = reader.record(reader.checkpoint().tail).expect("a record");
    log.memory().store(reader.superblock().position(first.end()) + 33, b"?");
    drop(log);
    assert_eq!(killed.recover(&WAYS), Outcome::Damaged);
    assert_eq!(inspect(&killed.log_path).expect("a log").damage, Some(Damage::Record(first.end())));
    assert!(killed.read(0).is_empty() && killed.is_marked(0));
    let recovered = of(killed.recover(&RecoveryOptions { gives_up: true, ..WAYS }));
    assert_eq!((recovered.records, killed.read(0)), (1, b"abc".to_vec()));
}

#[test]
fn what_is_no_log_is_reported_and_unchanged() {
    let _guard = no_forks();
    let directory = Directory::new("foreign");
    let path = directory.0.join("0123456789abcdef.mapped");
    for bytes in [&b""[..], b"text", &[7; 8192]] {
        fs::write(&path, bytes).expect("written");
        let foreign = uncopy_mapped::layout::Unreadable::Foreign;
        assert_eq!(recover(&path, &WAYS), Ok(Outcome::UnreadableMapped(foreign)));
        assert_eq!(inspect(&path).expect_err("no log"), Unreadable::Log(foreign));
        assert_eq!(fs::read(&path).expect("read"), bytes);
    }
    assert_eq!(remove(&path, false), Err(Errno(libc::ENOTEMPTY)));
    assert_eq!(remove(&path, true), Ok(()));
    assert_eq!(recover(&path, &WAYS), Err(Errno::ENOENT));
}

#[test]
fn a_program_settles_a_file_itself_after_its_keepers_death() {
    let killed = killed("settled", 1, &[(0, 0, b"abc"), (0, 3, b"def")], 0);
    let log = MappedLog::open(&killed.log_path).expect("a log");
    let mut digester = Digester::open(log.memory()).expect("a log");
    let slot = FileSlot::default();
    slot.position.store(4, core::sync::atomic::Ordering::Release);
    let (_, opened, id) = &killed.files[0];
    let memory = log.contents().expect("a log");
    let settle = |digester: &mut Digester<_>, through| {
        super::super::digest::settle(opened.as_fd(), &slot, digester, &memory, *id, through)
    };
    let beyond = settle(&mut digester, Lsn(u64::MAX)).expect_err("records are missing");
    assert_eq!(beyond.errno(), Errno(libc::EUCLEAN));
    assert!(killed.is_marked(0));
    for _ in 0..2 {
        settle(&mut digester, Lsn(0)).expect("settled");
        assert_eq!((killed.read(0), file::position(opened.as_fd())), (b"abcdef".to_vec(), Ok(4)));
        assert!(!killed.is_marked(0));
        // Void records are not written again.
        fs::write(&killed.files[0].0, b"abcdef").expect("written");
    }
    drop(log);
    fs::write(&killed.files[0].0, b"newer").expect("written");
    assert_eq!(of(killed.recover(&WAYS)).records, 0);
    assert_eq!(killed.read(0), b"newer");
}

#[test]
fn no_change_of_a_log_makes_recovery_panic_or_write_elsewhere() {
    let records: [(usize, u64, &[u8]); 4] = [(0, 0, b"abc"), (1, 5, b"de"), (0, 3, &[1; 700]), (0, 1, b"B")];
    let mut state = 5u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for turn in 0..60 {
        let killed = killed(&format!("mutated-{turn}"), 2, &records, 1);
        let other = killed.directory.0.join("other");
        fs::write(&other, b"untouched").expect("written");
        let log = MappedLog::open(&killed.log_path).expect("a log");
        let reader = Reader::open(log.memory()).expect("a log");
        let at = reader.superblock().position(reader.checkpoint().tail);
        for _ in 0..=random(3) {
            // The superblock, the checkpoints and the table, or the records.
            let position =
                if random(2) == 0 { random(4096 + 2 * 4160) as usize } else { at + random(1200) as usize };
            log.memory().store(position, &[random(256) as u8]);
        }
        if random(4) == 0 {
            let len_bytes = random(LOG_BYTES);
            OpenOptions::new()
                .write(true)
                .open(&log.path)
                .and_then(|log| log.set_len(len_bytes))
                .expect("cut");
        }
        drop(log);
        let _ = inspect(&killed.log_path);
        let first = recover(&killed.log_path, &WAYS);
        let ways = RecoveryOptions { gives_up: true, ..WAYS };
        let second = recover(&killed.log_path, &ways);
        assert!(first.is_ok() && second.is_ok(), "turn {turn}: {first:?}, {second:?}");
        assert_eq!(fs::read(&other).expect("read"), b"untouched");
        assert!(killed.read(0).len() <= 703 && killed.read(1).len() <= 7, "turn {turn}");
    }
}
