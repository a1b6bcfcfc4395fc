//! The counters: a page in the layout of `uncopy_core::stats`, private at first, then a file that only its
//! owner can read, so that `uncopy stats PID` can look at a running program.
//!
//! Each thread counts in the shard of its number, so that threads do not share a cache line; with more
//! threads than shards, several threads share one. A counter's value is the sum over shards.

use core::fmt::Write;
use core::sync::atomic::AtomicU64;
use uncopy_core::policy::trials::{FactorReport, report};
use uncopy_core::stats::{
    self, CONTROL_SUFFIX, COUNTERS_OFFSET, Counter, FILE_BYTES, INITIAL_PID_NAMESPACE, MAGIC, PID_OFFSET,
    REASON_CAPACITY_BYTES, REASON_LEN_OFFSET, REASON_OFFSET, SHARD_BYTES, Snapshot, StatsName, TRIALS_OFFSET,
};
use uncopy_sys::control::Control;
use uncopy_sys::mem;
use uncopy_sys::probes;
use uncopy_sys::sync::Tally;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use uncopy_sys::thread;

/// Counters of live objects, which may go down.
const GAUGES: [Counter; 6] = [
    Counter::SegmentsBytes,
    Counter::Views,
    Counter::ReservoirBytes,
    Counter::BlocksBytes,
    Counter::RegisteredBlocks,
    Counter::ForeignRanges,
];

const WORDS: usize = FILE_BYTES / 8;

#[repr(C, align(4096))]
struct Page([Tally; WORDS]);

impl Page {
    uncopy_sys::constant! {
        const fn new() -> Self {
            #[cfg(not(loom))]
            return Self([const { Tally::new(0) }; WORDS]);
            #[cfg(loom)]
            Self(core::array::from_fn(|_| Tally::new(0)))
        }
    }
}

uncopy_sys::statics! {
    static PRIVATE: Page = Page::new();
    /// Address of the page in use; 0: `PRIVATE`.
    static SHARED: AtomicUsize = AtomicUsize::new(0);
    static HAS_FILE: AtomicBool = AtomicBool::new(false);
    static HAS_CONTROL: AtomicBool = AtomicBool::new(false);
}

/// The page at an address that `publish` stored.
fn page_at(address: usize) -> &'static Page {
    // SAFETY: only `publish` stores addresses, each of a mapping of FILE_BYTES that is never unmapped, only
    // replaced in place; a `Page` is atomics, valid for all bytes.
    unsafe { &*(address as *const Page) }
}

fn page() -> &'static Page {
    match SHARED.load(Acquire) {
        0 => &PRIVATE,
        address => page_at(address),
    }
}

/// Number of shards in use; the threads of a model share one.
const SHARDS: usize = if cfg!(loom) { 1 } else { stats::SHARDS };

#[inline]
fn own_shard() -> usize {
    if cfg!(loom) { 0 } else { thread::number() as usize % SHARDS }
}

/// Number of shards in which a thread has ever counted.
fn used_shards() -> usize {
    if cfg!(loom) { 1 } else { (thread::numbered_threads() as usize).clamp(1, SHARDS) }
}

fn index(which: Counter, shard: usize) -> usize {
    (COUNTERS_OFFSET + shard * SHARD_BYTES) / 8 + which as usize
}

fn counter(which: Counter, shard: usize) -> &'static Tally {
    &page().0[index(which, shard)]
}

/// Adds to a counter, modulo 2^64; returns the new value in the calling thread's shard.
#[inline]
fn tally(which: Counter, value: u64) -> u64 {
    let index = index(which, own_shard());
    match SHARED.load(Acquire) {
        0 => {
            let new = PRIVATE.0[index].fetch_add(value, Acquire).wrapping_add(value);
            // `publish` may have emptied the private page just before.
            if SHARED.load(Acquire) != 0 {
                carry_over(index);
            }
            new
        }
        address => page_at(address).0[index].fetch_add(value, Relaxed).wrapping_add(value),
    }
}

/// Moves a counter's value from the private page to the shared one.
fn carry_over(index: usize) {
    let rest = PRIVATE.0[index].swap(0, Release);
    if rest != 0 {
        page().0[index].fetch_add(rest, Relaxed);
    }
}

