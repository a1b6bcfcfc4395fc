//! What happens when the library is loaded: libc's functions are looked up, the environment is read, the engine is told.

use crate::exit::{self, Stats};
use core::ffi::{CStr, c_char, c_int};
use uncopy_capi::sending;
use uncopy_core::options::{Heap, OptionError, Options, Policy};
use uncopy_core::scope::Scope;
use uncopy_engine::life::fork;
use uncopy_engine::range::constants;
use uncopy_engine::service::activation;
use uncopy_engine::state::counters;
use uncopy_engine::state::gate;
use uncopy_engine::state::ledger;
use uncopy_engine::state::phase::settle_gates;
use uncopy_interpose::environment;
use uncopy_record::session;
use uncopy_sys::filter::{self, Feature};
use uncopy_sys::{bytes, errno, ids, mem, uffd};

/// Of `--memory`, shared memory of lanes takes one part in so many.
const LANES_PART: usize = 4;

/// Looks up libc's functions.
fn fill_slots() {
    crate::memory::fill();
    crate::allocation::fill();
    crate::first::fill();
    crate::reading::fill();
    crate::writing::fill();
    crate::stdio::fill();
    sending::fill();
    crate::process::fill();
    crate::calls::fill();
    crate::namespaces::fill();
    crate::mapping::fill();
    crate::limits::fill();
    crate::credentials::fill();
    crate::loading::fill();
    crate::passing::fill();
    crate::sockets::fill();
    crate::lanes::fill();
    crate::net::fill();
    crate::net::fill_polls();
    crate::files::fill();
    crate::executing::fill();
    #[cfg(target_arch = "x86_64")]
    crate::signals::fill();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = start;

extern "C" fn start(_count: c_int, _arguments: *mut *mut c_char, environment: *mut *mut c_char) {
    // `main` finds errno as it would without this library.
    let _errno = errno::Keep::new();
    fill_slots();
    uncopy_interpose::forget_messages();
    // Whatever becomes of the engine: a program that allocates from the twin allocator forks as well.
    crate::process::watch_forks();
    if ids::is_privileged_start() {
        return filter::settle(false);
    }
    #[cfg(feature = "inject")]
    uncopy_sys::inject::begin();
    exit::own_process();
    if let Some(memmove) = crate::memory::MEMMOVE.get() {
        // SAFETY: libc's own memmove.
        unsafe { bytes::set_memmove(memmove) };
    }
    // SAFETY: ld.so passes the environment, terminated by null.
    let mut options = match unsafe { options(environment) } {
        Ok(options) => options,
        Err(error) => {
            mem::say(format_args!("uncopy: inactive: {error}\n"));
            counters::set_reason("a UNCOPY_ variable has a value that is not legal");
            return filter::settle(false);
        }
    };
    // SAFETY: as for the options.
    let simulator = unsafe { simulator(environment) }.filter(|_| !options.off);
    if let Some(why) = simulator {
        mem::say(format_args!("uncopy: inactive: {why}\n"));
        options.off = true;
    }
    filter::settle(!options.off);
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
        // SAFETY: ld.so passes the environment; it runs constructors before the program's first thread has begun.
        unsafe { stop_following(environment) };
        // Also another user's program may be among those.
        options.uffd_fd.into_iter().for_each(uffd::keep_device_here);
    }
    if let Some(path) = options.stats {
        exit::write_stats(Stats { path: path.to_vec(), root: options.stats_root });
    }
    if let Some(ledger) = options.ledger.and_then(|path| std::ffi::CString::new(path).ok())
        && filter::allows(Feature::Files)
    {
        ledger::open(&ledger);
    }
    fork::set_private_allocator_lock(crate::PRIVATE.lock());
    uncopy_trials::count_every_call();
    let net = options.net.filter(|_| !options.off).and_then(crate::net::switch_on);
    let lanes = net.filter(|_| !options.no_lanes).map(|_| scope_with_unix(options.lanes));
    let lanes = lanes.flatten().or(options.lanes);
    // Of what may be taken, lanes have a part.
    let of_lanes = lanes.and(options.memory_bytes).map(|bytes| bytes / LANES_PART);
    options.memory_bytes = options.memory_bytes.map(|bytes| bytes - of_lanes.unwrap_or(0));
    if options.uffd_fd.is_none() && !options.off && (options.no_follow || ids::effective_user() == 0) {
        // It may be another user's process by the time that it needs it. Filters let this through: the loader has opened files.
        options.uffd_fd = uffd::open_device();
    }
    if options.heap != Heap::Off && !options.off {
        crate::families::begin();
    }
    // SAFETY: the environment that ld.so passes, which nobody changes before `start` returns.
    if options.heap == Heap::Auto && unsafe { asks_for_huge_pages(environment) } {
        gate::leave_allocations();
    }
    activation::configure(&options);
    if let Some(why) = simulator {
        counters::set_reason(why);
    }
    session::prepare();
    session::watch(session::Watcher { changed: settle_gates, failed: counters::set_reason });
    if let Some(directory) = options.record.filter(|_| !options.off) {
        session::begin(directory, options.min_size_bytes);
    }
    if let Some(scope) = lanes.filter(|_| !options.off && filter::allows(Feature::Links)) {
        // Connections of a service are lanes where it meets others.
        match net.map(str::as_bytes).or(options.lanes_dir) {
            Some(directory) => crate::lanes::switch_on(scope, directory, of_lanes),
            None => counters::directory(|directory| crate::lanes::switch_on(scope, directory, of_lanes)),
        }
    }
    if let Some(socket) = options.log_socket.filter(|_| !options.off && filter::allows(Feature::Links)) {
        crate::files::switch_on(socket, options.log_files, policy == Policy::Always);
    }
    // Views can be in foreign ranges, too.
    if gate::heap_min_bytes() != usize::MAX || gate::min_size_bytes() != usize::MAX {
        // A filter may end the process for it.
        if filter::allows(Feature::Files) {
            counters::remove_stale();
        }
        constants::find();
        #[cfg(target_arch = "x86_64")]
        uncopy_sys::deferral::begin();
    }
}

