//! Memory that is only read: the constants of the program and of the libraries that it is loaded with (ZCopy
//! §3.2.2). They go by reference from the first send on: nothing is lost by that.
//!
//! It is a private mapping of a file that no part of the object may write to. Should the program make it writable all the
//! same (`mprotect`), then a write replaces the page that the kernel may hold, because that is the file's and not the
//! process's; but a second write to the same page would change it. So such a range is forgotten before the call is made.
//!
//! Left out are mappings that the program made itself with PROT_READ: anonymous ones become writable by
//! `mprotect` without any page being replaced, and of a file's the file may be written to while they are in flight. The
//! same can be done to the file of a program or a library that runs; whoever does that changes, or ends, the program
//! itself. Objects that `dlopen` brings later are not looked at, since `dlclose` takes them away.

use uncopy_sys::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Ranges at most; objects beyond that are not looked at.
const RANGES: usize = if cfg!(loom) { 1 } else { 128 };

struct Constants {
    /// First address and the one after the last; equal: forgotten. In no order.
    ranges: [(AtomicUsize, AtomicUsize); RANGES],
    /// Of all of them together: most addresses lie elsewhere.
    hull: (AtomicUsize, AtomicUsize),
}

uncopy_sys::statics! {
    static CONSTANTS: Constants = Constants {
        #[cfg(not(loom))]
        ranges: [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; RANGES],
        #[cfg(loom)]
        ranges: core::array::from_fn(|_| (AtomicUsize::new(0), AtomicUsize::new(0))),
        hull: (AtomicUsize::new(0), AtomicUsize::new(0)),
    };
}

/// Looks at the objects that are loaded. Called once, before any other thread exists.
pub fn find() {
    let mut next = CONSTANTS.ranges.iter();
    let (mut first, mut last) = (usize::MAX, 0);
    uncopy_sys::objects::for_each_constant(&mut |start, len_bytes| {
        let Some((range_start, range_end)) = next.next() else { return };
        range_start.store(start, Relaxed);
        range_end.store(start + len_bytes, Relaxed);
        first = first.min(start);
        last = last.max(start + len_bytes);
    });
    CONSTANTS.hull.0.store(first.min(last), Relaxed);
    CONSTANTS.hull.1.store(last, Relaxed);
}

/// Whether the bytes are constants.
#[must_use]
pub fn contain(address: usize, len_bytes: usize) -> bool {
    let Some(end) = address.checked_add(len_bytes) else { return false };
    let holds = |(start, range_end): &(AtomicUsize, AtomicUsize)| {
        start.load(Relaxed) <= address && end <= range_end.load(Relaxed)
    };
    holds(&CONSTANTS.hull) && CONSTANTS.ranges.iter().any(holds)
}

/// The program is about to change the mapping of a range: what it concerns is not counted among constants from here on.
pub(crate) fn forget(address: usize, len_bytes: usize) {
    let end = address.saturating_add(len_bytes);
    if address >= CONSTANTS.hull.1.load(Relaxed) || end <= CONSTANTS.hull.0.load(Relaxed) {
        return;
    }
    for (start, range_end) in &CONSTANTS.ranges {
        // The call concerns whole pages.
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
        find();
        let constant = std::hint::black_box(&CONSTANT).as_ptr() as usize;
        assert!(contain(constant, 100) && !contain(constant, usize::MAX) && !contain(constant, 1 << 40));
        let local = 7u8;
        assert!(!contain((&raw const local) as usize, 1));
        forget((&raw const local) as usize / 4096 * 4096, 4096);
        assert!(contain(constant, 100));
        forget(constant / 4096 * 4096, 4096);
        assert!(!contain(constant, 100));
    }
}
