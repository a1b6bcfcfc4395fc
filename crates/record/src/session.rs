//! Beginning and ending a recording, here and in forked children.
//!
//! ```text
//! none ──► mapped ──► ready ──► none (ended)          failed: nothing is recorded in this process
//!    file made, no memory   first event: memory, header
//! ```
//!
//! The file is made when the library is loaded, and in a forked child before anything of the program runs in it: the
//! program may close every descriptor, change its user or its root later. It takes memory when there is something to
//! record. What is known of it lies in a page that the kernel empties in every child, however that was forked, so that
//! no process ever writes to another's file; one that shares its parent's memory (vfork) shares its recording.

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
use uncopy_sys::filter::Feature;
use uncopy_sys::lock::Critical;
use uncopy_sys::mem::{self, Advice, Reservation};
use uncopy_sys::{filter, ids, thread};

const NONE: u32 = 0;
const MAKING: u32 = 1;
const MAPPED: u32 = 2;
const READY: u32 = 3;
const FAILED: u32 = 4;

/// Polls, some 70 µs apart, before an event abandons waiting for the file that another thread makes.
const MAX_PAUSES: u32 = 3_000;
/// Polls, some 70 µs apart, at the end of a recording, for events that are being entered.
const LAST_PAUSES: u32 = 20;

/// The page that is emptied in children.
#[repr(C)]
struct State {
    stage: AtomicU32,
    /// When the file was made, which its name says.
    began_ns: AtomicU64,
}

/// Address of the state; 0: nothing was ever recorded.
static STATE: AtomicUsize = AtomicUsize::new(0);
/// Address of the mapping for the file.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Events that came before the file was there.
static EARLY_DROPS: AtomicU64 = AtomicU64::new(0);
/// See [`set_sampled`].
static SAMPLED: AtomicU64 = AtomicU64::new(0);
/// No system calls any more.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);
/// The constants of the machine; 0: not known.
static COSTS: [AtomicU64; Cost::ALL.len()] = [const { AtomicU64::new(0) }; Cost::ALL.len()];

/// Where recordings are made: a terminated path.
struct Directory(UnsafeCell<[u8; MAX_DIRECTORY_BYTES + 1]>);
// SAFETY: written while nothing is recorded, by the thread that begins the recording.
unsafe impl Sync for Directory {}
static DIRECTORY: Directory = Directory(UnsafeCell::new([0; MAX_DIRECTORY_BYTES + 1]));

fn directory() -> &'static CStr {
    // SAFETY: see `Directory`.
    CStr::from_bytes_until_nul(unsafe { &*DIRECTORY.0.get() }).unwrap_or(c"")
}

/// Who is told what happens here.
#[derive(Clone, Copy, Debug)]
pub struct Watcher {
    /// A recording has begun or ended: gates are to be set.
    pub changed: fn(),
    /// Nothing is recorded in this process, for this reason.
    pub failed: fn(&str),
}

static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// Names who is told. Called once, before threads exist.
pub fn watch(watcher: Watcher) {
    let _ = WATCHER.set(watcher);
}

fn state() -> Option<&'static State> {
    match STATE.load(Acquire) {
        0 => None,
        // SAFETY: the page that `reserve` made, never unmapped; zeroes are a valid state.
        address => Some(unsafe { &*(address as *const State) }),
    }
}

fn mapping() -> Area {
    // SAFETY: called where the state says that a file is mapped there, or by who maps it; it stays readable and writable.
    unsafe { Area::new(BASE.load(Relaxed)) }
}

/// The recording to write to; `None`: there is none, and the event counts as dropped if there is to be one.
#[inline]
pub(crate) fn area() -> Option<Area> {
    let state = state()?;
    if state.stage.load(Acquire) == READY { Some(mapping()) } else { open(state) }
}

/// The same, if anything was recorded yet.
#[inline]
pub(crate) fn area_in_use() -> Option<Area> {
    state().filter(|state| state.stage.load(Acquire) == READY).map(|_| mapping())
}

/// Notes whether inputs are sampled.
pub fn set_sampled(sampled: Sampled) {
    SAMPLED.store(sampled as u64, Relaxed);
    if let Some(area) = area_in_use() {
        area.word(SAMPLED_OFFSET).store(sampled as u64, Relaxed);
    }
}

/// When the file was made, ns: what is known of one recording is not true of the next.
#[inline]
pub(crate) fn began_ns() -> u64 {
    state().map_or(0, |state| state.began_ns.load(Relaxed))
}

