//! Programs run by `uncopy run --log`, in each of its modes, and the files that they leave.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use uncopy_core::options::LogMode;

use crate::artifacts::bin_dir;
use crate::launch::Program;
use crate::scratch::{Scratch, wait_until};

/// Line of `uncopy run` about a log that no power loss survives.
pub const EMULATES: &str = "uncopy: the log emulates DAX: nothing survives power loss\n";
/// Length of a program's log, bytes: the shortest, so that it is full now and then.
const LOG_BYTES: &str = "16777216";
/// Longest run of bytes that is compared at once.
const BLOCK_BYTES: usize = 4096;
/// Magic number of tmpfs (linux/magic.h).
const TMPFS: i64 = 0x0102_1994;
/// Magic numbers of file systems whose files may be in a log: see `uncopy_store::mark`.
const WITH_LOGS: [i64; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010];

/// Directories of a program with a log: its files, and its log.
#[derive(Debug)]
pub struct LogRuns {
    mode: LogMode,
    disk: Scratch,
    memory: Scratch,
}

/// A file as a program left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileState {
    /// Length, bytes.
    pub len_bytes: u64,
    /// Type and permissions of the file.
    pub mode: u32,
    /// Number of hard links.
    pub links: u64,
    /// Time of the last modification, seconds since 1970.
    pub modified_s: i64,
    /// Offset and bytes of each block with a byte other than 0, as one number.
    pub digest: u64,
}

impl LogRuns {
    /// Makes directories for programs with logs of this mode.
    #[must_use]
    pub fn new(mode: LogMode, name: &str) -> Self {
        let (disk, memory) = (Scratch::on_disk(name), Scratch::in_memory(name));
        let runs = Self { mode, disk, memory };
        std::fs::DirBuilder::new().mode(0o700).create(runs.log()).expect("a directory");
        runs
    }

    /// Whether the files on disk can be in a log of this mode; prints a message if not.
    #[must_use]
    pub fn can_log(&self, test: &str) -> bool {
        let magic = file_system(self.disk.path());
        let can_log = WITH_LOGS.contains(&magic);
        if !can_log {
            eprintln!("skipped: {test}: no log has files of a file system {magic:#x}");
        }
        can_log
    }

    /// Returns the directory of the logs: on disk, or in memory if the log is mapped.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        match self.mode {
            LogMode::Beside => self.disk.join("log"),
            LogMode::Only => self.memory.join("log"),
        }
    }

    /// Returns the directory on disk.
    #[must_use]
    pub const fn disk(&self) -> &Scratch {
        &self.disk
    }

    /// Returns the directory in memory.
    #[must_use]
    pub const fn memory(&self) -> &Scratch {
        &self.memory
    }

    /// Returns a program that runs another one with a log that has every file that it can. The counters go to
    /// `stats`.
    #[must_use]
    pub fn program(&self, stats: &Path) -> Program {
        self.program_by(stats, &[])
    }

    /// Returns a program as [`LogRuns::program`] does, by `uncopy run` with further options.
    #[must_use]
    pub fn program_by(&self, stats: &Path, options: &[&OsStr]) -> Program {
        let program = plain().arg(bin_dir().join("uncopy")).args(["run", "--policy", "always"]);
        let program = program.args(["--log-size", LOG_BYTES, "--log-mode", self.mode.word()]);
        let program = program.args((self.mode == LogMode::Only).then_some("--log-emulate-dax"));
        program
            .args([OsStr::new("--log"), self.log().as_os_str(), OsStr::new("--stats"), stats.as_os_str()])
            .args(options)
            .args(["--"])
    }

    /// Returns the process ids of the keepers of the logs.
    #[must_use]
    pub fn keepers(&self) -> Vec<i32> {
        let words = [b"\0log\0keep\0", self.log().as_os_str().as_bytes(), b"\0"].concat();
        let processes = std::fs::read_dir("/proc").expect("/proc").filter_map(|entry| {
            let entry = entry.ok()?;
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, std::fs::read(entry.path().join("cmdline")).ok()?))
        });
        let is_keeper = |line: &[u8]| line.windows(words.len()).any(|part| part == words);
        processes.filter(|(_, line)| is_keeper(line)).map(|(pid, _)| pid).collect()
    }

    /// Waits until no keeper of the logs is left.
    ///
    /// # Panics
    /// If one stays.
    pub fn wait_until_kept(&self) {
        wait_until("the keeper to end", || self.keepers().is_empty().then_some(()));
    }

    /// Runs `uncopy log COMMAND`, and returns what it printed.
    ///
    /// # Panics
    /// If it fails.
    pub fn log_command(&self, command: &[&str]) -> String {
        let mut run = Command::new(bin_dir().join("uncopy"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"UNCOPY_")) {
            run.env_remove(name);
        }
        let done = run.arg("log").args(command).arg(self.log()).output().expect("uncopy");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            done.status.success(),
            "uncopy log {command:?}: {}{}",
            text(&done.stdout),
            text(&done.stderr)
        );
        text(&done.stdout)
    }

    /// Fails unless the logs hold nothing and no file of `directory` is marked.
    ///
    /// # Panics
    /// With the logs or the file.
    pub fn expect_settled(&self, directory: &Path) {
        let logs = self.log_command(&["ls"]);
        assert!(!logs.contains("to recover") && !logs.contains("damaged"), "{logs}");
        for entry in std::fs::read_dir(directory).expect("the directory") {
            let path = entry.expect("an entry").path();
            assert!(!is_marked(&path), "{} is marked: {logs}", path.display());
        }
    }
}

