//! What a server did, counted: it depends neither on the day nor on what else the machine did.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::Pid;

use crate::kit::side::{Activity, Launcher, Side};

/// What all processes of a server did so far, or, as a difference, in between; each for one operation in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Bytes that hooks copied.
    pub copied_bytes: Option<f64>,
    /// Bytes whose copy was left out.
    pub elided_bytes: Option<f64>,
    /// Bytes that were sent by reference.
    pub lent_bytes: Option<f64>,
    /// Page faults that uncopy served.
    pub served_faults: Option<f64>,
    /// Page faults that needed no disk.
    pub minor_faults: Option<f64>,
    /// System calls that read or write.
    pub io_calls: Option<f64>,
    /// Bytes that went to a disk, or to pages that go there later (`write_bytes` in proc_pid_io(5)). Of a page that was clean its
    /// whole folio counts, which may have many.
    pub written_bytes: Option<f64>,
    /// Bytes that the device took meanwhile, from whoever, that the server's directory is on.
    pub device_bytes: Option<f64>,
    /// Context switches.
    pub context_switches: Option<f64>,
}

impl Counts {
    /// What the processes of a server in `directory` did so far under `side`.
    #[must_use]
    pub fn read(launcher: &Launcher, side: Side, processes: &[Pid], directory: &Path) -> Self {
        let activities: Vec<Activity> = if side.is_under_uncopy() {
            processes.iter().filter_map(|pid| launcher.activity(*pid).ok()).collect()
        } else {
            Vec::new()
        };
        let counted = |of: fn(&Activity) -> u64| {
            (!activities.is_empty()).then(|| figure(activities.iter().map(of).sum()))
        };
        let sum = |of: fn(&str) -> Option<u64>| {
            processes
                .iter()
                .map(|pid| of(&format!("/proc/{}", pid.as_raw_pid())))
                .sum::<Option<u64>>()
                .map(figure)
        };
        Self {
            copied_bytes: counted(|activity| activity.copied_bytes),
            elided_bytes: counted(|activity| activity.elided_bytes),
            lent_bytes: counted(|activity| activity.lent_bytes),
            served_faults: counted(|activity| activity.faults),
            minor_faults: sum(minor_faults),
            io_calls: sum(|process| fields(&format!("{process}/io"), &["syscr", "syscw"])),
            written_bytes: sum(|process| fields(&format!("{process}/io"), &["write_bytes"])),
            device_bytes: device_bytes(directory).map(figure),
            context_switches: sum(context_switches),
        }
    }

    /// What was done since `before`, for each of `operations`.
    #[must_use]
    pub fn since(&self, before: &Self, operations: u64) -> Self {
        let each =
            |after: Option<f64>, before: Option<f64>| Some((after? - before?) / figure(operations.max(1)));
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
fn figure(count: u64) -> f64 {
    count as f64
}

/// The sum of some fields of a file of lines `NAME: NUMBER`.
fn fields(path: &str, names: &[&str]) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let field = |name: &&str| {
        let line = text.lines().find_map(|line| line.strip_prefix(*name)?.strip_prefix(':'))?;
        line.trim().parse::<u64>().ok()
    };
    names.iter().map(field).sum()
}

/// What the device that `directory` is on was given to write; `None` where it is on none, or on several.
fn device_bytes(directory: &Path) -> Option<u64> {
    let device = std::fs::metadata(directory).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    // The seventh field, in sectors of 512 bytes (the kernel's Documentation/block/stat.rst).
    Some(stat.split_whitespace().nth(6)?.parse::<u64>().ok()? * 512)
}

/// Of all threads of a process that live.
fn context_switches(process: &str) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("{process}/task")).ok()?.flatten();
    let of = |task: std::fs::DirEntry| {
        let status = task.path().join("status");
        fields(status.to_str()?, &["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"])
    };
    // A thread that has just ended counts for nothing.
    Some(tasks.filter_map(of).sum())
}

/// Of all threads, also ended ones: the tenth field of `/proc/PID/stat` (proc(5)).
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
        // Other tests make calls meanwhile.
        assert!(counts.io_calls >= Some(2.0), "{counts:?}");
        assert!(counts.written_bytes >= Some(0.0), "{counts:?}");
        assert!(counts.minor_faults > Some(0.0) && counts.context_switches.is_some(), "{counts:?}");
        assert!(pages.iter().all(|byte| *byte == 1));
        assert_eq!((counts.copied_bytes, counts.lent_bytes), (None, None));
    }
}
