//! Generates programs of files from seeds, each program with weights of its own.

use uncopy_core::options::LogMode;
use uncopy_tests::random::Random;

use super::{MAPS, MAX_FILE, NAMES, NEGATIVE, SLOTS};
use crate::program::{Kind, NUMBERS, Operation, Program};

/// Weight of each kind, before a program's own factors are applied.
const WEIGHTS: &[(Kind, usize)] = &[
    (Kind::Open, 60),
    (Kind::Reopen, 10),
    (Kind::Close, 25),
    (Kind::Duplicate, 12),
    (Kind::Put, 150),
    (Kind::Get, 60),
    (Kind::Steady, 110),
    (Kind::Seek, 50),
    (Kind::Sync, 90),
    (Kind::Length, 14),
    (Kind::Reserve, 10),
    (Kind::Name, 14),
    (Kind::Control, 14),
    (Kind::Look, 10),
    (Kind::Pass, 20),
    (Kind::Map, 6),
    (Kind::Mapped, 16),
    (Kind::Child, 3),
];
/// Weights for a log that has the only copy: more often, a program writes, seeks and looks at files, duplicates them
/// and forks, and opens them again.
const WEIGHTS_ONLY: &[(Kind, usize)] = &[
    (Kind::Open, 40),
    (Kind::Reopen, 20),
    (Kind::Duplicate, 20),
    (Kind::Put, 260),
    (Kind::Steady, 160),
    (Kind::Seek, 90),
    (Kind::Sync, 60),
    (Kind::Look, 30),
    (Kind::Child, 8),
];
/// Kinds that every program has.
const REQUIRED_KINDS: [Kind; 4] = [Kind::Open, Kind::Put, Kind::Steady, Kind::Sync];

struct Generator {
    random: Random,
    kinds: Vec<(usize, Kind)>,
    /// Access modes of opens, of which one is chosen.
    access: &'static [i32],
    /// Whether short lengths are preferred.
    is_short: bool,
    /// Slot that is preferred for a while.
    preferred_slot: usize,
}

/// Returns the weight of a kind in programs for a log of this mode.
fn weight_of(kind: Kind, log_mode: LogMode) -> usize {
    let in_list =
        |weights: &[(Kind, usize)]| weights.iter().find(|(other, _)| *other == kind).map(|found| found.1);
    let only = Some(WEIGHTS_ONLY).filter(|_| log_mode == LogMode::Only);
    only.and_then(in_list).or_else(|| in_list(WEIGHTS)).unwrap_or(0)
}

/// Returns the program of `operations` operations for `seed`, for a log of this mode.
#[must_use]
pub fn generate(seed: u64, operations: usize, log_mode: LogMode) -> Program {
    let access: &[i32] = match log_mode {
        LogMode::Beside => &[libc::O_RDWR, libc::O_RDWR, libc::O_RDWR, libc::O_WRONLY, libc::O_RDONLY],
        LogMode::Only => {
            &[libc::O_WRONLY, libc::O_RDWR, libc::O_WRONLY, libc::O_RDWR, libc::O_WRONLY, libc::O_RDONLY]
        }
    };
    let mut random = Random::new(seed ^ 0xF11E5);
    let mut sum = 0;
    let mut weigh = |(kind, _): &(Kind, usize)| {
        let weight = weight_of(*kind, log_mode);
        let factor = match random.below(8) {
            0 if !REQUIRED_KINDS.contains(kind) => 0,
            1 if *kind != Kind::Child => 12,
            _ => 4,
        };
        sum += weight * factor;
        (sum, *kind)
    };
    let kinds = WEIGHTS.iter().map(&mut weigh).collect();
    let is_short = !random.one_in(4);
    let mut generator = Generator { random, kinds, access, is_short, preferred_slot: 0 };
    let mut program = Program { seed, alarm_us: 0, operations: Vec::with_capacity(operations) };
    for slot in 0..SLOTS {
        let flags = usize::try_from(access[slot % 2] | libc::O_CREAT).expect("positive");
        program.operations.push(operation(Kind::Open, &[slot, slot % NAMES, 0, flags]));
    }
    while program.operations.len() < operations {
        program.operations.push(generator.next());
    }
    program.operations.truncate(operations);
    program
}

/// Returns an operation with the numbers `operands`, in the order of [`Kind::operands`].
fn operation(kind: Kind, operands: &[usize]) -> Operation {
    debug_assert_eq!(operands.len(), kind.operands().len(), "{}", kind.name());
    let mut numbers = [0; NUMBERS];
    numbers[..operands.len()].copy_from_slice(operands);
    Operation { worker: 0, kind, numbers }
}

impl Generator {
    fn slot(&mut self) -> usize {
        if self.random.one_in(40) {
            self.preferred_slot = self.random.below(SLOTS);
        }
        if self.random.one_in(3) { self.random.below(SLOTS) } else { self.preferred_slot }
    }

    fn len(&mut self) -> usize {
        const EDGES: [usize; 10] = [0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 65_536];
        match self.random.below(8) {
            0..4 => self.random.pick(&EDGES),
            4 | 5 => self.random.between(1, 9000),
            6 => self.random.length(if self.is_short { 100_000 } else { 1 << 20 }),
            _ if self.is_short || !self.random.one_in(4) => self.random.between(1, 300),
            _ => self.random.between(1 << 20, 3 << 20),
        }
    }

