//! Read-only memory: constants of the program and of the libraries that it is loaded with (ZCopy §3.2.2).
//! Constants go by reference from the first send on, which has no cost.
//!
//! A constant lies in a private mapping of a file that no part of the object may write to. If the program
//! makes it writable all the same (`mprotect`), the first write replaces the page that the kernel may hold,
//! because that is the file's and not the process's; a second write to the same page would change it. Such
//! a range is therefore forgotten before the call is made.
//!
//! Not included are mappings that the program made itself with PROT_READ: anonymous ones become writable by
//! `mprotect` without any page being replaced, and a mapped file may be written to while its pages are in
//! flight. The file of a running program or library can be written to as well, but that changes or ends the
//! program itself. Objects loaded later by `dlopen` are not included, since `dlclose` unmaps them.

use uncopy_sys::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bound on ranges; objects beyond the bound are not included.
const RANGES: usize = if cfg!(loom) { 1 } else { 128 };

struct Constants {
    /// First address, ascending, and the one after the last; an end of 0: forgotten. Unused ones begin at the last address.
    ranges: [(AtomicUsize, AtomicUsize); RANGES],
    /// Smallest range that contains all ranges: most addresses lie outside.
    hull: (AtomicUsize, AtomicUsize),
}

uncopy_sys::statics! {
    static CONSTANTS: Constants = Constants {
        #[cfg(not(loom))]
        ranges: [const { (AtomicUsize::new(usize::MAX), AtomicUsize::new(0)) }; RANGES],
        #[cfg(loom)]
        ranges: core::array::from_fn(|_| (AtomicUsize::new(usize::MAX), AtomicUsize::new(0))),
        hull: (AtomicUsize::new(0), AtomicUsize::new(0)),
    };
}

/// Finds the constants of the loaded objects. Called once, before any other thread exists.
pub fn scan_objects() {
    let mut count = 0;
    let (mut first, mut last) = (usize::MAX, 0);
    uncopy_sys::objects::for_each_read_only_segment(&mut |start, len_bytes| {
        if count < RANGES {
            insert(count, start, start + len_bytes);
            count += 1;
            first = first.min(start);
            last = last.max(start + len_bytes);
        }
    });
    CONSTANTS.hull.0.store(first.min(last), Relaxed);
    CONSTANTS.hull.1.store(last, Relaxed);
}

/// Inserts a range among the first `count`, which are in ascending order.
fn insert(count: usize, start: usize, end: usize) {
    let mut at = count;
    for (range_start, range_end) in CONSTANTS.ranges[..count].iter().rev() {
        if range_start.load(Relaxed) <= start {
            break;
        }
        let (next_start, next_end) = &CONSTANTS.ranges[at];
        next_start.store(range_start.load(Relaxed), Relaxed);
        next_end.store(range_end.load(Relaxed), Relaxed);
        at -= 1;
    }
    CONSTANTS.ranges[at].0.store(start, Relaxed);
    CONSTANTS.ranges[at].1.store(end, Relaxed);
}

/// Whether all of these bytes are constants.
#[must_use]
pub fn contains(address: usize, len_bytes: usize) -> bool {
    let Some(end) = address.checked_add(len_bytes) else { return false };
    let holds = |(start, range_end): &(AtomicUsize, AtomicUsize)| {
        start.load(Relaxed) <= address && end <= range_end.load(Relaxed)
    };
    if !holds(&CONSTANTS.hull) {
        return false;
    }
    let later = CONSTANTS.ranges.partition_point(|(start, _)| start.load(Relaxed) <= address);
    CONSTANTS.ranges[..later].last().is_some_and(holds)
}

/// Forgets the ranges that the program is about to change, before the call is made.
pub(crate) fn forget(address: usize, len_bytes: usize) {
    let end = address.saturating_add(len_bytes);
    if address >= CONSTANTS.hull.1.load(Relaxed) || end <= CONSTANTS.hull.0.load(Relaxed) {
        return;
    }
    for (start, range_end) in &CONSTANTS.ranges {
        // The call applies to whole pages.
        if address < range_end.load(Relaxed).saturating_add(4096)
            && end.saturating_add(4096) > start.load(Relaxed)
        {
            range_end.store(0, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static CONSTANT: [u8; 100] = [7; 100];

    #[test]
    fn what_the_program_makes_writable_is_not_counted_any_more() {
        scan_objects();
        let starts = CONSTANTS.ranges.iter().map(|(start, _)| start.load(Relaxed));
        assert!(
            starts.clone().is_sorted() && starts.clone().filter(|start| *start != usize::MAX).count() > 2
        );
        let constant = std::hint::black_box(&CONSTANT).as_ptr() as usize;
        assert!(contains(constant, 100) && !contains(constant, usize::MAX) && !contains(constant, 1 << 40));
        let local = 7u8;
        assert!(!contains((&raw const local) as usize, 1));
        forget((&raw const local) as usize / 4096 * 4096, 4096);
        assert!(contains(constant, 100));
        forget(constant / 4096 * 4096, 4096);
        assert!(!contains(constant, 100));
    }
}
