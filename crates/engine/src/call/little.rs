//! Call sites that ask for much and get little: datagrams, requests, protocols with small messages. What could be done for such an
//! input is not looked at any more but once in a while, or when one brings much.

use crate::state::policy::POLICY;
use crate::state::{early, gate};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use uncopy_core::options::Policy;

/// So many inputs in a row that bring little make it likely of the next.
const ENOUGH: u8 = 16;
/// One in so many is looked at all the same.
const LOOKED_AT: u8 = 128;
/// Call sites that share a place are taken for one.
const PLACES: usize = 256;

/// For each site, inputs in a row that brought little.
static LITTLE: [AtomicU8; PLACES] = [const { AtomicU8::new(0) }; PLACES];

fn place(caller: usize) -> &'static AtomicU8 {
    // Calls are some bytes long.
    &LITTLE[(caller >> 2 ^ caller >> 11) % PLACES]
}

/// Whether an input of this call site is likely to bring little, so that nothing is done for it.
#[inline]
#[must_use]
pub fn is_likely(caller: usize) -> bool {
    let little = place(caller).load(Relaxed);
    (ENOUGH..LOOKED_AT).contains(&little) && POLICY.mode() == Policy::Auto
}

/// Takes note of what an input of this call site brought that had room for much.
#[inline]
pub fn note(caller: usize, got_bytes: usize) {
    early::note(got_bytes);
    let place = place(caller);
    let little = place.load(Relaxed);
    let next = next(little, got_bytes >= gate::min_size_bytes());
    if next != little {
        // Lost updates between threads are inputs that do not count.
        place.store(next, Relaxed);
    }
}

const fn next(little: u8, is_much: bool) -> u8 {
    match little {
        _ if is_much => 0,
        LOOKED_AT.. => ENOUGH,
        little => little + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_brings_much_is_enough_to_look_again() {
        let is_likely = |little| (ENOUGH..LOOKED_AT).contains(&little);
        let first = (0..ENOUGH).fold(0, |little, _| next(little, false));
        assert!(is_likely(first) && !is_likely(first - 1));
        let all = core::iter::successors(Some(first), |little| Some(next(*little, false))).take(1000);
        assert!((5..15).contains(&all.filter(|little| !is_likely(*little)).count()), "now and then");
        assert_eq!(next(first, true), 0);
    }
}
