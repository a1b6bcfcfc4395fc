//! State of each descriptor, indexed by its number.
//!
//! ```text
//! bits 0–2  3–11                     12–19                  20–31
//!      kind slot, error number,      syncs of a candidate   writes in progress to a candidate
//!           or forks (modulo 512)
//! ```
//!
//! A file begins to be logged at a moment without writes in progress: those would be in no record.

use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use uncopy_sys::descriptor::ProgramFd;

use uncopy_fdtable::{self as fdtable, Feature, MAX_TRACKED_FDS};
use uncopy_sys::clock;

const KIND: u32 = 7;
const DETAIL_SHIFT: u32 = 3;
const SYNC: u32 = 1 << 12;
const SYNCS: u32 = 0xFF * SYNC;
const WRITE: u32 = 1 << 20;
const WRITES: u32 = 0xFFF * WRITE;

const CANDIDATE: u32 = 1;
const REFUSED: u32 = 2;
const LOGGED: u32 = 3;
const INHERITED: u32 = 4;
const FAILED: u32 = 5;

#[derive(Debug)]
struct Descriptor {
    /// Packed word with the layout above.
    word: AtomicU32,
    written_bytes: AtomicUsize,
    /// Duration of the writes since a candidate's last sync, nanoseconds.
    write_ns: AtomicU64,
    opened_at: AtomicU64,
    /// End of a candidate's pause, ms, shifted left by 8; in the low byte, the binary logarithm of its length.
    pause: AtomicU64,
}

impl Descriptor {
    const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            written_bytes: AtomicUsize::new(0),
            write_ns: AtomicU64::new(0),
            opened_at: AtomicU64::new(0),
            pause: AtomicU64::new(0),
        }
    }
}

/// States of the first [`MAX_TRACKED_FDS`] descriptors; files of higher ones are never logged.
static ALL: [Descriptor; MAX_TRACKED_FDS] = [const { Descriptor::new() }; MAX_TRACKED_FDS];
/// Shortest and longest pause as binary logarithms: 256 ms, 4 s.
const MIN_PAUSE: u64 = 8;
const MAX_PAUSE: u64 = 12;
/// Multiple of a pause's length after which it no longer makes the next one longer.
const LONG_AGO: u64 = 8;

/// Slot of [`Kind::Inherited`] for a descriptor that was a candidate: the parent may log the file in any slot.
pub const NO_SLOT: usize = 511;

/// Relation of a descriptor's file to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not opened by a hook, or not for writing.
    Unknown,
    /// The file may be logged.
    Candidate,
    /// The file is not logged.
    Refused,
    /// The file is logged in this slot.
    Logged(usize),
    /// The file was logged in this slot, or may be in any ([`NO_SLOT`]), by the process that this one was forked from.
    Inherited(usize),
    /// The file is not logged, and this error of a sync was not reported to the program yet.
    Failed(i32),
}

impl Kind {
    const fn of(word: u32) -> Self {
        let detail = ((word & !KIND & (SYNC - 1)) >> DETAIL_SHIFT) as usize;
        match word & KIND {
            CANDIDATE => Self::Candidate,
            REFUSED => Self::Refused,
            LOGGED => Self::Logged(detail),
            INHERITED => Self::Inherited(detail),
            FAILED => Self::Failed(detail as i32),
            _ => Self::Unknown,
        }
    }

    const fn word(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::Candidate => CANDIDATE,
            Self::Refused => REFUSED,
            Self::Logged(slot) => LOGGED | (slot as u32) << DETAIL_SHIFT,
            Self::Inherited(slot) => INHERITED | (slot as u32) << DETAIL_SHIFT,
            Self::Failed(errno) => FAILED | ((errno as u32) << DETAIL_SHIFT & (SYNC - 1)),
        }
    }
}

fn at(fd: ProgramFd) -> Option<&'static Descriptor> {
    ALL.get(fd.index()?)
}

/// Returns the kind of a descriptor.
#[inline]
#[must_use]
pub fn kind(fd: ProgramFd) -> Kind {
    at(fd).map_or(Kind::Unknown, |known| Kind::of(known.word.load(Acquire)))
}

