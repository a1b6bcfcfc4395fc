//! From which size on a reference pays: measured by timing messages as they are sent.
//!
//! Where the copy ends and the reference begins to pay depends on the machine, the kernel, the socket, and above all
//! on whether the bytes are in the processor's cache: there, copying 64 KiB costs less than 16 references; from
//! memory twice as much. So there is an account for each kind of socket and each doubling of the size from
//! [`MIN_BYTES`] on, below which a copy always wins. The first messages of an account take turns in bursts; later a
//! burst in every 128 goes the other way, so that an account can change its mind.
//!
//! A time is the thread's processor time from the end of one message to the end of the next. What a way costs is not
//! all in its calls: pages that were referred to are given back one by one while later messages go out, 5 us for each
//! 60 KiB by loopback, and lending and dropping count too. What the program does in between is the same both ways. (By the
//! clock instead, a long message on a socket that waits takes as long as its reader, whichever way it goes.) Now and
//! then a time contains what the processor did for others. What is kept is therefore near the median: it goes towards
//! each time by a 32nd at most, however far away that is. (Kept near the lowest, it decided by the few values that
//! happened to be in the cache.) The first ones get there faster.
//! A long message on a socket that does not wait is sent in part: what counts is the time for each MiB sent.

use crate::facts::{KINDS, Kind};
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Below this a message is copied: two system calls more cost what the copy does.
pub const MIN_BYTES: usize = 4 << 10;
/// What a reference must save of the sender's time: one part in eight where the peer is on this machine, one in 32 where it
/// is not. On this machine the peer pays: it copies bytes that nobody has brought into the cache (`uncopy bench
/// transmit --sockets tcp`, sender and reader on processors of their own: 60 KiB by reference at 0.87 of the rate for 1.04 of the
/// sender's time).
const MIN_GAIN_HERE: u64 = 8;
const MIN_GAIN_FAR: u64 = 32;
/// Doublings: the last account is for everything from 1 MiB on.
const CLASSES: usize = 9;
/// Messages that go the same way while they are compared: what goes by reference leaves the caches to others, and what
/// is copied takes them, so a single message the other way shows neither. And what a reader takes more slowly makes its
/// sender wait only when its buffers are full.
const BURST: u32 = 192;
/// The first messages of a burst are not timed; the last of these begins the first time.
const SETTLING: u32 = 64;
/// The same of the first messages, which are to find out soon, if not so well; the first long bursts follow at once.
const FIRST_BURST: u32 = 16;
const FIRST_SETTLING: u32 = 4;
/// Messages whose bursts take turns, at first.
const TURNS: u32 = 4 * FIRST_BURST;
/// First times of an account, of which the lowest is kept.
const NEW: u32 = 8;
/// Less of a message than this says nothing about it.
const TELLING_BYTES: usize = 32 << 10;
/// Messages of which one burst goes the other way, and one behind it the usual way, both timed.
const PERIOD: u32 = 128 * BURST;

/// Break-even that is set from outside, bytes; 0: none is, the accounts decide.
static SET: AtomicUsize = AtomicUsize::new(0);

struct Account {
    messages: AtomicU32,
    /// Time for each MiB, ns: copied, by reference.
    ns_per_mib: [AtomicU64; 2],
    /// Times noted of each, up to [`NEW`].
    noted: [AtomicU32; 2],
}

uncopy_sys::locals! {
    /// The thread's processor time at the end of its last message, ns, if that was a timed one; else 0.
    static ENDED_NS: Cell<u64> = Cell::new(0);
}

static ACCOUNTS: [[Account; CLASSES]; KINDS] = [const {
    [const {
        Account {
            messages: AtomicU32::new(0),
            ns_per_mib: [AtomicU64::new(0), AtomicU64::new(0)],
            noted: [AtomicU32::new(0), AtomicU32::new(0)],
        }
    }; CLASSES]
}; KINDS];

/// What was chosen for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// By reference, or not.
    pub refers: bool,
    /// Whether its time is wanted.
    pub is_timed: bool,
}

/// Decides for a message of `len_bytes` bytes that could go by reference.
pub fn choose(kind: Kind, len_bytes: usize) -> Choice {
    let set = SET.load(Relaxed);
    if set != 0 {
        return Choice { refers: len_bytes >= set, is_timed: false };
    }
    if len_bytes < MIN_BYTES {
        return Choice { refers: false, is_timed: false };
    }
    if kind == Kind::Unix {
        // By reference it fills the peer's buffer with fragments of a page each: the sender's time is the same, or a little less, and the
        // peer takes half of the messages from 60 KiB on, none faster below (`uncopy bench transmit --sockets unix`).
        // What it takes is no part of the next message's time.
        ENDED_NS.set(0);
        return Choice { refers: false, is_timed: false };
    }
    let account = account(kind, len_bytes);
    let messages = account.messages.load(Relaxed);
    account.messages.store(messages.wrapping_add(1), Relaxed);
    let at = messages % PERIOD;
    let is_new = messages < TURNS;
    let (burst, settling) = if is_new { (FIRST_BURST, FIRST_SETTLING) } else { (BURST, SETTLING) };
    let is_timed = messages % burst + 1 >= settling && (is_new || at < 2 * BURST);
    if !is_timed {
        ENDED_NS.set(0);
    }
    let refers = if is_new { messages / FIRST_BURST % 2 == 1 } else { account.pays(kind) != (at < BURST) };
    Choice { refers, is_timed }
}

/// Notes that `sent_bytes` of a timed message of `len_bytes` have been sent just now; by reference or not, or in a way
/// that says nothing about either.
pub fn note(kind: Kind, len_bytes: usize, sent_bytes: usize, refers: Option<bool>) {
    let now_ns = now_ns();
    let before_ns = ENDED_NS.replace(now_ns);
    if let Some(refers) = refers
        && before_ns != 0
    {
        enter(kind, len_bytes, sent_bytes, refers, now_ns.saturating_sub(before_ns));
    }
}

