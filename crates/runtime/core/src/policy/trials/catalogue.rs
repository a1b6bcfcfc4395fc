//! The factors that are tried: eliding, and sending by reference for each transport and size.
//!
//! ```text
//! 0         eliding: inputs, and copies of the bytes received
//! 1 …  8    lending by TCP on this machine       9 … 16   by TCP to another one
//! 17 … 20   lending by UDP on this machine      21 … 24   by UDP to another one
//! 25 … 31   references by lane
//! ```
//!
//! Eliding is one factor because a message that arrives in several inputs of different lengths pays as a
//! whole or not at all. With a factor for each size of input, an echo server of 512 KiB with 12 copies
//! showed no difference, and took 0.71 of plain's processor time instead of 0.34. The accounts of sites
//! decide which inputs and copies are elided.

use super::MAX_FACTORS;
use core::fmt;

/// Transport of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP on this machine.
    TcpHere,
    /// TCP to another machine.
    TcpFar,
    /// UDP on this machine, or unconnected.
    UdpHere,
    /// UDP to another machine.
    UdpFar,
    /// A reference, by lane.
    Lane,
}

/// Factors of a transport, one for each range of sizes.
struct FactorRange {
    way: Transport,
    first_factor: usize,
    count: usize,
    /// The first factor has messages of less than twice this size, each further one of up to twice as much.
    smallest_bytes: usize,
    action: &'static str,
    medium: &'static str,
}

const fn factor_range(
    way: Transport,
    (first_factor, count): (usize, usize),
    smallest_bytes: usize,
    action: &'static str,
    medium: &'static str,
) -> FactorRange {
    FactorRange { way, first_factor, count, smallest_bytes, action, medium }
}

const RANGES: [FactorRange; 5] = [
    factor_range(Transport::TcpHere, (1, 8), 8 << 10, "lending messages", "by TCP on this machine"),
    factor_range(Transport::TcpFar, (9, 8), 8 << 10, "lending messages", "by TCP to another machine"),
    factor_range(Transport::UdpHere, (17, 4), 4 << 10, "lending messages", "by UDP on this machine"),
    factor_range(Transport::UdpFar, (21, 4), 4 << 10, "lending messages", "by UDP to another machine"),
    factor_range(Transport::Lane, (25, 7), 32 << 10, "references to parts", "at a lane"),
];
/// Minimum gain of lending to a peer on this machine, as a fraction of the sender's time. The peer pays for
/// it by copying bytes that are not in its cache (`uncopy-bench transmit --sockets tcp`, sender and reader
/// on different processors: 60 KiB by reference had 0.87 of the rate for 1.04 of the sender's time).
const MIN_GAIN_HERE: f64 = 0.05;

const _: () = assert!(RANGES[4].first_factor + RANGES[4].count <= MAX_FACTORS);

/// The factor of eliding inputs and copies.
pub const ELISION: usize = 0;

/// Returns the factor of messages with `len_bytes` lent bytes.
#[must_use]
pub const fn lending_factor(way: Transport, len_bytes: usize) -> usize {
    let range = &RANGES[way as usize];
    range.first_factor + step(len_bytes, range.smallest_bytes, range.count)
}

/// Returns the factor of messages whose longest part is `len_bytes` long and can go by reference at a lane.
#[must_use]
pub const fn lane_factor(len_bytes: usize) -> usize {
    lending_factor(Transport::Lane, len_bytes)
}

/// Returns the number of doublings from `smallest` to `len_bytes`, limited to `count - 1`.
const fn step(len_bytes: usize, smallest: usize, count: usize) -> usize {
    let Some(doublings) = (len_bytes / smallest).checked_ilog2() else { return 0 };
    let step = doublings as usize;
    if step < count { step } else { count - 1 }
}

/// Returns the minimum gain for which the factor is on, as a fraction of the time.
#[must_use]
pub fn min_gain(factor: usize) -> f64 {
    let is_here = RANGES.iter().any(|FactorRange { way, first_factor, count, .. }| {
        matches!(way, Transport::TcpHere | Transport::UdpHere)
            && (*first_factor..first_factor + count).contains(&factor)
    });
    if is_here { MIN_GAIN_HERE } else { 0.0 }
}

/// Displays a factor: `lending messages of 64 to 128 KiB by TCP on this machine`.
#[derive(Clone, Copy, Debug)]
pub struct FactorName(pub usize);

impl fmt::Display for FactorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == ELISION {
            return write!(f, "eliding inputs and copies");
        }
        let Some(range) = RANGES.iter().find(|range| self.0 < range.first_factor + range.count) else {
            return write!(f, "factor {}", self.0);
        };
        write!(f, "{} ", range.action)?;
        write_sizes(f, self.0 - range.first_factor, range.count, range.smallest_bytes)?;
        write!(f, " {}", range.medium)
    }
}

fn write_sizes(f: &mut fmt::Formatter<'_>, step: usize, count: usize, smallest: usize) -> fmt::Result {
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
    fn each_size_has_the_factor_with_its_range_in_the_name() {
        assert_eq!(FactorName(ELISION).to_string(), "eliding inputs and copies");
        for (way, kib, name) in [
            (Transport::TcpHere, 1, "lending messages of less than 16 KiB by TCP on this machine"),
            (Transport::TcpHere, 128, "lending messages of 128 to 256 KiB by TCP on this machine"),
            (Transport::TcpFar, 4096, "lending messages of 1024 KiB and more by TCP to another machine"),
            (Transport::UdpFar, 60, "lending messages of 32 KiB and more by UDP to another machine"),
            (Transport::Lane, 40, "references to parts of less than 64 KiB at a lane"),
            (Transport::Lane, 64, "references to parts of 64 to 128 KiB at a lane"),
            (Transport::Lane, 4096, "references to parts of 2048 KiB and more at a lane"),
        ] {
            assert_eq!(FactorName(lending_factor(way, kib << 10)).to_string(), name);
        }
    }

    #[test]
    fn only_lending_to_this_machine_must_save_more_than_nothing() {
        let demanding: u32 =
            (0..MAX_FACTORS).filter(|factor| min_gain(*factor) > 0.0).map(|factor| 1 << factor).sum();
        assert_eq!(demanding, 0xff << 1 | 0xf << 17);
    }
}