/// Sets the kind of a descriptor. The count of writes in progress is kept.
pub fn set(fd: ProgramFd, kind: Kind) {
    if let Some(Descriptor { word, .. }) = at(fd) {
        let mut seen = word.load(Relaxed);
        while let Err(now) = word.compare_exchange_weak(seen, seen & WRITES | kind.word(), AcqRel, Relaxed) {
            seen = now;
        }
        if kind == Kind::Unknown {
            fdtable::untrack(Feature::Log, fd)
        } else {
            fdtable::track(Feature::Log, fd)
        }
    }
}

/// Returns the descriptors whose kind is known.
pub fn known() -> impl Iterator<Item = ProgramFd> {
    fdtable::tracked(Feature::Log, 0, u32::MAX)
}

/// Counts a sync of a candidate. Returns the number of syncs, the bytes written since the last one, and the
/// duration of those writes in nanoseconds.
pub fn count_sync(fd: ProgramFd) -> (u32, usize, u64) {
    let Some(Descriptor { word, written_bytes, write_ns, .. }) = at(fd) else { return (0, 0, 0) };
    let (written, ns) = (written_bytes.swap(0, Relaxed), write_ns.swap(0, Relaxed));
    let seen = word.load(Relaxed);
    if seen & SYNCS == SYNCS {
        return (SYNCS / SYNC, written, ns);
    }
    // Losing a count to a concurrent change does no harm.
    let _ = word.compare_exchange(seen, seen + SYNC, AcqRel, Relaxed);
    ((seen & SYNCS) / SYNC + 1, written, ns)
}

/// Makes a new descriptor a candidate. `forks` is the number of forks before the open.
pub fn open(fd: ProgramFd, forks: u64) {
    if let Some(known) = at(fd) {
        known.opened_at.store(forks, Relaxed);
        known.pause.store(0, Relaxed);
        known.written_bytes.store(0, Relaxed);
        known.write_ns.store(0, Relaxed);
        set(fd, Kind::Candidate);
    }
}

/// Returns the number of forks before a descriptor was opened.
pub fn opened_at(fd: ProgramFd) -> u64 {
    at(fd).map_or(0, |known| known.opened_at.load(Relaxed))
}

/// Sets the kind of `to`, a duplicate of `from`.
pub fn duplicate(from: ProgramFd, to: ProgramFd, kind: Kind) {
    if let Some(known) = at(to) {
        known.opened_at.store(opened_at(from), Relaxed);
    }
    set(to, kind);
}

/// Pauses a candidate, for twice as long if the last pause was recent: its syncs do not begin to log it.
pub fn pause(fd: ProgramFd, now_ms: u64) {
    if let Some(Descriptor { pause, .. }) = at(fd) {
        let last = pause.load(Relaxed);
        let (until_ms, before) = (last >> 8, last & 0xFF);
        let is_first = before == 0 || now_ms > until_ms + (LONG_AGO << before);
        let length = if is_first { MIN_PAUSE } else { MAX_PAUSE.min(before + 1) };
        pause.store((now_ms + (1 << length)) << 8 | length, Relaxed);
    }
}

/// Returns whether a candidate is paused.
pub fn is_paused(fd: ProgramFd, now_ms: u64) -> bool {
    at(fd).is_some_and(|known| known.pause.load(Relaxed) >> 8 > now_ms)
}

/// Notes that a process is about to inherit a candidate: a concurrent [`adopt`] then fails.
pub fn note_forked(fd: ProgramFd) {
    const FORK: u32 = 1 << DETAIL_SHIFT;
    const FORKS: u32 = SYNC - FORK;
    if let Some(known) = at(fd) {
        let next =
            |seen: u32| (seen & KIND == CANDIDATE).then_some(seen & !FORKS | seen.wrapping_add(FORK) & FORKS);
        _ = known.word.fetch_update(AcqRel, Acquire, next);
    }
}

/// Makes a candidate logged, and returns true, unless it is being written to or `has_others` returns true.
pub fn adopt(fd: ProgramFd, slot: usize, has_others: impl FnOnce(u64) -> bool) -> bool {
    let Some(Descriptor { word, opened_at, .. }) = at(fd) else { return false };
    let seen = word.load(Acquire);
    Kind::of(seen) == Kind::Candidate
        && seen & WRITES == 0
        && !has_others(opened_at.load(Relaxed))
        && word.compare_exchange(seen, Kind::Logged(slot).word(), AcqRel, Relaxed).is_ok()
}

