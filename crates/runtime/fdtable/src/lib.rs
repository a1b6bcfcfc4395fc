//! The program's descriptors: the features that follow each, and the calls to make when one is
//! closed, duplicated or passed to another program.
//!
//! A feature registers its functions once ([`register`]) and tracks each descriptor about which it
//! keeps state ([`track`]). The hooks of close, dup, exec and so on call the functions here, which
//! call those of the features that track the descriptor, in the order of [`Feature`]. For a
//! descriptor that no feature tracked that costs one load.
//!
//! Each feature keeps its state itself. A descriptor that was closed without a hook stays tracked:
//! the feature detects by its own state that the number is another file now.
#![cfg(target_os = "linux")]

use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};
use uncopy_sys::descriptor::{Descriptor as _, ProgramFd};

/// Number of descriptors that can be tracked: those below it. All features are called for higher ones.
pub const MAX_TRACKED_FDS: usize = 1 << 16;

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
pub struct FdCallbacks {
    /// Called before a tracked descriptor is closed.
    pub on_close: fn(ProgramFd),
    /// Called after the first descriptor was duplicated as the second, if either is tracked.
    pub on_dup: fn(ProgramFd, ProgramFd),
    /// Called for any descriptor, tracked or not, that goes to another program or came from one.
    pub on_pass: fn(ProgramFd),
}

static CALLBACKS: [AtomicPtr<FdCallbacks>; FEATURES] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; FEATURES];

/// Features that track each descriptor, one bit for each.
static TRACKED: [AtomicU8; MAX_TRACKED_FDS] = [const { AtomicU8::new(0) }; MAX_TRACKED_FDS];

/// Upper bound (exclusive) of the descriptors ever tracked.
static END: AtomicU32 = AtomicU32::new(0);

/// Registers the functions of a feature.
pub fn register(feature: Feature, callbacks: &'static FdCallbacks) {
    CALLBACKS[feature as usize].store(core::ptr::from_ref(callbacks).cast_mut(), Release);
}

fn callbacks(feature: Feature) -> Option<&'static FdCallbacks> {
    // SAFETY: the pointer is null, or comes from the `&'static FdCallbacks` that `register` was given.
    unsafe { CALLBACKS[feature as usize].load(Acquire).as_ref() }
}

fn tracking_features(fd: ProgramFd) -> Option<&'static AtomicU8> {
    TRACKED.get(fd.index()?)
}

/// Records that a feature keeps state about a descriptor.
pub fn track(feature: Feature, fd: ProgramFd) {
    let Ok(number) = u32::try_from(fd.number()) else { return };
    if is_tracked(feature, fd) {
        return;
    }
    if let Some(known) = tracking_features(fd) {
        known.fetch_or(feature.bit(), AcqRel);
    }
    END.fetch_max(number + 1, AcqRel);
}

/// Records that a feature keeps no state about a descriptor any more.
pub fn untrack(feature: Feature, fd: ProgramFd) {
    if let Some(known) = tracking_features(fd) {
        known.fetch_and(!feature.bit(), AcqRel);
    }
}

/// Whether a descriptor is tracked for a feature; false from [`MAX_TRACKED_FDS`] on.
#[inline]
#[must_use]
pub fn is_tracked(feature: Feature, fd: ProgramFd) -> bool {
    tracking_features(fd).is_some_and(|known| known.load(Acquire) & feature.bit() != 0)
}

/// Returns the descriptors from `first` to `last` (inclusive) that are tracked for a feature.
pub fn tracked(feature: Feature, first: u32, last: u32) -> impl Iterator<Item = ProgramFd> {
    in_range(first, last).filter(move |fd| is_tracked(feature, *fd))
}

fn in_range(first: u32, last: u32) -> impl Iterator<Item = ProgramFd> {
    let end = END.load(Acquire).min(last.saturating_add(1));
    (first..end).map(|number| ProgramFd::new(number.cast_signed()))
}

/// Calls `work` for each of these features that is registered.
fn each(features: u8, work: impl Fn(&FdCallbacks)) {
    let concerned = Feature::ALL.into_iter().filter(|feature| features & feature.bit() != 0);
    concerned.filter_map(callbacks).for_each(work);
}

