//! A program that works each time a line arrives on its standard input: `foreign step_on_input`.

use std::fs::File;
use std::io::Write as _;

use uncopy_core::stats::Counter;

use crate::random::seed;
use crate::running::{Finished, Running};
use crate::{Mode, Program, Scratch};

/// A running program that waits for a line before each round.
pub struct SteppedProgram {
    /// The running program's process.
    pub running: Running,
    input: File,
    rounds: usize,
}

impl SteppedProgram {
    /// Starts `scenario` of the program at `path` and waits until it is ready.
    ///
    /// # Panics
    /// When the program does not get ready.
    #[must_use]
    pub fn start(scratch: &Scratch, path: &str, scenario: &str, mode: Mode) -> Self {
        let program = Program::new(path).args([scenario, &seed(1).to_string()]);
        Self::start_program(scratch, program.mode(mode), scenario)
    }

    /// Starts a program that prints `ready`, or executes one that does, and waits for that line.
    ///
    /// # Panics
    /// When the program does not get ready.
    #[must_use]
    pub fn start_program(scratch: &Scratch, program: Program, name: &str) -> Self {
        let input = scratch.join("input");
        let made = std::process::Command::new("/usr/bin/mkfifo").arg(&input).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo");
        // Opened for reading and writing, so that open(2) does not wait and the pipe always has a writer.
        let pipe = File::options().read(true).write(true).open(&input).expect("a named pipe");
        let running = program.input(&input).start(scratch, name);
        let _ = running.wait_for_line("ready");
        Self { running, input: pipe, rounds: 0 }
    }

    /// Lets the program check its memory and work on.
    ///
    /// # Panics
    /// When the program finds a wrong byte.
    pub fn step(&mut self) {
        self.input.write_all(b"go on\n").expect("told");
        let _ = self.running.wait_for_line(&format!("fine {}", self.rounds));
        self.rounds += 1;
    }

    /// Ends the program, which must succeed.
    ///
    /// # Panics
    /// When the program fails.
    #[must_use]
    pub fn finish_successfully(self) -> Finished {
        self.finish().expect_success()
    }

    /// Ends the program, whatever its status.
    ///
    /// # Panics
    /// When the program does not end in time.
    #[must_use]
    pub fn finish(mut self) -> Finished {
        self.input.write_all(b"end\n").expect("told");
        self.running.finish()
    }

    /// A counter of the running program.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.running.live_counters().map_or(0, |counters| counters.get(counter))
    }
}
