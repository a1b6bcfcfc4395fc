//! What is measured: a server that answers, and its clients.

use std::time::Duration;

use rustix::process::Pid;

use crate::kit::failure::Result;
use crate::kit::processes::process::Server;
use crate::kit::sample::Sample;
use crate::kit::traffic::Load;

/// A server that answers, and its clients. Dropping it ends whatever it started.
pub trait Running {
    /// The process that was started for the server; all that came of it is measured with it.
    fn server(&mut self) -> &mut Server;

    /// Processes that did not come of the server and work for it alone: their processor time is added to its own, and told apart.
    fn beside(&self) -> Vec<Pid> {
        Vec::new()
    }

    /// Does what must come before a measurement of `duration`: a warm-up. Returns how many bytes it verified.
    ///
    /// # Errors
    /// As [`Running::load`].
    fn prepare(&mut self, duration: Duration) -> Result<u64> {
        Ok(self.load(duration)?.verified_bytes)
    }

    /// Loads it for `duration`, or once if that takes longer. Every exchange that is counted was answered rightly, and
    /// every one that was answered is counted; `verified_bytes` are those that were compared with what they must be.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] at the first wrong or missing answer.
    fn load(&mut self, duration: Duration) -> Result<Load>;

    /// Connects the clients anew, where they keep connections: who frees the pages of a socket's buffers, sender or
    /// receiver, is decided by chance early in a connection and stays so, which is worth 20 % of processor time.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the server does not accept them.
    fn reconnect(&mut self) -> Result<()>;

    /// Verifies what the load could not, after the measurement: returns how many bytes were compared.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] at the first wrong or missing byte.
    fn verify(&mut self) -> Result<u64> {
        Ok(0)
    }

    /// What the reader must know about this one run.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Adds to `end` what the server itself tells once it has ended.
    fn complete(&mut self, _end: &mut Sample) {}

    /// Asks the server to end, and waits until it has.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when it had to be killed or ended otherwise than it should.
    fn stop(&mut self) -> Result<()> {
        self.server().process().stop()
    }
}
