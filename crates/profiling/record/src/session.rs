//! Starts and ends a recording, in this process and in forked children.
//!
//! ```text
//! none ──► mapped ──► ready ──► none (ended)          failed: nothing is recorded in this process
//!     file created, no memory   first event: memory, header
//! ```
//!
//! The file is created when the library is loaded, and in a forked child before any of the program's code
//! runs: the program may later close every descriptor, or change its user or root directory. Memory for the
//! file is allocated at the first event. The session state lies in a page that the kernel clears in every
//! forked child (MADV_WIPEONFORK), so no process writes to another's file. A child that shares its parent's
//! memory (vfork) shares its recording.

use crate::area::Area;
use crate::switch::{MIN_SIZE_BYTES, is_on};
use crate::{recent, ring};
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::fmt::Write as _;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use std::sync::OnceLock;
use uncopy_core::policy::Costs;
use uncopy_core::policy::costs::Cost;
use uncopy_core::recording::request::MAX_DIRECTORY_BYTES;
use uncopy_core::recording::{
    BEGAN_OFFSET, CLOCK_OFFSET, COSTS_OFFSET, Clock, ENDED_OFFSET, FILE_BYTES, MAGIC, MIN_SIZE_OFFSET,
    NAME_OFFSET, PARENT_OFFSET, PHASE_OFFSET, PID_OFFSET, Phase, RING_OFFSET, SAMPLED_OFFSET,
    STACK_WORDS_USED_OFFSET, SUFFIX, Sampled,
};
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::clock;
use uncopy_sys::errno::Errno;
use uncopy_sys::filter::CallGroup;
use uncopy_sys::lock::Critical;
use uncopy_sys::mem::{self, Advice, Reservation};
use uncopy_sys::{features, filter, ids, thread};

const NONE: u32 = 0;
const CREATING: u32 = 1;
const MAPPED: u32 = 2;
const READY: u32 = 3;
const FAILED: u32 = 4;

/// Maximum polls, 70 µs apart, for which an event waits while another thread creates the file.
const MAX_PAUSES: u32 = 3_000;
/// Polls, 70 µs apart, by which the end of a recording waits for events in progress.
const END_PAUSES: u32 = 20;

/// Session state, in a page that is cleared in forked children.
#[repr(C)]
struct State {
    stage: AtomicU32,
    /// Creation time of the file, which is part of the file's name.
    began_ns: AtomicU64,
}

/// Address of the [`State`]; 0 if no recording was ever started.
static STATE: AtomicUsize = AtomicUsize::new(0);
static BASE: AtomicUsize = AtomicUsize::new(0);
static EARLY_DROPS: AtomicU64 = AtomicU64::new(0);
static SAMPLED: AtomicU64 = AtomicU64::new(0);
static IS_CONFINED: AtomicBool = AtomicBool::new(false);
/// Cost constants of this machine; 0 for unknown.
static COSTS: [AtomicU64; Cost::ALL.len()] = [const { AtomicU64::new(0) }; Cost::ALL.len()];

/// NUL-terminated path of the directory in which recordings are created.
struct Directory(UnsafeCell<[u8; MAX_DIRECTORY_BYTES + 1]>);
// SAFETY: only the thread that begins a recording writes the path, while recording is off.
unsafe impl Sync for Directory {}
static DIRECTORY: Directory = Directory(UnsafeCell::new([0; MAX_DIRECTORY_BYTES + 1]));

fn directory() -> &'static CStr {
    // SAFETY: `begin` writes the path only while recording is off; only recording threads read it.
    CStr::from_bytes_until_nul(unsafe { &*DIRECTORY.0.get() }).unwrap_or(c"")
}

/// Callbacks for changes of the session.
#[derive(Clone, Copy, Debug)]
pub struct SessionCallbacks {
    /// Called when a recording has begun or ended, so that gates are updated.
    pub on_change: fn(),
    /// Called with the reason if this process cannot record.
    pub on_failure: fn(&str),
}

static CALLBACKS: OnceLock<SessionCallbacks> = OnceLock::new();

/// Registers the callbacks. Must be called once, before other threads exist.
pub fn set_callbacks(callbacks: SessionCallbacks) {
    let _ = CALLBACKS.set(callbacks);
}

