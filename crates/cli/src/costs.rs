//! Costs of copies, moves and faults on this machine: the library measures them in a few processes,
//! the user's cache stores them, and `run` passes them to the programs that it starts.
//!
//! The file names the processor and the kernel that it was measured with, and counts as missing
//! with any other. Values that [`Costs`] does not accept are refused.

use crate::atomic_write;
use crate::environment::Environment;
use crate::library;
use crate::os;
use crate::output::Reason;
use crate::settings::LEDGER;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uncopy_core::ledger::{LEDGER_BYTES, Ledger, MAGIC};
use uncopy_core::policy::Costs;
use uncopy_core::policy::costs::Cost;

/// Environment variable of `--costs`.
pub const VARIABLE: &str = "UNCOPY_COSTS";
const BEGIN_AFTER: &str = "UNCOPY_BEGIN_AFTER";
const HEAP: &str = "UNCOPY_HEAP";
/// First line of the costs file.
const HEADING: &str = "uncopy costs 1";
/// Maximum size of the costs file, bytes.
const MAX_FILE_BYTES: u64 = 4096;
/// Number of measuring processes; odd, so that there is a median.
const PROCESSES: usize = 9;
/// Bytes that each measuring process receives: enough to activate the library.
const INPUT_BYTES: usize = 1 << 20;

/// Reason why stored costs are not used. `Display` continues a sentence that begins with the path.
#[derive(Debug)]
pub enum LoadError {
    Missing,
    Unreadable(io::Error),
    /// Not a regular file, owned by another user, or writable by others.
    NotTrusted,
    /// Not a costs file, or a damaged one.
    Damaged,
    /// Measured with another processor or kernel.
    OtherMachine,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("does not exist"),
            Self::Unreadable(error) => write!(f, "cannot be read: {}", Reason(error)),
            Self::NotTrusted => f.write_str("is not a file that only this user can write"),
            Self::Damaged => f.write_str("is not a costs file, or is damaged"),
            Self::OtherMachine => f.write_str("was measured with another processor or kernel"),
        }
    }
}

/// Returns the path of the costs file: below `XDG_CACHE_HOME`, else below `~/.cache`. `None` if
/// neither that variable nor `HOME` is an absolute path.
pub fn path(environment: &Environment) -> Option<PathBuf> {
    let directory = |name: &[u8]| {
        let path = Path::new(std::ffi::OsStr::from_bytes(environment.get(name)?)).to_path_buf();
        path.is_absolute().then_some(path)
    };
    let cache = directory(b"XDG_CACHE_HOME").or_else(|| Some(directory(b"HOME")?.join(".cache")))?;
    Some(cache.join("uncopy/costs"))
}

/// Returns the processor's model name, or the machine's architecture if the kernel gives none.
pub fn processor() -> String {
    let mut text = String::new();
    // The first processor's entry is within this. Reading the whole file is slow with many
    // processors.
    if let Ok(file) = File::open("/proc/cpuinfo") {
        let _ = file.take(MAX_FILE_BYTES).read_to_string(&mut text);
    }
    let processor = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    processor.map_or_else(|| os::kernel().1, |(_, name)| name.trim().to_owned())
}

/// Returns the lines of the costs file that identify processor and kernel.
fn machine() -> String {
    format!("cpu: {}\nkernel: {}\n", processor(), os::kernel().0)
}

/// Reads the stored costs.
pub fn load(path: &Path) -> Result<Costs, LoadError> {
    let mut options = OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = options.read(true).custom_flags(flags).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => LoadError::Missing,
        _ => LoadError::Unreadable(error),
    })?;
    let found = file.metadata().map_err(LoadError::Unreadable)?;
    if !found.is_file() || found.uid() != os::effective_user_id() || found.mode() & 0o022 != 0 {
        return Err(LoadError::NotTrusted);
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(|_| LoadError::Damaged)?;
    parse(&text, &machine())
}

fn parse(text: &str, machine: &str) -> Result<Costs, LoadError> {
    let rest =
        text.strip_prefix(HEADING).and_then(|rest| rest.strip_prefix('\n')).ok_or(LoadError::Damaged)?;
    let (measured_on, costs) = rest.split_once("costs: ").ok_or(LoadError::Damaged)?;
    let costs = costs.strip_suffix('\n').and_then(|costs| Costs::parse(costs.as_bytes()));
    let costs = costs.ok_or(LoadError::Damaged)?;
    if measured_on == machine { Ok(costs) } else { Err(LoadError::OtherMachine) }
}

fn to_text(costs: &Costs, machine: &str) -> String {
    format!("{HEADING}\n{machine}costs: {}\n", costs.to_text())
}

/// Stores the costs of this machine. Replaces the file atomically and creates missing directories.
pub fn store(path: &Path, costs: &Costs) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    atomic_write::replace(path, to_text(costs, &machine()).as_bytes(), atomic_write::PRIVATE)
}