/// A counted write to a candidate.
#[derive(Debug)]
pub struct CountedWrite {
    known: &'static Descriptor,
    begun_ns: u64,
}

impl CountedWrite {
    /// Adds the bytes that the write has written. `result`: the return value of write(2).
    pub fn note_result(&self, result: isize) {
        if let Ok(len_bytes) = usize::try_from(result) {
            self.note_written(len_bytes);
        }
    }

    fn note_written(&self, len_bytes: usize) {
        self.known.written_bytes.fetch_add(len_bytes, Relaxed);
        self.known.write_ns.fetch_add(clock::now_ns() - self.begun_ns, Relaxed);
    }
}

impl Drop for CountedWrite {
    fn drop(&mut self) {
        self.known.word.fetch_sub(WRITE, AcqRel);
    }
}

/// Counts a write to a candidate in; `None`: the descriptor is not a candidate.
pub fn begin_write(fd: ProgramFd) -> Option<CountedWrite> {
    let known = at(fd)?;
    if Kind::of(known.word.load(Acquire)) != Kind::Candidate {
        return None;
    }
    let seen = known.word.fetch_add(WRITE, AcqRel);
    let counted = CountedWrite { known, begun_ns: clock::now_ns() };
    (Kind::of(seen) == Kind::Candidate).then_some(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_file_is_opened_anew() {
        const FD: ProgramFd = ProgramFd::new(60_001);
        open(FD, 7);
        assert_eq!((kind(FD), opened_at(FD), is_paused(FD, 0)), (Kind::Candidate, 7, false));
        for length_ms in [256, 512, 1024, 2048, 4096, 4096] {
            pause(FD, 1000);
            assert!(is_paused(FD, 1000 + length_ms - 1));
            assert!(!is_paused(FD, 1000 + length_ms));
        }
        pause(FD, 1000 + 9 * 4096);
        assert!(is_paused(FD, 1000 + 9 * 4096 + 4095));
        pause(FD, 1000 + 19 * 4096);
        assert!(!is_paused(FD, 1000 + 19 * 4096 + 256));
        open(FD, 9);
        assert_eq!((opened_at(FD), is_paused(FD, 0)), (9, false));
        set(FD, Kind::Unknown);
    }

    #[test]
    fn a_file_takes_part_only_while_nobody_writes_to_it() {
        const FD: ProgramFd = ProgramFd::new(60_000);
        assert_eq!(kind(FD), Kind::Unknown);
        assert!(begin_write(FD).is_none());
        set(FD, Kind::Candidate);
        let write = begin_write(FD).expect("a candidate");
        write.note_written(7);
        let (first, second) = (count_sync(FD), count_sync(FD));
        assert_eq!([(first.0, first.1), (second.0, second.1)], [(1, 7), (2, 0)]);
        assert!(first.2 > 0 && second.2 == 0, "{first:?}, {second:?}");
        assert!(!adopt(FD, 5, |_| false));
        drop(write);
        assert!(!adopt(FD, 5, |_| true));
        // A fork during the check whether other processes have the descriptor.
        let mut forks = 0;
        for _ in 0..1000 {
            let fork = |_| {
                note_forked(FD);
                forks += 1;
                false
            };
            assert!(!adopt(FD, 5, fork));
            assert_eq!((kind(FD), count_sync(FD).1), (Kind::Candidate, 0));
        }
        assert_eq!(forks, 1000);
        assert!(adopt(FD, 63, |_| false));
        assert_eq!(kind(FD), Kind::Logged(63));
        assert!(begin_write(FD).is_none());
        set(FD, Kind::Failed(libc::EIO));
        assert_eq!(kind(FD), Kind::Failed(libc::EIO));
        assert_eq!(known().filter(|fd| *fd == FD).count(), 1);
        set(FD, Kind::Unknown);
        assert_eq!(known().filter(|fd| *fd == FD).count(), 0);
    }
}
