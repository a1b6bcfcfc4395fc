//! Random operations compared with a list of byte vectors: sizes, alignments, frees in any order, sends by
//! reference, writes to memory in flight, late and missing completions.

#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod common;

use common::{Pipe, exclusive, lend_all};
use proptest::prelude::*;
use std::io::Read;
use std::os::fd::AsRawFd;
use uncopy_twin::{Loan, Until, allocate, allocate_aligned, allocate_zeroed, settle};
use uncopy_twin::{deallocate, is_valid, reallocate, usable_size};

#[derive(Clone, Debug)]
enum Step {
    Allocate { size: usize },
    Zeroed { size: usize },
    Aligned { size: usize, power: u32 },
    Resize { which: usize, size: usize },
    Free { which: usize },
    Write { which: usize, from: usize, len: usize, byte: u8 },
    Send { which: usize, from: usize, len: usize, completes: bool },
    Settle { which: usize },
    Receive,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        1usize..200,
        200usize..5000,
        4000usize..4200,
        5000usize..100_000,
        0usize..1,
        900_000usize..1_100_000
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let which = || any::<usize>();
    prop_oneof![
        4 => size().prop_map(|size| Step::Allocate { size }),
        1 => size().prop_map(|size| Step::Zeroed { size }),
        1 => (size(), 0u32..15).prop_map(|(size, power)| Step::Aligned { size, power }),
        2 => (which(), size()).prop_map(|(which, size)| Step::Resize { which, size }),
        4 => which().prop_map(|which| Step::Free { which }),
        4 => (which(), which(), which(), any::<u8>())
            .prop_map(|(which, from, len, byte)| Step::Write { which, from, len, byte }),
        6 => (which(), which(), which(), any::<bool>())
            .prop_map(|(which, from, len, completes)| Step::Send { which, from, len, completes }),
        2 => which().prop_map(|which| Step::Settle { which }),
        1 => Just(Step::Receive),
    ]
}

/// An object and its expected contents.
struct Object {
    start: *mut u8,
    bytes: Vec<u8>,
}

impl Object {
    fn slice(&self) -> &[u8] {
        // SAFETY: `start` is an object with at least `bytes.len()` initialised bytes, owned by `self`.
        unsafe { core::slice::from_raw_parts(self.start, self.bytes.len()) }
    }

    fn write(&mut self, from: usize, bytes: &[u8]) {
        // SAFETY: `start` is an object with `bytes.len()` initialised bytes, owned by `self`, borrowed
        // exclusively.
        let all = unsafe { core::slice::from_raw_parts_mut(self.start, self.bytes.len()) };
        all[from..from + bytes.len()].copy_from_slice(bytes);
        self.bytes[from..from + bytes.len()].copy_from_slice(bytes);
    }
}

/// Everything that was sent but not received yet.
struct InFlight {
    pipe: Pipe,
    sender: std::os::unix::net::UnixStream,
    receiver: std::os::unix::net::UnixStream,
    expected: Vec<u8>,
    loans: Vec<Loan>,
}

/// Less than a UNIX socket buffers without a reader.
const MAX_IN_FLIGHT: usize = 100_000;

impl InFlight {
    fn new() -> Self {
        let (sender, receiver) = std::os::unix::net::UnixStream::pair().expect("a pair");
        receiver.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a timeout");
        Self { pipe: Pipe::new(), sender, receiver, expected: Vec::new(), loans: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8], completes: bool) {
        if self.expected.len() + bytes.len() > MAX_IN_FLIGHT {
            self.receive();
        }
        let until = if completes { Until::Completed } else { Until::Dropped };
        let Some(loan) = lend_all(bytes, until) else { return };
        self.pipe.vmsplice(bytes);
        self.pipe.splice_to(self.sender.as_raw_fd(), bytes.len());
        self.expected.extend_from_slice(bytes);
        loan.confirm();
        if completes {
            self.loans.push(loan);
        }
    }

    /// Reads everything, after which the kernel holds no page lent until a completion.
    fn receive(&mut self) {
        let mut got = vec![0; self.expected.len()];
        self.receiver.read_exact(&mut got).expect("all arrives");
        assert!(got == self.expected, "what arrives is what was sent");
        self.expected.clear();
        self.loans.drain(..).for_each(settle);
    }
}