    /// Returns an offset in a file.
    fn file_offset(&mut self) -> usize {
        match self.random.below(10) {
            0..3 => self.random.below(20) * 4096,
            3..5 => self.random.below(80_000),
            5 => self.random.below(16) * 512,
            6 => self.random.below(20) * 4096 + self.random.pick(&[1, 511, 4095]),
            7 => self.random.below(if self.is_short { 400_000 } else { MAX_FILE }),
            8 => self.random.below(3),
            _ => 0,
        }
    }

    /// Returns an offset in a file, or rarely an invalid one.
    fn any_offset(&mut self) -> usize {
        if self.random.one_in(60) { NEGATIVE + 1 } else { self.file_offset() }
    }

    fn flags(&mut self) -> usize {
        let mut flags = self.random.pick(self.access);
        let mut set_sometimes = |flag, every| {
            if self.random.one_in(every) {
                flags |= flag;
            }
        };
        set_sometimes(libc::O_APPEND, 5);
        set_sometimes(libc::O_TRUNC, 8);
        set_sometimes(libc::O_EXCL, 12);
        set_sometimes(libc::O_SYNC, 25);
        set_sometimes(libc::O_DSYNC, 25);
        set_sometimes(libc::O_CLOEXEC, 3);
        set_sometimes(libc::O_NONBLOCK, 20);
        set_sometimes(libc::O_DIRECT, 40);
        set_sometimes(libc::O_NOFOLLOW, 20);
        set_sometimes(libc::O_PATH, 60);
        set_sometimes(libc::O_DIRECTORY, 80);
        if !self.random.one_in(6) {
            flags |= libc::O_CREAT;
        }
        usize::try_from(flags).expect("positive")
    }

    fn seed(&mut self) -> usize {
        self.random.below(1 << 30)
    }

    fn next(&mut self) -> Operation {
        let draw = self.random.below(self.kinds.last().map_or(1, |last| last.0));
        let kind = self.kinds[self.kinds.partition_point(|(sum, _)| *sum <= draw)].1;
        let slot = self.slot();
        let name = self.random.below(NAMES);
        let operands = match kind {
            Kind::Open => {
                let call = if self.random.one_in(12) { 2 } else { self.random.below(2) };
                vec![slot, name, call, self.flags()]
            }
            Kind::Reopen => {
                let flags = self.flags() & !usize::try_from(libc::O_NOFOLLOW).expect("positive");
                vec![slot, self.slot(), flags]
            }
            Kind::Close => vec![slot, self.random.below(6)],
            Kind::Duplicate => vec![self.random.below(8), slot, self.slot()],
            Kind::Put => {
                let call = if self.random.one_in(2) { self.random.below(2) } else { self.random.below(7) };
                let parts = self.random.between(1, 4);
                vec![call, slot, self.any_offset(), self.len(), parts, self.seed()]
            }
            Kind::Get => {
                let parts = self.random.between(1, 4);
                vec![self.random.below(4), slot, self.any_offset(), self.len(), parts]
            }
            Kind::Steady => {
                let (times, how) = (self.random.between(2, 12), self.random.below(6));
                let len = self.len().min(70_000);
                vec![slot, times, len, how, self.seed()]
            }
            Kind::Seek => {
                let whence = if self.random.one_in(20) { 5 } else { self.random.below(5) };
                let at = match (whence, self.random.below(4)) {
                    (1 | 2, 0..3) => NEGATIVE + self.random.below(5000),
                    (1 | 2, _) => self.random.below(5000),
                    _ => self.any_offset(),
                };
                vec![slot, whence, at]
            }
            Kind::Sync => {
                // Syncs of all files are slow, and other programs' files take part in them.
                let how = if self.random.one_in(40) { 11 } else { self.random.below(11) };
                vec![slot, how, self.file_offset(), self.len()]
            }
            Kind::Length => vec![self.random.below(4), slot, name, self.any_offset()],
            Kind::Reserve => {
                let keep = libc::FALLOC_FL_KEEP_SIZE;
                let mode = self.random.pick(&[
                    0,
                    keep,
                    keep | libc::FALLOC_FL_PUNCH_HOLE,
                    libc::FALLOC_FL_ZERO_RANGE,
                    libc::FALLOC_FL_COLLAPSE_RANGE,
                    libc::FALLOC_FL_INSERT_RANGE,
                ]);
                vec![slot, usize::try_from(mode).expect("positive"), self.any_offset(), self.len()]
            }
            Kind::Name => vec![self.random.below(8), name, self.random.below(NAMES)],
            Kind::Control => vec![slot, self.random.below(11), self.random.below(64)],
            Kind::Look => vec![name, self.random.below(3)],
            Kind::Pass => {
                let to = self.slot();
                vec![self.random.below(6), slot, to, self.any_offset(), self.any_offset(), self.len()]
            }
            Kind::Map => {
                let index = self.random.below(MAPS);
                vec![index, slot, self.random.below(5), self.file_offset(), self.random.between(1, 70_000)]
            }
            Kind::Mapped => {
                let index = self.random.below(MAPS);
                let at = self.random.below(70_000);
                vec![index, self.random.below(6), at, self.len().min(70_000), self.seed()]
            }
            _ => {
                let how = if self.random.one_in(2) { 0 } else { self.random.below(5) };
                vec![how, self.random.between(1, 25)]
            }
        };
        operation(kind, &operands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_text_round_trips() {
        for log_mode in [LogMode::Beside, LogMode::Only] {
            let program = generate(5, 2000, log_mode);
            assert_eq!(Program::parse(&program.to_string()), Ok(program));
        }
    }
}
