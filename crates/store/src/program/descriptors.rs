//! What is known of each descriptor by its number.
//!
//! ```text
//! bits 0–2  3–11                     12–19                  20–31
//!      kind place, error number,     syncs of a candidate   writes under way to a candidate
//!           or forks (modulo 512)
//! ```
//!
//! A file takes part from a moment on at which nobody writes to it: what is under way then would be in no record.

use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};

use uncopy_sys::clock;

/// Descriptors that are known; files of others never take part.
const DESCRIPTORS: usize = 1 << 16;
const KIND: u32 = 7;
const PLACE_SHIFT: u32 = 3;
const SYNC: u32 = 1 << 12;
const SYNCS: u32 = 0xFF * SYNC;
const WRITE: u32 = 1 << 20;
const WRITES: u32 = 0xFFF * WRITE;

const CANDIDATE: u32 = 1;
const REFUSED: u32 = 2;
const LOGGED: u32 = 3;
const INHERITED: u32 = 4;
const FAILED: u32 = 5;

/// A descriptor, by its number.
#[derive(Debug)]
struct Descriptor {
    /// See above.
    word: AtomicU32,
    /// Bytes that were written to a candidate since its last sync.
    written_bytes: AtomicUsize,
    /// How long that took, ns.
    write_ns: AtomicU64,
    /// Forks before it was opened.
    opened_at: AtomicU64,
    /// Until when a candidate is left alone (ms), and the logarithm of how long that is, in the lowest byte.
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

static ALL: [Descriptor; DESCRIPTORS] = [const { Descriptor::new() }; DESCRIPTORS];
/// The shortest pause and the longest, as logarithms: 256 ms, 4 s.
const MIN_PAUSE: u64 = 8;
const MAX_PAUSE: u64 = 12;
/// Over for so many times its length, a pause is forgotten.
const LONG_AGO: u64 = 8;
/// Above the number of every descriptor of which something is known.
static END: AtomicU32 = AtomicU32::new(0);

/// What is known of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: it was not opened by a hook, or not to be written.
    Unknown,
    /// Its file may take part.
    Candidate,
    /// Its file does not take part.
    Refused,
    /// Its file takes part, at this place.
    Logged(usize),
    /// The same in the process that this one was forked from.
    Inherited(usize),
    /// Its file does not take part, and a sync has failed of which the program was not told.
    Failed(i32),
}

impl Kind {
    const fn of(word: u32) -> Self {
        let detail = ((word & !KIND & (SYNC - 1)) >> PLACE_SHIFT) as usize;
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
            Self::Logged(place) => LOGGED | (place as u32) << PLACE_SHIFT,
            Self::Inherited(place) => INHERITED | (place as u32) << PLACE_SHIFT,
            Self::Failed(errno) => FAILED | ((errno as u32) << PLACE_SHIFT & (SYNC - 1)),
        }
    }
}

fn at(fd: i32) -> Option<&'static Descriptor> {
    ALL.get(usize::try_from(fd).ok()?)
}

/// What is known of a descriptor.
#[inline]
#[must_use]
pub fn kind(fd: i32) -> Kind {
    at(fd).map_or(Kind::Unknown, |known| Kind::of(known.word.load(Acquire)))
}

/// Something is known of a descriptor. Writes under way are not forgotten.
pub fn set(fd: i32, kind: Kind) {
    if let Some(Descriptor { word, .. }) = at(fd) {
        let mut seen = word.load(Relaxed);
        while let Err(now) = word.compare_exchange_weak(seen, seen & WRITES | kind.word(), AcqRel, Relaxed) {
            seen = now;
        }
        END.fetch_max(fd.cast_unsigned() + 1, AcqRel);
    }
}

/// Descriptors from `first` to `last` of which something is known.
pub fn known(first: u32, last: u32) -> impl Iterator<Item = i32> {
    let end = END.load(Acquire).min(last.saturating_add(1));
    (first..end).map(u32::cast_signed).filter(|fd| kind(*fd) != Kind::Unknown)
}

/// Counts a sync of a candidate: how many there were, the bytes that were written to it since the last one, and how long the writes
/// took, ns.
pub fn count_sync(fd: i32) -> (u32, usize, u64) {
    let Some(Descriptor { word, written_bytes, write_ns, .. }) = at(fd) else { return (0, 0, 0) };
    let (written, ns) = (written_bytes.swap(0, Relaxed), write_ns.swap(0, Relaxed));
    let seen = word.load(Relaxed);
    if seen & SYNCS == SYNCS {
        return (SYNCS / SYNC, written, ns);
    }
    // A sync that is not counted because somebody else changes it is no loss.
    let _ = word.compare_exchange(seen, seen + SYNC, AcqRel, Relaxed);
    ((seen & SYNCS) / SYNC + 1, written, ns)
}

