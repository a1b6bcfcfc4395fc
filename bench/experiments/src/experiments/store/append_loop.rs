//! A program that appends to files and syncs each time, or never, as logs of databases do. Runs in slices on
//! request ([`remote`]), and compares the contents of its files with the bytes written.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use crate::kit::remote::{self, ControlRequest};
use crate::kit::traffic::{Exchange, LoadResult, in_parallel, repeat};
use crate::kit::{Experiment, Failure, Outcome, Random, Result, While, compare, format_size, threads_parser};

/// Length at which a file is complete and the next one begins, bytes.
const FILE_BYTES: usize = 1 << 30;
/// Length of all preallocated files together, bytes: the size that databases keep ready (PostgreSQL's
/// `max_wal_size` is 1 GiB). Files are overwritten from the beginning, as databases do.
const PREALLOCATED_BYTES: usize = 256 << 20;
/// Bytes written by one call when a preallocated file is filled.
const FILL_BYTES: usize = 1 << 20;
/// Length of the record's number, with which each record begins, bytes.
const STAMP_BYTES: usize = 8;

/// Returns the parser of a record's length, bytes.
pub fn record_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(STAMP_BYTES as u64..=16 << 20)
}

/// Append to files and sync
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
#[command(hide = true)]
pub struct AppendLoop {
    /// Length of a record, in bytes
    #[arg(long, value_name = "SIZE", value_parser = record_parser())]
    pub size: usize,
    /// Threads, each with a file of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = threads_parser())]
    pub threads: usize,
    /// Append without syncing the files
    #[arg(long)]
    pub no_sync: bool,
    /// Overwrite files that have their full length and are synced
    #[arg(long)]
    pub preallocated: bool,
}

impl Experiment for AppendLoop {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        let mut files =
            (0..self.threads).map(|number| AppendedFile::begin(*self, number)).collect::<Result<Vec<_>>>()?;
        remote::serve_requests_with(|request| match request {
            ControlRequest::Load(duration) => {
                in_parallel(&mut files, None, duration, |file, period| repeat(period, |_| file.append()))
            }
            ControlRequest::Reconnect => Ok(LoadResult::default()),
            ControlRequest::Verify => {
                let verified_bytes = files.iter().map(AppendedFile::verify).sum::<Result<_>>()?;
                Ok(LoadResult { verified_bytes, ..LoadResult::default() })
            }
        })?;
        Ok(Outcome::Status(0))
    }
}

impl AppendLoop {
    /// Returns the arguments of `uncopy-bench` that start the loop.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let numbers = [format!("--size={}", self.size), format!("--threads={}", self.threads)];
        let flags = [("--no-sync", self.no_sync), ("--preallocated", self.preallocated)];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.to_owned());
        std::iter::once("append-loop".to_owned()).chain(numbers).chain(flags).collect()
    }

    /// Returns the maximum length of a file, bytes: a multiple of the record's.
    const fn file_bytes(&self) -> usize {
        let bytes = if self.preallocated { PREALLOCATED_BYTES / self.threads } else { FILE_BYTES };
        let records = bytes / self.size;
        self.size * if records == 0 { 1 } else { records }
    }
}

/// State of one thread's file.
#[derive(Debug)]
struct AppendedFile {
    work: AppendLoop,
    thread: usize,
    /// Number of files before this one.
    files_before: u64,
    file: File,
    path: PathBuf,
    /// Contents of the next record, beginning with its number.
    record: Vec<u8>,
    /// Number of the next record.
    next: u64,
    /// Number of the file's first record.
    first: u64,
}

impl AppendedFile {
    fn begin(work: AppendLoop, thread: usize) -> Result<Self> {
        let record = Random::new(thread as u64).bytes(work.size);
        let (path, file) = create(thread, 0, work.preallocated)?;
        let mut appended = Self { work, thread, files_before: 0, file, path, record, next: 0, first: 0 };
        if work.preallocated {
            appended.fill().doing("filling a file with zeroes")?;
        }
        Ok(appended)
    }

    /// Writes zeroes, so that later writes change no metadata.
    fn fill(&mut self) -> std::io::Result<()> {
        let (zeroes, mut left) = (vec![0; FILL_BYTES], self.work.file_bytes());
        while left > 0 {
            let some = left.min(FILL_BYTES);
            self.file.write_all(&zeroes[..some])?;
            left -= some;
        }
        self.file.sync_all()?;
        self.file.seek(SeekFrom::Start(0)).map(drop)
    }