/// Whether no system call may be made any more.
#[inline]
#[must_use]
pub fn is_confined() -> bool {
    IS_CONFINED.load(Relaxed)
}

/// No system calls from here on: the program is about to have them forbidden. A recording goes on as far as it can
/// without.
pub fn confine() {
    if let Some(state) = state()
        && is_on()
    {
        // What is there to be made is made now.
        let _ = if state.stage.load(Acquire) == READY { None } else { open(state) };
    }
    IS_CONFINED.store(true, Relaxed);
    uncopy_unwind::confine();
}

/// Begins to record what has at least so many bytes into a file in `directory`; ends what is being recorded.
///
/// For one thread at a time: when the library is loaded, then the handler thread.
pub fn begin(directory: &[u8], min_size_bytes: usize) {
    let _errno = uncopy_sys::errno::Keep::new();
    let _critical = Critical::enter();
    end();
    if directory.is_empty() || directory.len() > MAX_DIRECTORY_BYTES || directory[0] != b'/' {
        return fail("the directory's path is not absolute, or too long");
    }
    if !(filter::allows(Feature::Files) && filter::allows(Feature::Clock)) {
        return fail("a seccomp filter does not let it through");
    }
    clock::begin();
    hide_own_frames();
    if let Err(errno) = reserve() {
        return fail_with("no addresses", errno);
    }
    // SAFETY: nothing is recorded, see `Directory`.
    let path = unsafe { &mut *DIRECTORY.0.get() };
    path.fill(0);
    path[..directory.len()].copy_from_slice(directory);
    if let Some(state) = state() {
        state.stage.store(MAKING, Relaxed);
        let made = map_file(state);
        state.stage.store(if made.is_ok() { MAPPED } else { FAILED }, Release);
        match made {
            Ok(()) => {
                MIN_SIZE_BYTES.store(min_size_bytes.max(1), Release);
                changed();
            }
            Err(errno) => fail_with("the file could not be made", errno),
        }
    }
}

/// Ends the recording, if there is one. The program goes on.
pub fn end() {
    let Some(state) = state() else { return };
    if !is_on() {
        return;
    }
    MIN_SIZE_BYTES.store(usize::MAX, Release);
    changed();
    match state.stage.load(Acquire) {
        READY => {
            (0..LAST_PAUSES).for_each(|_| thread::pause());
            state.stage.store(NONE, Release);
            close(Phase::Ended);
            // Threads that are being entering something all the same may write there.
            // SAFETY: the mapping is ours, and zeroes do as well.
            let _ = unsafe { mem::map_private(FILE_BYTES, Some(BASE.load(Relaxed))) };
        }
        MAPPED => {
            state.stage.store(NONE, Release);
            remove(state);
        }
        _ => {}
    }
}

/// The process ends in an orderly way.
pub fn exit() {
    let Some(state) = state().filter(|_| is_on() && !is_confined()) else { return };
    match state.stage.load(Acquire) {
        READY => close(Phase::Exited),
        MAPPED => remove(state),
        _ => {}
    }
}

/// In a forked child, before anything of the program runs in it: it records into a file of its own.
pub fn in_child() {
    let Some(state) = state().filter(|_| is_on() && !is_confined()) else { return };
    let _errno = uncopy_sys::errno::Keep::new();
    // Empty, unless the kernel does not do that: then it is the parent's.
    state.stage.store(MAKING, Relaxed);
    EARLY_DROPS.store(0, Relaxed);
    recent::in_child();
    let made = map_file(state);
    state.stage.store(if made.is_ok() { MAPPED } else { FAILED }, Release);
    if let Err(errno) = made {
        fail_with("a forked child's file could not be made", errno);
    }
}

/// Notes what things cost on this machine.
pub fn set_costs(costs: &Costs) {
    for which in Cost::ALL {
        COSTS[*which as usize].store(u64::from(costs.get(*which)), Relaxed);
    }
    if state().is_some_and(|state| state.stage.load(Acquire) == READY) {
        write_costs(mapping());
    }
}

fn write_costs(area: Area) {
    for which in Cost::ALL {
        let ns = COSTS[*which as usize].load(Relaxed);
        area.word(COSTS_OFFSET + 8 * *which as usize).store(ns, Relaxed);
    }
}

