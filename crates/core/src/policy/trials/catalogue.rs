//! What is tried: eliding, lending for each range of sizes of each kind of message, and references for each by lane.
//!
//! ```text
//! 0         eliding: inputs, and copies of what they received
//! 1 …  8    lending by TCP on this machine       9 … 16   by TCP to another one
//! 17 … 20   lending by UDP on this machine      21 … 24   by UDP to another one
//! 25 … 31   references by lane
//! ```
//!
//! Eliding is one factor, because what it saves hangs together: a message that comes in by several inputs of different
//! lengths is elided as a whole or not worth it. With a factor for each range of input sizes an echo server of
//! 512 KiB and 12 copies found no difference, and ran at 0.71 of plain's processor time instead of 0.34. Which inputs and copies are
//! elided is for the accounts of sites to say.

use super::MAX_FACTORS;
use core::fmt;

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// TCP on this machine.
    TcpHere,
    /// TCP to another one.
    TcpFar,
    /// UDP on this machine, or not connected.
    UdpHere,
    /// UDP to another one.
    UdpFar,
    /// By reference, at a lane.
    Lane,
}

/// The factors of a way.
struct Range {
    way: Way,
    /// Number of the first.
    first: usize,
    /// How many there are.
    count: usize,
    /// Messages of fewer bytes than twice this share a factor; from then on each twice as large has one.
    smallest_bytes: usize,
    does: &'static str,
    by: &'static str,
}

const fn range(
    way: Way,
    (first, count): (usize, usize),
    smallest_bytes: usize,
    does: &'static str,
    by: &'static str,
) -> Range {
    Range { way, first, count, smallest_bytes, does, by }
}

const RANGES: [Range; 5] = [
    range(Way::TcpHere, (1, 8), 8 << 10, "lending messages", "by TCP on this machine"),
    range(Way::TcpFar, (9, 8), 8 << 10, "lending messages", "by TCP to another machine"),
    range(Way::UdpHere, (17, 4), 4 << 10, "lending messages", "by UDP on this machine"),
    range(Way::UdpFar, (21, 4), 4 << 10, "lending messages", "by UDP to another machine"),
    range(Way::Lane, (25, 7), 32 << 10, "references to parts", "at a lane"),
];
/// What lending must save where the peer is on this machine, as a part of the sender's time. There the peer pays: it copies bytes that
/// nobody has brought into the cache (`uncopy bench transmit --sockets tcp`, sender and reader on processors of their
/// own: 60 KiB by reference at 0.87 of the rate for 1.04 of the sender's time).
const MIN_GAIN_HERE: f64 = 0.05;

const _: () = assert!(RANGES[4].first + RANGES[4].count <= MAX_FACTORS);

/// The factor of eliding.
pub const ELISION: usize = 0;

/// The factor of messages of `len_bytes` lent bytes.
#[must_use]
pub const fn lending(way: Way, len_bytes: usize) -> usize {
    let range = &RANGES[way as usize];
    range.first + step(len_bytes, range.smallest_bytes, range.count)
}

/// The factor of messages whose longest part, of `len_bytes` bytes, can go by reference at a lane.
#[must_use]
pub const fn by_lane(len_bytes: usize) -> usize {
    lending(Way::Lane, len_bytes)
}

/// Doublings from `smallest` to `len_bytes`, less than `count`.
const fn step(len_bytes: usize, smallest: usize, count: usize) -> usize {
    let Some(doublings) = (len_bytes / smallest).checked_ilog2() else { return 0 };
    let step = doublings as usize;
    if step < count { step } else { count - 1 }
}

/// What the factor must save before it is done, as a part of the time.
#[must_use]
pub fn min_gain(factor: usize) -> f64 {
    let is_here = RANGES.iter().any(|Range { way, first, count, .. }| {
        matches!(way, Way::TcpHere | Way::UdpHere) && (*first..first + count).contains(&factor)
    });
    if is_here { MIN_GAIN_HERE } else { 0.0 }
}

/// A factor in words: `lending messages of 64 to 128 KiB by TCP on this machine`.
#[derive(Clone, Copy, Debug)]
pub struct Name(pub usize);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == ELISION {
            return write!(f, "eliding inputs and copies");
        }
        let Some(range) = RANGES.iter().find(|range| self.0 < range.first + range.count) else {
            return write!(f, "factor {}", self.0);
        };
        write!(f, "{} ", range.does)?;
        sizes(f, self.0 - range.first, range.count, range.smallest_bytes)?;
        write!(f, " {}", range.by)
    }
}

/// The sizes of a step.
fn sizes(f: &mut fmt::Formatter<'_>, step: usize, count: usize, smallest: usize) -> fmt::Result {
    let kib = |step: usize| smallest >> 10 << step;
    match step {
        0 => write!(f, "of less than {} KiB", kib(1)),
        last if last + 1 == count => write!(f, "of {} KiB and more", kib(last)),
        step => write!(f, "of {} to {} KiB", kib(step), kib(step + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString as _;

    #[test]
    fn sizes_have_the_factor_whose_name_says_so() {
        assert_eq!(Name(ELISION).to_string(), "eliding inputs and copies");
        for (way, kib, name) in [
            (Way::TcpHere, 1, "lending messages of less than 16 KiB by TCP on this machine"),
            (Way::TcpHere, 128, "lending messages of 128 to 256 KiB by TCP on this machine"),
            (Way::TcpFar, 4096, "lending messages of 1024 KiB and more by TCP to another machine"),
            (Way::UdpFar, 60, "lending messages of 32 KiB and more by UDP to another machine"),
            (Way::Lane, 40, "references to parts of less than 64 KiB at a lane"),
            (Way::Lane, 64, "references to parts of 64 to 128 KiB at a lane"),
            (Way::Lane, 4096, "references to parts of 2048 KiB and more at a lane"),
        ] {
            assert_eq!(Name(lending(way, kib << 10)).to_string(), name);
        }
    }

    #[test]
    fn only_lending_to_this_machine_must_save_more_than_nothing() {
        let demanding: u32 =
            (0..MAX_FACTORS).filter(|factor| min_gain(*factor) > 0.0).map(|factor| 1 << factor).sum();
        assert_eq!(demanding, 0xff << 1 | 0xf << 17);
    }
}