fn state() -> Option<&'static State> {
    match STATE.load(Acquire) {
        0 => None,
        // SAFETY: the address is that of the page that `reserve` allocated, which is never unmapped and is
        // aligned for [`State`]. Its fields are atomics, for which all-zero bytes are valid.
        address => Some(unsafe { &*(address as *const State) }),
    }
}

fn mapping() -> Area {
    // SAFETY: `reserve` reserved [`FILE_BYTES`] at BASE, and every caller has seen a stage in which a file is
    // mapped there, or maps it itself. The range stays readable and writable from then on.
    unsafe { Area::new(BASE.load(Relaxed)) }
}

/// Returns the mapping to write to, completing the file if needed; `None` if the event must be dropped.
#[inline]
pub(crate) fn area() -> Option<Area> {
    let state = state()?;
    if state.stage.load(Acquire) == READY { Some(mapping()) } else { open(state) }
}

/// Returns the mapping if the recording already has events.
#[inline]
pub(crate) fn area_in_use() -> Option<Area> {
    state().filter(|state| state.stage.load(Acquire) == READY).map(|_| mapping())
}

/// Records in the header whether inputs are sampled.
pub fn set_sampled(sampled: Sampled) {
    SAMPLED.store(sampled as u64, Relaxed);
    if let Some(area) = area_in_use() {
        area.word(SAMPLED_OFFSET).store(sampled as u64, Relaxed);
    }
}

/// Creation time of the current file in nanoseconds. Ids of one recording are not valid in the next.
#[inline]
pub(crate) fn began_ns() -> u64 {
    state().map_or(0, |state| state.began_ns.load(Relaxed))
}

/// True if the process may no longer make system calls.
#[inline]
#[must_use]
pub fn has_stopped_system_calls() -> bool {
    IS_CONFINED.load(Relaxed)
}

/// Stops making system calls, which the program is about to forbid. Recording continues where possible.
pub fn stop_system_calls() {
    if let Some(state) = state()
        && is_on()
    {
        // Complete the file now, while system calls are still allowed.
        let _ = if state.stage.load(Acquire) == READY { None } else { open(state) };
    }
    IS_CONFINED.store(true, Relaxed);
    uncopy_unwind::stop_system_calls();
}

/// Starts recording events of at least `min_size_bytes` into a new file in `directory`, an absolute path.
/// Ends the current recording first.
///
/// Must not be called concurrently: the loading thread calls it, later the handler thread.
pub fn begin(directory: &[u8], min_size_bytes: usize) {
    let _errno = uncopy_sys::errno::SavedErrno::new();
    let _critical = Critical::enter();
    end();
    if directory.is_empty() || directory.len() > MAX_DIRECTORY_BYTES || directory[0] != b'/' {
        return fail("the directory's path is not absolute, or too long");
    }
    if !(filter::allows(CallGroup::Files) && filter::allows(CallGroup::Clock)) {
        return fail("a seccomp filter does not let it through");
    }
    clock::begin_calibration();
    hide_own_frames();
    if let Err(errno) = reserve() {
        return fail_with("no addresses", errno);
    }
    // SAFETY: `end` has switched recording off, so no thread reads the path; `begin` is not concurrent.
    let path = unsafe { &mut *DIRECTORY.0.get() };
    path.fill(0);
    path[..directory.len()].copy_from_slice(directory);
    if let Some(state) = state() {
        state.stage.store(CREATING, Relaxed);
        let created = map_file(state);
        state.stage.store(if created.is_ok() { MAPPED } else { FAILED }, Release);
        match created {
            Ok(()) => {
                features::set_active();
                MIN_SIZE_BYTES.store(min_size_bytes.max(1), Release);
                changed();
            }
            Err(errno) => fail_with("the file could not be made", errno),
        }
    }
}

/// Ends the current recording, if any. The program continues.
pub fn end() {
    let Some(state) = state() else { return };
    if !is_on() {
        return;
    }
    MIN_SIZE_BYTES.store(usize::MAX, Release);
    changed();
    match state.stage.load(Acquire) {
        READY => {
            (0..END_PAUSES).for_each(|_| thread::pause());
            state.stage.store(NONE, Release);
            close(Phase::Ended);
            // SAFETY: `reserve` reserved FILE_BYTES at BASE, so replacing the mapping affects no other
            // memory. Threads that are still writing an event write to the new, anonymous pages.
            let _ = unsafe { mem::map_private(FILE_BYTES, Some(BASE.load(Relaxed))) };
        }
        MAPPED => {
            state.stage.store(NONE, Release);
            remove(state);
        }
        _ => {}
    }
}