/// Returns the features that may track a descriptor.
#[inline]
fn features_of(fd: ProgramFd) -> u8 {
    tracking_features(fd).map_or(if fd.is_valid() { u8::MAX } else { 0 }, |known| known.load(Acquire))
}

/// Reports that a descriptor is about to be closed, or replaced by another file.
#[inline]
pub fn on_close(fd: ProgramFd) {
    let features = features_of(fd);
    if features != 0 {
        each(features, |callbacks| (callbacks.on_close)(fd));
    }
}

/// Reports that the feature `by` is about to replace a descriptor's file, to the other features.
pub fn on_replace(by: Feature, fd: ProgramFd) {
    each(features_of(fd) & !by.bit(), |callbacks| (callbacks.on_close)(fd));
}

/// Reports that the descriptors from `first` to `last` (inclusive) are about to be closed.
pub fn on_close_range(first: u32, last: u32) {
    in_range(first, last).for_each(on_close);
}

/// Reports that a descriptor was duplicated; does nothing if `to` is not valid.
pub fn on_dup(from: ProgramFd, to: ProgramFd) {
    let features = if to.is_valid() { features_of(from) | features_of(to) } else { 0 };
    each(features, |callbacks| (callbacks.on_dup)(from, to));
}

/// Reports that a descriptor goes to another program, or came from one.
pub fn on_pass(fd: ProgramFd) {
    each(u8::MAX, |callbacks| (callbacks.on_pass)(fd));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const fn fd(number: i32) -> ProgramFd {
        ProgramFd::new(number)
    }

    /// Calls of the callbacks, in order.
    static CALLS: Mutex<Vec<(&str, i32, i32)>> = Mutex::new(Vec::new());

    macro_rules! callbacks {
        ($closed:literal, $duplicated:literal, $passed:literal) => {
            &FdCallbacks {
                on_close: |fd| add(($closed, fd.number(), 0)),
                on_dup: |from, to| add(($duplicated, from.number(), to.number())),
                on_pass: |fd| add(($passed, fd.number(), 0)),
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
        register(Feature::Log, callbacks!("log closed", "log duplicated", "log passed"));
        register(Feature::Lanes, callbacks!("lane closed", "lane duplicated", "lane passed"));
        on_close(fd(7));
        on_dup(fd(7), fd(8));
        assert_eq!(told(), []);
        track(Feature::Log, fd(7));
        track(Feature::Lanes, fd(7));
        track(Feature::Record, fd(7));
        track(Feature::Log, fd(9));
        on_close(fd(7));
        assert_eq!(told(), [("lane closed", 7, 0), ("log closed", 7, 0)]);
        on_dup(fd(7), fd(-1));
        on_dup(fd(3), fd(9));
        assert_eq!(told(), [("log duplicated", 3, 9)]);
        untrack(Feature::Lanes, fd(7));
        assert!(is_tracked(Feature::Log, fd(7)) && !is_tracked(Feature::Lanes, fd(7)));
        on_close_range(0, u32::MAX);
        assert_eq!(told(), [("log closed", 7, 0), ("log closed", 9, 0)]);
        on_close_range(8, 8);
        on_replace(Feature::Log, fd(7));
        on_replace(Feature::Service, fd(9));
        assert_eq!(told(), [("log closed", 9, 0)]);
        on_pass(fd(100));
        assert_eq!(told(), [("lane passed", 100, 0), ("log passed", 100, 0)]);
        assert_eq!(tracked(Feature::Log, 0, u32::MAX).collect::<Vec<_>>(), [fd(7), fd(9)]);
        assert_eq!(tracked(Feature::Log, 8, 9).collect::<Vec<_>>(), [fd(9)]);
        for feature in Feature::ALL {
            [fd(7), fd(9)].into_iter().for_each(|fd| untrack(feature, fd));
        }
        const HIGH: i32 = 1 << 16;
        on_close_range(0, u32::MAX);
        for fd in [-1, HIGH].map(fd) {
            track(Feature::Log, fd);
            assert!(!is_tracked(Feature::Log, fd));
        }
        on_close(fd(-1));
        assert_eq!(told(), []);
        on_close_range(0, u32::MAX);
        assert_eq!(told(), [("lane closed", HIGH, 0), ("log closed", HIGH, 0)], "it may concern everybody");
    }
}