/// Adds to a counter.
#[inline]
pub fn add(which: Counter, value: usize) {
    if value != 0 {
        tally(which, value as u64);
    }
}

/// Counts an internal failure after which bytes are copied, for this reason.
#[cold]
pub fn add_fallback(reason: &str) {
    add(Counter::Fallbacks, 1);
    probes::fallback(reason);
}

/// Subtracts from a gauge.
#[inline]
pub fn subtract(which: Counter, value: usize) {
    if value != 0 {
        tally(which, (value as u64).wrapping_neg());
    }
}

/// Sets a gauge that only one thread measures.
pub fn set(gauge: Counter, value: usize) {
    counter(gauge, 0).store(value as u64, Relaxed);
}

/// For each shard, the gauge values below which its threads need not sum all shards. With one thread that
/// is the highest value so far, so that peaks are exact; with several it is a 64th more, so that threads
/// seldom read each other's shards.
#[repr(align(128))]
struct Asked([AtomicU64; Counter::ALL.len()]);

static ASKED: [Asked; stats::SHARDS] =
    [const { Asked([const { AtomicU64::new(0) }; Counter::ALL.len()]) }; stats::SHARDS];

/// Adds to a gauge and raises its peak.
#[inline]
pub fn add_with_peak(gauge: Counter, peak: Counter, value: usize) {
    let new = tally(gauge, value as u64);
    if SHARDS == 1 {
        // `ASKED` outlives a model's run, and each run must take the same steps.
        if new > counter(peak, 0).load(Relaxed) && new < NEGATIVE {
            counter(peak, 0).fetch_max(new, Relaxed);
        }
        return;
    }
    let (in_shard, shard) = (new as i64, own_shard());
    let asked = &ASKED[shard].0[gauge as usize];
    if in_shard > asked.load(Relaxed) as i64 {
        let all = get(gauge);
        let margin = if used_shards() == 1 { 0 } else { all >> 6 };
        asked.store(new.wrapping_add(margin), Relaxed);
        counter(peak, shard).fetch_max(all, Relaxed);
    }
}

/// Values from here on are a gauge that dipped below zero for a moment.
const NEGATIVE: u64 = 1 << 62;

/// Returns the value of a counter.
#[must_use]
pub fn get(which: Counter) -> u64 {
    let shards = (0..used_shards()).map(|shard| counter(which, shard).load(Relaxed));
    if which.is_peak() {
        return shards.max().unwrap_or(0);
    }
    let value = shards.fold(0, u64::wrapping_add);
    if value < NEGATIVE { value } else { 0 }
}

/// Records why nothing is elided, cut to the capacity of the field.
pub fn set_reason(reason: &str) {
    crate::state::ledger::set_reason(reason);
    let mut len_bytes = reason.len().min(REASON_CAPACITY_BYTES);
    while !reason.is_char_boundary(len_bytes) {
        len_bytes -= 1;
    }
    let words = &page().0;
    for (index, chunk) in reason.as_bytes()[..len_bytes].chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        words[REASON_OFFSET / 8 + index].store(u64::from_ne_bytes(word), Relaxed);
    }
    words[REASON_LEN_OFFSET / 8].store(len_bytes as u64, Relaxed);
}

/// Publishes the standing of a factor's trials.
pub fn set_trial(factor: usize, standing: &FactorReport) {
    crate::state::ledger::set_trial(factor, standing);
    for (at, value) in standing.to_words().into_iter().enumerate() {
        page().0[(TRIALS_OFFSET + report::offset(factor)) / 8 + at].store(value, Relaxed);
    }
}

