//! What is done once before the process ends: the counters are written where they were asked for, and the file of the
//! running program is removed.
//!
//! Done by the process that owns its memory only: a child of vfork shares it and must leave it alone. Knows no hook.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::io::Write;
use std::os::fd::FromRawFd;
use uncopy_core::stats::Counter;
use uncopy_engine::state::counters;
use uncopy_engine::state::ledger;
use uncopy_record::session;
use uncopy_sys::atomic_write::{self, Failed};
use uncopy_sys::directory;
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Critical;
use uncopy_sys::mem;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

/// Where the counters are written: `--stats`. Set once when the library is loaded.
static STATS: std::sync::OnceLock<Stats> = std::sync::OnceLock::new();

/// What `--stats` asks for.
pub struct Stats {
    /// The file; `-`: standard output.
    pub path: Vec<u8>,
    /// The process that the file is named for; others add their number. Nobody says so without `uncopy run`: then each adds its own.
    pub root: Option<u32>,
}

/// Has the counters written when the process ends.
pub fn write_stats(stats: Stats) {
    let _ = STATS.set(stats);
}

/// The process whose memory this is.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Notes that this process owns its memory: when it starts, and after a fork.
pub fn own_process() {
    OWNER.store(std::process::id(), Relaxed);
}

/// Whether the calling process owns its memory, and has not begun to end.
pub fn is_owner() -> bool {
    OWNER.load(Relaxed) == std::process::id()
}

/// Whether the program has forbidden itself system calls: we make none of our own any more.
static SEALED: AtomicBool = AtomicBool::new(false);

/// See [`seal`].
pub fn is_sealed() -> bool {
    SEALED.load(Relaxed)
}

/// Does what is otherwise done at the end, because the program is about to forbid itself system calls.
pub fn seal() {
    if !is_sealed() {
        session::confine();
        finish();
        SEALED.store(true, Relaxed);
    }
}

/// Does it, once.
pub extern "C" fn finish() {
    if is_sealed() {
        return;
    }
    let pid = std::process::id();
    if OWNER.compare_exchange(pid, 0, Relaxed, Relaxed).is_err() {
        return;
    }
    // From here on uncopy's own memory is allocated: no signal handler may want some in between.
    let _critical = Critical::enter();
    counters::unpublish();
    ledger::end();
    uncopy_lanes::process::unpublish();
    session::exit();
    uncopy_store::program::finish();
    let Some(stats) = STATS.get() else { return };
    let is_root = stats.root == Some(pid);
    if !is_root && counters::get(Counter::InputBytes) == 0 {
        return;
    }
    let mut line = counters::snapshot().to_json();
    line.push('\n');
    let failed = if stats.path == b"-" {
        if stats.root.is_some_and(|root| root != pid) {
            return;
        }
        // SAFETY: standard output, which is not closed here: `ManuallyDrop`.
        let mut output = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(1) });
        let written = output.write_all(line.as_bytes());
        written.err().filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe)
    } else {
        let mut path = stats.path.clone();
        if !is_root {
            path.extend_from_slice(format!(".{pid}").as_bytes());
        }
        // Environment variables have no zero byte.
        let path = std::ffi::CString::new(path).unwrap_or_default();
        let written = atomic_write::write(&path, line.as_bytes(), directory::FILE_MODE);
        // A pipe whose reader has gone is no error.
        let failed = written.err().filter(|failed| *failed != Failed::Kernel(Errno(libc::EPIPE)));
        failed.map(std::io::Error::from)
    };
    if let Some(error) = failed {
        let shown = stats.path.escape_ascii();
        mem::say(format_args!("uncopy: the counters could not be written to {shown}: {error}\n"));
    }
}