/// Closes the recording when the process exits normally.
pub fn exit() {
    let Some(state) = state().filter(|_| is_on() && !has_stopped_system_calls()) else { return };
    match state.stage.load(Acquire) {
        READY => close(Phase::Exited),
        MAPPED => remove(state),
        _ => {}
    }
}

/// Switches a forked child to a file of its own. Must run before any of the program's code in the child.
pub fn in_child() {
    let Some(state) = state().filter(|_| is_on() && !has_stopped_system_calls()) else { return };
    let _errno = uncopy_sys::errno::SavedErrno::new();
    // Already cleared by the kernel, unless the kernel does not support MADV_WIPEONFORK.
    state.stage.store(CREATING, Relaxed);
    EARLY_DROPS.store(0, Relaxed);
    recent::in_child();
    let created = map_file(state);
    state.stage.store(if created.is_ok() { MAPPED } else { FAILED }, Release);
    if let Err(errno) = created {
        fail_with("a forked child's file could not be made", errno);
    }
}

/// Sets the cost constants of this machine, for the header.
pub fn set_costs(costs: &Costs) {
    for cost in Cost::ALL {
        COSTS[*cost as usize].store(u64::from(costs.get(*cost)), Relaxed);
    }
    if state().is_some_and(|state| state.stage.load(Acquire) == READY) {
        write_costs(mapping());
    }
}

fn write_costs(area: Area) {
    for cost in Cost::ALL {
        let ns = COSTS[*cost as usize].load(Relaxed);
        area.word(COSTS_OFFSET + 8 * *cost as usize).store(ns, Relaxed);
    }
}

/// Completes the file for its first event. Returns `None` if this event must be dropped.
#[cold]
#[inline(never)]
fn open(state: &'static State) -> Option<Area> {
    if !is_on() || uncopy_sys::lock::thread_id() == 0 {
        return None;
    }
    let _errno = uncopy_sys::errno::SavedErrno::new();
    let _critical = Critical::enter();
    for _ in 0..MAX_PAUSES {
        let stage = state.stage.load(Acquire);
        match stage {
            READY => return Some(mapping()),
            FAILED => return None,
            CREATING => thread::pause(),
            _ if has_stopped_system_calls() => {
                state.stage.store(FAILED, Release);
                return None;
            }
            _ => {
                if state.stage.compare_exchange(stage, CREATING, AcqRel, Acquire).is_err() {
                    continue;
                }
                // Stage NONE here means a child whose fork was not seen by a hook.
                let created = if stage == NONE { map_file(state) } else { Ok(()) };
                return match created.and_then(|()| fill(state)) {
                    Ok(()) => {
                        state.stage.store(READY, Release);
                        Some(mapping())
                    }
                    Err(errno) => {
                        state.stage.store(FAILED, Release);
                        fail_with("there is no memory for the file", errno);
                        None
                    }
                };
            }
        }
    }
    EARLY_DROPS.fetch_add(1, Relaxed);
    None
}

/// Excludes this library's frames from captured stacks.
fn hide_own_frames() {
    let own = hide_own_frames as *const () as usize;
    if let Some((module, _)) = uncopy_unwind::module_at(own, &mut []) {
        uncopy_unwind::exclude_range(module.start, module.end);
    }
}

/// Resolves the loader's functions for unwinding, at load time because this takes the loader's locks.
pub fn prepare() {
    uncopy_unwind::init();
}

/// Reserves addresses for the mapping and allocates the state, once per process.
fn reserve() -> Result<(), Errno> {
    if STATE.load(Relaxed) != 0 {
        return Ok(());
    }
    let base = Reservation::new(FILE_BYTES)?;
    let page = Reservation::new(PAGE_BYTES)?;
    page.commit(page.base(), PAGE_BYTES)?;
    page.wipe_on_fork()?;
    BASE.store(base.base(), Relaxed);
    STATE.store(page.base(), Release);
    Ok(())
}

