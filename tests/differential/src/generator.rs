//! Generates programs from seeds.
//!
//! Each program has its own weights: some kinds of operations are left out, others are frequent,
//! and sizes lean one way or another. Programs that mix everything evenly rarely reach states that
//! need many operations of the same kind in a row.

use std::collections::VecDeque;

use uncopy_core::addr::PAGE_BYTES as PAGE;
use uncopy_tests::random::Random;

use crate::interpreter::{GENERAL_SLOTS, SLOTS, STATIC_BYTES};
use crate::program::{Kind, MAX_WORKERS, NUMBERS, Operation, Program};

/// Weight of each kind, before a program's own factors are applied.
const WEIGHTS: &[(Kind, usize)] = &[
    (Kind::Allocate, 60),
    (Kind::Free, 15),
    (Kind::Resize, 30),
    (Kind::Usable, 4),
    (Kind::Copy, 230),
    (Kind::Move, 60),
    (Kind::Fill, 60),
    (Kind::Check, 60),
    (Kind::Feed, 20),
    (Kind::Receive, 150),
    (Kind::ReceiveMany, 12),
    (Kind::Send, 90),
    (Kind::SendMany, 8),
    (Kind::Drain, 50),
    (Kind::FileRead, 30),
    (Kind::FileWrite, 30),
    (Kind::Kernel, 30),
    (Kind::Odd, 8),
    (Kind::Protect, 6),
    (Kind::Advise, 10),
    (Kind::Remap, 10),
    (Kind::Cover, 8),
    (Kind::AdviseOtherwise, 10),
    (Kind::Lock, 5),
    (Kind::Churn, 1),
    (Kind::Fork, 2),
    (Kind::Give, 10),
    (Kind::Take, 14),
    (Kind::Raise, 5),
    (Kind::Arm, 3),
];

/// A recently written range.
#[derive(Clone, Copy)]
struct Recent {
    slot: usize,
    at: usize,
    len: usize,
}

struct Generator {
    random: Random,
    /// Cumulative weights of the kinds.
    kinds: Vec<(usize, Kind)>,
    max_len: usize,
    /// Lengths of the buffers that this worker probably has.
    lens: [usize; SLOTS],
    recent: VecDeque<Recent>,
    /// Ranges sent recently: servers send the same bytes again and again.
    sent: VecDeque<Recent>,
}

/// Returns the program of `operations` operations for `seed`.
#[must_use]
pub fn generate(seed: u64, operations: usize) -> Program {
    let mut random = Random::new(seed);
    let workers = if random.one_in(3) { random.between(2, MAX_WORKERS) } else { 1 };
    let alarm_us = if random.one_in(4) { random.pick(&[100, 300, 1000, 5000]) } else { 0 };
    let mut weights = Vec::new();
    for (kind, weight) in WEIGHTS {
        let alone = workers == 1 && matches!(kind, Kind::Give | Kind::Take);
        let factor = match random.below(8) {
            _ if alone => 0,
            0 if !matches!(kind, Kind::Allocate | Kind::Receive) => 0,
            1 => 12,
            _ => 4,
        };
        weights.push((weight * factor, *kind));
    }
    let max_len = random.pick(&[16_384, 65_536, 262_144, 524_288, 524_288, 1 << 20, 3 << 20]);
    let mut generators: Vec<Generator> =
        (0..workers).map(|_| Generator::new(Random::new(random.next_u64()), &weights, max_len)).collect();
    let mut program = Program { seed, alarm_us, operations: Vec::with_capacity(operations) };
    for (worker, generator) in generators.iter_mut().enumerate() {
        for slot in 0..GENERAL_SLOTS {
            program.operations.push(generator.allocate(worker, slot));
        }
    }
    while program.operations.len() < operations {
        let worker = random.below(workers);
        let operation = generators[worker].next(worker, workers);
        program.operations.push(operation);
    }
    program.operations.truncate(operations);
    program
}

/// Returns an operation with the numbers `operands`, in the order of [`Kind::operands`].
fn operation(worker: usize, kind: Kind, operands: &[usize]) -> Operation {
    debug_assert_eq!(operands.len(), kind.operands().len(), "{}", kind.name());
    let mut numbers = [0; NUMBERS];
    numbers[..operands.len()].copy_from_slice(operands);
    Operation { worker, kind, numbers }
}

