//! The mates of a run: processes started in the same mode as the run, and ended after it.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uncopy_tests::launch::{Mode, Program as Command};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::Scratch;

use crate::mate;

/// Other programs that a run's streams go to.
#[derive(Debug)]
pub struct Mates {
    /// Directory of the lanes' sockets (`UNCOPY_LANES_DIR`), common to all processes of the run.
    lanes_dir: PathBuf,
    /// Each mate, with the path of its control socket.
    running: Vec<(Running, PathBuf)>,
}

impl Mates {
    /// Starts `count` mates.
    ///
    /// # Panics
    /// If the binary or the library does not exist.
    #[must_use]
    pub fn start(machine: &Path, mode: Mode, count: usize, scratch: &Scratch) -> Self {
        let mut mates = Self { lanes_dir: scratch.join("room"), running: Vec::new() };
        if count > 0 {
            std::fs::DirBuilder::new().mode(0o700).create(&mates.lanes_dir).expect("a directory");
        }
        for number in 0..count {
            let path = scratch.join(&format!("mate{number}"));
            let command = mates
                .with_lanes_env(Command::new(machine))
                .args(["mate", "--listen"])
                .args([&path])
                .mode(mode);
            let running = command.start(scratch, &format!("mate-{number}"));
            let _ = running.wait_for_line("ready");
            mates.running.push((running, path));
        }
        mates
    }

    fn with_lanes_env(&self, command: Command) -> Command {
        command.env("UNCOPY_LANES", "all").env("UNCOPY_LANES_DIR", &self.lanes_dir)
    }

    /// Adds the mates to the command line of a run.
    #[must_use]
    pub fn add_to_command(&self, command: Command) -> Command {
        if self.running.is_empty() {
            return command;
        }
        self.running
            .iter()
            .fold(self.with_lanes_env(command), |command, (_, path)| command.args(["--mate"]).args([path]))
    }

    /// Returns the process of mate `number`.
    #[must_use]
    pub fn process(&self, number: usize) -> &Running {
        &self.running[number].0
    }

    /// Ends the mates and returns the failures of those that were not killed.
    #[must_use]
    pub fn end(self, limit: Duration) -> Option<String> {
        let mut failures = String::new();
        for (running, path) in self.running {
            mate::end(&path);
            match running.try_finish(limit) {
                Err(hang) => failures += &hang,
                Ok(done) => {
                    let is_killed =
                        std::os::unix::process::ExitStatusExt::signal(&done.status) == Some(libc::SIGKILL);
                    if !is_killed && (!done.status.success() || done.has_complaint()) {
                        failures += &format!("a mate: {}\n{}", done.status, done.errors);
                    }
                }
            }
        }
        (!failures.is_empty()).then_some(failures)
    }
}