/// Returns `env`, which starts a program without the variables of the tests: uncopy would not know them.
#[must_use]
pub fn plain() -> Program {
    let variables = std::env::vars_os().map(|(name, _)| name);
    let own = variables.filter(|name| name.as_bytes().starts_with(b"UNCOPY_"));
    Program::new("/usr/bin/env").args(own.flat_map(|name| [OsString::from("-u"), name]))
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL")
}

/// Returns the magic number of a directory's file system.
///
/// # Panics
/// If the directory does not exist.
#[must_use]
pub fn file_system(directory: &Path) -> i64 {
    // SAFETY: the path is NUL-terminated; an all-zero statfs is valid, and statfs(2) fills it.
    unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        assert_eq!(libc::statfs(c_path(directory).as_ptr(), &raw mut found), 0, "{}", directory.display());
        found.f_type
    }
}

/// Whether files of a directory on tmpfs can have the mark of a log (Linux 6.6); prints a message if not.
#[must_use]
pub fn has_marks_in_memory(directory: &Path) -> bool {
    let probe = directory.join("marked");
    std::fs::write(&probe, "").expect("a file");
    // SAFETY: path and name are NUL-terminated, and the value has one byte.
    let set = unsafe {
        libc::setxattr(c_path(&probe).as_ptr(), c"user.uncopy.test".as_ptr(), c"x".as_ptr().cast(), 1, 0)
    };
    std::fs::remove_file(&probe).expect("removed");
    let has_marks = set == 0 && file_system(directory) == TMPFS;
    if !has_marks {
        eprintln!("skipped: files in memory: they have no extended attributes here");
    }
    has_marks
}

fn is_marked(path: &Path) -> bool {
    let (name, nowhere) = (c"user.uncopy.log", std::ptr::null_mut());
    // SAFETY: path and name are NUL-terminated; with size 0 no value is written.
    unsafe { libc::getxattr(c_path(path).as_ptr(), name.as_ptr(), nowhere, 0) >= 0 }
}

/// Returns the files of a directory by their names.
///
/// # Panics
/// If one cannot be read.
#[must_use]
pub fn files(directory: &Path) -> BTreeMap<String, FileState> {
    let entries = std::fs::read_dir(directory).expect("the directory").map(|entry| entry.expect("an entry"));
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), state(&entry.path()))).collect()
}

fn state(path: &Path) -> FileState {
    let is_file = std::fs::symlink_metadata(path).expect("a file").is_file();
    // The file is opened first: that waits for the keeper, before which its size may be a second old.
    let digest = if is_file { digest(path) } else { 0 };
    let found = std::fs::symlink_metadata(path).expect("a file");
    FileState {
        len_bytes: found.len(),
        mode: found.mode(),
        links: found.nlink(),
        modified_s: found.mtime(),
        digest,
    }
}

/// Returns a number that tells contents apart. Blocks of zeroes do not count, so holes are skipped.
fn digest(path: &Path) -> u64 {
    use std::os::fd::AsRawFd as _;
    let file = std::fs::File::open(path).expect("a file");
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |byte: u8| digest = (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut block = [0; BLOCK_BYTES];
    let mut at: u64 = 0;
    loop {
        // SAFETY: lseek(2) accesses no memory.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at.cast_signed(), libc::SEEK_DATA) };
        let Ok(data) = u64::try_from(data) else { break };
        at = data.max(at) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let got = file.read_at(&mut block, at).expect("a block");
        if got == 0 {
            break;
        }
        if block[..got].iter().any(|byte| *byte != 0) {
            at.to_le_bytes().into_iter().chain(block[..got].iter().copied()).for_each(&mut add);
        }
        at += BLOCK_BYTES as u64;
    }
    digest
}