    /// Writes a record and syncs it. The returned times are those of the sync, or of the write if nothing is synced.
    fn append(&mut self) -> Result<Exchange> {
        let len_bytes = (self.next - self.first) * self.work.size as u64;
        if len_bytes >= self.work.file_bytes() as u64 {
            self.start_over()?;
        }
        self.record[..STAMP_BYTES].copy_from_slice(&self.next.to_le_bytes());
        let mut sent = Instant::now();
        self.file.write_all(&self.record).doing("appending")?;
        if !self.work.no_sync {
            sent = Instant::now();
            self.file.sync_data().doing("syncing")?;
        }
        let received = Instant::now();
        self.next += 1;
        Ok(Exchange { sent, received, verified_bytes: 0 })
    }

    /// Continues with another file, or with the same one from its beginning.
    fn start_over(&mut self) -> Result<()> {
        self.first = self.next;
        if self.work.preallocated {
            return self.file.seek(SeekFrom::Start(0)).map(drop).doing("seeking to the start of the file");
        }
        self.files_before += 1;
        let (path, file) = create(self.thread, self.files_before, false)?;
        self.file = file;
        let old = std::mem::replace(&mut self.path, path);
        std::fs::remove_file(&old).doing(format_args!("removing {}", old.display()))
    }

    /// Compares the file with the records written to it; returns the number of bytes compared.
    fn verify(&self) -> Result<u64> {
        let what = || format!("reading {}", self.path.display());
        let mut file = File::open(&self.path).doing(what())?;
        let len_bytes = (self.next - self.first) * self.work.size as u64;
        let found_bytes = file.metadata().doing(what())?.len();
        let expected_bytes = if self.work.preallocated { self.work.file_bytes() as u64 } else { len_bytes };
        if found_bytes != expected_bytes {
            let path = self.path.display();
            return Err(Failure::new(format!("{path} has {found_bytes} bytes, not {expected_bytes}")));
        }
        let (mut expected, mut found) = (self.record.clone(), self.record.clone());
        for number in self.first..self.next {
            expected[..STAMP_BYTES].copy_from_slice(&number.to_le_bytes());
            file.read_exact(&mut found).doing(what())?;
            compare(&expected, &found).map_err(|mismatch| {
                Failure::new(format!(
                    "wrong record {number} of {}: {mismatch}",
                    format_size(found.len() as u64)
                ))
            })?;
        }
        Ok(len_bytes)
    }
}

/// Makes the file `number` of `thread` in the working directory.
fn create(thread: usize, number: u64, is_filled: bool) -> Result<(PathBuf, File)> {
    let path = PathBuf::from(format!("file-{thread}-{number}"));
    let file = OpenOptions::new().create_new(true).write(true).append(!is_filled).open(&path);
    let file = file.doing(format_args!("creating {}", path.display()))?;
    Ok((path, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::TemporaryDirectory;

    const WORK: AppendLoop = AppendLoop { size: 1 << 20, threads: 2, no_sync: true, preallocated: true };

    /// Makes a file in `directory`, because all tests share the working directory.
    fn appended(directory: &TemporaryDirectory, work: AppendLoop) -> AppendedFile {
        let path = directory.join("file");
        let file = OpenOptions::new().create_new(true).write(true).append(!work.preallocated).open(&path);
        let (file, record) = (file.expect("writable"), vec![7; work.size]);
        AppendedFile { work, thread: 0, files_before: 0, file, path, record, next: 0, first: 0 }
    }

    #[test]
    fn appended_bytes_are_verified_and_wrong_ones_are_found() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let mut file = appended(&directory, AppendLoop { size: 100, preallocated: false, ..WORK });
        for _ in 0..50 {
            let done = file.append().expect("room");
            assert!(done.received >= done.sent);
        }
        assert_eq!(file.verify(), Ok(5000));
        let write = |at, bytes: &[u8]| {
            let mut other = OpenOptions::new().write(true).open(&file.path).expect("writable");
            other.seek(SeekFrom::Start(at)).and_then(|_| other.write_all(bytes)).expect("writable");
        };
        write(4999, b"x");
        assert!(file.verify().expect_err("wrong").to_string().contains("record 49"));
        write(4999, &[7, 7]);
        assert!(file.verify().expect_err("longer").to_string().contains("5001 bytes, not 5000"));
    }

    #[test]
    fn preallocated_files_are_overwritten_from_the_start() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let mut file = appended(&directory, WORK);
        file.fill().expect("room");
        let records = PREALLOCATED_BYTES / WORK.threads / WORK.size;
        for _ in 0..=records {
            file.append().expect("room");
        }
        assert_eq!((file.first, file.verify()), (records as u64, Ok(WORK.size as u64)));
        assert_eq!(file.file.metadata().expect("open").len(), (records * WORK.size) as u64);
    }

    #[test]
    fn the_command_line_selects_the_work() {
        let words = ["append-loop", "--size=1048576", "--threads=2", "--no-sync", "--preallocated"];
        assert_eq!(WORK.arguments(), words);
        assert_eq!(AppendLoop { size: 3 << 20, preallocated: false, ..WORK }.file_bytes(), 1023 << 20);
    }
}