/// Measures the costs under the library in [`PROCESSES`] processes and returns the median of each.
///
/// # Errors
/// The reason, as part of a sentence.
pub fn measure() -> Result<Costs, String> {
    let library = library::locate()?;
    let failed = |error: io::Error| format!("measuring failed: {}", Reason(&error));
    let ledger = os::memory_file(c"uncopy-ledger", LEDGER_BYTES).map_err(failed)?;
    ledger.write_all_at(&MAGIC, 0).map_err(failed)?;
    let ledger_path = format!("/proc/{}/fd/{}", std::process::id(), ledger.as_raw_fd());
    for _ in 0..PROCESSES {
        let mut command = Command::new("/proc/self/exe");
        command.args(["doctor", "--calibrate-here"]).stdin(Stdio::null()).stdout(Stdio::null());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"UNCOPY_")) {
            command.env_remove(name);
        }
        command.env("LD_PRELOAD", &library).env(VARIABLE, "measure").env(LEDGER, &ledger_path);
        command.env(BEGIN_AFTER, "0").env(HEAP, "on");
        command.status().map_err(failed)?;
    }
    let mut bytes = vec![0; LEDGER_BYTES];
    ledger.read_exact_at(&mut bytes, 0).map_err(failed)?;
    let ledger = Ledger::parse(&bytes).map_err(str::to_owned)?;
    let measured: Vec<Costs> = ledger.processes.iter().filter_map(|process| process.costs).collect();
    if measured.len() < PROCESSES {
        let reason = ledger.processes.iter().find_map(|process| process.reason.clone());
        return Err(reason.unwrap_or_else(|| "libuncopy.so did not become active".to_owned()));
    }
    Ok(medians(&measured))
}

/// Returns the median of each cost.
fn medians(measured: &[Costs]) -> Costs {
    let mut costs = Costs::DEFAULT;
    for which in Cost::ALL {
        let mut all: Vec<u32> = measured.iter().map(|costs| costs.get(*which)).collect();
        all.sort_unstable();
        if let Some(median) = all.get(all.len() / 2) {
            costs.set(*which, u64::from(*median));
        }
    }
    costs
}

/// Receives [`INPUT_BYTES`] from `/dev/zero`. Under the library this input starts the measurement.
pub fn receive_input() -> io::Result<()> {
    let mut buffer = vec![0u8; INPUT_BYTES];
    File::open("/dev/zero")?.read_exact(std::hint::black_box(&mut buffer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const MACHINE: &str = "cpu: One\nkernel: 6.18\n";

    #[test]
    fn what_is_written_reads_back_on_this_machine_only() {
        let mut costs = Costs::DEFAULT;
        costs.set(Cost::Fault, 4_321);
        let text = to_text(&costs, MACHINE);
        assert_eq!(parse(&text, MACHINE).expect("well-formed"), costs);
        let other = parse(&text, "cpu: One\nkernel: 6.19\n");
        assert!(matches!(other, Err(LoadError::OtherMachine)), "{other:?}");
        for damaged in [&text[1..], &text[..text.len() - 1], "", &text.replace("fault=", "fault=9999999")] {
            let read = parse(damaged, MACHINE);
            assert!(matches!(read, Err(LoadError::Damaged)), "{damaged}: {read:?}");
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_not_read() {
        let directory = std::env::temp_dir().join(format!("uncopy-costs-test-{}", std::process::id()));
        let path = directory.join("uncopy/costs");
        assert!(matches!(load(&path), Err(LoadError::Missing)));
        store(&path, &Costs::DEFAULT).expect("stored");
        assert_eq!(load(&path).expect("ours"), Costs::DEFAULT);
        assert_eq!(fs::metadata(&path).expect("stored").mode() & 0o777, 0o600);
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o622)).expect("ours");
        assert!(matches!(load(&path), Err(LoadError::NotTrusted)));
        // Storing replaces the file and its mode.
        store(&path, &Costs::DEFAULT).expect("stored");
        assert!(load(&path).is_ok());
        fs::remove_file(&path).expect("ours");
        std::os::unix::fs::symlink("/etc/passwd", &path).expect("made");
        assert!(matches!(load(&path), Err(LoadError::Unreadable(_))));
        fs::remove_dir_all(&directory).expect("cleaned up");
    }

    #[test]
    fn the_cache_is_where_the_user_says_or_at_home() {
        let environment =
            |entries: &[&'static std::ffi::CStr]| Environment::from_entries(entries.iter().copied());
        let found = |entries| path(&environment(entries)).map(|path| path.display().to_string());
        assert_eq!(found(&[c"HOME=/h", c"XDG_CACHE_HOME=/c"]).as_deref(), Some("/c/uncopy/costs"));
        assert_eq!(found(&[c"HOME=/h", c"XDG_CACHE_HOME=c"]).as_deref(), Some("/h/.cache/uncopy/costs"));
        assert_eq!(found(&[c"HOME="]), None);
    }

    #[test]
    fn one_disturbed_process_changes_nothing() {
        let mut disturbed = Costs::DEFAULT;
        disturbed.set(Cost::Fault, u64::MAX);
        assert_eq!(medians(&[disturbed, Costs::DEFAULT, Costs::DEFAULT]), Costs::DEFAULT);
    }
}
