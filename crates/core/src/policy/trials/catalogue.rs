//! What is tried: eliding, and lending for each range of sizes of each kind of message.
//!
//! ```text
//! 0         eliding: inputs, and copies of what they received
//! 1 …  8    lending by TCP on this machine       9 … 16   by TCP to another one
//! 17 … 20   lending by UDP on this machine      21 … 24   by UDP to another one
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
}

/// Ways with the number of their first factor, and of how many there are.
const WAYS: [(Way, usize, usize, &str); 4] = [
    (Way::TcpHere, 1, 8, "TCP on this machine"),
    (Way::TcpFar, 9, 8, "TCP to another machine"),
    (Way::UdpHere, 17, 4, "UDP on this machine"),
    (Way::UdpFar, 21, 4, "UDP to another machine"),
];
/// Messages of fewer bytes than twice this share a factor; from then on each twice as large has one.
const TCP_BYTES: usize = 8 << 10;
const UDP_BYTES: usize = 4 << 10;
/// What lending must save where the peer is on this machine, as a part of the sender's time. There the peer pays: it copies bytes that
/// nobody has brought into the cache (`uncopy bench transmit --sockets tcp`, sender and reader on processors of their
/// own: 60 KiB by reference at 0.87 of the rate for 1.04 of the sender's time).
const MIN_GAIN_HERE: f64 = 0.05;

const _: () = assert!(WAYS[3].1 + WAYS[3].2 <= MAX_FACTORS);

/// The factor of eliding.
pub const ELISION: usize = 0;

/// The factor of messages of `len_bytes` lent bytes.
#[must_use]
pub const fn lending(way: Way, len_bytes: usize) -> usize {
    let (_, first, count, _) = WAYS[way as usize];
    let smallest = if count == WAYS[0].2 { TCP_BYTES } else { UDP_BYTES };
    first + step(len_bytes, smallest, count)
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
    let is_here = WAYS.iter().any(|(way, first, count, _)| {
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
        let Some((way, first, count, name)) = WAYS.iter().find(|(_, first, count, _)| self.0 < first + count)
        else {
            return write!(f, "factor {}", self.0);
        };
        let smallest = if matches!(way, Way::TcpHere | Way::TcpFar) { TCP_BYTES } else { UDP_BYTES };
        write!(f, "lending messages ")?;
        sizes(f, self.0 - first, *count, smallest)?;
        write!(f, " by {name}")
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