impl Generator {
    fn new(random: Random, weights: &[(usize, Kind)], max_len: usize) -> Self {
        let mut sum = 0;
        let kinds = weights
            .iter()
            .map(|(weight, kind)| {
                sum += weight;
                (sum, *kind)
            })
            .collect();
        let mut lens = [200_000; SLOTS];
        lens[GENERAL_SLOTS] = STATIC_BYTES;
        Self { random, kinds, max_len, lens, recent: VecDeque::new(), sent: VecDeque::new() }
    }

    /// Returns the length of a new buffer, in bytes.
    fn buffer_len(&mut self) -> usize {
        match self.random.below(10) {
            0 => self.random.between(1000, 5000),
            1 => self.random.between(1, self.max_len / PAGE) * PAGE,
            2..6 => self.random.length(self.max_len).max(4096),
            _ => self.random.between(4096, self.max_len),
        }
    }

    /// Returns a slot and a range in it: often a recently written range, or a part of one.
    fn source(&mut self) -> (usize, usize, usize) {
        if !self.recent.is_empty() && !self.random.one_in(4) {
            let Recent { slot, at, len } = self.recent[self.random.below(self.recent.len())];
            let skip = self.random.pick(&[0, 0, 0, 0, 1, 16, 45, 4095, 4096, 20_000]).min(len - 1);
            let len = len - skip;
            let short = self.random.pick(&[0, 0, 0, 1, 100, 4096, 9000]).min(len - 1);
            return (slot, at + skip, len - short);
        }
        self.anywhere()
    }

    /// Returns a random range of a random slot.
    fn anywhere(&mut self) -> (usize, usize, usize) {
        let slot = self.random.below(SLOTS);
        let (at, len) = self.random.range(self.lens[slot]);
        (slot, at, len)
    }

    fn remember(&mut self, slot: usize, at: usize, len: usize) {
        if len >= PAGE {
            if self.recent.len() == 6 {
                self.recent.pop_front();
            }
            self.recent.push_back(Recent { slot, at, len });
        }
    }

    /// Returns a range to send: every other time one that was sent before, on any channel.
    fn message(&mut self) -> (usize, usize, usize) {
        if !self.sent.is_empty() && self.random.one_in(2) {
            let Recent { slot, at, len } = self.sent[self.random.below(self.sent.len())];
            return (slot, at, len);
        }
        let (slot, at, len) = self.source();
        if self.sent.len() == 3 {
            self.sent.pop_front();
        }
        self.sent.push_back(Recent { slot, at, len });
        (slot, at, len)
    }

    /// Returns a number from which the interpreter derives its choices.
    fn seed(&mut self) -> usize {
        self.random.below(1 << 30)
    }

