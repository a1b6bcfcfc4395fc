//! The counters that a program under uncopy leaves behind, or shows while it runs.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use uncopy_core::stats::{Counter, Snapshot, StatsName};

/// Counters of a program and of those it started.
#[derive(Clone, Debug)]
pub struct Counters {
    values: [u64; Counter::ALL.len()],
    reason: Option<String>,
}

/// Name of the stats file of a process in this process's pid namespace.
///
/// # Panics
/// When `/proc` does not show the namespace.
#[must_use]
pub fn stats_name(pid: u32) -> StatsName {
    let namespace = std::fs::metadata("/proc/self/ns/pid").expect("/proc").ino();
    StatsName { pid, namespace }
}

impl Counters {
    /// Sums the stats file and those of the descendants (`FILE.<pid>`). `None` if there is none.
    ///
    /// # Panics
    /// When a file is there but is not what `uncopy_core::stats` describes.
    #[must_use]
    pub fn read(file: &Path) -> Option<Self> {
        let mut sum: Option<Self> = None;
        for path in with_descendants(file) {
            let text = std::fs::read_to_string(&path).expect("stats file");
            let json: serde_json::Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{} is not JSON ({error}): {text}", path.display()));
            let sum = sum.get_or_insert(Self { values: [0; Counter::ALL.len()], reason: None });
            for counter in Counter::ALL {
                let value = json[counter.name()].as_u64();
                let value =
                    value.unwrap_or_else(|| panic!("{} lacks {}: {text}", path.display(), counter.name()));
                assert!(value < 1 << 62, "{} went below zero in {}: {text}", counter.name(), path.display());
                sum.values[*counter as usize] += value;
            }
            if let Some(reason) = json["reason"].as_str() {
                sum.reason = Some(reason.to_owned());
            }
        }
        sum
    }

    /// Reads the live counters of a running process. `None` if the process has no stats file yet.
    ///
    /// # Panics
    /// When the file is there but is not what `uncopy_core::stats` describes.
    #[must_use]
    pub fn live(pid: u32) -> Option<Self> {
        // SAFETY: geteuid(2) takes no arguments and cannot fail.
        let user = unsafe { libc::geteuid() };
        let directory = [format!("/dev/shm/uncopy-{user}"), format!("/tmp/uncopy-{user}")];
        let name = stats_name(pid).to_string();
        let bytes = directory.iter().find_map(|path| std::fs::read(Path::new(path).join(&name)).ok())?;
        let snapshot =
            Snapshot::parse(&bytes).unwrap_or_else(|what| panic!("the stats file of {pid} {what}"));
        assert_eq!(snapshot.pid, u64::from(pid), "the live stats file names another process");
        Some(Self { values: snapshot.values, reason: snapshot.reason })
    }

    /// One counter's value.
    #[must_use]
    pub const fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Reason why nothing was elided, if the library gave one.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Fails unless each of `counters` is above zero.
    ///
    /// # Panics
    /// When a counter is zero; the message shows all counters and the reason.
    pub fn expect_above_zero(&self, what: &str, counters: &[Counter]) {
        for counter in counters {
            assert!(
                self.get(*counter) > 0,
                "{what}: {} is 0: uncopy did nothing here: {self}",
                counter.name()
            );
        }
    }
}

impl std::fmt::Display for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for counter in Counter::ALL {
            if self.get(*counter) > 0 {
                write!(f, "{}={} ", counter.name(), self.get(*counter))?;
            }
        }
        write!(f, "reason={:?}", self.reason)
    }
}

/// The stats files that exist among `file` and `file.<pid>`.
fn with_descendants(file: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str()))
    else {
        return Vec::new();
    };
    let prefix = format!("{name}.");
    let entries = std::fs::read_dir(directory).expect("directory of the stats file");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("directory entry").path()).collect();
    files.retain(|path| {
        let found = path.file_name().and_then(|found| found.to_str()).unwrap_or("");
        found == name || found.strip_prefix(&prefix).is_some_and(|pid| pid.parse::<u32>().is_ok())
    });
    files
}