fn run(steps: Vec<Step>) {
    let mut objects: Vec<Object> = Vec::new();
    let mut in_flight = InFlight::new();
    for (number, step) in steps.into_iter().enumerate() {
        let fill = |start: *mut u8, size: usize| {
            assert!(!start.is_null());
            // SAFETY: `start` is not null, so it is an object that was just allocated.
            unsafe { assert!(usable_size(start) >= size) };
            let mut object = Object { start, bytes: vec![0; size] };
            object.write(0, &common::pattern(number, size));
            object
        };
        let count = objects.len().max(1);
        match step {
            Step::Allocate { size } => objects.push(fill(allocate(size), size)),
            Step::Zeroed { size } => {
                let start = allocate_zeroed(size);
                assert!(!start.is_null());
                // SAFETY: `start` is a zeroed object of at least `size` bytes.
                assert!(unsafe { core::slice::from_raw_parts(start, size) }.iter().all(|byte| *byte == 0));
                objects.push(fill(start, size));
            }
            Step::Aligned { size, power } => {
                let start = allocate_aligned(size, 1 << power);
                assert!((start as usize).is_multiple_of(1 << power));
                objects.push(fill(start, size));
            }
            Step::Resize { which, size } => {
                let Some(object) = objects.get_mut(which % count) else { continue };
                // SAFETY: the test owns the object, and uses only the result afterwards.
                object.start = unsafe { reallocate(object.start, size) };
                assert!(!object.start.is_null());
                let kept = object.bytes.len().min(size);
                object.bytes.truncate(size);
                assert!(object.slice()[..kept] == object.bytes[..kept]);
                object.bytes.resize(size, 0);
                let new = vec![number as u8; size - kept];
                object.write(kept, &new);
            }
            Step::Free { which } => {
                if !objects.is_empty() {
                    let object = objects.swap_remove(which % count);
                    assert!(object.slice() == object.bytes);
                    // SAFETY: the test owns the object, which was just removed from the list.
                    unsafe { deallocate(object.start) };
                }
            }
            Step::Write { which, from, len, byte } => {
                let Some(object) = objects.get_mut(which % count) else { continue };
                let from = from % (object.bytes.len() + 1);
                let len = len % (object.bytes.len() - from + 1);
                object.write(from, &vec![byte; len]);
            }
            Step::Send { which, from, len, completes } => {
                let Some(object) = objects.get(which % count) else { continue };
                let from = from % (object.bytes.len() + 1);
                let len = (len % (object.bytes.len() - from + 1)).min(MAX_IN_FLIGHT);
                if len > 0 {
                    in_flight.send(&object.slice()[from..from + len], completes);
                }
            }
            Step::Settle { which } => {
                // Unless nothing is in flight, settling before the data was read would break the contract.
                if in_flight.expected.is_empty() && !in_flight.loans.is_empty() {
                    let which = which % in_flight.loans.len();
                    settle(in_flight.loans.swap_remove(which));
                }
            }
            Step::Receive => in_flight.receive(),
        }
        for object in objects.iter().rev().take(3) {
            assert!(object.slice() == object.bytes);
        }
        assert!(is_valid(), "after step {number}");
    }
    assert!(objects.iter().all(|object| object.slice() == object.bytes));
    in_flight.receive();
    for object in objects {
        // SAFETY: the test owns the object, and does not use it afterwards.
        unsafe { deallocate(object.start) };
    }
    assert!(is_valid());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn objects_hold_what_was_written_and_peers_get_what_was_sent(
        steps in proptest::collection::vec(step(), 1..300)
    ) {
        let _guard = exclusive();
        run(steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Aligned runs leave gaps after runs and objects; each must be merged with adjacent free runs.
    #[test]
    fn free_runs_that_touch_are_one(
        steps in proptest::collection::vec((any::<bool>(), any::<usize>(), 1usize..200, 0u32..8), 1..200)
    ) {
        let _guard = exclusive();
        let mut objects = Vec::new();
        for (number, (is_free, which, pages, power)) in steps.into_iter().enumerate() {
            if is_free && !objects.is_empty() {
                let object = objects.swap_remove(which % objects.len());
                // SAFETY: the test owns the object, which was just removed from the list.
                unsafe { deallocate(object) };
            } else {
                let object = allocate_aligned(pages * 4096, 4096 << power);
                assert!(!object.is_null());
                objects.push(object);
            }
            assert!(is_valid(), "after step {number}");
        }
        for object in objects {
            // SAFETY: the test owns the object, and does not use it afterwards.
            unsafe { deallocate(object) };
        }
        assert!(is_valid());
    }
}

#[test]
fn impossible_sizes_return_null_and_change_nothing() {
    let _guard = exclusive();
    let object = allocate(100);
    for size in [usize::MAX, usize::MAX / 2, 1 << 50, 1 << 44] {
        assert!(allocate(size).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        assert!(allocate_zeroed(size).is_null() && allocate_aligned(size, 4096).is_null());
        // SAFETY: the test owns the object, which stays valid because the call fails.
        assert!(unsafe { reallocate(object, size) }.is_null());
    }
    assert!(allocate_aligned(10, 3 * 64).is_null());
    // SAFETY: the test owns the object, and does not use it afterwards.
    unsafe { deallocate(object) };
    assert!(is_valid());
}
