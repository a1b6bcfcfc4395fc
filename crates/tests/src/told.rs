//! A program that does something each time that it is told to on its standard input: `foreign until_told`.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use uncopy_core::stats::Counter;

use crate::random::seed;
use crate::running::{Finished, Running};
use crate::{Mode, Program, Scratch};

/// The program, running.
pub struct Told {
    /// The process.
    pub running: Running,
    input: File,
    rounds: usize,
}

impl Told {
    /// Starts `scenario` of the program at `path` and waits until it is ready.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn start(scratch: &Scratch, path: &str, scenario: &str, mode: Mode) -> Self {
        let program = Program::new(path).args([scenario, &seed(1).to_string()]);
        Self::begin(scratch, program.mode(mode), scenario)
    }

    /// Starts a program that is one, or becomes one, and waits until it is ready.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn begin(scratch: &Scratch, program: Program, name: &str) -> Self {
        let input = scratch.join("input");
        let made = std::process::Command::new("/usr/bin/mkfifo").arg(&input).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo");
        // Opened for both, it neither waits for the other end nor is without one.
        let ours = File::options().read(true).write(true).open(&input).expect("a named pipe");
        let running = program.input(&input).start(scratch, name);
        let _ = running.wait_for_line("ready");
        Self { running, input: ours, rounds: 0 }
    }

    /// Lets it check its memory and work on.
    ///
    /// # Panics
    /// When it finds a wrong byte.
    pub fn go_on(&mut self) {
        self.input.write_all(b"go on\n").expect("told");
        let _ = self.running.wait_for_line(&format!("fine {}", self.rounds));
        self.rounds += 1;
    }

    /// Lets it end.
    ///
    /// # Panics
    /// When it does not end well.
    #[must_use]
    pub fn end(self) -> Finished {
        self.finish().expect_success()
    }

    /// Lets it end, with whatever status.
    ///
    /// # Panics
    /// When it does not end.
    #[must_use]
    pub fn finish(mut self) -> Finished {
        self.input.write_all(b"end\n").expect("told");
        self.running.finish(Duration::from_secs(30))
    }

    /// A counter of the running program.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.running.live_counters().map_or(0, |counters| counters.get(counter))
    }
}
