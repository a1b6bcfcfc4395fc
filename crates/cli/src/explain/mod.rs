//! `uncopy run --explain`: reports what each call site of a program saved and cost.
//!
//! The command creates a ledger, a file in memory, and passes its name to the library, which enters
//! the call sites. CMD is a child process here: the command forwards signals to it, and ends as CMD
//! ended. The ledger also keeps the accounts of processes that a signal ended.

pub mod describe;
mod report;
pub mod sites;

use crate::atomic_write;
use crate::os;
use crate::os::child::{self, BlockedSignals, Ending};
use crate::output::{self, Quoted, Reason};
use report::Report;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use uncopy_core::ledger::{LEDGER_BYTES, Ledger, MAGIC, SLOTS_OFFSET, WHY_WITHOUT_LIBRARY_LEN_OFFSET};

/// Run of a program under `--explain`.
pub struct Explanation {
    ledger: File,
    /// Path of the ledger for the programs of the run.
    path: String,
    signals: BlockedSignals,
}

impl Explanation {
    /// Creates a ledger, and blocks signals from here on.
    pub fn begin() -> io::Result<Self> {
        let ledger = os::memory_file(c"uncopy-ledger", LEDGER_BYTES)?;
        ledger.write_all_at(&MAGIC, 0)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), ledger.as_raw_fd());
        Ok(Self { ledger, path, signals: BlockedSignals::begin() })
    }

    /// Returns the ledger's path, for the environment.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Records why the program is started without the library.
    pub fn record_inactive(&self, why: &str) {
        let why = &why.as_bytes()[..why.len().min(SLOTS_OFFSET - WHY_WITHOUT_LIBRARY_LEN_OFFSET - 8)];
        let text = [&(why.len() as u64).to_ne_bytes(), why].concat();
        // Without the reason, the report only states that no process entered anything.
        let _ = self.ledger.write_all_at(&text, WHY_WITHOUT_LIBRARY_LEN_OFFSET as u64);
    }

    /// Runs `section` in a child process and waits for its end.
    pub fn run_child(&self, section: impl FnOnce() -> u8) -> io::Result<Ending> {
        self.signals.fork_and_wait(section)
    }

    /// Writes the report to `file`, then ends as the program ended.
    pub fn finish(&self, file: &OsStr, command: &[OsString], ending: io::Result<Ending>) -> u8 {
        let ending = match ending {
            Ok(ending) => ending,
            Err(error) => {
                output::print_message(format_args!("cannot start a process: {}", Reason(&error)));
                return output::EXIT_NOT_EXECUTABLE;
            }
        };
        if let Err(error) = self.report(file, command, ending)
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            output::print_message(format_args!(
                "cannot write --explain {}: {}",
                Quoted(file),
                Reason(&error)
            ));
        }
        self.signals.end();
        child::exit_as(ending)
    }

    fn report(&self, file: &OsStr, command: &[OsString], ending: Ending) -> io::Result<()> {
        let mut bytes = vec![0; LEDGER_BYTES];
        self.ledger.read_exact_at(&mut bytes, 0)?;
        let ledger = Ledger::parse(&bytes).map_err(io::Error::other)?;
        let report = Report::new(&ledger, command, ending);
        let is_json = Path::new(file).extension() == Some("json".as_ref());
        let text = if is_json { format!("{:#}\n", report.to_json()) } else { report.to_table() };
        if file == "-" {
            let mut output = io::stdout();
            return output.write_all(text.as_bytes()).and_then(|()| output.flush());
        }
        atomic_write::write(Path::new(file), text.as_bytes())
    }
}