/// Creates and maps the file without allocating memory for it.
fn map_file(state: &State) -> Result<(), Errno> {
    let began_ns = clock::now_ns();
    let base = BASE.load(Relaxed);
    // SAFETY: `reserve` reserved FILE_BYTES at `base` for the recording. No event refers to what was mapped
    // there before: that recording has ended or belongs to the parent process.
    unsafe {
        mem::map_new_file(
            directory(),
            FileName::new(std::process::id(), began_ns).as_c_str(),
            FILE_BYTES,
            base,
        )
    }?;
    Reservation::from_existing(base, FILE_BYTES).advise(base, FILE_BYTES, Advice::NotInCoreDumps);
    state.began_ns.store(began_ns, Relaxed);
    Ok(())
}

/// Allocates the file's memory and writes its header.
fn fill(state: &State) -> Result<(), Errno> {
    // Populating fails if there is no space; touching such a page later would raise SIGBUS.
    mem::populate(BASE.load(Relaxed), FILE_BYTES)?;
    clock::finish_calibration();
    let area = mapping();
    let set = |offset: usize, value: u64| area.word(offset).store(value, Relaxed);
    set(PID_OFFSET, u64::from(std::process::id()));
    set(PARENT_OFFSET, u64::from(ids::parent()));
    set(BEGAN_OFFSET, state.began_ns.load(Relaxed));
    set(MIN_SIZE_OFFSET, MIN_SIZE_BYTES.load(Relaxed) as u64);
    set(CLOCK_OFFSET, if clock::uses_counter() { Clock::Counter } else { Clock::Monotonic } as u64);
    set(PHASE_OFFSET, Phase::Recording as u64);
    set(STACK_WORDS_USED_OFFSET, 1);
    set(SAMPLED_OFFSET, SAMPLED.load(Relaxed));
    write_costs(area);
    area.write_text(NAME_OFFSET, &ids::program_name());
    match EARLY_DROPS.swap(0, Relaxed) {
        0 => {}
        events => ring::count_dropped(area, events),
    }
    area.word(0).store(u64::from_ne_bytes(MAGIC), Release);
    Ok(())
}

/// Marks the recording as ended in its header, if this process created the file.
fn close(phase: Phase) {
    let area = mapping();
    if area.word(PID_OFFSET).load(Relaxed) == u64::from(std::process::id()) {
        area.word(ENDED_OFFSET).store(clock::now_ns(), Relaxed);
        area.word(PHASE_OFFSET).store(phase as u64, Release);
    }
}

/// Removes a file that holds no events.
fn remove(state: &State) {
    let began_ns = state.began_ns.load(Relaxed);
    mem::unlink_in(directory(), FileName::new(std::process::id(), began_ns).as_c_str());
}

fn changed() {
    if let Some(callbacks) = CALLBACKS.get() {
        (callbacks.on_change)();
    }
}

fn fail_with(what: &str, errno: Errno) {
    let mut text = Text::<160>::new();
    let _ = write!(text, "{what}: {errno}");
    fail(text.as_str());
}

fn fail(why: &str) {
    MIN_SIZE_BYTES.store(usize::MAX, Release);
    changed();
    if let Some(callbacks) = CALLBACKS.get() {
        let mut text = Text::<192>::new();
        let _ = write!(text, "nothing is recorded: {why}");
        (callbacks.on_failure)(text.as_str());
    }
}

/// Fixed-capacity, NUL-terminated text on the stack. Text beyond the capacity is truncated.
struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    len_bytes: usize,
}

impl<const BYTES: usize> Text<BYTES> {
    const fn new() -> Self {
        Self { bytes: [0; BYTES], len_bytes: 0 }
    }

    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len_bytes]).unwrap_or_default()
    }
}

impl<const BYTES: usize> core::fmt::Write for Text<BYTES> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let mut kept = text.len().min(BYTES - 1 - self.len_bytes);
        while !text.is_char_boundary(kept) {
            kept -= 1;
        }
        self.bytes[self.len_bytes..self.len_bytes + kept].copy_from_slice(&text.as_bytes()[..kept]);
        self.len_bytes += kept;
        Ok(())
    }
}

/// File name of a recording, as `recording::file_name` formats it, without allocating.
struct FileName(Text<64>);

impl FileName {
    fn new(pid: u32, began_ns: u64) -> Self {
        let mut text = Text::new();
        let _ = write!(text, "{pid}-{began_ns}{SUFFIX}");
        Self(text)
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0.bytes).unwrap_or(c"")
    }
}

const _: () = assert!(RING_OFFSET < FILE_BYTES);
