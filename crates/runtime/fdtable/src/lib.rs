//! The program's descriptors: the features that follow each, and the calls to make when one is
//! closed, duplicated or passed to another program.
//!
//! A feature registers its functions once ([`follow`]) and notes each descriptor about which it
//! keeps state ([`note`]). The hooks of close, dup, exec and so on call the functions here, which
//! call those of the features that noted the descriptor, in the order of [`Feature`]. For a
//! descriptor that no feature noted that costs one load.
//!
//! Each feature keeps its state itself. A descriptor that was closed without a hook stays noted:
//! the feature detects by its own state that the number is another file now.
#![cfg(target_os = "linux")]

use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};
use uncopy_sys::descriptor::{Descriptor as _, ProgramFd};

/// Number of descriptors that can be noted: those below it. All features are called for higher ones.
pub const DESCRIPTORS: usize = 1 << 16;

/// Features that follow descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Feature {
    /// Lanes: streams that may become lanes.
    Lanes,
    /// The TCP service: registrations with epoll before a socket's kind is decided.
    Service,
    /// The log: files that may be logged.
    Log,
    /// Recordings: the state kept for each descriptor.
    Record,
}

const FEATURES: usize = 4;

impl Feature {
    const ALL: [Self; FEATURES] = [Self::Lanes, Self::Service, Self::Log, Self::Record];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Functions of a feature that follows descriptors. Each must preserve `errno`. The caller may be a child of
/// vfork, with its own descriptors but its parent's memory, and may have forbidden itself system calls.
#[derive(Debug)]
pub struct Follower {
    /// Called before a noted descriptor is closed.
    pub closed: fn(ProgramFd),
    /// Called after the first descriptor was duplicated as the second, if either is noted.
    pub duplicated: fn(ProgramFd, ProgramFd),
    /// Called for any descriptor, noted or not, that goes to another program or came from one.
    pub passed: fn(ProgramFd),
}

static FOLLOWERS: [AtomicPtr<Follower>; FEATURES] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; FEATURES];

/// Features that noted each descriptor, one bit for each.
static NOTED: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(0) }; DESCRIPTORS];

/// Upper bound (exclusive) of the descriptors ever noted.
static END: AtomicU32 = AtomicU32::new(0);

/// Registers the functions of a feature.
pub fn follow(feature: Feature, follower: &'static Follower) {
    FOLLOWERS[feature as usize].store(core::ptr::from_ref(follower).cast_mut(), Release);
}

fn follower(feature: Feature) -> Option<&'static Follower> {
    // SAFETY: the pointer is null, or comes from the `&'static Follower` that `follow` was given.
    unsafe { FOLLOWERS[feature as usize].load(Acquire).as_ref() }
}

fn noted_features_of(fd: ProgramFd) -> Option<&'static AtomicU8> {
    NOTED.get(fd.index()?)
}

/// Notes that a feature keeps state about a descriptor.
pub fn note(feature: Feature, fd: ProgramFd) {
    let Ok(number) = u32::try_from(fd.number()) else { return };
    if is_known(feature, fd) {
        return;
    }
    if let Some(known) = noted_features_of(fd) {
        known.fetch_or(feature.bit(), AcqRel);
    }
    END.fetch_max(number + 1, AcqRel);
}

/// Notes that a feature keeps no state about a descriptor any more.
pub fn forget(feature: Feature, fd: ProgramFd) {
    if let Some(known) = noted_features_of(fd) {
        known.fetch_and(!feature.bit(), AcqRel);
    }
}

/// Whether a descriptor is noted for a feature; false from [`DESCRIPTORS`] on.
#[inline]
#[must_use]
pub fn is_known(feature: Feature, fd: ProgramFd) -> bool {
    noted_features_of(fd).is_some_and(|known| known.load(Acquire) & feature.bit() != 0)
}

/// Returns the descriptors from `first` to `last` (inclusive) that are noted for a feature.
pub fn known(feature: Feature, first: u32, last: u32) -> impl Iterator<Item = ProgramFd> {
    in_range(first, last).filter(move |fd| is_known(feature, *fd))
}

fn in_range(first: u32, last: u32) -> impl Iterator<Item = ProgramFd> {
    let end = END.load(Acquire).min(last.saturating_add(1));
    (first..end).map(|number| ProgramFd::new(number.cast_signed()))
}

/// Calls `work` for each of these features that is registered.
fn each(features: u8, work: impl Fn(&Follower)) {
    let concerned = Feature::ALL.into_iter().filter(|feature| features & feature.bit() != 0);
    concerned.filter_map(follower).for_each(work);
}

