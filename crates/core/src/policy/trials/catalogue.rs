//! What is tried: a factor for each range of sizes of what is elided, and of each kind of message that is lent.
//!
//! ```text
//! 0 … 3     eliding what came in by inputs of these sizes: the inputs, and every copy of their bytes
//! 4 … 11    lending by TCP on this machine      12 … 19   by TCP to another one
//! 20 … 23   lending by UDP on this machine      24 … 27   by UDP to another one
//! ```

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
    (Way::TcpHere, 4, 8, "TCP on this machine"),
    (Way::TcpFar, 12, 8, "TCP to another machine"),
    (Way::UdpHere, 20, 4, "UDP on this machine"),
    (Way::UdpFar, 24, 4, "UDP to another machine"),
];
const ELISIONS: usize = 4;
/// Inputs of fewer bytes than four times this share a factor; from then on each four times as large has one.
const ELIDED_BYTES: usize = 16 << 10;
/// Messages of fewer bytes than twice this share a factor; from then on each twice as large has one.
const TCP_BYTES: usize = 8 << 10;
const UDP_BYTES: usize = 4 << 10;
/// What lending must save where the peer is on this machine, as a part of the sender's time. There the peer pays: it copies bytes that
/// nobody has brought into the cache (`uncopy bench transmit --sockets tcp`, sender and reader on processors of their
/// own: 60 KiB by reference at 0.87 of the rate for 1.04 of the sender's time).
const MIN_GAIN_HERE: f64 = 0.05;

const _: () = assert!(WAYS[3].1 + WAYS[3].2 <= MAX_FACTORS);

/// The factors of eliding, a bit each.
pub const ELISION: u32 = (1 << ELISIONS) - 1;

/// The factor of what came in by inputs with room for `len_bytes` bytes.
#[must_use]
pub const fn elision(len_bytes: usize) -> usize {
    step(len_bytes, ELIDED_BYTES, 2, ELISIONS)
}

/// The factor of messages of `len_bytes` lent bytes.
#[must_use]
pub const fn lending(way: Way, len_bytes: usize) -> usize {
    let (_, first, count, _) = WAYS[way as usize];
    let smallest = if count == WAYS[0].2 { TCP_BYTES } else { UDP_BYTES };
    first + step(len_bytes, smallest, 1, count)
}

/// Steps of `bits` doublings from `smallest` to `len_bytes`, less than `count`.
const fn step(len_bytes: usize, smallest: usize, bits: u32, count: usize) -> usize {
    let Some(doublings) = (len_bytes / smallest).checked_ilog2() else { return 0 };
    let step = (doublings / bits) as usize;
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

/// A factor in words: `inputs of 64 to 256 KiB, and their copies`.
#[derive(Clone, Copy, Debug)]
pub struct Name(pub usize);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < ELISIONS {
            write!(f, "eliding inputs ")?;
            sizes(f, self.0, ELISIONS, ELIDED_BYTES, 2)?;
            return write!(f, " and their copies");
        }
        let Some((way, first, count, name)) = WAYS.iter().find(|(_, first, count, _)| self.0 < first + count)
        else {
            return write!(f, "factor {}", self.0);
        };
        let smallest = if matches!(way, Way::TcpHere | Way::TcpFar) { TCP_BYTES } else { UDP_BYTES };
        write!(f, "lending messages ")?;
        sizes(f, self.0 - first, *count, smallest, 1)?;
        write!(f, " by {name}")
    }
}

/// The sizes of a step.
fn sizes(f: &mut fmt::Formatter<'_>, step: usize, count: usize, smallest: usize, bits: u32) -> fmt::Result {
    let kib = |step: usize| smallest >> 10 << (bits as usize * step);
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
        for (kib, name) in [
            (16, "eliding inputs of less than 64 KiB and their copies"),
            (64, "eliding inputs of 64 to 256 KiB and their copies"),
            (1 << 20, "eliding inputs of 1024 KiB and more and their copies"),
        ] {
            assert_eq!(Name(elision(kib << 10)).to_string(), name);
        }
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
        assert_eq!(demanding, 0xff << 4 | 0xf << 20);
    }
}
