//! Start-up when the library is loaded: looks up libc's functions, reads the environment, configures the engine.

use crate::exit::{self, Stats};
use core::ffi::{CStr, c_char, c_int};
use uncopy_capi::sending;
use uncopy_core::options::{Heap, LogMode, OptionError, Options, Policy};
use uncopy_core::scope::Scope;
use uncopy_engine::background::activation;
use uncopy_engine::life::fork;
use uncopy_engine::range::constants;
use uncopy_engine::state::counters;
use uncopy_engine::state::gate;
use uncopy_engine::state::ledger;
use uncopy_engine::state::phase::update_gates;
use uncopy_interpose::environment;
use uncopy_record::session;
use uncopy_store::program::LogMemory;
use uncopy_sys::descriptor::{OwnFd, ProgramFd};
use uncopy_sys::filter::{self, CallGroup};
use uncopy_sys::{bytes, errno, ids, mem, uffd};

/// Fraction of `--memory` for the shared memory of lanes: one part in this many.
const LANES_PART: usize = 4;

fn fill_slots() {
    crate::memory::fill();
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
    crate::files::fill_others();
    crate::exec::fill();
    #[cfg(target_arch = "x86_64")]
    crate::signals::fill();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = start;

extern "C" fn start(_count: c_int, _arguments: *mut *mut c_char, environment: *mut *mut c_char) {
    // So that `main` finds `errno` as without this library.
    let _errno = errno::SavedErrno::new();
    fill_slots();
    uncopy_interpose::clear_dlerror();
    // Registered in any case: programs that only use the twin allocator fork as well.
    crate::process::watch_forks();
    if ids::is_privileged_start() {
        return filter::probe_readability_calls(false);
    }
    #[cfg(feature = "inject")]
    uncopy_sys::inject::begin();
    uncopy_sys::owner::claim_memory();
    if let Some(memmove) = crate::memory::memcpy::MEMMOVE.get() {
        // SAFETY: the function is libc's memmove.
        unsafe { bytes::set_memmove(memmove) };
    }
    // SAFETY: ld.so passes the environment as a null-terminated array to constructors.
    let Some((mut options, simulator)) = (unsafe { legal_options(environment) }) else {
        return filter::probe_readability_calls(false);
    };
    filter::probe_readability_calls(!options.off);
    // A recording shows what the program does without uncopy.
    let policy = if options.record.is_some() { Policy::Never } else { options.policy };
    settle_sending(if options.off { Policy::Never } else { policy });
    if options.no_follow {
        // SAFETY: ld.so passes a null-terminated array, before the program's first thread starts.
        unsafe { stop_following(environment) };
        // The programs started from here may be other users'.
        options.uffd_fd.map(ProgramFd::new).into_iter().for_each(uffd::close_device_on_exec);
    }
    open_accounts(&options);
    fork::set_private_allocator_lock(crate::PRIVATE.lock());
    uncopy_trials::count_every_call();
    let net = options.net.filter(|_| !options.off).and_then(crate::net::switch_on);
    let lanes = net.filter(|_| !options.no_lanes).map(|_| scope_with_unix(options.lanes));
    let lanes = lanes.flatten().or(options.lanes);
    // Lanes get a part of `--memory`.
    let of_lanes = lanes.and(options.memory_bytes).map(|bytes| bytes / LANES_PART);
    options.memory_bytes = options.memory_bytes.map(|bytes| bytes - of_lanes.unwrap_or(0));
    if options.uffd_fd.is_none() && !options.off && (options.no_follow || ids::effective_user() == 0) {
        // The process may have changed its user when it needs the device. Seccomp filters allow the call, since
        // the loader has opened files.
        options.uffd_fd = uffd::open_device().map(OwnFd::leave_open);
    }
    if options.heap != Heap::Off && !options.off {
        crate::memory::families::begin();
    }
    // SAFETY: ld.so passes a null-terminated array, which nobody changes before `start` returns.
    if options.heap == Heap::Auto && unsafe { asks_for_huge_pages(environment) } {
        gate::disable_heap();
    }
    activation::configure(&options);
    if let Some(why) = simulator {
        counters::set_reason(why);
    }
    session::prepare();
    session::set_callbacks(session::SessionCallbacks {
        on_change: update_gates,
        on_failure: counters::set_reason,
    });
    if let Some(directory) = options.record.filter(|_| !options.off) {
        session::begin(directory, options.min_size_bytes);
    }
    if !options.off && filter::allows(CallGroup::Ipc) {
        if let Some(scope) = lanes {
            // Connections of a service become lanes through the service's directory.
            match net.map(str::as_bytes).or(options.lanes_dir) {
                Some(directory) => crate::lanes::switch_on(scope, directory, of_lanes),
                None => counters::directory(|directory| crate::lanes::switch_on(scope, directory, of_lanes)),
            }
        }
        if let Some(socket) = options.log_socket {
            let memory = (options.log_mode == LogMode::Only)
                .then_some(LogMemory { refers: options.elides_api_copies, receives: options.optimistic });
            crate::files::switch_on(socket, options.log_files, policy == Policy::Always, memory);
        }
    }
    // Foreign ranges can hold views too.
    if gate::heap_min_bytes() != usize::MAX || gate::min_engine_bytes() != usize::MAX {
        begin_to_elide();
    }
}

/// Returns the options, and the reason if a simulator that runs this process prevents eliding. `None` if an option
/// is invalid, which was reported.
///
/// # Safety
/// `environment` is what ld.so passes to constructors, and nobody changes it meanwhile.
unsafe fn legal_options<'a>(environment: *mut *mut c_char) -> Option<(Options<'a>, Option<&'static str>)> {
    // SAFETY: the caller guarantees that `environment` is what ld.so passes, unchanged meanwhile.
    let mut options = match unsafe { options(environment) } {
        Ok(options) => options,
        Err(error) => {
            mem::write_stderr(format_args!("uncopy: inactive: {error}\n"));
            counters::set_reason("a UNCOPY_ variable has a value that is not legal");
            return None;
        }
    };
    // SAFETY: the caller guarantees that `environment` is what ld.so passes, unchanged meanwhile.
    let simulator = unsafe { simulator(environment) }.filter(|_| !options.off);
    if let Some(why) = simulator {
        mem::write_stderr(format_args!("uncopy: inactive: {why}\n"));
        options.off = true;
    }
    Some((options, simulator))
}