/// Returns the features that may have noted a descriptor.
#[inline]
fn features_of(fd: ProgramFd) -> u8 {
    noted_features_of(fd).map_or(if fd.is_valid() { u8::MAX } else { 0 }, |known| known.load(Acquire))
}

/// Reports that a descriptor is about to be closed, or replaced by another file.
#[inline]
pub fn closed(fd: ProgramFd) {
    let features = features_of(fd);
    if features != 0 {
        each(features, |follower| (follower.closed)(fd));
    }
}

/// Reports that the feature `by` is about to replace a descriptor's file, to the other features.
pub fn replaced(by: Feature, fd: ProgramFd) {
    each(features_of(fd) & !by.bit(), |follower| (follower.closed)(fd));
}

/// Reports that the descriptors from `first` to `last` (inclusive) are about to be closed.
pub fn closed_range(first: u32, last: u32) {
    in_range(first, last).for_each(closed);
}

/// Reports that a descriptor was duplicated; does nothing if `to` is not valid.
pub fn duplicated(from: ProgramFd, to: ProgramFd) {
    let features = if to.is_valid() { features_of(from) | features_of(to) } else { 0 };
    each(features, |follower| (follower.duplicated)(from, to));
}

/// Reports that a descriptor goes to another program, or came from one.
pub fn passed(fd: ProgramFd) {
    each(u8::MAX, |follower| (follower.passed)(fd));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const fn fd(number: i32) -> ProgramFd {
        ProgramFd::new(number)
    }

    /// Calls of the followers, in order.
    static CALLS: Mutex<Vec<(&str, i32, i32)>> = Mutex::new(Vec::new());

    macro_rules! follower {
        ($closed:literal, $duplicated:literal, $passed:literal) => {
            &Follower {
                closed: |fd| add(($closed, fd.number(), 0)),
                duplicated: |from, to| add(($duplicated, from.number(), to.number())),
                passed: |fd| add(($passed, fd.number(), 0)),
            }
        };
    }

    fn add(told: (&'static str, i32, i32)) {
        CALLS.lock().expect("one thread").push(told);
    }

    fn told() -> Vec<(&'static str, i32, i32)> {
        std::mem::take(&mut CALLS.lock().expect("one thread"))
    }

    #[test]
    fn who_knows_a_descriptor_is_told_in_order_and_nobody_else() {
        follow(Feature::Log, follower!("log closed", "log duplicated", "log passed"));
        follow(Feature::Lanes, follower!("lane closed", "lane duplicated", "lane passed"));
        closed(fd(7));
        duplicated(fd(7), fd(8));
        assert_eq!(told(), []);
        note(Feature::Log, fd(7));
        note(Feature::Lanes, fd(7));
        note(Feature::Record, fd(7));
        note(Feature::Log, fd(9));
        closed(fd(7));
        assert_eq!(told(), [("lane closed", 7, 0), ("log closed", 7, 0)]);
        duplicated(fd(7), fd(-1));
        duplicated(fd(3), fd(9));
        assert_eq!(told(), [("log duplicated", 3, 9)]);
        forget(Feature::Lanes, fd(7));
        assert!(is_known(Feature::Log, fd(7)) && !is_known(Feature::Lanes, fd(7)));
        closed_range(0, u32::MAX);
        assert_eq!(told(), [("log closed", 7, 0), ("log closed", 9, 0)]);
        closed_range(8, 8);
        replaced(Feature::Log, fd(7));
        replaced(Feature::Service, fd(9));
        assert_eq!(told(), [("log closed", 9, 0)]);
        passed(fd(100));
        assert_eq!(told(), [("lane passed", 100, 0), ("log passed", 100, 0)]);
        assert_eq!(known(Feature::Log, 0, u32::MAX).collect::<Vec<_>>(), [fd(7), fd(9)]);
        assert_eq!(known(Feature::Log, 8, 9).collect::<Vec<_>>(), [fd(9)]);
        for feature in Feature::ALL {
            [fd(7), fd(9)].into_iter().for_each(|fd| forget(feature, fd));
        }
        const HIGH: i32 = 1 << 16;
        closed_range(0, u32::MAX);
        for fd in [-1, HIGH].map(fd) {
            note(Feature::Log, fd);
            assert!(!is_known(Feature::Log, fd));
        }
        closed(fd(-1));
        assert_eq!(told(), []);
        closed_range(0, u32::MAX);
        assert_eq!(told(), [("lane closed", HIGH, 0), ("log closed", HIGH, 0)], "it may concern everybody");
    }
}
