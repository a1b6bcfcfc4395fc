//! Keeps the append-only file of a loaded Redis short: whenever the file has grown past a limit, its bytes are dropped
//! while the server continues to append (the server opens it with `O_APPEND`, so the next write starts at offset 0).
//! The server's own work is unchanged; nothing reads the file.
//!
//! Without trimming, a loaded server fills the disk at some GiB per second, always into memory that was not used
//! recently. Where a virtual machine gives free memory back to its host (virtio-balloon's free page reporting, Linux
//! 5.7), the first use of such memory costs ten times as much as later ones (measured: 2.1 s against 0.2 s for a file
//! of 1 GiB in the page cache), and chance decides which side of a comparison pays: ratios of a server to itself
//! ranged from 0.4 to 3. Dropping the bytes takes about 5 ms per 64 MiB, in which the server cannot append. Both sides
//! pay that, so it draws ratios a little towards 1.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::kit::{Result, While, processors};

/// Maximum length of the file before it is trimmed, bytes: longer than the processor's caches.
const LIMIT_BYTES: u64 = 64 << 20;
/// Interval between checks of the length.
const INTERVAL: Duration = Duration::from_millis(4);

/// A thread that trims the long files of one directory until this is dropped.
#[derive(Debug)]
pub struct LogTrimmer {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LogTrimmer {
    /// Starts to trim the files `*.aof` that are in `directory`.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the files cannot be opened or the thread cannot be started.
    pub fn start(directory: &Path) -> Result<Self> {
        let files: Vec<File> = append_only_files(directory)
            .iter()
            .map(|path| {
                OpenOptions::new().write(true).open(path).doing(format_args!("opening {}", path.display()))
            })
            .collect::<Result<_>>()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stopping);
        let others = processors::of_clients(processors::ONE_THREAD);
        let trim = move || {
            // On the server's processor, the thread would take the server's time.
            let _ = processors::bind_thread(others);
            while !ended.load(Ordering::Acquire) {
                for file in &files {
                    trim_past(file, LIMIT_BYTES);
                }
                std::thread::sleep(INTERVAL);
            }
            // Spares the server from writing the rest to the disk when it ends.
            for file in &files {
                trim_past(file, 0);
            }
        };
        let thread = std::thread::Builder::new().name("log trimmer".to_owned()).spawn(trim);
        Ok(Self { stopping, thread: Some(thread.doing("starting a thread")?) })
    }
}

impl Drop for LogTrimmer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Drops the bytes of a file that is longer than `limit_bytes`. Errors only make the measurement noisier.
fn trim_past(file: &File, limit_bytes: u64) {
    if file.metadata().is_ok_and(|metadata| metadata.len() > limit_bytes) {
        let _ = file.set_len(0);
    }
}

fn append_only_files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "aof"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::processes::cleanup::TemporaryDirectory;
    use std::io::Write;

    #[test]
    fn the_log_is_empty_afterwards_and_appending_goes_on() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let path = directory.join("appendonly.aof.1.incr.aof");
        let other = directory.join("appendonly.aof.manifest");
        std::fs::write(&other, b"kept").expect("writable");
        let mut log = OpenOptions::new().create(true).append(true).open(&path).expect("writable");
        log.write_all(b"SET").expect("writable");
        drop(LogTrimmer::start(directory.path()).expect("a thread"));
        assert_eq!(std::fs::read(&path).expect("it exists"), b"");
        log.write_all(b"GET").expect("writable");
        assert_eq!(std::fs::read(&path).expect("it exists"), b"GET");
        assert_eq!(std::fs::read(&other).expect("it exists"), b"kept");
    }

    #[test]
    fn only_files_past_the_limit_are_trimmed() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let file = File::create(directory.join("log")).expect("writable");
        file.set_len(10).expect("writable");
        trim_past(&file, 10);
        assert_eq!(file.metadata().expect("open").len(), 10);
        trim_past(&file, 9);
        assert_eq!(file.metadata().expect("open").len(), 0);
    }
}
