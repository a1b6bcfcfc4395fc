//! Runs a scenario of one of the test programs in each mode and compares it with a plain run.

use uncopy_core::stats::Counter;

use crate::launch::{Mode, Program};
use crate::random::seed;
use crate::running::Finished;
use crate::scratch::Scratch;

/// A scenario of a test program.
#[derive(Clone, Debug)]
pub struct Scenario {
    program: String,
    name: String,
    seed: u64,
    signal: Option<i32>,
    is_compared: bool,
}

impl Scenario {
    /// Scenario `name` of `program`, with the seed `UNCOPY_TEST_SEED` or 1.
    #[must_use]
    pub fn new(program: &str, name: &str) -> Self {
        Self {
            program: program.to_owned(),
            name: name.to_owned(),
            seed: seed(1),
            signal: None,
            is_compared: true,
        }
    }

    /// Expects the program to be ended by this signal.
    #[must_use]
    pub const fn ended_by(mut self, signal: i32) -> Self {
        self.signal = Some(signal);
        self
    }

    /// Skips the plain run: the program checks itself and its output adds nothing.
    #[must_use]
    pub const fn not_compared(mut self) -> Self {
        self.is_compared = false;
        self
    }

    fn run(&self, mode: Mode) -> Finished {
        let scratch = Scratch::new(&self.name);
        let program = Program::new(&self.program).args([&self.name, &self.seed.to_string()]);
        let done = program.mode(mode).directory(scratch.path()).run(&scratch, &self.name);
        match self.signal {
            None => done.expect_success(),
            Some(signal) => done.expect_signal(signal),
        }
    }

    /// Runs the scenario only in modes where all large allocations are uncopy's and everything
    /// legal is elided, because the program's own allocator promises less.
    ///
    /// # Panics
    /// When the run fails, or a counter of `expected` is zero.
    pub fn in_forced_mode(&self, expected: &[Counter]) {
        drop(self.run(Mode::Always).expect_counters(expected));
    }

    /// Runs the scenario in every mode; `expected` must be above zero where everything legal is elided.
    ///
    /// # Panics
    /// When a run fails, or prints something other than the plain run.
    pub fn in_every_mode(&self, expected: &[Counter]) {
        let plain = self.is_compared.then(|| self.run(Mode::Plain));
        for mode in Mode::FOR_SCENARIOS {
            let mut done = self.run(mode);
            if let Some(plain) = &plain {
                let (found, plain_text) =
                    (String::from_utf8_lossy(&done.output), String::from_utf8_lossy(&plain.output));
                for (number, (found, plain_text)) in found.lines().zip(plain_text.lines()).enumerate() {
                    assert_eq!(
                        found,
                        plain_text,
                        "{} in mode {mode:?}: line {} (found, plain)",
                        self.name,
                        number + 1
                    );
                }
                assert_eq!(
                    found.len(),
                    plain_text.len(),
                    "{} in mode {mode:?} printed more or less",
                    self.name
                );
            }
            if self.signal.is_none() {
                done = done.expect_counters(expected);
            }
            drop(done);
        }
    }
}

/// Defines a test for each named scenario of a test program, with the counters that must not be
/// zero.
#[macro_export]
macro_rules! scenarios {
    ($program:literal: $($(#[$attribute:meta])* $name:ident => [$($counter:ident),*],)*) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() {
                let scenario = $crate::scenario::Scenario::new(env!(concat!("CARGO_BIN_EXE_", $program)), stringify!($name));
                scenario.in_every_mode(&[$(uncopy_core::stats::Counter::$counter),*]);
            }
        )*
    };
}