/// Makes the recording ready for its first event; `None`: this event is dropped.
#[cold]
#[inline(never)]
fn open(state: &'static State) -> Option<Area> {
    if !is_on() || uncopy_sys::lock::thread_id() == 0 {
        return None;
    }
    let _errno = uncopy_sys::errno::Keep::new();
    let _critical = Critical::enter();
    for _ in 0..MAX_PAUSES {
        let stage = state.stage.load(Acquire);
        match stage {
            READY => return Some(mapping()),
            FAILED => return None,
            MAKING => thread::pause(),
            _ if is_confined() => {
                state.stage.store(FAILED, Release);
                return None;
            }
            _ => {
                if state.stage.compare_exchange(stage, MAKING, AcqRel, Acquire).is_err() {
                    continue;
                }
                // None: a child that was forked in a way that nobody saw.
                let made = if stage == NONE { map_file(state) } else { Ok(()) };
                return match made.and_then(|()| fill(state)) {
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

/// What is here is no part of any stack.
fn hide_own_frames() {
    let own = hide_own_frames as *const () as usize;
    if let Some((module, _)) = uncopy_unwind::module_at(own, &mut []) {
        uncopy_unwind::hide(module.start, module.end);
    }
}

/// Looks up what stacks need. Takes the loader's locks: for when the library is loaded.
pub fn prepare() {
    uncopy_unwind::begin();
}

/// Makes room for the state and the mapping, once.
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

/// Makes the file and maps it, without memory.
fn map_file(state: &State) -> Result<(), Errno> {
    let began_ns = clock::now_ns();
    let base = BASE.load(Relaxed);
    // SAFETY: the mapping is ours; what it held before is over, or another process's.
    unsafe {
        mem::map_new_file(directory(), Name::new(std::process::id(), began_ns).as_c_str(), FILE_BYTES, base)
    }?;
    Reservation::part_of_ours(base, FILE_BYTES).advise(base, FILE_BYTES, Advice::NotInCoreDumps);
    state.began_ns.store(began_ns, Relaxed);
    Ok(())
}

/// Gives the file its memory and its header.
fn fill(state: &State) -> Result<(), Errno> {
    // Where there is no room this fails; touching such a page would end the program.
    mem::populate(BASE.load(Relaxed), FILE_BYTES)?;
    clock::settle();
    let area = mapping();
    let set = |offset: usize, value: u64| area.word(offset).store(value, Relaxed);
    set(PID_OFFSET, u64::from(std::process::id()));
    set(PARENT_OFFSET, u64::from(ids::parent()));
    set(BEGAN_OFFSET, state.began_ns.load(Relaxed));
    set(MIN_SIZE_OFFSET, MIN_SIZE_BYTES.load(Relaxed) as u64);
    set(CLOCK_OFFSET, if clock::is_counter() { Clock::Counter } else { Clock::Monotonic } as u64);
    set(PHASE_OFFSET, Phase::Recording as u64);
    set(STACK_WORDS_USED_OFFSET, 1);
    set(SAMPLED_OFFSET, SAMPLED.load(Relaxed));
    write_costs(area);
    area.write_text(NAME_OFFSET, &ids::program_name());
    match EARLY_DROPS.swap(0, Relaxed) {
        0 => {}
        events => ring::dropped(area, events),
    }
    area.word(0).store(u64::from_ne_bytes(MAGIC), Release);
    Ok(())
}

/// Says in the header that it is over, if it is this process's.
fn close(phase: Phase) {
    let area = mapping();
    if area.word(PID_OFFSET).load(Relaxed) == u64::from(std::process::id()) {
        area.word(ENDED_OFFSET).store(clock::now_ns(), Relaxed);
        area.word(PHASE_OFFSET).store(phase as u64, Release);
    }
}

/// Removes a file in which nothing was recorded.
fn remove(state: &State) {
    let began_ns = state.began_ns.load(Relaxed);
    mem::unlink_in(directory(), Name::new(std::process::id(), began_ns).as_c_str());
}

fn changed() {
    if let Some(watcher) = WATCHER.get() {
        (watcher.changed)();
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
    if let Some(watcher) = WATCHER.get() {
        let mut text = Text::<192>::new();
        let _ = write!(text, "nothing is recorded: {why}");
        (watcher.failed)(text.as_str());
    }
}

/// Text on the stack; what does not fit is cut. The last byte is always zero.
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
        let mut take = text.len().min(BYTES - 1 - self.len_bytes);
        while !text.is_char_boundary(take) {
            take -= 1;
        }
        self.bytes[self.len_bytes..self.len_bytes + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len_bytes += take;
        Ok(())
    }
}

/// The name of a file: what `recording::file_name` makes, without allocating.
struct Name(Text<64>);

impl Name {
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