    fn allocate(&mut self, worker: usize, slot: usize) -> Operation {
        let len = self.buffer_len();
        if slot < SLOTS {
            self.lens[slot] = len;
        }
        let call = if self.random.one_in(4) { self.random.below(12) } else { 0 };
        operation(worker, Kind::Allocate, &[slot, call, len, self.random.below(10)])
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each kind")]
    fn next(&mut self, worker: usize, workers: usize) -> Operation {
        let draw = self.random.below(self.kinds.last().map_or(1, |last| last.0));
        let kind = self.kinds[self.kinds.partition_point(|(sum, _)| *sum <= draw)].1;
        let channel = self.random.below(7);
        let numbers: Vec<usize> = match kind {
            Kind::Allocate => {
                let slot = self.random.below(GENERAL_SLOTS);
                return self.allocate(worker, slot);
            }
            Kind::Free | Kind::Usable | Kind::Take => vec![self.random.below(GENERAL_SLOTS)],
            Kind::Give => vec![self.random.below(GENERAL_SLOTS), self.random.below(workers)],
            Kind::Resize => {
                let slot = self.random.below(GENERAL_SLOTS);
                let old = self.lens[slot];
                let len = match self.random.below(4) {
                    0 => old * 2,
                    1 => old + self.random.between(1, 40_000),
                    2 => old / 2,
                    _ => self.buffer_len(),
                };
                self.lens[slot] = len.clamp(1, 3 << 20);
                vec![slot, self.random.below(2), self.lens[slot]]
            }
            Kind::Copy => {
                let (from, at, len) = self.source();
                let to = self.random.below(SLOTS);
                let target_len = self.lens[to];
                let to_at = match self.random.below(6) {
                    0 => 0,
                    1 => self.random.pick(&[1, 16, 45, 100, 4095, 4097]),
                    2 => self.random.below(target_len / PAGE + 1) * PAGE,
                    3 => self.random.below(target_len),
                    _ => at,
                } % target_len;
                self.remember(to, to_at, len.min(target_len - to_at));
                vec![self.random.below(7), from, at, to, to_at, len]
            }
            Kind::Move => {
                let (slot, at, len) = self.source();
                let near = self.random.pick(&[1, 45, 4095, 4096, 4097, 65_536]);
                let to_at = match self.random.below(3) {
                    0 => at.saturating_sub(near),
                    1 => at + near,
                    _ => self.random.below(self.lens[slot]),
                };
                self.remember(slot, to_at, len);
                vec![self.random.below(3), slot, at, to_at, len]
            }
            Kind::Fill => {
                let (slot, at, len) = if self.random.one_in(2) { self.source() } else { self.anywhere() };
                let len = if self.random.one_in(4) { len } else { len.min(self.random.between(1, 300)) };
                vec![self.random.below(3), slot, at, len, self.seed()]
            }
            Kind::Check => {
                let (slot, at, len) = self.source();
                let len = if self.random.one_in(3) { len } else { len.min(self.random.between(1, 9000)) };
                vec![slot, at, len]
            }
            Kind::Feed => vec![channel, self.random.length(300_000), self.seed()],
            Kind::Receive => {
                let (slot, at, target_len) = self.anywhere();
                let len = if self.random.one_in(2) { target_len } else { self.lens[slot] };
                let feed = match self.random.below(5) {
                    0 => 0,
                    1 => self.random.length(300_000),
                    2 => len / 2,
                    _ => len,
                };
                let flags = if self.random.one_in(3) { self.random.below(16) } else { 0 };
                self.remember(slot, at, len.min(feed.max(1)));
                vec![
                    channel,
                    self.random.below(12),
                    flags,
                    feed,
                    slot,
                    at,
                    len,
                    self.random.between(1, 6),
                    self.seed(),
                ]
            }
            Kind::ReceiveMany => {
                let (slot, at, len) = self.anywhere();
                let feed = if self.random.one_in(3) { self.random.length(100_000) } else { len };
                let messages = self.random.between(1, 4);
                vec![
                    channel,
                    self.random.below(16),
                    feed,
                    messages,
                    slot,
                    at,
                    len,
                    self.random.between(1, 4),
                    self.seed(),
                ]
            }
            Kind::Send => {
                let (slot, at, len) = self.message();
                vec![channel, self.random.below(9), 0, slot, at, len, self.random.between(1, 6), self.seed()]
            }
            Kind::SendMany => {
                let (slot, at, len) = self.source();
                vec![
                    channel,
                    self.random.between(1, 4),
                    slot,
                    at,
                    len,
                    self.random.between(1, 4),
                    self.seed(),
                ]
            }
            Kind::Drain => vec![channel, self.random.length(1 << 20)],
            Kind::FileRead | Kind::FileWrite => {
                let (slot, at, len) = if kind == Kind::FileRead { self.anywhere() } else { self.source() };
                let offset = self.random.length(1 << 21) - 1;
                if kind == Kind::FileRead {
                    self.remember(slot, at, len);
                }
                vec![self.random.below(14), offset, slot, at, len, self.random.between(1, 4), self.seed()]
            }
            Kind::Kernel => {
                let (slot, at, len) = self.source();
                vec![self.random.below(12), slot, at, len, self.seed()]
            }
            Kind::Odd => {
                let (slot, at, len) = self.anywhere();
                vec![self.random.below(8), slot, at, len, self.seed()]
            }
            Kind::Protect | Kind::Remap => {
                let (slot, at, len) = self.anywhere();
                vec![self.random.below(8), slot, at, len]
            }
            Kind::Advise => {
                let (slot, at, len) = self.source();
                vec![self.random.below(12), slot, at, len]
            }
            Kind::Cover => {
                let (slot, at, len) = self.source();
                vec![self.random.below(24), slot, at, len, self.seed()]
            }
            Kind::AdviseOtherwise => {
                let (slot, at, len) = self.source();
                vec![self.random.below(3), self.random.below(14), slot, at, len]
            }
            Kind::Lock => {
                let (slot, at, len) = self.source();
                vec![self.random.below(4), slot, at, len]
            }
            Kind::Churn => vec![self.random.below(36), self.random.length(3 << 20)],
            Kind::Fork => vec![self.random.between(1, 40), self.random.below(2)],
            Kind::Raise => vec![self.random.between(1, 8)],
            // Only `Arm` is left: no other kind has a weight here.
            _ => vec![self.seed()],
        };
        operation(worker, kind, &numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_generates_same_program() {
        assert_eq!(generate(9, 500), generate(9, 500));
        assert_ne!(generate(9, 500), generate(10, 500));
    }
}
