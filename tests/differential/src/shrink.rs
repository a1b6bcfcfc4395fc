//! Shrinks a failing program: delta debugging over its operations, then over their numbers.

use std::time::{Duration, Instant};

use uncopy_core::addr::PAGE_BYTES;

use crate::program::{NUMBERS, Operation, Program};
use crate::test_run::{ProgramSource, TestRun};

/// Result of shrinking a failing program.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// Smallest program that still failed.
    pub program: Program,
    /// Failure message of that program.
    pub failure: String,
    /// Number of programs tried.
    pub tried: usize,
}

struct Search<'a> {
    test_run: &'a TestRun,
    best: Shrunk,
    tries: usize,
    end: Instant,
}

/// Shrinks `program` for at most `time`; `None` if the failure does not reproduce.
#[must_use]
pub fn shrink(test_run: &TestRun, program: &Program, time: Duration) -> Option<Shrunk> {
    let quick = TestRun { limit: Duration::from_secs(30).min(test_run.limit), ..test_run.clone() };
    // With several threads or with signals, a failing program need not fail every time.
    let is_deterministic = program.workers() == 1 && program.alarm_us == 0;
    let tries = if is_deterministic { 1 } else { 4 };
    let best = Shrunk { program: program.clone(), failure: String::new(), tried: 0 };
    let mut search = Search { test_run: &quick, best, tries: tries + 4, end: Instant::now() + time };
    if !search.fails(program.clone()) {
        return None;
    }
    search.tries = tries;
    if program.alarm_us > 0 {
        search.fails(Program { alarm_us: 0, ..program.clone() });
    }
    search.workers();
    search.operations();
    search.numbers();
    search.operations();
    Some(search.best)
}

impl Search<'_> {
    /// Runs a program, and keeps it if it fails.
    fn fails(&mut self, mut program: Program) -> bool {
        for _ in 0..self.tries {
            if Instant::now() > self.end {
                return false;
            }
            self.best.tried += 1;
            let report = self.test_run.run(ProgramSource::Program(&program));
            let Some(failure) = report.failure else { continue };
            // Operations that no worker reached cannot matter.
            let last = report.reached.iter().flatten().max().copied();
            if let Some(last) = last {
                program.operations.truncate(last + 41);
            }
            self.best.failure = failure;
            self.best.program = program;
            return true;
        }
        false
    }

    /// Removes the operations of whole workers.
    fn workers(&mut self) {
        for worker in (0..self.best.program.workers()).rev() {
            let mut program = self.best.program.clone();
            program.operations.retain(|operation| operation.worker != worker);
            if program.operations.len() < self.best.program.operations.len() && !program.operations.is_empty()
            {
                self.fails(program);
            }
        }
    }

    /// Removes runs of operations, long ones first.
    fn operations(&mut self) {
        let mut run = self.best.program.operations.len().div_ceil(2);
        while run >= 1 {
            let mut at = 0;
            let mut removed = false;
            while at < self.best.program.operations.len() {
                let mut program = self.best.program.clone();
                let end = (at + run).min(program.operations.len());
                program.operations.drain(at..end);
                if !program.operations.is_empty() && self.fails(program) {
                    removed = true;
                } else {
                    at += run;
                }
                if Instant::now() > self.end {
                    return;
                }
            }
            if !removed || run > 1 {
                run /= 2;
            }
        }
    }

    /// Reduces the operations' numbers.
    fn numbers(&mut self) {
        let mut at = 0;
        while at < self.best.program.operations.len() {
            for index in 0..NUMBERS {
                let Operation { numbers, .. } = self.best.program.operations[at];
                let number = numbers[index];
                for smaller in [0, number / PAGE_BYTES * PAGE_BYTES, number / 2] {
                    if smaller < self.best.program.operations[at].numbers[index] {
                        let mut program = self.best.program.clone();
                        program.operations[at].numbers[index] = smaller;
                        if self.fails(program) {
                            break;
                        }
                    }
                    if Instant::now() > self.end || at >= self.best.program.operations.len() {
                        return;
                    }
                }
            }
            at += 1;
        }
    }
}