/// Enters what sending `sent_bytes` of a message of `len_bytes` cost.
fn enter(kind: Kind, len_bytes: usize, sent_bytes: usize, refers: bool, ns: u64) {
    if len_bytes >= MIN_BYTES && sent_bytes >= len_bytes.min(TELLING_BYTES) {
        account(kind, len_bytes).note(refers, (ns << 20) / sent_bytes as u64);
    }
}

/// Sets the break-even, bytes: 1 is always, `usize::MAX` never; `None`: measured.
pub fn set(min_bytes: Option<usize>) {
    SET.store(min_bytes.map_or(0, |bytes| bytes.max(1)), Relaxed);
}

/// Smallest message for which a reference can be chosen, bytes.
#[inline]
pub fn min_bytes() -> usize {
    match SET.load(Relaxed) {
        0 => MIN_BYTES,
        set => set,
    }
}

fn account(kind: Kind, len_bytes: usize) -> &'static Account {
    let class = (len_bytes / MIN_BYTES).ilog2() as usize;
    &ACCOUNTS[kind as usize][class.min(CLASSES - 1)]
}

impl Account {
    fn note(&self, refers: bool, ns_per_mib: u64) {
        let kept = &self.ns_per_mib[usize::from(refers)];
        let before = kept.load(Relaxed);
        let noted = self.noted[usize::from(refers)].load(Relaxed);
        let is_new = noted < NEW;
        if is_new {
            self.noted[usize::from(refers)].store(noted + 1, Relaxed);
        }
        let after = if before == 0 || is_new && ns_per_mib < before {
            ns_per_mib
        } else if ns_per_mib < before {
            before - (before - ns_per_mib).min(before / 32)
        } else {
            before + (ns_per_mib - before).min(before / 32)
        };
        kept.store(after.max(1), Relaxed);
    }

    /// Whether a reference costs enough less.
    fn pays(&self, kind: Kind) -> bool {
        let [copied, referred] = [0, 1].map(|side| self.ns_per_mib[side].load(Relaxed));
        let min_gain = if kind.is_far() { MIN_GAIN_FAR } else { MIN_GAIN_HERE };
        referred != 0 && referred + referred / min_gain < copied
    }
}

/// The processor time of this thread, ns. `errno` is kept: with these arguments the call cannot fail.
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind that is never asked for.
    const KIND: Kind = Kind::Other;

    fn run(len_bytes: usize, messages: usize, cost: impl Fn(bool) -> u64) -> usize {
        (0..messages)
            .filter(|_| {
                let choice = choose(KIND, len_bytes);
                if choice.is_timed {
                    enter(KIND, len_bytes, len_bytes, choice.refers, cost(choice.refers));
                }
                choice.refers
            })
            .count()
    }

    #[test]
    fn what_costs_less_is_chosen_and_a_change_is_noticed() {
        let refers_less = |refers| if refers { 70_000 } else { 100_000 };
        run(8 << 10, TURNS as usize, refers_less);
        assert!(run(8 << 10, PERIOD as usize, refers_less) > (PERIOD - 2 * BURST) as usize);
        let copies_less = |refers| if refers { 150_000 } else { 100_000 };
        run(8 << 10, 10 * PERIOD as usize, copies_less);
        assert!(run(8 << 10, PERIOD as usize, copies_less) < 2 * BURST as usize);
    }

    #[test]
    fn messages_to_unix_sockets_are_copied() {
        let refers = |len_bytes| (0..2 * BURST).any(|_| choose(Kind::Unix, len_bytes).refers);
        assert_eq!([MIN_BYTES, 60 << 10, 1 << 20].map(refers), [false; 3]);
        ENDED_NS.set(1);
        choose(Kind::Unix, MIN_BYTES);
        assert_eq!(ENDED_NS.get(), 0, "its time would be taken for the next one's");
    }

    #[test]
    fn a_peer_on_this_machine_must_not_pay_for_a_small_gain() {
        let len_bytes = 1 << 20;
        for kind in [Kind::UdpHere, Kind::UdpFar] {
            for refers in [false, true] {
                enter(kind, len_bytes, len_bytes, refers, if refers { 92_000 } else { 100_000 });
            }
        }
        let pays = |kind: Kind| account(kind, len_bytes).pays(kind);
        assert_eq!([Kind::UdpHere, Kind::UdpFar].map(pays), [false, true]);
    }

    #[test]
    fn a_disturbed_time_changes_nothing() {
        run(16 << 10, TURNS as usize, |refers| if refers { 70_000 } else { 100_000 });
        enter(KIND, 16 << 10, 16 << 10, true, 1_000_000_000);
        let refers = run(16 << 10, PERIOD as usize, |refers| if refers { 70_000 } else { 100_000 });
        assert!(refers > (PERIOD - 2 * BURST) as usize);
    }

    #[test]
    fn messages_sent_in_part_count_by_what_was_sent() {
        let len_bytes = 512 << 10;
        for _ in 0..32 {
            for refers in [false, true] {
                // So long as for the whole, but twice as much was sent by reference.
                enter(KIND, len_bytes, if refers { 256 << 10 } else { 128 << 10 }, refers, 100_000);
                enter(KIND, len_bytes, 1000, refers, if refers { 100_000_000 } else { 1 });
            }
        }
        assert!(account(KIND, len_bytes).pays(KIND));
    }

    #[test]
    fn small_ones_are_never_tried() {
        assert_eq!(run(MIN_BYTES - 1, 1000, |_| 1), 0);
    }
}
