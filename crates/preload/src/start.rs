//! What happens when the library is loaded and when the program exits.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use uncopy_core::options::{OptionError, Options, Policy};
use uncopy_core::stats::Counter;
use uncopy_engine::life::fork;
use uncopy_engine::range::constants;
use uncopy_engine::service::activation;
use uncopy_engine::state::counters;
use uncopy_engine::state::gate::{self, FREE_LOOKS};
use uncopy_engine::state::ledger;
use uncopy_engine::state::phase::settle_gates;
use uncopy_interpose::environment;
use uncopy_record::session;
use uncopy_sys::lock::Critical;
use uncopy_sys::{bytes, ids, mem};

/// Set while libc's functions are looked up, by thread id: dlsym may allocate.
static FILLING: AtomicU32 = AtomicU32::new(0);
static FILLED: AtomicBool = AtomicBool::new(false);
/// `--stats`: set once when the library is loaded.
static STATS: std::sync::OnceLock<Stats> = std::sync::OnceLock::new();

struct Stats {
    path: Vec<u8>,
    root: Option<u32>,
}

/// Whether the calling thread is looking up libc's functions right now.
pub fn is_filling() -> bool {
    let filling = FILLING.load(Relaxed);
    let inside = filling != 0 && filling == uncopy_sys::lock::thread_id();
    if inside {
        FREE_LOOKS.store(true, Relaxed);
    }
    inside
}

/// Looks up libc's functions.
pub fn fill_slots() {
    if FILLED.load(Relaxed) {
        return;
    }
    FILLING.store(uncopy_sys::lock::thread_id(), Relaxed);
    crate::memory::fill();
    crate::allocation::fill();
    crate::reading::fill();
    crate::writing::fill();
    crate::process::fill();
    crate::calls::fill();
    crate::namespaces::fill();
    crate::mapping::fill();
    crate::limits::fill();
    crate::loading::fill();
    crate::passing::fill();
    #[cfg(target_arch = "x86_64")]
    crate::signals::fill();
    FILLING.store(0, Relaxed);
    FILLED.store(true, Relaxed);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

extern "C" fn start(_count: c_int, _arguments: *mut *mut c_char, environment: *mut *mut c_char) {
    fill_slots();
    // Whatever becomes of the engine: a program that allocates from the twin allocator forks as well.
    crate::process::watch_forks();
    if ids::is_privileged_start() {
        return;
    }
    #[cfg(feature = "inject")]
    uncopy_sys::inject::begin();
    own_process();
    if let Some(memmove) = crate::memory::MEMMOVE.get() {
        // SAFETY: libc's own memmove.
        unsafe { bytes::set_memmove(memmove) };
    }
    // SAFETY: ld.so passes the environment, terminated by null.
    let options = match unsafe { options(environment) } {
        Ok(options) => options,
        Err(error) => {
            mem::say(format_args!("uncopy: inactive: {error}\n"));
            counters::set_reason("a UNCOPY_ variable has a value that is not legal");
            return;
        }
    };
    // What is recorded is what the program does without uncopy.
    let policy = if options.record.is_some() { Policy::Never } else { options.policy };
    match policy {
        _ if options.off => uncopy_twin::switch_off(),
        // What may go by reference does, whether that pays or not.
        Policy::Always => uncopy_transmit::set_break_even(Some(1)),
        Policy::Never => uncopy_twin::switch_off(),
        Policy::Auto => {}
    }
    if options.no_follow {
        // SAFETY: as above; no other thread exists.
        unsafe { stop_following(environment) };
    }
    if let Some(path) = options.stats {
        let _ = STATS.set(Stats { path: path.to_vec(), root: options.stats_root });
    }
    if let Some(ledger) = options.ledger.and_then(|path| std::ffi::CString::new(path).ok())
        && !uncopy_sys::filter::is_filtered()
    {
        ledger::open(&ledger);
    }
    fork::set_private_allocator_lock(crate::PRIVATE.lock());
    activation::configure(&options);
    session::prepare();
    session::watch(session::Watcher { changed: settle_gates, failed: counters::set_reason });
    if let Some(directory) = options.record.filter(|_| !options.off) {
        session::begin(directory, options.min_size_bytes);
    }
    if gate::heap_min_bytes() != usize::MAX {
        // A filter may end the process for it.
        if !uncopy_sys::filter::is_filtered() {
            counters::remove_stale();
        }
        constants::find();
        #[cfg(target_arch = "x86_64")]
        uncopy_sys::deferral::begin();
    }
}

/// The options in the environment.
unsafe fn options<'a>(environment: *mut *mut c_char) -> Result<Options<'a>, OptionError<'a>> {
    let mut options = Options::default();
    // SAFETY: the caller's promise.
    for entry in unsafe { environment::entries(environment) } {
        if let Some(split) =
            entry.iter().position(|byte| *byte == b'=').filter(|_| entry.starts_with(b"UNCOPY_"))
        {
            options.apply(&entry[..split], &entry[split + 1..])?;
        }
    }
    Ok(options)
}

/// Takes this library out of `LD_PRELOAD`, so that programs started from here on do without it.
unsafe fn stop_following(environment: *mut *mut c_char) {
    let mut at = environment;
    // SAFETY: the array ends with null; entries are terminated and writable, and only shortened.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes().to_vec();
            if let Some(list) = entry.strip_prefix(b"LD_PRELOAD=") {
                let kept: Vec<&[u8]> = list
                    .split(|byte| matches!(byte, b':' | b' '))
                    .filter(|path| !path.is_empty() && !path.ends_with(b"libuncopy.so"))
                    .collect();
                let mut text = b"LD_PRELOAD=".to_vec();
                text.extend_from_slice(&kept.join(&b':'));
                text.push(0);
                if text.len() <= entry.len() + 1 {
                    core::ptr::copy_nonoverlapping(text.as_ptr().cast(), *at, text.len());
                }
            }
            at = at.add(1);
        }
    }
}

/// The process whose memory this is: a child of vfork shares it and must leave it alone.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Notes that this process owns its memory: when it starts, and after a fork.
pub fn own_process() {
    OWNER.store(std::process::id(), Relaxed);
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

/// Writes the counters where they were asked for, and removes the file of the running program. Once.
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
    session::exit();
    let Some(stats) = STATS.get() else { return };
    let is_root = stats.root.is_none_or(|root| root == pid);
    if !is_root && counters::get(Counter::InputBytes) == 0 {
        return;
    }
    let mut line = counters::snapshot().to_json();
    line.push('\n');
    let written = if stats.path == b"-" {
        if !is_root {
            return;
        }
        // SAFETY: standard output, borrowed for one write.
        let mut output = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(1) });
        output.write_all(line.as_bytes())
    } else {
        let mut path = stats.path.clone();
        if !is_root {
            path.extend_from_slice(format!(".{pid}").as_bytes());
        }
        write_whole(std::ffi::OsStr::from_bytes(&path), line.as_bytes())
    };
    if let Err(error) = written
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        let shown = stats.path.escape_ascii();
        mem::say(format_args!("uncopy: the counters could not be written to {shown}: {error}\n"));
    }
}

/// Writes a file so that no reader, and no kill in between, finds half of it. What exists and is not a
/// regular file (a pipe, a terminal) is written to as it is.
fn write_whole(path: &std::ffi::OsStr, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return options.open(path)?.write_all(bytes);
    }
    let mut beside = path.to_os_string();
    beside.push(format!(".{}.part", std::process::id()));
    options.truncate(true).open(&beside)?.write_all(bytes)?;
    std::fs::rename(&beside, path)
}