/// Whether the user has told the program's allocator to use huge pages: glibc's malloc (`glibc.malloc.hugetlb`, 2.35 and later; 0
/// is the default) or jemalloc (`thp:always`). Blocks have none.
///
/// # Safety
/// The environment that ld.so passes to a constructor.
unsafe fn asks_for_huge_pages(environment: *mut *mut c_char) -> bool {
    let has = |entry: &[u8], word: &[u8]| entry.windows(word.len()).any(|part| part == word);
    // SAFETY: as the caller says.
    unsafe { environment::entries(environment) }.any(|entry| {
        let (tunable, off) = (b"glibc.malloc.hugetlb=", b"glibc.malloc.hugetlb=0");
        (entry.starts_with(b"GLIBC_TUNABLES=") && has(entry, tunable) && !has(entry, off))
            || (entry.starts_with(b"MALLOC_CONF=") && has(entry, b"thp:always"))
    })
}

/// A scope that has connections of a service as well, which are UNIX streams.
fn scope_with_unix(scope: Option<Scope<'_>>) -> Option<Scope<'static>> {
    let text = match scope {
        None => "unix".to_owned(),
        Some(scope) if scope.has_unix() => scope.text().to_owned(),
        Some(scope) => format!("{},unix", scope.text()),
    };
    Scope::parse(Box::leak(text.into_boxed_str()).as_bytes())
}

/// The options in the environment.
///
/// # Safety
/// The environment that ld.so passes to a constructor.
unsafe fn options<'a>(environment: *mut *mut c_char) -> Result<Options<'a>, OptionError<'a>> {
    let mut options = Options::default();
    // SAFETY: the environment that ld.so passes, which nobody changes before `start` returns.
    for entry in unsafe { environment::entries(environment) } {
        if let Some(split) =
            entry.iter().position(|byte| *byte == b'=').filter(|_| entry.starts_with(b"UNCOPY_"))
        {
            options.apply(&entry[..split], &entry[split + 1..])?;
        }
    }
    Ok(options)
}

/// Why nothing can be elided in a process whose threads are run in turns by a simulator.
///
/// Valgrind lets a thread go on only where the running one makes a system call: one that waits for a page keeps the handler thread from
/// serving it, for ever. It preloads a library of its own into whatever it runs.
///
/// # Safety
/// The environment that ld.so passes to a constructor.
unsafe fn simulator(environment: *mut *mut c_char) -> Option<&'static str> {
    const VALGRINDS: &[u8] = b"/vgpreload_core";
    // SAFETY: the environment that ld.so passes, which nobody changes before `start` returns.
    let mut entries = unsafe { environment::entries(environment) };
    entries
        .any(|entry| {
            entry.starts_with(b"LD_PRELOAD=") && entry.windows(VALGRINDS.len()).any(|part| part == VALGRINDS)
        })
        .then_some("valgrind runs one thread at a time, and page faults are served by another")
}

/// Takes this library out of `LD_PRELOAD`, so that programs started from here on do without it.
///
/// # Safety
/// The environment that ld.so passes to a constructor; no other thread exists.
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