/// A file was opened, after so many forks: a candidate.
pub fn open(fd: i32, forks: u64) {
    if let Some(known) = at(fd) {
        known.opened_at.store(forks, Relaxed);
        known.pause.store(0, Relaxed);
        known.written_bytes.store(0, Relaxed);
        known.write_ns.store(0, Relaxed);
        set(fd, Kind::Candidate);
    }
}

/// Forks before a file was opened.
pub fn opened_at(fd: i32) -> u64 {
    at(fd).map_or(0, |known| known.opened_at.load(Relaxed))
}

/// What is known of `to` is what is known of `from`, of which it is a duplicate.
pub fn duplicate(from: i32, to: i32, kind: Kind) {
    if let Some(known) = at(to) {
        known.opened_at.store(opened_at(from), Relaxed);
    }
    set(to, kind);
}

/// A candidate is left alone for a while; for longer where the last while is not over for long.
pub fn pause(fd: i32, now_ms: u64) {
    if let Some(Descriptor { pause, .. }) = at(fd) {
        let last = pause.load(Relaxed);
        let (until_ms, before) = (last >> 8, last & 0xFF);
        let is_anew = before == 0 || now_ms > until_ms + (LONG_AGO << before);
        let length = if is_anew { MIN_PAUSE } else { MAX_PAUSE.min(before + 1) };
        pause.store((now_ms + (1 << length)) << 8 | length, Relaxed);
    }
}

/// Whether a candidate is left alone.
pub fn is_paused(fd: i32, now_ms: u64) -> bool {
    at(fd).is_some_and(|known| known.pause.load(Relaxed) >> 8 > now_ms)
}

/// A process is about to have what a candidate names: who is about to make it take part learns of that.
pub fn note_forked(fd: i32) {
    const FORK: u32 = 1 << PLACE_SHIFT;
    const FORKS: u32 = SYNC - FORK;
    if let Some(known) = at(fd) {
        let next =
            |seen: u32| (seen & KIND == CANDIDATE).then_some(seen & !FORKS | seen.wrapping_add(FORK) & FORKS);
        _ = known.word.fetch_update(AcqRel, Acquire, next);
    }
}

/// Makes a candidate, to which nobody writes and that nobody else has, one that takes part. Whether it did.
pub fn adopt(fd: i32, place: usize, has_others: impl FnOnce(u64) -> bool) -> bool {
    let Some(Descriptor { word, opened_at, .. }) = at(fd) else { return false };
    let seen = word.load(Acquire);
    Kind::of(seen) == Kind::Candidate
        && seen & WRITES == 0
        && !has_others(opened_at.load(Relaxed))
        && word.compare_exchange(seen, Kind::Logged(place).word(), AcqRel, Relaxed).is_ok()
}

/// A write to a candidate under way.
#[derive(Debug)]
pub struct Counted {
    known: &'static Descriptor,
    begun_ns: u64,
}

impl Counted {
    /// So many bytes were written.
    pub fn note_written(&self, len_bytes: usize) {
        self.known.written_bytes.fetch_add(len_bytes, Relaxed);
        self.known.write_ns.fetch_add(clock::now_ns() - self.begun_ns, Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.known.word.fetch_sub(WRITE, AcqRel);
    }
}

/// Counts a write to a candidate in; `None`: it is none.
pub fn begin_write(fd: i32) -> Option<Counted> {
    let known = at(fd)?;
    if Kind::of(known.word.load(Acquire)) != Kind::Candidate {
        return None;
    }
    let seen = known.word.fetch_add(WRITE, AcqRel);
    let counted = Counted { known, begun_ns: clock::now_ns() };
    (Kind::of(seen) == Kind::Candidate).then_some(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_file_is_opened_anew() {
        const FD: i32 = 60_001;
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
        const FD: i32 = 60_000;
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
        // A fork while it is asked whether somebody has it.
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
        assert_eq!(known(60_000, 60_000).collect::<Vec<_>>(), [FD]);
        set(FD, Kind::Unknown);
        assert_eq!(known(0, u32::MAX).filter(|fd| *fd == FD).count(), 0);
    }
}
