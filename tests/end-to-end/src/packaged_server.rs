//! Packaged servers, started in a mode.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use uncopy_core::stats::Counter;
use uncopy_testbed::Package;
use uncopy_testbed::servers::{Nginx, Service};

use crate::artifacts::installed;
use crate::launch::{Mode, Program};
use crate::running::{Finished, Running};
use crate::scratch::{Scratch, free_port, wait_for_listener, wait_until};

/// Returns a packaged program, in a mode.
///
/// # Panics
/// When the program is not installed.
#[must_use]
pub fn program(package: Package, mode: Mode) -> Program {
    Program::new(installed(package)).mode(mode)
}

/// A server that accepts connections.
#[derive(Debug)]
pub struct PackagedServer {
    /// Process of the server.
    pub running: Running,
    /// Port of the server on the loopback address.
    pub port: u16,
    stop: i32,
    crash_messages: &'static [&'static str],
}

impl PackagedServer {
    /// Starts `service` with its files in a directory `name` of `scratch`.
    ///
    /// # Panics
    /// When the server does not answer in time.
    #[must_use]
    pub fn start<S: Service>(service: &S, mode: Mode, scratch: &Scratch, name: &str) -> Self {
        Self::start_by(program(S::PROGRAM, mode), service, scratch, name, &scratch.directory(name))
    }

    /// Starts `service` by `program`, which is the server or executes it, with its files in `home`.
    ///
    /// # Panics
    /// As [`PackagedServer::start`].
    #[must_use]
    pub fn start_by<S: Service>(
        program: Program,
        service: &S,
        scratch: &Scratch,
        name: &str,
        home: &Path,
    ) -> Self {
        let port = free_port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let arguments = service.arguments(address, home).unwrap_or_else(|failure| panic!("{failure}"));
        let running = program.args(arguments).start(scratch, name);
        if !S::ALONE.is_zero() {
            wait_for_listener(port);
            std::thread::sleep(S::ALONE);
        }
        wait_until(&format!("{name} to answer"), || service.is_ready(address).then_some(()));
        Self { running, port, stop: S::STOP.as_raw(), crash_messages: S::CRASH_MESSAGES }
    }

    /// Starts an nginx with a master and two workers, and `locations` in its one server.
    ///
    /// # Panics
    /// As [`PackagedServer::start`].
    #[must_use]
    pub fn nginx(mode: Mode, scratch: &Scratch, name: &str, locations: &str) -> Self {
        let nginx =
            Nginx { workers: Some(2), http: "client_max_body_size 0;\n", listen: "", server: locations };
        Self::start(&nginx, mode, scratch, name)
    }

    /// Returns the address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the URL of `path` on the server.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Stops the server. No part may have died; `expected` must be above zero where elision is forced.
    ///
    /// # Panics
    /// When the server fails, a part has died, or a counter is zero.
    pub fn stop(self, expected: &[Counter]) -> Finished {
        let done = self.running.stop(self.stop).expect_success();
        assert!(!self.crash_messages.iter().any(|words| done.errors.contains(words)), "{}", done.text());
        done.expect_counters(expected)
    }
}
