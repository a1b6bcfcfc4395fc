//! Actions at the end of the process, executed once: writing the counters if requested, and removing the file of
//! the running program.
//!
//! Only the process that owns its memory does so, not a vfork child that shares it. Calls no hook.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::io::Write;
use std::os::fd::FromRawFd;
use uncopy_core::stats::Counter;
use uncopy_engine::state::counters;
use uncopy_engine::state::ledger;
use uncopy_record::session;
use uncopy_sys::atomic_write::{self, WriteError};
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Critical;
use uncopy_sys::private_directory;
use uncopy_sys::{mem, owner};

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

static STATS: std::sync::OnceLock<Stats> = std::sync::OnceLock::new();

/// Destination of the counters, from `--stats`.
pub struct Stats {
    /// Path of the file; `-`: standard output.
    pub path: Vec<u8>,
    /// Process for which the file is named; others append their id. `None` without `uncopy run`: then every
    /// process does.
    pub root: Option<u32>,
}

/// Requests that the counters are written when the process ends.
pub fn write_stats(stats: Stats) {
    let _ = STATS.set(stats);
}

/// True once the program has forbidden itself system calls, so that this library makes none of its own.
static SEALED: AtomicBool = AtomicBool::new(false);

/// True after a call of [`seal`].
pub fn is_sealed() -> bool {
    SEALED.load(Relaxed)
}

/// Executes the actions at the end now, because the program is about to forbid itself system calls.
pub fn seal() {
    if !is_sealed() {
        session::stop_system_calls();
        finish();
        SEALED.store(true, Relaxed);
    }
}

/// Executes the actions at the end, once.
pub extern "C" fn finish() {
    if is_sealed() {
        return;
    }
    if !owner::begin_exit() {
        return;
    }
    let pid = std::process::id();
    // uncopy's own allocator is used from here on: a signal handler must not interrupt and use it too.
    let _critical = Critical::enter();
    counters::unpublish();
    ledger::end();
    uncopy_lanes::process::unpublish();
    session::exit();
    uncopy_store::program::finish();
    let Some(stats) = STATS.get() else { return };
    let is_root = stats.root == Some(pid);
    let has_worked = || {
        const WORK: [Counter; 3] = [Counter::InputBytes, Counter::LogSyncs, Counter::LogAppends];
        WORK.into_iter().any(|counter| counters::get(counter) > 0)
    };
    if !is_root && !has_worked() {
        return;
    }
    let mut line = counters::snapshot().to_json();
    line.push('\n');
    let failed = if stats.path == b"-" {
        if stats.root.is_some_and(|root| root != pid) {
            return;
        }
        // SAFETY: `ManuallyDrop` keeps descriptor 1 from being closed; if it is not open, the write fails.
        let mut output = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(1) });
        let written = output.write_all(line.as_bytes());
        written.err().filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe)
    } else {
        let mut path = stats.path.clone();
        if !is_root {
            path.extend_from_slice(format!(".{pid}").as_bytes());
        }
        // The path comes from the environment, so it contains no zero byte.
        let path = std::ffi::CString::new(path).unwrap_or_default();
        let written = atomic_write::write(&path, line.as_bytes(), private_directory::FILE_MODE);
        // EPIPE is ignored: the reader has gone.
        let failed = written.err().filter(|failed| *failed != WriteError::Kernel(Errno(libc::EPIPE)));
        failed.map(std::io::Error::from)
    };
    if let Some(error) = failed {
        let shown = stats.path.escape_ascii();
        mem::write_stderr(format_args!("uncopy: the counters could not be written to {shown}: {error}\n"));
    }
}
