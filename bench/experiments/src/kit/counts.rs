//! Event counts of a server. Unlike times, counts depend neither on the day nor on other load of the machine.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::Pid;

use crate::kit::side::{Activity, Launcher, Side};

/// Counts of all processes of a server: totals so far, their difference over an interval, or per operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Bytes that hooks copied.
    pub copied_bytes: Option<f64>,
    /// Bytes whose copy was left out.
    pub elided_bytes: Option<f64>,
    /// Bytes that were sent by reference.
    pub lent_bytes: Option<f64>,
    /// Page faults that uncopy resolved.
    pub served_faults: Option<f64>,
    /// Page faults served without disk I/O (minor faults).
    pub minor_faults: Option<f64>,
    /// System calls that read or write.
    pub io_calls: Option<f64>,
    /// Bytes written to a disk or to pages that will be written back (`write_bytes` in proc_pid_io(5)). The first
    /// write to a clean page counts its whole folio, which may have many pages.
    pub written_bytes: Option<f64>,
    /// Bytes that any program wrote to the block device of the server's directory in the same time.
    pub device_bytes: Option<f64>,
    /// Context switches of all threads.
    pub context_switches: Option<f64>,
}

impl Counts {
    /// Returns the totals so far of a server's processes in `directory` under `side`.
    #[must_use]
    pub fn read(launcher: &Launcher, side: Side, processes: &[Pid], directory: &Path) -> Self {
        let activities: Vec<Activity> = if side.is_under_uncopy() {
            processes.iter().filter_map(|pid| launcher.activity(*pid).ok()).collect()
        } else {
            Vec::new()
        };
        let counted = |of: fn(&Activity) -> u64| {
            (!activities.is_empty()).then(|| to_f64(activities.iter().map(of).sum()))
        };
        let sum = |of: fn(&str) -> Option<u64>| {
            processes
                .iter()
                .map(|pid| of(&format!("/proc/{}", pid.as_raw_pid())))
                .sum::<Option<u64>>()
                .map(to_f64)
        };
        Self {
            copied_bytes: counted(|activity| activity.copied_bytes),
            elided_bytes: counted(|activity| activity.elided_bytes),
            lent_bytes: counted(|activity| activity.lent_bytes),
            served_faults: counted(|activity| activity.faults),
            minor_faults: sum(minor_faults),
            io_calls: sum(|process| fields(&format!("{process}/io"), &["syscr", "syscw"])),
            written_bytes: sum(|process| fields(&format!("{process}/io"), &["write_bytes"])),
            device_bytes: device_bytes(directory).map(to_f64),
            context_switches: sum(context_switches),
        }
    }

    /// Returns the counts since `before`, divided by `operations`.
    #[must_use]
    pub fn since(&self, before: &Self, operations: u64) -> Self {
        let each =
            |after: Option<f64>, before: Option<f64>| Some((after? - before?) / to_f64(operations.max(1)));
        Self {
            copied_bytes: each(self.copied_bytes, before.copied_bytes),
            elided_bytes: each(self.elided_bytes, before.elided_bytes),
            lent_bytes: each(self.lent_bytes, before.lent_bytes),
            served_faults: each(self.served_faults, before.served_faults),
            minor_faults: each(self.minor_faults, before.minor_faults),
            io_calls: each(self.io_calls, before.io_calls),
            written_bytes: each(self.written_bytes, before.written_bytes),
            device_bytes: each(self.device_bytes, before.device_bytes),
            context_switches: each(self.context_switches, before.context_switches),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

/// Returns the sum of the fields `names` in a file of lines `NAME: NUMBER`.
fn fields(path: &str, names: &[&str]) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let field = |name: &&str| {
        let line = text.lines().find_map(|line| line.strip_prefix(*name)?.strip_prefix(':'))?;
        line.trim().parse::<u64>().ok()
    };
    names.iter().map(field).sum()
}

/// Returns the bytes written so far to the block device of `directory`. `None` without exactly one such device.
fn device_bytes(directory: &Path) -> Option<u64> {
    let device = std::fs::metadata(directory).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    // Seventh field, in 512-byte sectors (the kernel's Documentation/block/stat.rst).
    Some(stat.split_whitespace().nth(6)?.parse::<u64>().ok()? * 512)
}

/// Returns the context switches of all live threads of a process.
fn context_switches(process: &str) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("{process}/task")).ok()?.flatten();
    let of = |task: std::fs::DirEntry| {
        let status = task.path().join("status");
        fields(status.to_str()?, &["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"])
    };
    // A thread may end between the listing and the read; its switches are then missing from the sum.
    Some(tasks.filter_map(of).sum())
}

/// Returns the minor faults of all threads, including ended ones: the tenth field of `/proc/PID/stat` (proc(5)).
fn minor_faults(process: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn calls_and_faults_of_a_process_are_counted_for_each_operation() {
        let launcher = Launcher::of("/nonexistent/uncopy");
        let directory = std::env::temp_dir();
        let read = || Counts::read(&launcher, Side::Plain, &[rustix::process::getpid()], &directory);
        let before = read();
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let mut byte = [0; 1];
        for _ in 0..1000 {
            writer.write_all(b".").expect("room");
            reader.read_exact(&mut byte).expect("a byte");
        }
        let pages = vec![1u8; 64 << 20];
        let counts = read().since(&before, 1000);
        // Other tests make calls in the same process.
        assert!(counts.io_calls >= Some(2.0), "{counts:?}");
        assert!(counts.written_bytes >= Some(0.0), "{counts:?}");
        assert!(counts.minor_faults > Some(0.0) && counts.context_switches.is_some(), "{counts:?}");
        assert!(pages.iter().all(|byte| *byte == 1));
        assert_eq!((counts.copied_bytes, counts.lent_bytes), (None, None));
    }
}
