//! Call sites of a running process, from the ledger of the `uncopy run --explain` that started it.

use crate::explain::sites::{self, Site};
use crate::os;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use uncopy_core::ledger::{LEDGER_BYTES, Ledger};
use uncopy_profile::symbols::Symbols;

/// Target of a ledger's link in /proc/PID/fd: see `explain`.
const LEDGER_LINK: &str = "/memfd:uncopy-ledger (deleted)";

/// Reader of call sites that caches symbols and the last ledger.
pub struct Sites {
    symbols: Symbols,
    ledger: Option<(u32, File)>,
}

impl Sites {
    pub fn new() -> Self {
        Self { symbols: Symbols::new(), ledger: None }
    }

    /// Returns the call sites of a process, those with the largest effect first; `None` if no
    /// ledger has the process. The process must belong to this user, because files that it names
    /// are read.
    pub fn sites_of(&mut self, pid: u32) -> Option<Vec<Site>> {
        if self.ledger.as_ref().is_none_or(|(ledger_pid, _)| *ledger_pid != pid) {
            self.ledger = Some((pid, find(pid)?));
        }
        let (_, file) = self.ledger.as_ref()?;
        let ledger = read(file)?;
        let process = ledger.processes.iter().rev().find(|process| process.pid == pid)?;
        Some(sites::sites(process, &mut self.symbols))
    }
}

/// Finds the ledger in which a process has a slot.
fn find(pid: u32) -> Option<File> {
    let has_process = |file: &File| {
        read(file).is_some_and(|ledger| ledger.processes.iter().any(|process| process.pid == pid))
    };
    ledgers().find(has_process)
}

/// Returns every ledger that a command of this user has open.
fn ledgers() -> impl Iterator<Item = File> {
    let user = os::effective_user_id();
    let is_command = move |entry: &fs::DirEntry| {
        fs::read(entry.path().join("comm")).is_ok_and(|name| name == b"uncopy\n")
            && entry.metadata().is_ok_and(|metadata| metadata.uid() == user)
    };
    let commands = fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_command);
    let descriptors = commands.flat_map(|entry| fs::read_dir(entry.path().join("fd"))).flatten().flatten();
    let is_ledger = |path: &PathBuf| fs::read_link(path).is_ok_and(|link| link.as_os_str() == LEDGER_LINK);
    descriptors
        .map(|entry| entry.path())
        .filter(is_ledger)
        .filter_map(|path| OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok())
}

fn read(file: &File) -> Option<Ledger> {
    let mut file = file;
    file.rewind().ok()?;
    let mut bytes = Vec::with_capacity(LEDGER_BYTES);
    file.take(LEDGER_BYTES as u64).read_to_end(&mut bytes).ok()?;
    Ledger::parse(&bytes).ok()
}