fn begin_to_elide() {
    // A seccomp filter may end the process for these calls.
    if filter::allows(CallGroup::Files) {
        counters::remove_stale();
    }
    constants::scan_objects();
    #[cfg(target_arch = "x86_64")]
    uncopy_sys::deferral::begin();
}

/// Chooses which messages are sent by reference.
fn settle_sending(policy: Policy) {
    match policy {
        // Every candidate is sent by reference, whether that pays or not.
        Policy::Always => uncopy_transmit::set_break_even(Some(1)),
        Policy::Never => uncopy_twin::switch_off(),
        Policy::Auto => {}
    }
}

/// Enables the counters and ledgers that were requested.
fn open_accounts(options: &Options<'_>) {
    if let Some(path) = options.stats {
        exit::write_stats(Stats { path: path.to_vec(), root: options.stats_root });
    }
    if let Some(ledger) = options.ledger.and_then(|path| std::ffi::CString::new(path).ok())
        && filter::allows(CallGroup::Files)
    {
        ledger::open(&ledger);
    }
}

/// True if the user has asked the program's allocator for huge pages, which blocks do not have: glibc's malloc
/// (`glibc.malloc.hugetlb`, 2.35 and later; 0 is the default) or jemalloc (`thp:always`).
///
/// # Safety
/// `environment` is what ld.so passes to constructors.
unsafe fn asks_for_huge_pages(environment: *mut *mut c_char) -> bool {
    let has = |entry: &[u8], word: &[u8]| entry.windows(word.len()).any(|part| part == word);
    // SAFETY: the caller guarantees that `environment` is what ld.so passes to constructors.
    unsafe { environment::entries(environment) }.any(|entry| {
        let (tunable, off) = (b"glibc.malloc.hugetlb=", b"glibc.malloc.hugetlb=0");
        (entry.starts_with(b"GLIBC_TUNABLES=") && has(entry, tunable) && !has(entry, off))
            || (entry.starts_with(b"MALLOC_CONF=") && has(entry, b"thp:always"))
    })
}

/// Extends a scope by connections of a service, which are UNIX streams.
fn scope_with_unix(scope: Option<Scope<'_>>) -> Option<Scope<'static>> {
    let text = match scope {
        None => "unix".to_owned(),
        Some(scope) if scope.has_unix() => scope.text().to_owned(),
        Some(scope) => format!("{},unix", scope.text()),
    };
    Scope::parse(Box::leak(text.into_boxed_str()).as_bytes())
}

/// Parses the options in the environment.
///
/// # Safety
/// `environment` is what ld.so passes to constructors.
unsafe fn options<'a>(environment: *mut *mut c_char) -> Result<Options<'a>, OptionError<'a>> {
    let mut options = Options::default();
    // SAFETY: by contract this is what ld.so passes, which nobody changes before `start` returns.
    for entry in unsafe { environment::entries(environment) } {
        if let Some(split) =
            entry.iter().position(|byte| *byte == b'=').filter(|_| entry.starts_with(b"UNCOPY_"))
        {
            options.apply(&entry[..split], &entry[split + 1..])?;
        }
    }
    Ok(options)
}

/// Returns the reason for not eliding if a simulator runs the threads of this process in turns.
///
/// Valgrind switches threads only when the running one makes a system call, so a thread that waits for a page
/// would keep the handler thread from serving it for ever. Valgrind is recognized by the library that it preloads.
///
/// # Safety
/// `environment` is what ld.so passes to constructors.
unsafe fn simulator(environment: *mut *mut c_char) -> Option<&'static str> {
    const VALGRINDS: &[u8] = b"/vgpreload_core";
    // SAFETY: by contract this is what ld.so passes, which nobody changes before `start` returns.
    let mut entries = unsafe { environment::entries(environment) };
    entries
        .any(|entry| {
            entry.starts_with(b"LD_PRELOAD=") && entry.windows(VALGRINDS.len()).any(|part| part == VALGRINDS)
        })
        .then_some("valgrind runs one thread at a time, and page faults are served by another")
}

/// Removes this library from `LD_PRELOAD`, so that programs started from here on do not load it.
///
/// # Safety
/// `environment` is what ld.so passes to constructors; no other thread exists.
unsafe fn stop_following(environment: *mut *mut c_char) {
    let mut at = environment;
    // SAFETY: the array ends with null; its entries are terminated, writable and only shortened, by one thread.
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