/// Returns a copy of the counters.
#[must_use]
pub fn snapshot() -> Snapshot {
    let mut bytes = Vec::with_capacity(FILE_BYTES);
    for word in &page().0 {
        bytes.extend_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[PID_OFFSET..PID_OFFSET + 8].copy_from_slice(&u64::from(std::process::id()).to_ne_bytes());
    let empty = || Snapshot::empty(u64::from(std::process::id()), None);
    Snapshot::parse(&bytes).unwrap_or_else(|_| empty())
}

/// A NUL-terminated string on the stack.
struct Text {
    bytes: [u8; 96],
    len_bytes: usize,
}

impl Text {
    fn new(arguments: core::fmt::Arguments<'_>) -> Self {
        let mut text = Self { bytes: [0; 96], len_bytes: 0 };
        // The paths written here are far shorter than the buffer.
        let _ = text.write_fmt(arguments);
        text
    }

    fn as_c_str(&self) -> &core::ffi::CStr {
        core::ffi::CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.len_bytes + text.len();
        if end >= self.bytes.len() {
            return Err(core::fmt::Error);
        }
        self.bytes[self.len_bytes..end].copy_from_slice(text.as_bytes());
        self.len_bytes = end;
        Ok(())
    }
}

uncopy_sys::statics! {
    /// True if the user id is meaningless, because the process is in another user namespace.
    static HAS_FOREIGN_IDS: AtomicBool = AtomicBool::new(false);
}

fn directory_path() -> Text {
    if HAS_FOREIGN_IDS.load(Relaxed) {
        // No file can be created under the empty path.
        return Text::new(format_args!(""));
    }
    let user = uncopy_sys::ids::effective_user();
    let root = if uncopy_sys::mem::exists(c"/dev/shm") { "/dev/shm" } else { "/tmp" };
    Text::new(format_args!("{root}/uncopy-{user}"))
}

/// Calls `with` with the path of the directory that programs of this user share.
pub fn directory(with: impl FnOnce(&[u8])) {
    with(directory_path().as_c_str().to_bytes());
}

uncopy_sys::statics! {
    /// Inode of the pid namespace, for the names of the process's files; 0: not read yet.
    static NAMESPACE: AtomicU64 = AtomicU64::new(0);
}

/// Name of the process's stats file. Reads the pid namespace on first use, also in a forked child.
fn stats_name() -> StatsName {
    let mut namespace = NAMESPACE.load(Relaxed);
    if namespace == 0 {
        namespace = uncopy_sys::ids::pid_namespace().unwrap_or(INITIAL_PID_NAMESPACE);
        NAMESPACE.store(namespace, Relaxed);
    }
    StatsName { pid: std::process::id(), namespace }
}

fn file_name() -> Text {
    Text::new(format_args!("{}", stats_name()))
}

fn control_name() -> Text {
    Text::new(format_args!("{}{CONTROL_SUFFIX}", stats_name()))
}

/// Whether the counters were published, in the file that `uncopy stats` reads or, failing that, in a private page.
pub fn are_published() -> bool {
    SHARED.load(Relaxed) != 0
}

/// Publishes the counters in the file that `uncopy stats` reads, unless that was done. For one thread at a time.
pub fn publish_once() {
    if !are_published() {
        publish();
    }
}

/// Publishes the counters in the file that `uncopy stats` reads. Where that fails (no such directory, not
/// owned by the user, disk full) they stay private; nothing else changes. Other threads may be counting.
pub fn publish() {
    let in_place = match SHARED.load(Relaxed) {
        0 => None,
        address => Some(address),
    };
    let before: Vec<u64> = page().0.iter().map(|word| word.load(Relaxed)).collect();
    let (mapped, has_file) = map_page(in_place);
    HAS_FILE.store(has_file, Relaxed);
    let Ok(address) = mapped else {
        // The page may still be shared with the parent: a forked child counts in private memory then.
        if in_place.is_some() {
            for (word, value) in PRIVATE.0.iter().zip(before) {
                word.store(value, Relaxed);
            }
            SHARED.store(0, Relaxed);
        }
        return;
    };
    let shared = page_at(address);
    if in_place.is_some() {
        // A forked child has no other threads that count.
        for (word, value) in shared.0.iter().zip(before) {
            word.store(value, Relaxed);
        }
    } else {
        let reason = REASON_LEN_OFFSET / 8..COUNTERS_OFFSET / 8;
        for (word, value) in shared.0[reason.clone()].iter().zip(&before[reason]) {
            word.store(*value, Relaxed);
        }
    }
    shared.0[PID_OFFSET / 8].store(u64::from(std::process::id()), Relaxed);
    SHARED.store(address, Release);
    if in_place.is_none() {
        counters().for_each(carry_over);
    }
    shared.0[0].store(u64::from_ne_bytes(MAGIC), Relaxed);
}

/// Indices of the counters' words in the page.
fn counters() -> impl Iterator<Item = usize> {
    (0..SHARDS).flat_map(|shard| Counter::ALL.iter().map(move |which| index(*which, shard)))
}

/// Maps a page for the counters, in place of an earlier one if there is; returns its address, and whether
/// it is the file.
#[cfg(not(loom))]
fn map_page(in_place: Option<usize>) -> (Result<usize, uncopy_sys::errno::Errno>, bool) {
    let (directory, file) = (directory_path(), file_name());
    // SAFETY: `in_place` is the address of the mapping that an earlier call made, FILE_BYTES long, used for
    // the counters only.
    let mapped =
        unsafe { mem::map_private_file(directory.as_c_str(), file.as_c_str(), FILE_BYTES, in_place) };
    let has_file = mapped.is_ok();
    // A forked child must not go on counting in its parent's file.
    // SAFETY: `in_place` is the address of the mapping that an earlier call made, FILE_BYTES long, used for
    // the counters only.
    (mapped.or_else(|_| unsafe { mem::map_private(FILE_BYTES, in_place) }), has_file)
}

#[cfg(loom)]
fn map_page(_in_place: Option<usize>) -> (Result<usize, uncopy_sys::errno::Errno>, bool) {
    uncopy_sys::statics! {
        static MAPPED: Page = Page::new();
    }
    (Ok(core::ptr::from_ref::<Page>(&MAPPED) as usize), false)
}

/// Gauges of live objects, to be handed to a forked child: the shared page goes on changing in the parent.
#[derive(Clone, Copy)]
pub struct Gauges([u64; GAUGES.len()]);

/// Returns the current gauges.
#[must_use]
pub fn gauges() -> Gauges {
    Gauges(GAUGES.map(get))
}

/// Restarts the counters from zero in a forked child, except the gauges of live objects.
pub fn restart_in_child(alive: Gauges) {
    // The child may be the first process of another pid namespace.
    NAMESPACE.store(0, Relaxed);
    if SHARED.load(Relaxed) != 0 {
        publish();
    }
    for index in counters() {
        page().0[index].store(0, Relaxed);
    }
    for asked in ASKED.iter().flat_map(|shard| &shard.0) {
        asked.store(0, Relaxed);
    }
    for (which, value) in GAUGES.into_iter().zip(alive.0) {
        counter(which, 0).store(value, Relaxed);
    }
}

/// Creates the pipe for commands, which the handler thread reads. If that fails, commands are not available.
pub fn open_control() -> Control {
    if cfg!(loom) {
        return Control::NONE;
    }
    let (directory, name) = (directory_path(), control_name());
    let control = Control::open(directory.as_c_str(), name.as_c_str());
    HAS_CONTROL.store(control.is_ok(), Relaxed);
    control.unwrap_or(Control::NONE)
}

/// Removes the pipe, whose reader is gone.
pub fn close_control() {
    if HAS_CONTROL.swap(false, Relaxed) {
        remove(&control_name());
    }
}

/// Follows a call that may have changed the user namespace. `before`: effective user id before the call. If
/// it differs, user ids mean something else, and the counters stay private from then on.
pub fn unpublish_if_user_changed(before: u32) {
    if uncopy_sys::ids::effective_user() != before {
        HAS_FOREIGN_IDS.store(true, Relaxed);
    }
}

/// Removes a file of the user's own directory.
fn remove(name: &Text) {
    mem::unlink_in(directory_path().as_c_str(), name.as_c_str());
}

/// Removes files that an earlier process with this pid, or this process before its exec, left behind.
pub fn remove_stale() {
    remove(&file_name());
    remove(&control_name());
}

/// Removes the file and the pipe at exit.
pub fn unpublish() {
    close_control();
    if HAS_FILE.swap(false, Relaxed) {
        remove(&file_name());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_running_program_shows_its_counters() {
        add(Counter::Faults, 3);
        publish();
        add(Counter::Faults, 4);
        let directory = directory_path().as_c_str().to_str().expect("ASCII").to_owned();
        let path = std::path::Path::new(&directory).join(stats_name().to_string());
        let path = path.as_path();
        let snapshot = Snapshot::parse(&std::fs::read(path).expect("published")).expect("well-formed");
        assert_eq!(snapshot.pid, u64::from(std::process::id()));
        assert!(snapshot.get(Counter::Faults) >= 7);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(path).expect("published").permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        unpublish();
        assert!(!path.exists());
    }
}
