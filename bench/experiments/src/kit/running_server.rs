//! The interface of a measured server together with its clients.

use std::time::Duration;

use rustix::process::Pid;

use crate::kit::failure::Result;
use crate::kit::processes::cpu_time::process_cpu_ns;
use crate::kit::processes::process::Server;
use crate::kit::sample::Sample;
use crate::kit::traffic::LoadResult;

/// A server that answers, and its clients. Dropping it ends everything that it started.
pub trait RunningServer {
    /// Returns the process that was started for the server; its descendants are measured with it.
    fn server(&mut self) -> &mut Server;

    /// Returns processes beside the server that work for it alone: their time is added, and also reported separately.
    fn service_pids(&self) -> Vec<Pid> {
        Vec::new()
    }

    /// Returns the clients' processor time so far, ns: of this program's threads. `None` if clients are elsewhere.
    fn clients_cpu_ns(&self) -> Option<u64> {
        process_cpu_ns(rustix::process::getpid()).ok()
    }

    /// Warms up for a measurement of `duration`, and returns the number of bytes verified.
    ///
    /// # Errors
    /// The errors of [`RunningServer::load`].
    fn warm_up(&mut self, duration: Duration) -> Result<u64> {
        Ok(self.load(duration)?.verified_bytes)
    }

    /// Loads the server for `duration`, or for one exchange if that takes longer. All answered exchanges are counted,
    /// all of them correct; `verified_bytes` are the bytes compared with the expected ones.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] at the first wrong or missing answer.
    fn load(&mut self, duration: Duration) -> Result<LoadResult>;

    /// Reconnects clients that keep connections. Whether sender or receiver frees the pages of a socket's buffers is
    /// decided by chance early in a connection and stays so, which is worth 20 % of processor time.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the server does not accept them.
    fn reconnect(&mut self) -> Result<()>;

    /// Verifies after the measurement what the load could not, and returns the number of bytes compared.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] at the first wrong or missing byte.
    fn verify(&mut self) -> Result<u64> {
        Ok(0)
    }

    /// Returns notes for the reader about this run.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Adds to `end` the figures that the server itself reports once it has ended.
    fn add_final_figures(&mut self, _end: &mut Sample) {}

    /// Asks the server to end, and waits for its end.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the server had to be killed or did not end as it should.
    fn stop(&mut self) -> Result<()> {
        self.server().process().stop()
    }
}
